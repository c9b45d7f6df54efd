"""Walk a plan: embed, code, fit, score, summarise, store; one encoder at a time, each unit stored when done."""

from __future__ import annotations

import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from evalharness.cells import CodecUse
from evalharness.embed import Embedder, Head, IdentityChangedError, PassSettings, Progress
from evalharness.errors import EvalHarnessError, PluginError, StoreError
from evalharness.keys import seed_of, strict
from evalharness.plan import FitPlan, JobPlan, Plan, TablePlan, TaskPlan, UnitPlan, ViewPlan
from evalharness.registry import Registry
from evalharness.stamp import EncoderUse, Sources
from evalharness.store.results import RunWriter, StoredOutcome, UnitResult, compact, variant_name
from evalharness.store.views import ViewCache
from evalharness.summaries import Items, Resampler, SummaryPlan, empty_record, summarise
from evalharness.types import Array, Codec, Column, EncoderSpec, EvaluatorSpec, Links, Outcome, Side, Table, UnitInfo
from evalharness.vectors import CodedVectors, code_vectors, learn_codec

LOG = logging.getLogger(__name__)
COMMIT_SECONDS = 5.0
KEEP_TABLES = 4
CLASS_COLUMNS = ("truth", "prediction")  # outcome columns that hold class codes of the scored table's target


@dataclass(slots=True, kw_only=True)
class Fitted:
    """Hold a fit, the vocabulary it knows and the codec learned with it; ``error`` where it failed."""

    value: Any = None
    names: tuple[str, ...] = ()
    codec: Codec | None = None
    error: str | None = None
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class RunReport:
    """Count how units ended, and keep their results where nothing is written."""

    counts: Counter[str] = field(default_factory=Counter)
    rows_embedded: int = 0
    fits: int = 0
    failures: list[str] = field(default_factory=list)
    results: list[UnitResult] = field(default_factory=list)


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
        self._waiting: list[tuple[UnitPlan, UnitResult, float]] = []
        self._last_commit = time.monotonic()
        self.report = RunReport()

    def run(self, pending: Sequence[UnitPlan]) -> RunReport:
        """Do the pending units, encoder by encoder.

        Raises:
            StoreError: results or views cannot be written; what was finished before is stored.
            IdentityChangedError: an encoder must be planned again under another identity.
        """
        try:
            for use in self._plan.encoders.values():
                own = [unit for unit in pending if unit.encoder == use.label]
                if own:
                    self._run_encoder(use, own)
        finally:
            self.report.rows_embedded = self._embedder.rows_embedded
            self._embedder.close()
        return self.report

    def _run_encoder(self, use: EncoderUse, units: list[UnitPlan]) -> None:
        self._embedder.ensure(self._views(units, attacked=False), use)
        for name in dict.fromkeys(unit.task for unit in units):
            own = [unit for unit in units if unit.task == name]
            walk = TaskWalk(self._registry, self._plan, self._plan.tasks[name], use, self._embedder, self._settings)
            self._progress.start(f"{use.label}: scoring {name}", len(own))
            try:
                self._walk(walk, use, own)
            finally:
                self._progress.stop()
                self.report.fits += walk.num_fits
        self._embedder.close()

    def _walk(self, walk: TaskWalk, use: EncoderUse, units: list[UnitPlan]) -> None:
        walk.expect(units)
        for unit in sorted(units, key=_order):
            started = time.monotonic()
            late = self._views([unit], attacked=True)
            if late:
                self._embedder.ensure(late, use, walk.heads(late))
            result, status = walk.unit(unit)
            walk.release(unit)
            self._progress.advance(1)
            self._done(walk.task, unit, result, status, time.monotonic() - started)
        self._commit()

    def _views(self, units: Sequence[UnitPlan], *, attacked: bool) -> list[ViewPlan]:
        """Return the views of units, those of attacks through a fit apart, since the fit comes first; all severities together."""
        families: dict[str, None] = {}
        for unit in units:
            for job in unit.jobs:
                for table in _tables(job, self._plan):
                    families |= dict.fromkeys(segment.family for segment in table.segments)
        views = [self._plan.views[family] for family in families]
        chosen = [view for view in views if (view.attacked is not None) == attacked]
        if not attacked:
            return chosen
        groups = {view.group for view in chosen}
        return [view for view in self._plan.views.values() if view.attacked is not None and view.group in groups]

    # --- storing --------------------------------------------------------------------------------------------------

    def _done(self, task: TaskPlan, unit: UnitPlan, result: UnitResult, status: str, seconds: float) -> None:
        result.line |= {"seconds": round(seconds, 4)}
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
            self._writer.commit(unit.base["task"], unit.encoder, [result for _, result, _ in waiting])
        for unit, result, seconds in waiting:
            self._tell(unit, result, seconds)

    def _write_rows(self, task: TaskPlan, results: Sequence[UnitResult]) -> None:
        assert self._writer is not None
        for part in {part for result in results for part in result.line.get("row_sets", {})}:
            if part in task.data.pools:
                pool = task.data.pools[part]
                self._writer.write_rows(task.row_sets[part], pool.ids, pool.columns)
            elif part in task.data.links:
                links = task.data.links[part]
                self._writer.write_rows(task.row_sets[part], links.ids, {"grade": Column(kind="number", values=links.grades), **links.columns})

    def _tell(self, unit: UnitPlan, result: UnitResult, seconds: float) -> None:
        if self._on_unit is not None:
            info = UnitInfo(
                key=unit.key,
                task=unit.base["task"],
                encoder=unit.encoder,
                evaluator=unit.base["evaluator"],
                status=result.line["status"],
                seconds=seconds,
                records=tuple(result.records),
            )
            self._on_unit(info)


def _order(unit: UnitPlan) -> tuple[str, ...]:
    """Order units so that one fit, then one codec, then one view is held at a time; attacks through fits come last."""
    job = unit.jobs[0] if unit.jobs else None
    attack = unit.cell.shift is not None and unit.cell.shift.mechanism == "attack"
    return ("1" if attack else "0", unit.cell.codec.name, (job and job.fit) or "", job and sorted(t.key for t in job.test.values())[0] or "", unit.key)


def _tables(job: JobPlan, plan: Plan) -> list[TablePlan]:
    tables = [*job.test.values(), *(job.clean or {}).values()]
    tables += [table for table in (job.calibrate, job.base) if table is not None]
    if job.fit is not None:
        tables += _fit_tables(plan.fits[job.fit])
    for table in list(tables):
        for segment in table.segments:
            attacked = plan.views[segment.family].attacked
            if attacked is not None:
                tables += _fit_tables(plan.fits[attacked])
    return tables


def _fit_tables(fit: FitPlan) -> list[TablePlan]:
    return [table for table in (fit.train, fit.validation) if table is not None]


class TaskWalk:
    """Fit and score the units of one task for one encoder; fits are made once and dropped after their last use."""

    def __init__(self, registry: Registry, plan: Plan, task: TaskPlan, use: EncoderUse, embedder: Embedder, settings: PassSettings) -> None:
        self._registry = registry
        self._plan = plan
        self.task = task
        self._use = use
        self._embedder = embedder
        self._settings = settings
        spec: EncoderSpec = registry.get("encoder", use.reference)
        self._similarity = spec.similarity
        self._fits: dict[str, Fitted] = {}
        self._uses: Counter[str] = Counter()
        self._tables: OrderedDict[Any, Table] = OrderedDict()
        self._codecs: OrderedDict[Any, Codec | None] = OrderedDict()
        self._resampler = Resampler(task.seed)
        self.num_fits = 0

    # --- fits -----------------------------------------------------------------------------------------------------

    def expect(self, units: Sequence[UnitPlan]) -> None:
        """Learn which fits will be asked for, so that each can be dropped after its last use."""
        for unit in units:
            self._uses.update(self._fits_of(unit))

    def release(self, unit: UnitPlan) -> None:
        """Drop the fits that no later unit needs."""
        for key in self._fits_of(unit):
            self._uses[key] -= 1
            if self._uses[key] <= 0:
                self._fits.pop(key, None)

    def _fits_of(self, unit: UnitPlan) -> list[str]:
        own = [job.fit for job in unit.jobs if job.fit is not None]
        families = {segment.family for job in unit.jobs for table in job.test.values() for segment in table.segments}
        return own + [str(self._plan.views[family].attacked) for family in sorted(families) if self._plan.views[family].attacked]

    def heads(self, views: Sequence[ViewPlan]) -> dict[str, Head]:
        """Return the differentiable heads of the attacked fits; those that failed are left out."""
        heads = {}
        for view in views:
            key = str(view.attacked)
            if key in heads:
                continue
            fitted = self._fit(key)
            spec: EvaluatorSpec = self._registry.get("evaluator", self._plan.fits[key].evaluator)
            head = spec.head(fitted.value) if fitted.error is None and spec.head is not None else None
            if head is None:
                self._embedder.failed[view.family] = fitted.error or f"evaluator `{spec.name}` gives no head to attack"
                continue
            heads[key] = Head(logits=head, labels=self._labels(view, fitted))
        return heads

    def _labels(self, view: ViewPlan, fitted: Fitted) -> Callable[[Array], Array]:
        pool = self.task.data.pools[view.part]
        offset = int(np.flatnonzero(pool.source_of == pool.sources.index(view.source))[0])
        column = _align(pool.columns[str(view.target)], fitted.names)
        return lambda rows: column.values[offset + rows]

    def _fit(self, key: str) -> Fitted:
        if key not in self._fits:
            self._fits[key] = self._make_fit(self._plan.fits[key])
        return self._fits[key]

    def _make_fit(self, plan: FitPlan) -> Fitted:
        spec: EvaluatorSpec = self._registry.get("evaluator", plan.evaluator)
        assert spec.fit is not None
        try:
            codec = self._codec(plan.codec, plan.train)
            names = self._vocabulary(plan)
            train = self._table(plan.train, codec, plan.codec.name, plan.target, names)
            validation = None
            if plan.validation is not None:
                validation = replace(self._table(plan.validation, codec, plan.codec.name, plan.target, names), carved=plan.carved)
            generator = self._generator("fit", plan.evaluator, plan.target, plan.name)
            self.num_fits += 1
            value = spec.fit(train, validation, generator=generator, **plan.params)
            return Fitted(value=value, names=names, codec=codec)
        except Exception as error:
            return Fitted(error=self._reason(error, plan.evaluator))

    def _vocabulary(self, plan: FitPlan) -> tuple[str, ...]:
        """Return the class names that stand in the training rows, in the order of the data set."""
        if plan.target is None:
            return ()
        column = self.task.data.pools["items"].columns[plan.target]
        if column.kind != "class":
            return column.names
        return tuple(column.names[code] for code in np.unique(column.values[plan.train.positions]) if code >= 0)

    def _generator(self, *about: Any) -> torch.Generator:
        return torch.Generator().manual_seed(seed_of(self.task.seed, *about, self.task.data.fingerprint))

    def _codec(self, use: CodecUse, calibration: TablePlan | None) -> Codec | None:
        if not use.chain or calibration is None:
            return None
        key = (use.name, calibration.key)
        if key not in self._codecs:
            while len(self._codecs) >= KEEP_TABLES:
                self._codecs.popitem(last=False)
            self._codecs[key] = learn_codec(self._registry, use.chain, self._vectors(calibration))
        return self._codecs[key]

    # --- tables ---------------------------------------------------------------------------------------------------

    def _vectors(self, plan: TablePlan) -> torch.Tensor:
        pieces = []
        for segment in plan.segments:
            if segment.family in self._embedder.failed:
                raise StoreError(self._embedder.failed[segment.family])
            pieces.append(self._embedder.read(self._plan.views[segment.family], segment.rows))
        return torch.cat(pieces)

    def _table(
        self, plan: TablePlan, codec: Codec | None, codec_name: str, target: str | None, names: tuple[str, ...] | None
    ) -> Table:
        key = (plan.key, codec_name, id(codec), target, names)
        if key not in self._tables:
            while len(self._tables) >= KEEP_TABLES:
                self._tables.popitem(last=False)
            self._tables[key] = self._make_table(plan, codec, target, names)
        self._tables.move_to_end(key)
        return self._tables[key]

    def _make_table(self, plan: TablePlan, codec: Codec | None, target: str | None, names: tuple[str, ...] | None) -> Table:
        pool = self.task.data.pools[plan.part]
        column = pool.columns.get(target) if target is not None else None
        if column is not None:
            column = column.take(plan.positions)
            column = _align(column, names) if names is not None else column
        return Table(
            vectors=code_vectors(self._vectors(plan), codec, self._similarity),
            ids=pool.ids[plan.positions],
            rows=plan.positions,
            target=column,
            columns={name: item.take(plan.positions) for name, item in pool.columns.items()},
        )

    def _side(self, tables: Mapping[str, TablePlan], codec: Codec | None, codec_name: str, target: str | None, names: tuple[str, ...] | None) -> tuple[Side, dict[str, Array]]:
        made = {part: self._table(plan, codec, codec_name, target, names) for part, plan in tables.items()}
        links, kept = {}, {}
        for name, item in self.task.data.links.items():
            links[name], kept[name] = _relink(item, made, target)
        return Side(parts=made, links=links), kept

    # --- units ----------------------------------------------------------------------------------------------------

    def unit(self, unit: UnitPlan) -> tuple[UnitResult, str]:
        """Score one unit; whatever goes wrong in plugin code becomes a failed row."""
        plan = self._summary_plan(unit)
        line = {
            "unit": unit.key,
            "suite": unit.suite,
            "task": unit.base["task"],
            "encoder": unit.encoder,
            "evaluator": unit.base["evaluator"],
            "alias": unit.cell.alias,
            "status": "measured",
            "reason": None,
        }
        if unit.reason is not None:
            line |= {"status": "not_applicable", "reason": unit.reason}
            return UnitResult(key=unit.key, line=line, records=[empty_record(plan, "not_applicable", unit.reason)]), "not_applicable"
        try:
            outcomes = self._score(unit)
            records = list(summarise(plan, outcomes, self._resampler))
        except StoreError as error:
            if any(reason == str(error) for reason in self._embedder.failed.values()):
                return self._failed(plan, line, str(error))
            raise
        except Exception as error:
            return self._failed(plan, line, self._reason(error, unit.cell.evaluator.name))
        status = next((items.status for items in outcomes if items.status != "measured"), "measured")
        line |= {"status": status, "details": self._details(unit, outcomes), "row_sets": {items.part: self.task.row_sets.get(items.part) for items in outcomes}}
        stored = [StoredOutcome(variant=items.variant, rows=items.rows, columns=_stored_columns(items)) for items in outcomes if len(items.columns)]
        return UnitResult(key=unit.key, line=line, records=records, outcomes=stored), status

    def _failed(self, plan: SummaryPlan, line: dict[str, Any], reason: str) -> tuple[UnitResult, str]:
        line |= {"status": "failed", "reason": reason}
        return UnitResult(key=plan.unit, line=line, records=[empty_record(plan, "failed", reason)]), "failed"

    def _reason(self, error: Exception, evaluator: str) -> str:
        if isinstance(error, EvalHarnessError):
            return str(error)
        LOG.debug("evaluator `%s` raised", evaluator, exc_info=error)
        owner = self._registry.owner("evaluator", evaluator)
        return f"evaluator `{evaluator}` (plugin `{owner.name}`) raised {type(error).__name__}: {error}"

    def _details(self, unit: UnitPlan, outcomes: Sequence[Items]) -> dict[str, Any]:
        details: dict[str, Any] = {"rows_without_label": unit.cell.dropped} if unit.cell.dropped else {}
        for items in outcomes:
            own = strict(items.details)
            if items.scalars:
                own["scalars"] = strict(items.scalars)
            if items.replicates:
                own["replicates"] = {name: strict([round(float(value), 7) for value in values]) for name, values in items.replicates.items()}
            details[items.variant or "all"] = own
        return details

    def _summary_plan(self, unit: UnitPlan) -> SummaryPlan:
        main = self.task.task.main
        return SummaryPlan(
            base=unit.base,
            evaluator=unit.cell.evaluator,
            params=unit.cell.params,
            main_cell=unit.main,
            main_metric=main.metric,
            main_variant=main.where.get("variant"),
            groups=self._groups(unit),
            unit=unit.key,
        )

    def _groups(self, unit: UnitPlan) -> list[tuple[str, Column]]:
        data = self.task.data
        columns = data.pools["items"].columns if "items" in data.pools else data.target_columns()
        groups = []
        for entry in self.task.task.file.groups:
            names = [entry] if isinstance(entry, str) else list(entry)
            if all(name in columns and columns[name].kind == "class" for name in names):
                groups.append((names[0] if len(names) == 1 else " x ".join(names), _cross([columns[name] for name in names])))
        return groups

    def _score(self, unit: UnitPlan) -> list[Items]:
        merged: dict[str, list[Items]] = {}
        for number, job in enumerate(unit.jobs):
            for items in self._score_job(unit, job, number):
                merged.setdefault(items.variant, []).append(items)
        if not merged:
            raise PluginError(f"evaluator `{unit.cell.evaluator.name}` gave no outcome")
        return [_merge(pieces) for pieces in merged.values()]

    def _score_job(self, unit: UnitPlan, job: JobPlan, number: int) -> list[Items]:
        cell, fitted = unit.cell, None
        if job.fit is not None:
            fitted = self._fit(job.fit)
            if fitted.error is not None:
                raise PluginError(fitted.error)
        codec = fitted.codec if fitted is not None else self._codec(cell.codec, job.calibrate)
        names = fitted.names if fitted is not None else None
        test, kept = self._side(job.test, codec, cell.codec.name, cell.target, names)
        clean = None if job.clean is None else self._side(job.clean, codec, cell.codec.name, cell.target, names)[0]
        exact = self._side(job.test, None, "float32", cell.target, names)[0] if "exact" in cell.evaluator.needs else None
        base = None if job.base is None else self._table(job.base, codec, cell.codec.name, None, None)
        generator = self._generator("score", cell.evaluator.name, cell.target, number, test_rows_key(test))
        outcomes = cell.evaluator.score(
            fitted.value if fitted is not None else None, test, clean=clean, exact=exact, base=base, generator=generator, **cell.params
        )
        return [self._items(unit, outcome, kept, test) for outcome in outcomes]

    def _recoded(self, unit: UnitPlan, name: str, values: Any, test: Side) -> Any:
        """Express class codes in the data set's own order of names, the same for every fit, so that folds join and strangers can read them."""
        table = test.parts.get("items")
        if name not in CLASS_COLUMNS or table is None or table.target is None or table.target.kind != "class" or unit.cell.target is None:
            return values
        names = self.task.data.pools["items"].columns[unit.cell.target].names
        return np.array([names.index(label) for label in table.target.names], dtype=np.int64)[np.asarray(values, dtype=np.int64)]

    def _items(self, unit: UnitPlan, outcome: Outcome, kept: Mapping[str, Array], test: Side) -> Items:
        rows = np.asarray(outcome.rows, dtype=np.int64)
        if outcome.part in kept and outcome.item == "pair":
            rows = kept[outcome.part][rows]
        columns = {name: compact(self._recoded(unit, name, values, test)) for name, values in outcome.columns.items()}
        for name, values in columns.items():
            if len(values) != len(rows):
                raise PluginError(f"evaluator `{unit.cell.evaluator.name}`: column `{name}` has {len(values)} values for {len(rows)} rows")
        clusters, cluster_name = self._clusters(outcome, rows)
        return Items(
            variant=variant_name(outcome.variant),
            item=outcome.item,
            part=outcome.part,
            rows=rows,
            columns=columns,
            clusters=clusters,
            scalars=dict(outcome.scalars),
            replicates={name: np.asarray(values) for name, values in outcome.replicates.items()},
            details=dict(outcome.details),
            status=outcome.status,
            reason=outcome.reason,
            cluster_name=cluster_name,
            num_classes=int(outcome.details.get("num_classes", 0)),
        )

    def _clusters(self, outcome: Outcome, rows: Array) -> tuple[Array | None, str | None]:
        """Return the independent unit of each item; a column that the task declares wins."""
        name = self.task.task.file.data.cluster
        data = self.task.data
        columns = data.pools[outcome.part].columns if outcome.part in data.pools else data.links[outcome.part].columns if outcome.part in data.links else {}
        if name is not None and name in columns and outcome.item != "episode":
            values = columns[name].values[rows]
            return np.where(values < 0, len(values) + np.arange(len(values)), values), name
        return (None if outcome.clusters is None else np.asarray(outcome.clusters, dtype=np.int64)), None


def test_rows_key(side: Side) -> int:
    """Return a seed about the ids that are scored, whoever encoded them."""
    return seed_of([[name, len(table), str(table.ids[0]) if len(table) else ""] for name, table in sorted(side.parts.items())])


def _stored_columns(items: Items) -> dict[str, Array]:
    columns = dict(items.columns)
    if items.clusters is not None and items.cluster_name is None:
        columns["cluster"] = compact(items.clusters)
    return columns


def _align(column: Column, names: tuple[str, ...]) -> Column:
    """Express a class column in a fit's vocabulary; classes that the fit never saw get codes behind it."""
    if column.kind != "class" or column.names == names:
        return column
    present = [column.names[code] for code in np.unique(column.values) if code >= 0]
    wide = (*names, *[name for name in present if name not in set(names)])
    code = {name: at for at, name in enumerate(wide)}
    table = np.array([*[code.get(name, -1) for name in column.names], -1], dtype=np.int64)
    return Column(kind="class", values=table[column.values], names=wide)


def _cross(columns: Sequence[Column]) -> Column:
    if len(columns) == 1:
        return columns[0]
    first, rest = columns[0], _cross(columns[1:])
    values = np.where((first.values < 0) | (rest.values < 0), -1, first.values * len(rest.names) + rest.values)
    return Column(kind="class", values=values, names=tuple(f"{one},{two}" for one in first.names for two in rest.names))


def _relink(links: Links, tables: Mapping[str, Table], target: str | None) -> tuple[Links, Array]:
    """Express links in rows of the tables; links to rows that are not there are left out. A number target takes the place of grades."""
    inside = np.ones(len(links.rows), dtype=bool)
    rows = np.empty_like(links.rows)
    for side, part in enumerate((links.source, links.target)):
        positions = tables[part].rows
        at = np.searchsorted(positions, links.rows[:, side]).clip(max=max(len(positions) - 1, 0))
        inside &= positions[at] == links.rows[:, side] if len(positions) else False
        rows[:, side] = at
    kept = np.flatnonzero(inside)
    column = links.columns.get(target) if target is not None else None
    grades = links.grades if column is None or column.kind != "number" else column.values
    taken = {name: item.take(kept) for name, item in links.columns.items()}
    return Links(source=links.source, target=links.target, rows=rows[kept], grades=grades[kept], ids=links.ids[kept], columns=taken), kept


def _merge(pieces: Sequence[Items]) -> Items:
    """Join the folds of one variant: items stand behind one another, whole-cloud statistics are averaged."""
    first = pieces[0]
    if len(pieces) == 1:
        return first
    bad = next((piece for piece in pieces if piece.status != "measured"), first)
    return Items(
        variant=first.variant,
        item=first.item,
        part=first.part,
        rows=np.concatenate([piece.rows for piece in pieces]),
        columns={name: np.concatenate([piece.columns[name] for piece in pieces]) for name in first.columns},
        clusters=None if first.clusters is None else np.concatenate([piece.clusters for piece in pieces if piece.clusters is not None]),
        scalars={name: float(np.mean([piece.scalars[name] for piece in pieces])) for name in first.scalars},
        replicates={name: np.mean([piece.replicates[name] for piece in pieces], axis=0) for name in first.replicates},
        details={"folds": [dict(piece.details) for piece in pieces]},
        status=bad.status,
        reason=bad.reason,
        cluster_name=first.cluster_name,
        num_classes=max(piece.num_classes for piece in pieces),
    )


__all__ = ["IdentityChangedError", "RunReport", "Runner", "TaskWalk", "CodedVectors"]
