"""How single records are shown and told apart: texts of numbers, labels of encoders, and what must agree before two rows are set side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from evalharness.errors import UsageError, unknown_name
from evalharness.keys import canonical
from evalharness.records import FIELDS, inside, own_params

Record = Mapping[str, Any]
COMPARED = ("task_version", "dataset", "dataset_fingerprint", "split", "selection", "seed", "protocols")
_SAME_CELL = ("evaluator", "metric", "params", "fit", "target", "shift", "severity", "codec", "statistic", "over")


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Hold one number as a table shows it."""

    value: float | None
    low: float | None
    high: float | None
    n: int | None
    status: str
    reason: str | None = None
    name: str | None = None  # of a worst group or domain
    rank: str | None = None  # the rank set, where it stands beside the value
    shown: str | None = None  # the text, where it is no score

    @property
    def text(self) -> str:
        """Return value and interval in one string; what was not measured says so."""
        if self.shown is not None:
            return self.shown
        if self.value is None:
            return {"not_applicable": "n/a"}.get(self.status, self.status.replace("_", " "))
        shown = number(self.value)
        if self.low is not None and self.high is not None:
            shown += f" [{number(self.low)}, {number(self.high)}]"
        elif self.low is not None:
            shown += f" (≥ {number(self.low)})"
        elif self.high is not None:
            shown += f" (≤ {number(self.high)})"
        status = "" if self.status == "measured" else f" {self.status.replace('_', ' ')}"
        return (f"{self.name}: " if self.name else "") + shown + status + (f" #{self.rank}" if self.rank else "")


def number(value: float) -> str:
    """Return a number as tables show it: three decimals, no leading zero, four significant digits above 10.

    >>> number(0.8123), number(-0.5), number(12.3456), number(1.0)
    ('.812', '-.500', '12.35', '1.000')
    """
    if abs(value) >= 10:
        return f"{value:.4g}"
    value = 0.0 if abs(value) < 0.0005 else value  # no sign before a zero
    return f"{value:.3f}".replace("0.", ".", 1) if abs(value) < 0.9995 else f"{value:.3f}"


def size_text(records: Sequence[Record]) -> str:
    """Return how many items stand behind records, and how many independent units where those are fewer; empty where neither is known.

    >>> size_text([{"n": 600, "n_units": 20, "scope": "classes"}, {"n": 0, "n_units": 0, "scope": None}])
    'n = 600 episodes, 20 classes'
    """
    known = [record for record in records if record["n"]]
    if not known:
        return ""
    text = f"n = {_listed(record['n'] for record in known)}"
    units = [record for record in known if record["n_units"] and record["n_units"] < record["n"]]
    if not units:
        return text
    what = units[0]["scope"] if units[0]["scope"] in ("classes", "superclasses") else "clusters"
    episodic = what != "clusters"
    return f"{text}{' episodes' if episodic else ''}, {_listed(record['n_units'] for record in units)} {what}"


def _listed(sizes: Iterable[int]) -> str:
    return "/".join(map(str, sorted(set(sizes))))


def p_text(value: float) -> str:
    """Return a p value as tables show it.

    >>> p_text(0.0001), p_text(0.0321), p_text(1.0)
    ('<.001', '.032', '1')
    """
    return "<.001" if value < 0.001 else "1" if value >= 0.9995 else f"{value:.3f}".removeprefix("0")


def label_of(record: Record) -> str:
    """Return how tables name an encoder, its layer with it."""
    return record["encoder"] + (f"@{record['layer']}" if record["layer"] else "")


def matches(record: Record, where: Mapping[str, str]) -> bool:
    """Say whether a record's fields have these texts; numbers match by value, and ``none`` matches what is not set.

    >>> matches({"severity": 3.0, "group": None}, {"severity": "3", "group": "none"})
    True
    """
    return all(_matches(value_of_field(record, name), text) for name, text in where.items())


def value_of_field(record: Record, name: str) -> Any:
    """Return what a record has under a name that ``--where`` may give: a field, the variant, or a parameter of its evaluator."""
    if name == "variant":
        return variant_of(record)
    return record.get(name) if name in FIELDS else own_params(record).get(name)


def where_text(where: Mapping[str, str]) -> str:
    """Return what ``--where`` named, in words.

    >>> where_text({"codec": "int8", "fit": "all"})
    'codec=int8, fit=all'
    """
    return ", ".join(f"{name}={text}" for name, text in where.items())


def check_where(where: Mapping[str, str], records: Sequence[Record]) -> None:
    """Refuse a name that is no field of a record, nor a parameter of an evaluator.

    Raises:
        UsageError: the message offers near matches.
    """
    for name in where:
        if name not in WHERE_FIELDS and not any(name in own_params(record) for record in records):
            known = {*WHERE_FIELDS, *(each for record in records for each in own_params(record))}
            raise UsageError(f"`where`: {unknown_name('field', name, known)}")


def why_none(records: Sequence[Record], where: Mapping[str, str]) -> str:
    """Return why no cell like a main one is among records: a value that none has, or where what was asked for stands."""
    for name, text in where.items():
        values = sorted({str(value_of_field(record, name)) for record in records} - {"None"})
        if not any(matches(record, {name: text}) for record in records):
            return unknown_name(name, text, values)
    found = sorted({str(record["evaluator"]) for record in records if matches(record, where)})
    elsewhere = f"; `{'`, `'.join(found)}` has such a one: add `--where evaluator={found[0]}`" if found and "evaluator" not in where else ""
    return f"none with {where_text(where)} is like the main cell in all else{elsewhere}"


def variant_of(record: Record) -> str | None:
    """Return the variant of an evaluator that a record is about, None where it has one only."""
    return (record["params"] or {}).get("variant") or None


def _matches(value: Any, text: str) -> bool:
    if (
        str(value) == text
        or (value is None and text.lower() in ("none", "null"))
        or (isinstance(value, bool) and str(value).lower() == text)
    ):
        return True
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        above, _, below = text.partition("/")
        try:
            number_given = float(above) / float(below) if below else float(above)
        except (ValueError, ZeroDivisionError):
            return False
        return abs(number_given - value) <= 1e-9 * max(1.0, abs(value))
    return False


WHERE_FIELDS = (*FIELDS, "variant")  # what ``--where`` may name
CELL_AXES = ("evaluator", "metric", "variant", "fit", "target", "shift", "severity", "codec", "selection", "statistic", "over", "group")


_STRICT = ("suite", "task", "encoder", "layer", "prompt", "target", "codec", "group", "metric")
_PREFERRED = ("evaluator", "params", "fit", "shift", "severity", "selection", "statistic", "over")
_FOLLOWS = {
    "evaluator": {"params", "fit", "metric"},
    "target": {"metric"},
    "variant": {"params"},
    "shift": {"severity", "selection"},
    "fit": {"selection"},
    "selection": set(),
}
_SINGLE = (("value", ""), ("value", "attack"), ("mean", "draw"))


def is_single(record: Record) -> bool:
    """Say whether a record is a value of one cell, or what stands for one: the least of several attacks, the mean over draws."""
    return (record["statistic"], str(record["over"] or "").partition(":")[0]) in _SINGLE


def counterparts(records: Sequence[Record], where: Mapping[str, str]) -> list[Record]:
    """Return the main records, or with ``where`` the nearest to each main one that matches: axes not named, and not following from those, are the same."""
    mains = [record for record in records if record["main"]]
    if not where:
        return mains
    loose = set(where).union(*(_FOLLOWS.get(name, set() if name in FIELDS else {"params"}) for name in where))
    found: list[Record] = []
    for main in mains:
        strict = [name for name in (*_STRICT, *_PREFERRED[:-2]) if name not in loose]
        nearest = [record for record in records if all(record[name] == main[name] for name in strict) and matches(record, where)]
        if "variant" in where and "evaluator" not in where:
            nearest = [record for record in nearest if record["evaluator"] == main["evaluator"] and own_params(record) == own_params(main)]
        if not {"statistic", "over"} & set(where):
            nearest = [record for record in nearest if is_single(record)]
        # Of equally near ones the first: an evaluator's main variant, its main metric, the first draw.
        found += sorted(nearest, key=partial(_distance, main))[:1]
    return list({id(record): record for record in found}.values())


_NEAR = ("metric", "fit", "statistic", "over", "selection")


def _distance(main: Record, record: Record) -> tuple[Any, ...]:
    """Order records by how far they are from a main one: no control before a control, the same parameters and axes before others, then by parameters, the same for all encoders."""
    own = own_params(record)
    base = own_params(main) if record["evaluator"] == main["evaluator"] else own
    apart = sum(own.get(name) != base.get(name) for name in {*own, *base})
    return own.get("control", "none") != "none", apart, [record[name] != main[name] for name in _NEAR], canonical(own)


def version_of(record: Record) -> str:
    """Return what must agree for rows of one task to stand in one column, or to be compared."""
    return canonical([field_of(record, name) for name in (*COMPARED, *_SAME_CELL)])


def field_of(record: Record, name: str) -> Any:
    """Return one of the fields that must agree; of the protocols all but the encoder's."""
    if name == "protocols":
        return {key: value for key, value in (record["protocols"] or {}).items() if key != "encoder"}
    return record[name]


def domain_of(record: Record) -> str:
    """Return the name of a record's domain: what its rows were selected by, or the shift."""
    return inside(record["selection"]).rpartition("=")[2] or str(record["shift"])


def score_of(record: Record) -> Score:
    """Return a record's number as a table shows it."""
    return Score(
        value=record["value"], low=record["low"], high=record["high"], n=record["n"], status=record["status"], reason=record["reason"]
    )


def budget_text(value: float | None) -> str:
    """Return a severity or budget as it is usually written.

    >>> budget_text(8 / 255), budget_text(0.5)
    ('8/255', '0.5')
    """
    if value is None:
        return ""
    steps = value * 255
    return f"{round(steps)}/255" if value < 0.5 and abs(steps - round(steps)) < 1e-6 and round(steps) else f"{value:.3g}"
