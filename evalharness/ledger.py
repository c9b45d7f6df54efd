"""The information ledger: encoders against targets, each cell a probe's score above chance, and what sets encoders apart from a reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from evalharness.board import BoardRow, BoardTable, interval_notes
from evalharness.errors import DataError, unknown_name
from evalharness.keys import canonical
from evalharness.records import own_params
from evalharness.shown import Record, Score, is_single, label_of, number, score_of, size_text

if TYPE_CHECKING:
    from evalharness.compare import Comparison

# What is 0 for a readout that knows nothing and 1 for a perfect one; average precision has the share of positives for chance.
NORMALISED = {"accuracy_above_majority": "above chance", "r2": "R2", "mean_average_precision": "average precision"}
LINEAR, HIDDEN = "linear-probe", "mlp-probe"
Pair = Callable[[Record, Record, Collection[str]], "Comparison"]  # two records, and the fields in which they may differ
Row = tuple[str, str]  # an encoder and its probe


def ledger_tables(records: Sequence[Record], pair: Pair, reference: str | None = None) -> Iterator[BoardTable]:
    """Yield, for each task with several targets, probes of encoders against targets, and what a hidden layer adds; with a reference, the differences to it too.

    Args:
        records: the records of several encoders.
        pair: compares two records on the same test items.
        reference: the label of the encoder that others are compared with.

    Raises:
        DataError: the reference is not among the encoders.
    """
    known = sorted({label_of(record) for record in records})
    if reference is not None and reference not in known:
        raise DataError(f"`reference`: {unknown_name('encoder', reference, known)}")
    cells = [record for record in records if _belongs(record)]
    for task in sorted({(record["suite"] or "", record["task"]) for record in cells}):
        own = _one_a_cell([record for record in cells if (record["suite"] or "", record["task"]) == task])
        main = {record["target"] for record in records if record["main"] and ((record["suite"] or "", record["task"]) == task)}
        targets = sorted({target for found in own.values() for target in found}, key=lambda target: (target not in main, target))
        if len(targets) < 2:
            continue
        yield _scores(task, own, targets)
        gains = _gains(task, own, targets, pair)
        if gains is not None:
            yield gains
        if reference is not None:
            yield _differences(task, own, targets, reference, pair)


def _belongs(record: Record) -> bool:
    plain = record["shift"] == "clean" and record["codec"] == "float32" and record["group"] is None
    return plain and record["metric"] in NORMALISED and is_single(record) and record["status"] != "not_applicable"


def _one_a_cell(records: Sequence[Record]) -> dict[Row, dict[str, Record]]:
    """Return one record for each probe of each encoder and target: of the probe's main variant, and of one fit for all encoders and targets."""
    main_fits = {record["fit"] for record in records if record["main"]}
    probes: dict[str, list[Record]] = {}
    for record in records:
        probes.setdefault(canonical([record["evaluator"], own_params(record)]), []).append(record)
    names = _probe_names([group[0] for group in probes.values()])
    found: dict[Row, dict[str, Record]] = {}
    for name, group in zip(names, probes.values(), strict=True):
        fit = _shared_fit(group, main_fits)
        for record in group:
            if record["fit"] == fit:
                # The main variant is the first that an evaluator gives.
                found.setdefault((label_of(record), name), {}).setdefault(record["target"], record)
    return dict(sorted(found.items()))


def _shared_fit(records: Sequence[Record], mains: set[str | None]) -> str | None:
    """Return the fit that covers most targets: among several the task's main one, before one that is no draw, before the first."""
    covered: dict[str | None, set[str]] = {}
    for record in records:
        covered.setdefault(record["fit"], set()).add(record["target"])
    return max(covered, key=lambda fit: (len(covered[fit]), fit in mains, "/" not in str(fit)))


def _probe_names(records: Sequence[Record]) -> list[str]:
    """Return a name for each probe: its evaluator, its control, and what sets it apart from others of its evaluator."""
    found = []
    for record in records:
        own, peers = own_params(record), [own_params(other) for other in records if other["evaluator"] == record["evaluator"]]
        control = own.get("control", "none")
        alike = [peer for peer in peers if peer.get("control", "none") == control]
        apart = [f"{name}={own.get(name)}" for name in own if any(peer.get(name) != own.get(name) for peer in alike)]
        found.append(", ".join([record["evaluator"], *([] if control == "none" else [f"{control} labels"]), *apart]))
    return found


def _scores(task: tuple[str, str], cells: dict[Row, dict[str, Record]], targets: Sequence[str]) -> BoardTable:
    records = [record for found in cells.values() for record in found.values()]
    rows = {row: {target: score_of(record) for target, record in found.items()} for row, found in cells.items()}
    columns = {target: _heading(target, records) for target in targets}
    notes = [
        "0 is what the commonest class, or the mean, gives, 1 is perfect; for several labels 0 is no chance level: average precision of chance is their share.",
        *_fit_notes(cells),
        *interval_notes(records),
    ]
    found = [BoardRow(encoder=" · ".join(row), scores=scores, ranked=True) for row, scores in rows.items()]
    return BoardTable(title=f"{task[0] or 'single tasks'} · {task[1]} · ledger", columns=columns, rows=found, notes=notes, records=records)


def _fit_notes(cells: dict[Row, dict[str, Record]]) -> Iterator[str]:
    """Say what the probes learned from, where that is not the same for all or one draw of several."""
    fits = {name: str(next(iter(found.values()))["fit"]) for (_, name), found in cells.items()}
    if len(set(fits.values())) > 1:
        yield f"Learned from: {'; '.join(f'{name} from `{fit}`' for name, fit in fits.items())}."
    elif any("/" in fit for fit in fits.values()):
        yield f"Learned from one draw, `{next(iter(fits.values()))}`."


def _heading(target: str, records: Sequence[Record]) -> str:
    own = [record for record in records if record["target"] == target]
    return f"{target}\n{NORMALISED[own[0]['metric']]}\n{size_text(own) or 'n = 0'}"


def _gains(task: tuple[str, str], cells: dict[Row, dict[str, Record]], targets: Sequence[str], pair: Pair) -> BoardTable | None:
    """Return by how much the probe with a hidden layer beats the linear one of the same encoder; None where no encoder has both."""
    found: dict[str, dict[str, Comparison]] = {}
    for (encoder, probe), own in cells.items():
        linear = cells.get((encoder, LINEAR), {}) if probe == HIDDEN else {}
        for target, record in own.items():
            if target in linear and record["value"] is not None and linear[target]["value"] is not None:
                found.setdefault(encoder, {})[target] = pair(record, linear[target], ("evaluator", "params", "protocols"))
    if not found:
        return None
    table = _difference_table(f"{task[0] or 'single tasks'} · {task[1]} · ledger, what a hidden layer adds", found, targets)
    table.notes.append("Below 0 the hidden layer, which has more to learn from the same labels, reads less than the linear probe.")
    table.notes += _readings(found, targets)
    return table


def _readings(found: dict[str, dict[str, Comparison]], targets: Sequence[str]) -> Iterator[str]:
    """Yield what only a probe with a hidden layer reads: it is there, but not linearly."""
    for encoder, rows in found.items():
        for target in targets:
            if target in rows and rows[target].verdict == "first":
                values = f"{number(rows[target].second)} linear, {number(rows[target].first)} with a hidden layer"
                yield f"{encoder}: some of `{target}` is there, but not linearly ({values})."


def _differences(
    task: tuple[str, str], cells: dict[Row, dict[str, Record]], targets: Sequence[str], reference: str, pair: Pair
) -> BoardTable:
    found: dict[str, dict[str, Comparison]] = {}
    for (encoder, probe), own in cells.items():
        if any(own_params(record).get("control", "none") != "none" for record in own.values()):
            continue  # a control is held against chance, not against that of another encoder
        base = cells.get((reference, probe), {})
        for target, record in own.items():
            other = base.get(target)
            if encoder != reference and other is not None and record["value"] is not None and other["value"] is not None:
                found.setdefault(f"{encoder} · {probe}", {})[target] = pair(record, other, ())
    return _difference_table(f"{task[0] or 'single tasks'} · {task[1]} · ledger, difference to {reference}", found, targets)


def _difference_table(title: str, found: dict[str, dict[str, Comparison]], targets: Sequence[str]) -> BoardTable:
    """Return a table of differences, by row and target, tested together."""
    _adjust([row for rows in found.values() for row in rows.values() if row.refused is None])
    rows = [
        BoardRow(encoder=name, scores={target: _difference_score(each) for target, each in scores.items()}, ranked=True)
        for name, scores in found.items()
    ]
    notes = ["Paired differences on the same test items; * where the difference stands at 5 % after Holm's correction over the table."]
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
