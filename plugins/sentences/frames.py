"""Frames, what a sentence says, and their wording; every choice is a hash of seed, split, row and purpose."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .vocabulary import ENTITIES, NUMBERS, POLARITIES, REGISTERS, TEMPLATES, TIMES, TOPICS

if TYPE_CHECKING:
    from collections.abc import Sequence

HELD_OUT = 3  # every third event of a topic is kept from train and validation
NUM_FORMS = 4  # templates of a register and polarity; the last is kept from train and validation


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Hold what a sentence says (topic, event, entity, number, time, polarity), in which register and by which of its templates."""

    topic: str
    event: int
    entity: str
    number: str
    time: str
    polarity: str
    register: str
    form: int

    @property
    def is_held_out(self) -> bool:
        """Return whether event or template never occurs in a training split."""
        return self.event % HELD_OUT == HELD_OUT - 1 or self.form == NUM_FORMS - 1


@dataclass(frozen=True, slots=True)
class Draws:
    """Draw from a key that names the item; equal keys and purposes give equal draws."""

    key: str

    def pick(self, purpose: str, options: Sequence[str] | range) -> str | int:
        """Pick one of the options."""
        word = hashlib.blake2b(f"{self.key}/{purpose}".encode(), digest_size=8).digest()
        return options[int.from_bytes(word, "little") % len(options)]

    def other(self, purpose: str, options: Sequence[str], taken: str) -> str:
        """Pick one of the options that differs from the one taken."""
        return str(self.pick(purpose, [option for option in options if option != taken]))


def draw_frame(draws: Draws, *, is_test: bool) -> Frame:
    """Draw a frame, all its factors independently."""
    topic = str(draws.pick("topic", tuple(TOPICS)))
    events = [event for event in range(len(TOPICS[topic])) if is_test or event % HELD_OUT != HELD_OUT - 1]
    return Frame(
        topic=topic,
        event=events[int(draws.pick("event", range(len(events))))],
        entity=str(draws.pick("entity", ENTITIES)),
        number=str(draws.pick("number", tuple(NUMBERS))),
        time=str(draws.pick("time", TIMES)),
        polarity=str(draws.pick("polarity", POLARITIES)),
        register=str(draws.pick("register", REGISTERS)),
        form=_draw_form(draws, is_test=is_test),
    )


def _draw_form(draws: Draws, *, is_test: bool) -> int:
    return int(draws.pick("form", range(NUM_FORMS if is_test else NUM_FORMS - 1)))


def word_frame(frame: Frame, draws: Draws) -> str:
    """Put a frame into words: synonyms, and digits or number words, are drawn."""
    verbs, objects = TOPICS[frame.topic][frame.event]
    base, past = str(draws.pick("verb", verbs)).split("/")
    numerals = (frame.number, NUMBERS[frame.number])
    return TEMPLATES[frame.register, frame.polarity][frame.form].format(
        entity=frame.entity,
        base=base,
        past=past,
        objects=draws.pick("objects", objects),
        number=draws.pick("numeral", numerals),
        time=frame.time,
        Time=frame.time[0].upper() + frame.time[1:],
    )


def change_frame(frame: Frame, kind: str, draws: Draws, *, is_test: bool) -> tuple[Frame, float]:
    """Return the frame of the right side of a pair and the gold similarity, 0 to 5.

    A paraphrase scores 5, or 4.5 if its register differs too; a swapped number 3.5, a swapped entity 3, a negation 2; something else of the same topic 1, of another topic 0.
    """
    right = Draws(f"{draws.key}/right")
    register = str(right.pick("register", REGISTERS))
    frame = replace(frame, form=_draw_form(right, is_test=is_test))
    if kind == "paraphrase":
        return replace(frame, register=register), 5.0 if register == frame.register else 4.5
    if kind == "number-swap":
        return replace(frame, number=right.other("number", tuple(NUMBERS), frame.number)), 3.5
    if kind == "entity-swap":
        return replace(frame, entity=right.other("entity", ENTITIES, frame.entity)), 3.0
    if kind == "negation":
        return replace(frame, polarity=right.other("polarity", POLARITIES, frame.polarity)), 2.0
    return _draw_unrelated(frame, right, is_test=is_test)


def _draw_unrelated(frame: Frame, draws: Draws, *, is_test: bool) -> tuple[Frame, float]:
    drawn = draw_frame(draws, is_test=is_test)
    if drawn.topic == frame.topic and drawn.event == frame.event:
        # The next event that this split may show, so that the sides never speak of the same thing.
        step = 1 if is_test or (frame.event + 1) % HELD_OUT != HELD_OUT - 1 else 2
        drawn = replace(drawn, event=(frame.event + step) % len(TOPICS[frame.topic]))
    return drawn, 1.0 if drawn.topic == frame.topic else 0.0
