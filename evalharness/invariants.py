"""What must hold of and between records, whatever the items were."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

from evalharness.shown import Record

EPSILON = 1e-9
CELL = (
    "suite", "task", "encoder", "layer", "fit", "target", "shift", "severity", "codec", "selection", "evaluator", "dataset_fingerprint", "task_version", "seed",
)  # fmt: skip
GROWS_WITH_K = re.compile(r"(?P<name>recall|success|hit_rate|top)_?(?:at_)?(?P<k>\d+)(?P<rest>.*)")
Broken = tuple[str, int, str]  # check, place of the record, what is wrong


def broken_invariants(records: Sequence[Record]) -> Iterator[Broken]:
    """Yield the check, the place of the record among those given, and what is wrong with it."""
    for at, record in enumerate(records):
        yield from ((check, at, message) for check, message in _of_one(record))
    cells: dict[Any, list[int]] = {}
    for at, record in enumerate(records):
        cells.setdefault((*(str(record[name]) for name in CELL), str(record["params"])), []).append(at)
    for places in cells.values():
        yield from _grows_with_k(records, places)
        yield from _worst_is_worst(records, places)
    yield from _one_main(records)
    yield from _attacked_is_no_better(records)


def _of_one(record: Record) -> Iterator[tuple[str, str]]:
    low, high, value = record["low"], record["high"], record["value"]
    if low is not None and high is not None and low > high + EPSILON:
        yield "ranges", f"the interval [{low:g}, {high:g}] is upside down"
    if record["level"] is not None and not 0 < record["level"] < 1:
        yield "ranges", f"level {record['level']:g}"
    if record["p"] is not None and not 0 < record["p"] <= 1:
        yield "ranges", f"p {record['p']:g}"
    if record["n"] is not None and record["n"] < 0:
        yield "ranges", f"n {record['n']}"
    if record["statistic"] in ("gap", "spread") and value is not None and value < -EPSILON:
        yield "ranges", f"{record['statistic']} {value:g}"
    if record["status"] == "measured" and value is None:
        yield "ranges", "measured, and no value"
    if record["status"] in ("failed", "not_applicable") and not record["reason"]:
        yield "ranges", f"{record['status'].replace('_', ' ')}, and no reason"


def out_of_range(record: Record, low: float, high: float) -> bool:
    """Say whether a value lies outside its metric's range."""
    return record["value"] is not None and not low - 1e-6 <= record["value"] <= high + 1e-6


def _grows_with_k(records: Sequence[Record], places: Sequence[int]) -> Iterator[Broken]:
    """A recall at a larger k is no smaller."""
    series: dict[Any, list[tuple[int, int]]] = {}
    for at in places:
        record = records[at]
        found = GROWS_WITH_K.fullmatch(record["metric"])
        if record["statistic"] == "value" and found and record["value"] is not None:
            series.setdefault((found["name"], found["rest"], record["group"], record["over"]), []).append((int(found["k"]), at))
        elif record["statistic"] == "value" and record["metric"] == "accuracy" and record["value"] is not None:
            series.setdefault(("top", "_accuracy", record["group"], record["over"]), []).append((1, at))
    for held in series.values():
        ordered = sorted(held)
        for (small, one), (large, other) in itertools.pairwise(ordered):
            if small < large and records[other]["value"] < records[one]["value"] - EPSILON:
                yield "invariants", other, f"smaller than at {small}"


def _worst_is_worst(records: Sequence[Record], places: Sequence[int]) -> Iterator[Broken]:
    for at in places:
        worst = records[at]
        name = str(worst["over"] or "").partition("group:")[2]
        if worst["statistic"] != "worst" or not name or worst["value"] is None:
            continue
        sign = -1 if worst["higher_is_better"] is False else 1
        for other in (records[place] for place in places):
            same = other["metric"] == worst["metric"] and other["statistic"] == "value" and other["status"] == "measured"
            if same and str(other["group"]).startswith(f"{name}=") and sign * other["value"] < sign * worst["value"] - EPSILON:
                yield "invariants", at, f"`{other['group']}` is worse"


def _one_main(records: Sequence[Record]) -> Iterator[Broken]:
    """An encoder has one main record a task, seed, version and selection."""
    seen: dict[Any, int] = {}
    names = (
        "suite",
        "task",
        "task_version",
        "encoder",
        "layer",
        "dataset_fingerprint",
        "split",
        "selection",
        "seed",
        "prompt",
        "encoder_identity",
    )
    for at, record in enumerate(records):
        if record["main"]:
            key = (*(str(record[name]) for name in names), str(record["protocols"]))
            if key in seen and records[seen[key]]["unit"] == record["unit"]:
                yield "invariants", at, "a second main record"
            seen[key] = at


def _attacked_is_no_better(records: Sequence[Record]) -> Iterator[Broken]:
    """The least over several attacks is no better than without any."""
    axes = [name for name in CELL if name not in ("shift", "severity")]
    clean = {
        (*(str(record[name]) for name in axes), str(record["params"]), record["metric"]): record["value"]
        for record in records
        if record["shift"] == "clean" and record["statistic"] == "value" and record["group"] is None and record["over"] is None
    }
    for at, record in enumerate(records):
        if record["shift"] == "robust" and record["statistic"] == "value" and record["value"] is not None:
            value = clean.get((*(str(record[name]) for name in axes), str(record["params"]), record["metric"]))
            if value is not None and record["value"] > value + EPSILON:
                yield "invariants", at, f"larger than without an attack, {value:g}"
