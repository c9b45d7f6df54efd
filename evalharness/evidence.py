"""What lies behind stored records: their items, metrics, ids and groups, read from result folders alone."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evalharness.across import AcrossPlan, CellResult, join_draws, least_items
from evalharness.errors import EvalHarnessError, StoreError
from evalharness.estimates import Items, Resampler, restore_items
from evalharness.facts import describe_metric, read_metric
from evalharness.grouping import cluster_codes, group_columns
from evalharness.records import CELL_FIELDS, is_across, own_params
from evalharness.store.files import read_lines
from evalharness.store.results import ResultsReader, RowSet, RunFolder, read_rows
from evalharness.summaries import SummaryPlan
from evalharness.types import Array, Column, MetricInfo

if TYPE_CHECKING:
    from evalharness.registry import Registry

Line = Mapping[str, Any]
Record = Mapping[str, Any]


@dataclass(slots=True, kw_only=True)
class Basis:
    """Hold what a record's value is made of: pieces of items and their weights; one piece of weight 1 for a plain value."""

    metric: MetricInfo
    pieces: list[Items]
    weights: list[float]


class Evidence:
    """Read units, items and row sets of result folders; several folders are merged, the newest line of a unit counts.

    Plugins are asked, through ``registry``, only for reducers that are functions of their own.
    """

    def __init__(self, folders: Sequence[Path], registry: Callable[[], Registry] | None = None) -> None:
        self.reader = ResultsReader(folders)
        self._registry = registry
        self._lines: dict[tuple[str | None, str], tuple[RunFolder, Line]] = {
            (line.get("suite"), line["unit"]): (run, line) for run in self.reader.runs for line in run.units
        }
        self._records: dict[tuple[str | None, str], list[Record]] = {}
        for run in self.reader.runs:
            newest: dict[tuple[str | None, str], list[Record]] = {}
            for record in run.records:
                newest.setdefault((record["suite"], record["unit"]), []).append(record)
            self._records |= newest
        self._items: dict[tuple[str | None, str], dict[str, Items]] = {}
        self.planned: dict[tuple[str | None, str], Line] = {
            (line.get("suite"), line["unit"]): line
            for run in self.reader.runs
            for line in read_lines(run.folder / "planned.jsonl")
            if isinstance(line, dict) and "unit" in line
        }

    # --- units ----------------------------------------------------------------------------------------------------

    def units(self) -> Iterator[tuple[str | None, str]]:
        """Yield suite and key of every finished unit."""
        yield from self._lines

    def line(self, suite: str | None, key: str) -> Line:
        """Return the newest line of a unit."""
        return self._lines[suite, key][1]

    def run(self, suite: str | None, key: str) -> RunFolder:
        """Return the run that finished a unit last."""
        return self._lines[suite, key][0]

    def records_of(self, suite: str | None, key: str) -> list[Record]:
        """Return the records of a unit, as its newest run wrote them."""
        return self._records.get((suite, key), [])

    def task(self, record: Record) -> Mapping[str, Any]:
        """Return the facts of a record's task, as its run had them."""
        return self._facts(record, "tasks", record["task"])

    def _facts(self, record: Record, kind: str, name: str) -> Mapping[str, Any]:
        known = self._lines.get((record["suite"], record["unit"]))
        found = None if known is None else known[0].settings.get(kind, {}).get(name)
        if found is None:
            raise StoreError(f"`run.json` of `{record['task']}` says nothing of {kind[:-1]} `{name}`")
        return dict(found)

    # --- metrics --------------------------------------------------------------------------------------------------

    def metrics(self, record: Record) -> list[MetricInfo]:
        """Return the metrics of a record's evaluator; those whose reducer belongs to a plugin that is not at hand are left out."""
        facts = self._facts(record, "evaluators", record["evaluator"])
        known = self._plugin_metrics(record["evaluator"]) if any(str(each["reduce"]).startswith("*") for each in facts["metrics"]) else ()
        found = [read_metric(each, known) for each in facts["metrics"]]
        return [metric for metric in found if metric is not None]

    def _plugin_metrics(self, evaluator: str) -> Sequence[MetricInfo]:
        if self._registry is None:
            return ()
        try:
            return tuple(self._registry().get("evaluator", evaluator).metrics)
        except EvalHarnessError:
            return ()

    def plugin_metrics(self, record: Record) -> set[str]:
        """Return the names of the metrics of a record's evaluator that only its plugin can compute."""
        facts = self._facts(record, "evaluators", record["evaluator"])
        return {each["name"] for each in facts["metrics"] if str(each["reduce"]).startswith("*")}

    def foreign_metrics(self) -> Iterator[tuple[RunFolder, str]]:
        """Yield each run that describes metrics of an evaluator that is at hand otherwise than it does itself, and which."""
        for run in self.reader.runs:
            for name, facts in run.settings.get("evaluators", {}).items():
                here = {metric.name: describe_metric(metric) for metric in self._plugin_metrics(name)}
                there = {each["name"]: each for each in facts["metrics"]}
                odd = [metric for metric in {**there, **here} if there.get(metric) != here.get(metric)]
                if here and odd:
                    names = ", ".join(f"`{metric}`" for metric in odd)
                    yield run, f"it describes {names} of `{name}` otherwise than the evaluator here does, or not at all"

    def metric(self, record: Record) -> MetricInfo:
        """Return a record's metric.

        Raises:
            StoreError: its reducer is a plugin's and the plugin is not at hand.
        """
        for metric in self.metrics(record):
            if metric.name == record["metric"]:
                return metric
        raise StoreError(f"metric `{record['metric']}` is computed by a plugin that is not loaded; name it with `-p`")

    # --- items ----------------------------------------------------------------------------------------------------

    def items_of(self, suite: str | None, key: str) -> dict[str, Items]:
        """Return a unit's items by variant; empty where it failed or was not applicable.

        Raises:
            StoreError: a file is missing or cannot be read.
        """
        if (suite, key) not in self._items:
            run, line = self._lines[suite, key]
            found = {facts["variant"]: restore_items(facts, stored) for facts, stored in self.reader.outcomes_of(run, line)}
            for items in found.values():
                if items.cluster_name is not None:
                    items.clusters = cluster_codes(self.row_set(line, items.part).columns[items.cluster_name], items.rows)
            self._items[suite, key] = found
        return self._items[suite, key]

    def forget(self) -> None:
        """Let go of the items that were read."""
        self._items.clear()

    def row_set(self, line: Line, part: str) -> RowSet:
        """Return the ids and columns of a unit's part.

        Raises:
            StoreError: the unit has no such row set, or its file is missing or cannot be read.
        """
        name = (line.get("row_sets") or {}).get(part)
        if name is None:
            raise StoreError(f"part `{part}` has no row set")
        return self.row_file(name)

    @functools.lru_cache(maxsize=8)  # noqa: B019 (an evidence lives as long as a command)
    def row_file(self, name: str) -> RowSet:
        """Return a row set by its digest.

        Raises:
            StoreError: its file is missing or cannot be read.
        """
        for run in self.reader.runs:
            path = run.folder / "rows" / f"{name}.parquet"
            if path.is_file():
                return read_rows(path)
        raise StoreError(f"row file `rows/{name}.parquet` is missing")

    def ids(self, record: Record, items: Items) -> Array:
        """Return the ids of items, (M,) strings; episodes are numbered."""
        line = self._item_line(record)
        if not (line.get("row_sets") or {}).get(items.part) or items.item == "episode":
            return np.array([str(row) for row in items.rows], dtype=object)
        return self.row_set(line, items.part).ids[items.rows]

    def columns(self, record: Record, items: Items) -> Mapping[str, Column]:
        """Return the stored columns of the rows that items are about; empty for episodes."""
        line = self._item_line(record)
        if not (line.get("row_sets") or {}).get(items.part) or items.item == "episode":
            return {}
        return {name: column.take(items.rows) for name, column in self.row_set(line, items.part).columns.items()}

    def _item_line(self, record: Record) -> Line:
        line = self.line(record["suite"], record["unit"])
        members = line.get("members")
        return self.line(record["suite"], members[0]) if members else line

    # --- what records are made of ---------------------------------------------------------------------------------

    def basis(self, record: Record) -> Basis:
        """Return the items that a value rests on: its own, those of several draws, or the least of several attacks.

        Raises:
            StoreError: files are missing, or the statistic is none of these.
        """
        if record["group"] is not None and record["statistic"] in ("value", "mean"):
            return self._group_basis(record)
        metric, variant = self.metric(record), (record["params"] or {}).get("variant", "")
        if not is_across(record) and record["statistic"] == "value" and record["group"] is None:
            items = self.items_of(record["suite"], record["unit"])
            if variant not in items:
                raise StoreError(f"`{record['task']}` of `{record['encoder']}` has no items of variant `{variant}`")
            return Basis(metric=metric, pieces=[items[variant]], weights=[1.0])
        over = str(record["over"] or "").partition(":")[0]
        if "members" not in self.line(record["suite"], record["unit"]):
            raise StoreError(f"a {record['statistic']} over {record['over']} is not compared item by item")
        cells = self.cells(record["suite"], record["unit"])
        if over == "draw" and record["statistic"] == "mean":
            side = next(cell for cell in join_draws(cells) if _same(cell, record, _AXES)).side(variant)
            return Basis(metric=metric, pieces=side, weights=[1 / len(side)] * len(side))
        if over == "attack" and record["statistic"] == "value":
            attacks = str(record["over"]).partition(":")[2].split(",")
            clean = [
                cell for cell in cells if cell.base["shift"] == "clean" and _same(cell, record, ("fit", "target", "codec", "selection"))
            ]
            attacked = [
                cell for cell in cells if cell.base["shift"] in attacks and _same(cell, record, ("fit", "target", "severity", "codec"))
            ]
            return Basis(metric=metric, pieces=[least_items(metric, [cell.items[variant] for cell in [*clean, *attacked]])], weights=[1.0])
        raise StoreError(f"a {record['statistic']} over {record['over']} is not compared item by item")

    def _group_basis(self, record: Record) -> Basis:
        """Return the items of one subgroup."""
        whole = self.basis({**record, "group": None})
        label, _, name = str(record["group"]).partition("=")
        line = self._item_line(record)
        columns = self.row_set(line, whole.pieces[0].part).columns
        column = dict(group_columns(columns, self.task(record)["groups"])).get(label)
        if column is None or name not in column.names:
            raise StoreError(f"no subgroup `{record['group']}` is stored")
        code = column.names.index(name)
        pieces = [piece.take(np.flatnonzero(column.values[piece.rows] == code)) for piece in whole.pieces]
        return Basis(metric=whole.metric, pieces=pieces, weights=whole.weights)

    def cells(self, suite: str | None, key: str) -> list[CellResult]:
        """Return the cells that a unit over several of them is made of."""
        return [self._cell(suite, member) for member in self.line(suite, key)["members"]]

    def _cell(self, suite: str | None, key: str) -> CellResult:
        if (suite, key) not in self._lines:
            raise StoreError(f"unit `{key}` is missing")
        line, records = self.line(suite, key), self.records_of(suite, key)
        if not records:
            raise StoreError(f"unit `{key}` has no records")
        base = {name: records[0][name] for name in CELL_FIELDS}
        items = self.items_of(suite, key) if line["status"] not in ("failed", "not_applicable") else {}
        return CellResult(
            base=base,
            items=items,
            status=line["status"],
            reason=line.get("reason"),
            mains=self._main_metrics(records[0], line),
            grouped=bool(line.get("asked")),
            labels=line.get("labels"),
        )

    def _main_metrics(self, record: Record, line: Mapping[str, Any]) -> frozenset[str]:
        """Return the main metric of a unit's kind of target, and the task's where it is about that kind."""
        task, facts, kind = self.task(record), self._facts(record, "evaluators", record["evaluator"]), line.get("target_kind")
        own = facts.get("mains", {}).get(kind, facts["main"])
        shares = line["alias"] == task["main_alias"] and (kind is None or task.get("target_kind") in (None, kind))
        return frozenset({own, task["main_metric"]} if shares else {own})

    def summary_plan(self, record: Record) -> SummaryPlan:
        """Return what the summariser was given for the unit of a record."""
        across = "members" in self.line(record["suite"], record["unit"])
        task, line = self.task(record), self._item_line(record)

        def groups(part: str) -> list[tuple[str, Column | None]]:
            if not across and not line.get("grouped"):
                return []
            columns = self.row_set(line, part).columns if (line.get("row_sets") or {}).get(part) else {}
            return group_columns(columns, task["groups"])

        return SummaryPlan(
            base={name: record[name] for name in CELL_FIELDS},
            metrics=self.metrics(record),
            main_metrics=self._main_metrics(record, line),
            params=own_params(record),
            main_cell=bool(self.planned.get((record["suite"], record["unit"]), {}).get("main")) and not across,
            main_metric=task["main_metric"],
            main_variant=task["main_variant"],
            groups=groups,
            unit=record["unit"],
        )

    def across_plan(self, record: Record) -> AcrossPlan:
        """Return what the records over several cells were made with."""
        line, task = self.line(record["suite"], record["unit"]), self.task(record)
        summary = self.summary_plan(record)
        summary.main_cell = False
        robust = {name.partition(".")[2]: attacks for name, attacks in task["robust"].items() if name.partition(".")[0] == line["alias"]}
        main = task["main_across"] if line["alias"] == task["main_alias"] else None
        return AcrossPlan(summary=summary, robust=robust, main=main, reach=task.get("reach", {}).get(line["alias"]))

    def resampler(self, record: Record) -> Resampler:
        """Return the resampler of a record's seed."""
        return _resampler(int(record["seed"]))


@functools.lru_cache(maxsize=16)
def _resampler(seed: int) -> Resampler:
    return Resampler(seed)


_AXES = ("fit", "target", "shift", "severity", "codec", "selection")


def _same(cell: CellResult, record: Record, fields: Sequence[str]) -> bool:
    return all(cell.base[name] == record[name] for name in fields)
