"""Walk a plan: embed, code, fit, score, summarise, store; one encoder at a time, each unit stored when done."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from evalharness.embed import Embedder, PassSettings, Progress
from evalharness.estimate import note_units
from evalharness.estimates import Items, restore_items
from evalharness.plan import AcrossUnit, Plan, TaskPlan, UnitPlan, ViewPlan, needed_views
from evalharness.pools import row_table
from evalharness.registry import Registry
from evalharness.stamp import EncoderUse, Sources
from evalharness.store.results import ResultsReader, RunWriter, UnitResult
from evalharness.store.views import ViewCache
from evalharness.types import UnitInfo
from evalharness.walk import TaskWalk

COMMIT_SECONDS = 5.0


@dataclass(slots=True, kw_only=True)
class RunReport:
    """Count how units ended, and keep their results where nothing is written."""

    counts: Counter[str] = field(default_factory=Counter)
    rows_embedded: int = 0
    fits: int = 0
    failures: list[str] = field(default_factory=list)
    results: list[UnitResult] = field(default_factory=list)
    costs: list[dict[str, Any]] = field(default_factory=list)  # what the passes over the clean views cost, now or when they were made


class Runner:
    """Carry out the pending units of a plan."""

    def __init__(
        self,
        registry: Registry,
        sources: Sources,
        plan: Plan,
        settings: PassSettings,
        progress: Progress,
        *,
        writer: RunWriter | None,
        cache: ViewCache,
        on_unit: Callable[[UnitInfo], None] | None = None,
    ) -> None:
        self._registry = registry
        self._plan = plan
        self._settings = settings
        self._progress = progress
        self._writer = writer
        self._on_unit = on_unit
        self._embedder = Embedder(registry, sources, cache, settings, progress)
        self._waiting: list[tuple[UnitPlan | AcrossUnit, UnitResult, float]] = []
        self._last_commit = time.monotonic()
        self._reader: ResultsReader | None = None
        self._taken: dict[tuple[str, str], list[float]] = {}
        self.report = RunReport()

    def run(self, pending: Sequence[UnitPlan], across: Sequence[AcrossUnit] = ()) -> RunReport:
        """Do the pending units, encoder by encoder, and after the cells of a task what is made of several of them.

        Raises:
            StoreError: results or views cannot be written; what was finished before is stored.
            IdentityChangedError: an encoder must be planned again under another identity.
        """
        try:
            for use in self._plan.encoders.values():
                own = [unit for unit in pending if unit.encoder == use.label]
                over = [unit for unit in across if unit.encoder == use.label]
                if own or over:
                    self._run_encoder(use, own, over)
        finally:
            self.report.rows_embedded = self._embedder.rows_embedded
            self.report.costs = list(self._embedder.costs.values())
            self._embedder.close()
        return self.report

    def _run_encoder(self, use: EncoderUse, units: list[UnitPlan], across: list[AcrossUnit]) -> None:
        self._embedder.ensure(self._views(units, attacked=False), use)
        for name in dict.fromkeys([*(unit.task for unit in units), *(unit.task for unit in across)]):
            own = [unit for unit in units if unit.task == name]
            walk = TaskWalk(self._registry, self._plan, self._plan.tasks[name], use, self._embedder, self._stored)
            self._progress.start(f"{use.label}: scoring {name}", len(own))
            try:
                self._walk(walk, use, own)
                self._walk_across(walk, [unit for unit in across if unit.task == name])
            finally:
                self._progress.stop()
                self.report.fits += walk.num_fits
                walk.close()
                if self._writer is not None:
                    note_units(self._taken)
                self._taken.clear()
        self._embedder.close()

    def _walk(self, walk: TaskWalk, use: EncoderUse, units: list[UnitPlan]) -> None:
        walk.expect(units)
        for unit in sorted(units, key=partial(_order, walk.task)):
            started = time.monotonic()
            late = self._views([unit], attacked=True)
            if late:
                self._embedder.ensure(late, use, walk.heads(late))
            result, status = walk.unit(unit)
            walk.release(unit)
            self._progress.advance(1)
            self._done(unit, result, status, time.monotonic() - started)
        self._commit()

    def _walk_across(self, walk: TaskWalk, units: list[AcrossUnit]) -> None:
        """Make the records over several cells; whether they failed is told by the cells themselves."""
        for unit in units:
            started = time.monotonic()
            result = walk.across(unit)
            result.line |= {"seconds": round(time.monotonic() - started, 4)}
            if taken := self._taken.get((unit.task, unit.members[0].cell.evaluator.name)):
                taken[-1] += result.line["seconds"]
            self._waiting.append((unit, result, result.line["seconds"]))
            if self._writer is None:
                self.report.results.append(result)
        self._commit()

    def _views(self, units: Sequence[UnitPlan], *, attacked: bool) -> list[ViewPlan]:
        """Return the views of units, those of attacks through a fit apart, since the fit comes first; all severities together."""
        views = needed_views(self._plan, units)
        chosen = [view for view in views if (view.attacked is not None) == attacked]
        if not attacked:
            return chosen
        groups = {view.group for view in chosen}
        return [view for view in self._plan.views.values() if view.attacked is not None and view.group in groups]

    def _stored(self, key: str) -> dict[str, Items]:
        """Take up the outcomes of a unit that an earlier run finished."""
        if self._writer is None:
            return {}
        if self._reader is None:
            self._reader = ResultsReader([self._writer.folder.parent])
        return {facts["variant"]: restore_items(facts, stored) for facts, stored in self._reader.unit_outcomes(key)}

    # --- storing --------------------------------------------------------------------------------------------------

    def _done(self, unit: UnitPlan, result: UnitResult, status: str, seconds: float) -> None:
        result.line |= {"seconds": round(seconds, 4)}
        if status != "not_applicable":
            self._taken.setdefault((unit.task, unit.cell.evaluator.name), []).append(seconds)
        self.report.counts[status] += 1
        if status == "failed":
            self.report.failures.append(f"{unit.encoder} on {unit.base['task']}: {result.line['reason']}")
        self._waiting.append((unit, result, seconds))
        if self._writer is None:
            self.report.results.append(result)
        if time.monotonic() - self._last_commit > COMMIT_SECONDS:
            self._commit()

    def _commit(self) -> None:
        self._last_commit = time.monotonic()
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        unit = waiting[0][0]
        if self._writer is not None:
            self._write_rows(self._plan.tasks[unit.task], [result for _, result, _ in waiting])
            self._writer.write_costs(list(self._embedder.costs.values()))
            self._writer.commit(unit.task, unit.encoder, [result for _, result, _ in waiting])
        for unit, result, seconds in waiting:
            self._tell(unit, result, seconds)

    def _write_rows(self, task: TaskPlan, results: Sequence[UnitResult]) -> None:
        assert self._writer is not None
        groups = task.task.file.groups
        for part in {part for result in results for part in result.line.get("row_sets", {})}:
            if task.row_sets.get(part) is not None:
                self._writer.write_rows(task.row_sets[part], *row_table(task.data, part, groups))

    def _tell(self, unit: UnitPlan | AcrossUnit, result: UnitResult, seconds: float) -> None:
        if self._on_unit is not None:
            info = UnitInfo(
                key=unit.key,
                task=unit.task,
                encoder=unit.encoder,
                evaluator=result.line["evaluator"],
                status=result.line["status"],
                seconds=seconds,
                records=tuple(result.records),
            )
            self._on_unit(info)


def _order(task: TaskPlan, unit: UnitPlan) -> tuple[Any, ...]:
    """Order units so that a cell comes after the cells it is compared with, attacks in the order of the task; else one fit, one view at a time."""
    job, cell = unit.jobs[0] if unit.jobs else None, unit.cell
    attack = cell.shift is not None and cell.shift.mechanism == "attack"
    depth = (cell.shift is not None) + bool(cell.codec.chain)
    place = task.shifts.index(cell.shift) if cell.shift is not None else -1
    return attack, depth, cell.codec.name, (job and job.fit) or "", place, unit.key
