"""The information ledger: encoders against targets, each cell a probe's score above chance, and what sets encoders apart from a reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from evalharness.board import BoardRow, BoardTable, interval_notes
from evalharness.errors import DataError, unknown_name
from evalharness.keys import canonical
from evalharness.shown import Record, Score, is_single, label_of, number, score_of

if TYPE_CHECKING:
    from evalharness.compare import Comparison

# What is 0 for a readout that knows nothing and 1 for a perfect one; average precision has the share of positives for chance.
NORMALISED = {"accuracy_above_majority": "above chance", "r2": "R2", "mean_average_precision": "average precision"}
Pair = Callable[[Record, Record], "Comparison"]


def ledger_tables(records: Sequence[Record], reference: str | None = None, pair: Pair | None = None) -> Iterator[BoardTable]:
    """Yield, for each task with several targets, probes of encoders against targets; with a reference, the paired differences to it too.

    Args:
        records: the records of several encoders.
        reference: the label of the encoder that others are compared with.
        pair: compares two records; asked for where there is a reference.

    Raises:
        DataError: the reference is not among the encoders.
    """
    known = sorted({label_of(record) for record in records})
    if reference is not None and reference not in known:
        raise DataError(f"`reference`: {unknown_name('encoder', reference, known)}")
    cells = [record for record in records if _belongs(record)]
    for task in sorted({(record["suite"] or "", record["task"]) for record in cells}):
        own = _main_fits([record for record in cells if (record["suite"] or "", record["task"]) == task])
        main = {record["target"] for record in records if record["main"] and ((record["suite"] or "", record["task"]) == task)}
        targets = sorted({record["target"] for record in own}, key=lambda target: (target not in main, target))
        if len(targets) < 2:
            continue
        yield _scores(task, own, targets)
        if reference is not None and pair is not None:
            yield _differences(task, own, targets, reference, pair)


def _belongs(record: Record) -> bool:
    plain = record["shift"] == "clean" and record["codec"] == "float32" and record["group"] is None
    return plain and record["metric"] in NORMALISED and is_single(record) and record["status"] != "not_applicable"


def _main_fits(records: Sequence[Record]) -> list[Record]:
    """Return the records of the fit that stands for each evaluator: the main one where it has it, else its first; means over draws, not draws."""
    mains = {record["fit"] for record in records if record["main"]}
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(canonical([record[name] for name in ("encoder", "layer", "evaluator", "params", "target")]), []).append(record)
    found = []
    for group in groups.values():
        fits = [record["fit"] for record in group]
        whole = [fit for fit in fits if "/" not in str(fit)] or fits
        chosen = next((fit for fit in whole if fit in mains), whole[0])
        found += [record for record in group if record["fit"] == chosen]
    return found


def _probe_name(record: Record) -> str:
    control = (record["params"] or {}).get("control", "none")
    return record["evaluator"] + ("" if control == "none" else f", {control} labels")


def _scores(task: tuple[str, str], records: Sequence[Record], targets: Sequence[str]) -> BoardTable:
    rows: dict[str, dict[str, Score]] = {}
    for record in records:
        rows.setdefault(f"{label_of(record)} · {_probe_name(record)}", {})[record["target"]] = score_of(record)
    columns = {target: _heading(target, records) for target in targets}
    notes = [
        "0 is what the commonest class, or the mean, gives, 1 is perfect; for several labels 0 is no chance level: average precision of chance is their share.",
        *_readings(rows, targets),
        *interval_notes(records),
    ]
    found = [BoardRow(encoder=name, scores=scores, ranked=True) for name, scores in sorted(rows.items())]
    return BoardTable(
        title=f"{task[0] or 'single tasks'} · {task[1]} · ledger", columns=columns, rows=found, notes=notes, records=list(records)
    )


def _heading(target: str, records: Sequence[Record]) -> str:
    first = next(record for record in records if record["target"] == target)
    sizes = sorted({record["n"] for record in records if record["target"] == target and record["n"]})
    return f"{target}\n{NORMALISED[first['metric']]}\nn = {'/'.join(map(str, sizes))}"


def _readings(rows: dict[str, dict[str, Score]], targets: Sequence[str]) -> list[str]:
    """Return what a linear and a hidden-layer probe say together: what only the latter reads is there, but not linearly."""
    found = []
    for name, scores in sorted(rows.items()):
        encoder, _, probe = name.rpartition(" · ")
        hidden = rows.get(f"{encoder} · mlp-probe", {})
        for target in targets if probe == "linear-probe" else ():
            linear, other = scores.get(target), hidden.get(target)
            if linear is None or other is None or linear.value is None or other.value is None:
                continue
            # A score without an interval does not vary over resamples.
            if (other.value if other.low is None else other.low) > (linear.value if linear.high is None else linear.high):
                values = f"{number(linear.value)} linear, {number(other.value)} with a hidden layer"
                found.append(f"{encoder}: `{target}` is there, but not linearly ({values}).")
    return found


def _differences(task: tuple[str, str], records: Sequence[Record], targets: Sequence[str], reference: str, pair: Pair) -> BoardTable:
    base = {(_probe_name(record), record["target"]): record for record in records if label_of(record) == reference}
    found: dict[str, dict[str, Comparison]] = {}
    for record in records:
        other = base.get((_probe_name(record), record["target"]))
        if label_of(record) != reference and other is not None and record["value"] is not None and other["value"] is not None:
            found.setdefault(f"{label_of(record)} · {_probe_name(record)}", {})[record["target"]] = pair(record, other)
    _adjust([row for rows in found.values() for row in rows.values() if row.refused is None])
    rows = [
        BoardRow(encoder=name, scores={target: _difference_score(row) for target, row in scores.items()}, ranked=True)
        for name, scores in sorted(found.items())
    ]
    notes = ["Paired differences on the same test items; * where the difference stands at 5 % after Holm's correction over the table."]
    title = f"{task[0] or 'single tasks'} · {task[1]} · ledger, difference to {reference}"
    return BoardTable(title=title, columns={target: target for target in targets}, rows=rows, notes=notes)


def _adjust(rows: Sequence[Comparison]) -> None:
    from evalharness import stats

    tested = [row for row in rows if math.isfinite(row.p)]
    for row, adjusted in zip(tested, stats.holm([row.p for row in tested]) if tested else [], strict=True):
        row.holm = float(adjusted)


def _difference_score(row: Comparison) -> Score:
    if row.refused is not None:
        return Score(value=None, low=None, high=None, n=None, status="not_measured", reason=row.refused)
    interval = row.difference.interval
    low, high = (end if math.isfinite(end) else None for end in (interval.low, interval.high))
    score = Score(value=row.difference.value, low=low, high=high, n=row.difference.n, status="measured")
    return replace(score, shown=score.text + (" *" if row.verdict in ("first", "second") else ""))
