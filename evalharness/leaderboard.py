"""The leaderboard: made from result files alone, never from objects in memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalharness.axes import BY, axis_tables, cost_table
from evalharness.board import Board
from evalharness.errors import DataError
from evalharness.headline import Facts, headline_tables
from evalharness.records import record_key
from evalharness.shown import CELL_AXES, WHERE_FIELDS, Record, check_where, counterparts, label_of, matches, number, where_text, why_none
from evalharness.store.results import ResultsReader, no_results, require_results

if TYPE_CHECKING:
    from evalharness.compare import Comparison
    from evalharness.evidence import Evidence
    from evalharness.ranks import SuiteRanks, TaskRanks
    from evalharness.registry import Registry

AXES = (*BY, "target", "cost")
FILTERS = ("selection", "statistic", "over")  # what `--where` keeps, and does not put in the main cell's place, along an axis


def make_board(
    folders: Sequence[Path],
    *,
    suite: str | None = None,
    by: str | None = None,
    where: Mapping[str, str] | None = None,
    keep: Callable[[Record], bool] | None = None,
    partial: bool = False,
    reference: str | None = None,
    registry: Callable[[], Registry] | None = None,
) -> Board:
    """Make the leaderboard of result folders; several are merged, the newest row of a key wins, ``keep`` chooses among them.

    Args:
        folders: result folders, or single runs.
        suite: show one suite.
        by: show one axis instead: ``shift``, ``codec``, ``group``, ``fit``, ``layer``, ``target`` or ``cost``.
        where: keep the records whose fields have these texts.
        keep: keep the records for which this is true.
        reference: with ``by="target"``, the encoder whose differences to the others are shown too.
        partial: show the mean of an encoder that lacks tasks over those it has; it stays unranked.
        registry: gives the plugins whose reducers rank sets may need.

    Raises:
        DataError: there are no results, or none match.
    """
    require_results(folders)
    reader = ResultsReader(folders)
    records = reader.records()
    if not records:
        raise no_results(folders)
    records = records if keep is None else [record for record in records if keep(record)]
    if by == "cost":
        check_where(where or {}, records)
        kept = [record for record in records if (suite is None or record["suite"] == suite) and matches(record, where or {})]
        return Board(tables=[_costs(folders, {label_of(record) for record in kept})])
    if reference is not None and by != "target":
        raise DataError("`reference` goes with `by` = target, the ledger; `compare` sets two encoders against each other elsewhere")
    if by == "target":
        return _ledger(folders, records, suite, where or {}, reference, registry)
    facts = Facts(
        modalities=_task_facts(reader, "modality"),
        margins={task: margin for task, margin in _task_facts(reader, "margin").items() if margin is not None},
        bytes_of={line["unit"]: line["bytes_per_vector"] for run in reader.runs for line in run.units if line.get("bytes_per_vector")},
        labels_of={line["unit"]: line["labels"] for run in reader.runs for line in run.units if line.get("labels")},
        rank=_Ranker(folders, registry),
        partial=partial,
    )
    board = board_from_records(records, facts, suite=suite, by=by, where=where)
    shown = {record_key(record) for table in board.tables for record in table.records}
    if board.tables:
        board.tables[-1].notes += conflicts(reader, shown)
    return board


def _ledger(
    folders: Sequence[Path],
    records: Sequence[Record],
    suite: str | None,
    where: Mapping[str, str],
    reference: str | None,
    registry: Callable[[], Registry] | None,
) -> Board:
    from evalharness.compare import compare_records
    from evalharness.evidence import Evidence
    from evalharness.ledger import ledger_tables

    check_where(where, records)
    kept = [record for record in records if (suite is None or record["suite"] == suite) and matches(record, where)]
    evidence = Evidence(folders, registry)

    def pair(one: Record, other: Record, apart: Collection[str]) -> Comparison:
        return compare_records(evidence, one, other, apart=apart)

    tables = list(ledger_tables(kept, pair, reference))
    if not tables and where:
        raise DataError(f"no task has a probe on several targets among what matches {where_text(where)}")
    if not tables:
        raise DataError("no task here has a probe on several targets; name them as a list under `data.target`")
    return Board(tables=tables)


def _task_facts(reader: ResultsReader, name: str) -> dict[str, Any]:
    return {task: facts.get(name) for run in reader.runs for task, facts in run.settings.get("tasks", {}).items()}


def _costs(folders: Sequence[Path], labels: set[str]) -> Any:
    from evalharness.costs import read_costs, summarise_costs

    rows = [row for row in summarise_costs(read_costs(folders)) if any(label == row["encoder"] for label in labels)]
    if not labels:
        raise DataError("no results match")
    if not rows:
        raise DataError("no costs here: they are measured while embedding, and these vectors came from a cache that has none")
    return cost_table(rows)


def board_from_records(
    records: Sequence[Record],
    facts: Facts | Mapping[str, str],
    *,
    suite: str | None = None,
    by: str | None = None,
    where: Mapping[str, str] | None = None,
) -> Board:
    """Make the leaderboard of records, whose keys are unique; ``facts`` may be the modalities of tasks alone.

    Raises:
        DataError: no record matches, or ``by`` is no axis.
    """
    facts = facts if isinstance(facts, Facts) else Facts(modalities=facts)
    if by is not None and by not in BY:
        raise DataError(f"expected `by` to be one of {', '.join(AXES)}, got `{by}`")
    check_where(where or {}, records)
    placed = [name for name in CELL_AXES if by is None or name not in (*BY[by], *FILTERS)]
    cells = {name: text for name, text in (where or {}).items() if name in placed or name not in WHERE_FIELDS}
    others = {name: text for name, text in (where or {}).items() if name not in cells}
    chosen = [record for record in records if (suite is None or record["suite"] == suite) and matches(record, others)]
    if not chosen:
        suites = sorted({str(record["suite"] or "none") for record in records})
        words = where_text(others) or f"suite `{suite}`"
        raise DataError(f"no results match {words}; suites here: {', '.join(suites)}")
    everything = chosen
    if cells:
        shown = {id(record) for record in counterparts(chosen, cells)}
        chosen = [{**record, "main": id(record) in shown} for record in chosen]
        facts = replace(facts, about=where_text(cells))
    tables = list(headline_tables(chosen, facts) if by is None else axis_tables(chosen, by, facts.labels_of, facts.about))
    if not tables:
        words = where_text(where or {})
        if cells and not any(record["main"] for record in chosen):
            raise DataError(f"no cell matches {words}: {why_none(everything, cells)}")
        if by is None:
            raise DataError(f"no main value matches {words}")
        raise DataError(f"nothing here varies along `{by}`" + (f" among what matches {words}" if words else ""))
    return Board(tables=tables)


# --- rank sets ----------------------------------------------------------------------------------------------------


class _Ranker:
    """Give rank sets from the outcomes behind records; numeric modules are imported when the first is asked for."""

    def __init__(self, folders: Sequence[Path], registry: Callable[[], Registry] | None) -> None:
        self._folders = folders
        self._registry = registry
        self._evidence: Evidence | None = None

    def __call__(self, by_task: Mapping[str, Sequence[Record]]) -> _Ranking:
        from evalharness.evidence import Evidence
        from evalharness.ranks import rank_tasks

        several = {task: records for task, records in by_task.items() if len(records) > 1 and records[0]["higher_is_better"] is not None}
        if not several:
            return _Ranking({}, {})
        if self._evidence is None:
            self._evidence = Evidence(self._folders, self._registry)
        return _Ranking(*rank_tasks(self._evidence, several))


class _Ranking:
    """Hold the rank sets of one table."""

    def __init__(self, ranks: Mapping[str, TaskRanks], reasons: Mapping[str, str]) -> None:
        self._ranks = ranks
        self._reasons = reasons

    def sets(self, task: str) -> Mapping[str, tuple[int, int]]:
        """Return the rank sets of one task by encoder label."""
        return self._ranks[task].sets() if task in self._ranks else {}

    def suite(self, tasks: Sequence[str]) -> tuple[Mapping[str, tuple[int, int]], Mapping[str, tuple[float, float, float]]]:
        """Return rank sets and means with bounds over tasks by encoder label."""
        from evalharness.ranks import rank_suite

        found: SuiteRanks | None = rank_suite(self._ranks, tasks)
        return ({}, {}) if found is None else (found.sets, found.means)

    def reasons(self) -> Mapping[str, str]:
        """Return why tasks have no rank sets."""
        return self._reasons


# --- conflicts ----------------------------------------------------------------------------------------------------


def conflicts(reader: ResultsReader, shown: set[str]) -> list[str]:
    """Return a line for each shown value of which another folder says something else; the newest is shown."""
    seen: dict[str, list[tuple[Path, Record]]] = {}
    for run in reader.runs:
        for record in run.records:
            if record["main"] and record["value"] is not None and (key := record_key(record)) in shown:
                seen.setdefault(key, []).append((run.folder.parent, record))
    lines = []
    for found in seen.values():
        folder, newest = found[-1]
        others = [(where, record) for where, record in found[:-1] if where != folder and abs(record["value"] - newest["value"]) > 1e-9]
        if others:
            where, other = others[-1]
            why = "another encoder under the same name" if other["encoder_identity"] != newest["encoder_identity"] else "the same encoder"
            lines.append(
                f"Conflict: {label_of(newest)} on {newest['task']} is {number(newest['value'])} in {folder} and {number(other['value'])} in {where} ({why}); the newest is shown."
            )
    return lines
