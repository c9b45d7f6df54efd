"""Fit and score the units of one task for one encoder."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from evalharness.across import AcrossPlan, CellResult, across_records
from evalharness.embed import Embedder, Head
from evalharness.errors import EvalHarnessError, PluginError, StoreError, VectorsError
from evalharness.estimates import Items, Resampler
from evalharness.grouping import cluster_codes, group_columns
from evalharness.keys import seed_of, strict
from evalharness.plan import AcrossUnit, FitPlan, JobPlan, Plan, TaskPlan, UnitPlan, ViewPlan
from evalharness.planner import main_target
from evalharness.pools import row_table
from evalharness.registry import Registry
from evalharness.stamp import EncoderUse
from evalharness.store.results import StoredOutcome, UnitResult, beside_columns, compact, variant_name
from evalharness.summaries import SummaryPlan, empty_record, summarise
from evalharness.tables import TableMaker, align
from evalharness.types import Array, Codec, Column, EncoderSpec, EvaluatorSpec, Outcome, Side

LOG = logging.getLogger(__name__)
StoredItems = Callable[[str], dict[str, Items]]  # unit key -> outcomes by variant
CLASS_COLUMNS = ("truth", "prediction")  # outcome columns that hold class codes of the scored table's target


@dataclass(slots=True, kw_only=True)
class Fitted:
    """Hold a fit, the vocabulary it knows and the codec learned with it; ``error`` where it failed."""

    value: Any = None
    names: tuple[str, ...] = ()
    codec: Codec | None = None
    error: str | None = None


class TaskWalk:
    """Fit and score the units of one task for one encoder; fits are made once and dropped after their last use."""

    def __init__(self, registry: Registry, plan: Plan, task: TaskPlan, use: EncoderUse, embedder: Embedder, stored: StoredItems) -> None:
        self._registry = registry
        self._plan = plan
        self.task = task
        self._embedder = embedder
        spec: EncoderSpec = registry.get("encoder", use.reference)
        self._tables = TableMaker(registry, plan, task, spec.similarity, embedder)
        self._fits: dict[str, Fitted] = {}
        self._uses: Counter[str] = Counter()
        self._label = use.label
        self._resampler = Resampler(task.seed)
        self._reasons: dict[str, str] = {}
        self._bytes: float | None = None
        self._kept: dict[str, dict[str, Items]] = {}
        self._stored = stored
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

    def close(self) -> None:
        """Let go of vectors, fits and items; the next task brings its own."""
        self._tables.close()
        self._fits.clear()
        self._kept.clear()

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
        column = align(pool.columns[str(view.target)], fitted.names)
        return lambda rows: column.values[offset + rows]

    def _fit(self, key: str) -> Fitted:
        if key not in self._fits:
            self._fits[key] = self._make_fit(self._plan.fits[key])
        return self._fits[key]

    def _make_fit(self, plan: FitPlan) -> Fitted:
        spec: EvaluatorSpec = self._registry.get("evaluator", plan.evaluator)
        assert spec.fit is not None
        try:
            codec = self._tables.codec(plan.codec, plan.train)
            names = self._vocabulary(plan)
            train = self._tables.table(plan.train, codec, plan.codec.name, plan.target, names)
            validation = None
            if plan.validation is not None:
                validation = replace(self._tables.table(plan.validation, codec, plan.codec.name, plan.target, names), carved=plan.carved)
            generator = self._generator("fit", plan.evaluator, plan.target, plan.name)
            self.num_fits += 1
            value = spec.fit(train, validation, generator=generator, **plan.params)
            return Fitted(value=value, names=names, codec=codec)
        except Exception as error:  # noqa: BLE001 (plugin code may raise anything; it becomes a failed row)
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
            "target_kind": self._target_kind(unit.cell.target),
            "labels": self._labels_of(unit),
            "status": "measured",
            "reason": None,
        }
        if unit.reason is not None:
            line |= {"status": "not_applicable", "reason": unit.reason}
            return UnitResult(key=unit.key, line=line, records=[empty_record(plan, "not_applicable", unit.reason)]), "not_applicable"
        try:
            outcomes = self._score(unit)
            self._kept[unit.key] = {items.variant: items for items in outcomes}
            records = list(summarise(plan, outcomes, self._resampler))
        except StoreError as error:
            if any(reason == str(error) for reason in self._embedder.failed.values()):
                return self._failed(plan, line, str(error))
            raise
        except Exception as error:  # noqa: BLE001 (plugin code may raise anything; it becomes a failed row)
            return self._failed(plan, line, self._reason(error, unit.cell.evaluator.name))
        if unit.main and not any(record["main"] for record in records):
            return self._failed(plan, line, self._no_main(unit, plan, outcomes))
        status = next((items.status for items in outcomes if items.status != "measured"), "measured")
        line |= {
            "status": status,
            "details": self._details(unit, outcomes),
            "bytes_per_vector": self._bytes,
            "grouped": is_grouped(unit),
            "asked": unit.cell.grouped,
            "outcomes": [describe_items(items) for items in outcomes],
            "row_sets": {items.part: self.task.row_sets.get(items.part) for items in outcomes},
        }
        stored = [
            StoredOutcome(
                variant=items.variant,
                rows=items.rows,
                columns=_stored_columns(items),
                beside=beside_columns(items.scalars, items.replicates),
            )
            for items in outcomes
        ]
        return UnitResult(key=unit.key, line=line, records=records, outcomes=stored), status

    # --- several cells at once ------------------------------------------------------------------------------------

    def across(self, unit: AcrossUnit) -> UnitResult:
        """Make the records that take several cells of one evaluator; a cell that failed fails those that it belongs to."""
        first = unit.members[0]
        plan = replace(self._summary_plan(first), main_cell=False, unit=unit.key, groups=self._groups)
        cells = [self._cell_result(member) for member in unit.members]
        bad = next((cell for cell in cells if not cell.items), None)
        line = {
            "unit": unit.key,
            "suite": unit.suite,
            "task": unit.task,
            "encoder": unit.encoder,
            "evaluator": first.base["evaluator"],
            "alias": unit.alias,
            "status": "measured" if bad is None else "failed",
            "reason": None if bad is None else bad.reason,
            "members": [member.key for member in unit.members],
        }
        across = AcrossPlan(summary=plan, robust=unit.robust, main=unit.main, reach=unit.reach)
        try:
            records = list(across_records(across, cells, self._resampler))
        except Exception as error:  # noqa: BLE001 (a plugin's reducer may raise anything)
            return self._failed(plan, line, self._reason(error, first.cell.evaluator.name))[0]
        return UnitResult(key=unit.key, line=line, records=records)

    def _cell_result(self, unit: UnitPlan) -> CellResult:
        items = self._items_of(unit)
        status = "measured" if items else "failed"
        reason = None if items else self._reasons.get(unit.key, "failed")
        return CellResult(
            base=unit.base,
            items=items,
            status=status,
            reason=reason,
            mains=self._main_metrics(unit),
            grouped=unit.cell.grouped,
            labels=self._labels_of(unit),
        )

    def _labels_of(self, unit: UnitPlan) -> int | None:
        """Return the rows that the unit's fit learned from, those it carved out for validation among them; the mean over folds."""
        fits = [self._plan.fits[job.fit] for job in unit.jobs if job.fit is not None]
        sizes = [len(fit.train.positions) + (len(fit.validation.positions) if fit.validation and fit.carved else 0) for fit in fits]
        return round(sum(sizes) / len(sizes)) if sizes else None

    def _items_of(self, unit: UnitPlan) -> dict[str, Items]:
        """Return the outcomes of an earlier unit by variant, from memory or from what is stored; empty where it has none."""
        if unit.key not in self._kept:
            found = self._stored(unit.key)
            for items in found.values():
                if items.cluster_name is not None:
                    items.clusters = cluster_codes(self._columns(items.part)[items.cluster_name], items.rows)
            self._kept[unit.key] = found
        return self._kept[unit.key]

    def _failed(self, plan: SummaryPlan, line: dict[str, Any], reason: str) -> tuple[UnitResult, str]:
        line |= {"status": "failed", "reason": reason}
        self._reasons[plan.unit] = reason
        self._kept[plan.unit] = {}
        return UnitResult(key=plan.unit, line=line, records=[empty_record(plan, "failed", reason)]), "failed"

    def _reason(self, error: Exception, evaluator: str) -> str:
        if isinstance(error, VectorsError):
            return f"encoder `{self._label}` on data set `{self.task.task.file.data.dataset}`: {error}"
        if isinstance(error, EvalHarnessError):
            return " ".join(str(error).split())
        LOG.debug("evaluator `%s` raised", evaluator, exc_info=error)
        owner = self._registry.owner("evaluator", evaluator)
        return f"evaluator `{evaluator}` (plugin `{owner.name}`) raised {type(error).__name__}: {' '.join(str(error).split())}"

    def _no_main(self, unit: UnitPlan, plan: SummaryPlan, outcomes: Sequence[Items]) -> str:
        """Say which variant or metric the task's `main` names that its cell does not have."""
        name, wanted = unit.cell.evaluator.name, plan.main_variant
        variants = [items.variant for items in outcomes]
        if wanted is not None and wanted not in variants:
            given = ", ".join(f"`{variant}`" for variant in variants if variant) or "none"
            return f"`main` names the variant `{wanted}`, which `{name}` does not give here; it gives {given}"
        given = ", ".join(f"`{metric.name}`" for metric in plan.metrics if outcomes[0].has(metric)) or "none"
        return f"`main` names the metric `{plan.main_metric}`, which `{name}` does not give of this target with these parameters; it gives {given}"

    def _details(self, unit: UnitPlan, outcomes: Sequence[Items]) -> dict[str, Any]:
        details: dict[str, Any] = {"rows_without_label": unit.cell.dropped} if unit.cell.dropped else {}
        for items in outcomes:
            own = strict(items.details)
            if items.scalars:
                own["scalars"] = strict(items.scalars)
            if items.replicates:
                own["replicates"] = {name: strict([float(value) for value in values]) for name, values in items.replicates.items()}
            details[items.variant or "all"] = own
        return details

    def _summary_plan(self, unit: UnitPlan) -> SummaryPlan:
        main = self.task.task.main
        return SummaryPlan(
            base=unit.base,
            metrics=unit.cell.evaluator.metrics,
            main_metrics=self._main_metrics(unit),
            params=unit.cell.params,
            main_cell=unit.main,
            main_metric=main.metric,
            main_variant=main.where.get("variant"),
            groups=self._groups if is_grouped(unit) else lambda _: [],
            unit=unit.key,
        )

    def _main_metrics(self, unit: UnitPlan) -> frozenset[str]:
        """Return the main metric of a unit's kind of target, and the task's where it is about that kind."""
        kind, main = self._target_kind(unit.cell.target), self.task.task.main
        own = unit.cell.evaluator.main_of(kind)
        shares = unit.cell.alias == main.alias and kind in (None, self._target_kind(main_target(self.task.task)))
        return frozenset({own, main.metric} if shares else {own})

    def _target_kind(self, target: str | None) -> str | None:
        """Return the kind of a target column of the scored rows."""
        columns = [pool.columns[target] for pool in self.task.data.pools.values() if target in pool.columns] if target else []
        return columns[0].kind if columns else None

    def _groups(self, part: str) -> list[tuple[str, Column | None]]:
        """Return the class columns that a part's items are grouped by."""
        return group_columns(self._columns(part), self.task.task.file.groups)

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
        codec = fitted.codec if fitted is not None else self._tables.codec(cell.codec, job.calibrate)
        names = fitted.names if fitted is not None else None
        test, kept = self._tables.side(job.test, codec, cell.codec.name, cell.target, names)
        largest = max(test.parts.values(), key=len)
        self._bytes = 4.0 * largest.vectors.dense().shape[1] if codec is None else float(codec.bytes_per_vector(len(largest)))
        clean = None if job.clean is None else self._tables.side(job.clean, codec, cell.codec.name, cell.target, names)[0]
        exact = self._tables.side(job.test, None, "float32", cell.target, names)[0] if "exact" in cell.evaluator.needs else None
        base = None if job.base is None else self._tables.table(job.base, codec, cell.codec.name, None, None)
        generator = self._generator("score", cell.evaluator.name, cell.target, number, rows_seed(test))
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
            replicates={name: np.round(np.asarray(values, dtype=np.float64), 7) for name, values in outcome.replicates.items()},
            details=dict(outcome.details),
            status=outcome.status,
            reason=outcome.reason,
            cluster_name=cluster_name,
            num_classes=int(outcome.details.get("num_classes", 0)),
        )

    def _clusters(self, outcome: Outcome, rows: Array) -> tuple[Array | None, str | None]:
        """Return the independent unit of each item; a column that the task declares wins."""
        name = self.task.task.file.data.cluster
        if name is not None and outcome.item != "episode" and name in self._columns(outcome.part):
            return cluster_codes(self._columns(outcome.part)[name], rows), name
        return (None if outcome.clusters is None else np.asarray(outcome.clusters, dtype=np.int64)), None

    def _columns(self, part: str) -> Mapping[str, Column]:
        return row_table(self.task.data, part, self.task.task.file.groups)[1] if part in self.task.row_sets else {}


def is_grouped(unit: UnitPlan) -> bool:
    """Say whether a cell's own records have subgroups; those of draws stand with their mean."""
    return unit.main or (unit.cell.grouped and "/" not in str(unit.base["fit"] or ""))


def describe_items(items: Items) -> dict[str, Any]:
    """Return what must be known, beside the stored columns, to take up an outcome again."""
    return {
        "variant": items.variant,
        "item": items.item,
        "part": items.part,
        "cluster": items.cluster_name,
        "num_classes": items.num_classes,
        "status": items.status,
        "reason": items.reason,
    }


def rows_seed(side: Side) -> int:
    """Return a seed about the ids that are scored, whoever encoded them."""
    return seed_of([[name, len(table), str(table.ids[0]) if len(table) else ""] for name, table in sorted(side.parts.items())])


def _stored_columns(items: Items) -> dict[str, Array]:
    columns = dict(items.columns)
    if items.clusters is not None and items.cluster_name is None:
        columns["cluster"] = compact(items.clusters)
    return columns


def _join_rows(pieces: Sequence[Items]) -> Array:
    """Return the rows of all folds; episodes, which each fold numbers from 0, are numbered on."""
    rows = np.concatenate([piece.rows for piece in pieces])
    return np.arange(len(rows)) if pieces[0].item == "episode" else rows


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
        rows=_join_rows(pieces),
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
