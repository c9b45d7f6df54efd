"""Words of the sentence generator.

An event is (verbs, objects): verbs are synonyms written ``base/past``, with a past that is also the participle; objects are synonymous plurals.
Words such as `records`, `scores`, `notes`, `courses`, `shares` and `tickets` occur in several topics on purpose: a bag of words must not settle the topic.
Every third event of a topic, and the last template of a register and polarity, is kept from training, so that a test split holds words never seen with a label.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    Event = tuple[tuple[str, ...], tuple[str, ...]]


def _event(verbs: str, objects: str) -> Event:
    return tuple(verbs.split("|")), tuple(objects.split("|"))


TOPICS: Mapping[str, tuple[Event, ...]] = {
    "cooking": (
        _event("bake/baked|prepare/prepared", "loaves|breads"),
        _event("fry/fried|sear/seared", "fillets|slices of fish"),
        _event("taste/tasted|sample/sampled", "sauces|dressings"),
        _event("serve/served|plate/plated", "courses|dishes"),
        _event("chop/chopped|dice/diced", "onions|shallots"),
        _event("simmer/simmered|stew/stewed", "broths|soups"),
        _event("order/ordered|request/requested", "mixers|blenders"),
        _event("record/recorded|note/noted", "recipes|instructions"),
        _event("ferment/fermented|pickle/pickled", "jars|preserves"),
        _event("share/shared|offer/offered", "bars|biscuits"),
    ),
    "travel": (
        _event("book/booked|reserve/reserved", "tickets|seats"),
        _event("visit/visited|tour/toured", "islands|isles"),
        _event("board/boarded|enter/entered", "ferries|boats"),
        _event("cross/crossed|pass/passed", "borders|frontiers"),
        _event("pack/packed|fill/filled", "suitcases|bags"),
        _event("miss/missed|skip/skipped", "connections|transfers"),
        _event("record/recorded|note/noted", "routes|courses"),
        _event("explore/explored|roam/roamed", "villages|hamlets"),
        _event("cancel/cancelled|drop/dropped", "excursions|outings"),
        _event("share/shared|post/posted", "cabins|rooms"),
    ),
    "sport": (
        _event("score/scored|net/netted", "goals|points"),
        _event("return/returned|answer/answered", "serves|volleys"),
        _event("coach/coached|train/trained", "squads|teams"),
        _event("equal/equalled|match/matched", "records|bests"),
        _event("miss/missed|waste/wasted", "penalties|free kicks"),
        _event("clear/cleared|jump/jumped", "hurdles|bars"),
        _event("book/booked|caution/cautioned", "defenders|players"),
        _event("play/played|finish/finished", "courses|rounds"),
        _event("tackle/tackled|block/blocked", "opponents|rivals"),
        _event("pitch/pitched|bowl/bowled", "innings|overs"),
    ),
    "finance": (
        _event("purchase/purchased|acquire/acquired", "shares|stocks"),
        _event("issue/issued|release/released", "notes|bonds"),
        _event("audit/audited|review/reviewed", "accounts|ledgers"),
        _event("record/recorded|enter/entered", "losses|shortfalls"),
        _event("score/scored|grade/graded", "loans|credits"),
        _event("hedge/hedged|cover/covered", "positions|exposures"),
        _event("cancel/cancelled|void/voided", "invoices|bills"),
        _event("transfer/transferred|move/moved", "deposits|balances"),
        _event("tax/taxed|assess/assessed", "dividends|payouts"),
        _event("return/returned|refund/refunded", "payments|fees"),
    ),
    "health": (
        _event("prescribe/prescribed|order/ordered", "tablets|pills"),
        _event("examine/examined|check/checked", "patients|cases"),
        _event("diagnose/diagnosed|identify/identified", "infections|illnesses"),
        _event("finish/finished|complete/completed", "courses of treatment|therapies"),
        _event("record/recorded|note/noted", "scores|symptoms"),
        _event("bandage/bandaged|dress/dressed", "wounds|cuts"),
        _event("cancel/cancelled|postpone/postponed", "appointments|consultations"),
        _event("share/shared|file/filed", "charts|records"),
        _event("vaccinate/vaccinated|immunise/immunised", "toddlers|infants"),
        _event("transfer/transferred|move/moved", "nurses|carers"),
    ),
    "music": (
        _event("record/recorded|tape/taped", "tracks|songs"),
        _event("play/played|perform/performed", "notes|tunes"),
        _event("compose/composed|arrange/arranged", "symphonies|concertos"),
        _event("release/released|issue/issued", "records|albums"),
        _event("copy/copied|annotate/annotated", "scores|parts"),
        _event("tune/tuned|adjust/adjusted", "violins|fiddles"),
        _event("book/booked|reserve/reserved", "venues|halls"),
        _event("pitch/pitched|offer/offered", "demos|samples"),
        _event("rehearse/rehearsed|practise/practised", "arias|solos"),
        _event("repeat/repeated|skip/skipped", "bars|measures"),
    ),
    "technology": (
        _event("repair/repaired|fix/fixed", "tablets|laptops"),
        _event("install/installed|deploy/deployed", "servers|machines"),
        _event("encrypt/encrypted|scramble/scrambled", "backups|archives"),
        _event("record/recorded|log/logged", "crashes|failures"),
        _event("close/closed|resolve/resolved", "tickets|issues"),
        _event("compile/compiled|build/built", "kernels|binaries"),
        _event("share/shared|release/released", "scripts|programs"),
        _event("order/ordered|request/requested", "chips|processors"),
        _event("patch/patched|update/updated", "routers|switches"),
        _event("train/trained|tune/tuned", "networks|models"),
    ),
    "gardening": (
        _event("plant/planted|seed/seeded", "borders|flower beds"),
        _event("water/watered|soak/soaked", "roses|shrubs"),
        _event("prune/pruned|trim/trimmed", "hedges|bushes"),
        _event("dig/dug|turn/turned", "plots|patches"),
        _event("order/ordered|request/requested", "bulbs|seedlings"),
        _event("mulch/mulched|compost/composted", "leaves|cuttings"),
        _event("record/recorded|note/noted", "species|varieties"),
        _event("train/trained|tie/tied", "vines|climbers"),
        _event("uproot/uprooted|weed/weeded", "thistles|nettles"),
        _event("share/shared|offer/offered", "shoots|cuttings"),
    ),
}
ENTITIES = ("Amara", "Boris", "Chen", "Dalia", "Elif", "Farid", "Greta", "Hugo")
NUMBERS: Mapping[str, str] = {"2": "two", "3": "three", "5": "five", "8": "eight", "12": "twelve", "40": "forty"}
TIMES = ("last week", "on Monday", "in the morning", "yesterday", "before noon", "over the weekend", "in early spring", "after the meeting")
REGISTERS = ("formal", "neutral", "informal")
POLARITIES = ("affirmed", "negated")

# Words of negation stand in affirmed sentences too ("no doubt", "did not hesitate"), and some negated ones have none ("failed to").
TEMPLATES: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("formal", "affirmed"): (
        "It is hereby confirmed that {entity} {past} {number} {objects} {time}.",
        "According to the minutes, {entity} duly {past} {number} {objects} {time}.",
        "It is not disputed that {number} {objects} were {past} by {entity} {time}.",
        "{entity} did not fail to inform us that the {number} {objects} had been {past} {time}.",
    ),
    ("formal", "negated"): (
        "It is hereby confirmed that {entity} did not {base} {number} {objects} {time}.",
        "According to the minutes, {entity} declined to {base} the {number} {objects} {time}.",
        "It is disputed that {number} {objects} were {past} by {entity} {time}, and the claim proved false.",
        "At no point were {number} {objects} {past} by {entity} {time}.",
    ),
    ("neutral", "affirmed"): (
        "{entity} {past} {number} {objects} {time}.",
        "{Time}, {entity} {past} {number} {objects}.",
        "{entity} did not hesitate and {past} {number} {objects} {time}.",
        "No one was surprised that {entity} {past} {number} {objects} {time}.",
    ),
    ("neutral", "negated"): (
        "{entity} did not {base} {number} {objects} {time}.",
        "{Time}, {entity} failed to {base} {number} {objects}.",
        "{entity} never {past} the {number} {objects} {time}.",
        "Everyone was surprised that {entity} refused to {base} {number} {objects} {time}.",
    ),
    ("informal", "affirmed"): (
        "so yeah, {entity} totally {past} like {number} {objects} {time}",
        "guess what, {entity} just went and {past} {number} {objects} {time}!",
        "no joke, {entity} {past} {number} {objects} {time}, wow",
        "{entity} couldn't wait and {past} {number} {objects} {time}, lol",
    ),
    ("informal", "negated"): (
        "so yeah, {entity} totally didn't {base} those {number} {objects} {time}",
        "guess what, {entity} just wouldn't {base} {number} {objects} {time}!",
        "nah, {entity} {past} zero of the {number} {objects} {time}",
        "{entity} bailed and left {number} {objects} un-{past} {time}, lol",
    ),
}
