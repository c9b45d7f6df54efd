"""Make plans: suites x encoders -> views, fits and units."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from evalharness.cells import FLOAT32, Cell, CellMaker, CodecUse, JobRows, ShiftUse
from evalharness.errors import TaskFileError, UsageError
from evalharness.keys import canonical, digest
from evalharness.plan import AcrossUnit, FitPlan, JobPlan, Plan, Segment, TablePlan, TaskPlan, UnitPlan, ViewPlan
from evalharness.pools import Pool, PoolMaker, row_sets
from evalharness.registry import Registry
from evalharness.stamp import EncoderUse, Sources
from evalharness.store.views import rows_digest
from evalharness.suites import Selection, Task, parse_fraction
from evalharness.taskcheck import check_registered
from evalharness.types import Array, EncoderSpec

LOG = logging.getLogger(__name__)
ROLES = {"queries": "query"}


class Planner:
    """Make plans from a registry and the stamps of data sets."""

    def __init__(
        self, registry: Registry, sources: Sources, *, dtype: str = "float32", limit: int | None = None, seed: int | None = None
    ) -> None:
        self._registry = registry
        self._sources = sources
        self._dtype = dtype
        self._limit = limit
        self._seed = seed
        self._plan = Plan(encoders={}, tasks={}, views={}, fits={}, units=[], across=[], limit=limit, dtype=dtype)
        self._tables: dict[Any, TablePlan] = {}

    def make(self, selections: Sequence[Selection], encoders: Iterable[EncoderUse]) -> Plan:
        """Plan every task of the selections for every encoder that has its modalities.

        Raises:
            TaskFileError, DataError: a task cannot be answered by its data.
            UsageError: an encoder has no applicable task.
        """
        plan = self._plan
        plan.encoders = {use.label: use for use in encoders}
        for selection in selections:
            for task in selection.tasks:
                self._plan_task(task)
        self._check_applicable([task for selection in selections for task in selection.tasks])
        for selection in selections:
            for task in selection.tasks:
                for use in plan.encoders.values():
                    self._plan_units(selection, plan.tasks[_task_key(task)], use)
        return plan

    def _plan_task(self, task: Task) -> None:
        key = _task_key(task)
        if key in self._plan.tasks:
            if self._plan.tasks[key].task.file != task.file:
                raise UsageError(
                    f"two different tasks are named `{task.name}`: {task.document.path} and {self._plan.tasks[key].task.document.path}"
                )
            return
        check_registered(self._registry, task)
        seed = task.file.seed if self._seed is None else self._seed
        data = PoolMaker(self._registry, self._sources, task).make(seed)
        maker = CellMaker(self._registry, task, data, limit=self._limit, seed=seed)
        cells = list(maker.cells())
        check_main(task, cells)
        self._plan.tasks[key] = TaskPlan(
            task=task, data=data, cells=cells, shifts=maker.shifts, seed=seed, row_sets=row_sets(data, task.file.groups)
        )

    def _check_applicable(self, tasks: Sequence[Task]) -> None:
        for use in self._plan.encoders.values():
            spec: EncoderSpec = self._registry.get("encoder", use.reference)
            if not any(_applicable(spec, use, task) for task in tasks):
                wanted = sorted({modality for task in tasks for modality in task.file.modalities})
                raise UsageError(
                    f"encoder `{use.label}` takes {', '.join(modalities_of(spec, use))}, but the tasks named need {', '.join(wanted)}; choose another suite"
                )

    # --- units ----------------------------------------------------------------------------------------------------

    def _plan_units(self, selection: Selection, plan: TaskPlan, use: EncoderUse) -> None:
        spec: EncoderSpec = self._registry.get("encoder", use.reference)
        task = plan.task
        if not _applicable(spec, use, task):
            reason = f"takes {', '.join(modalities_of(spec, use))}, the task needs {', '.join(task.file.modalities)}"
            cell = next(cell for cell in plan.cells if cell.alias == task.main.alias)
            self._add_unit(selection, plan, use, cell, [], reason, main=True)
            return
        first = len(self._plan.units)
        for cell in plan.cells:
            because = cell.reason or _shift_reason(spec, cell)
            jobs = [] if because else [self._plan_job(plan, use, cell, job) for job in cell.jobs]
            self._add_unit(selection, plan, use, cell, jobs, because)
        self._add_across(selection, plan, use, self._plan.units[first:])

    def _add_across(self, selection: Selection, plan: TaskPlan, use: EncoderUse, units: Sequence[UnitPlan]) -> None:
        """Plan what takes several cells of one evaluator."""
        for alias in plan.task.file.evaluators:
            members = [unit for unit in units if unit.cell.alias == alias and unit.reason is None]
            if len(members) < 2:
                continue
            robust = {
                name.partition(".")[2]: list(attacks) for name, attacks in plan.task.file.robust.items() if name.partition(".")[0] == alias
            }
            main = main_over_cells(plan.task) if alias == plan.task.main.alias else None
            reach = plan.task.file.evaluators[alias].reach
            unit = AcrossUnit(
                key=digest(["across", [member.key for member in members], robust, main, reach]),
                suite=selection.suite,
                suite_version=selection.version,
                task=_task_key(plan.task),
                encoder=use.label,
                alias=alias,
                members=members,
                robust=robust,
                main=main,
                reach=reach,
            )
            self._plan.across.append(unit)

    def _add_unit(
        self,
        selection: Selection,
        plan: TaskPlan,
        use: EncoderUse,
        cell: Cell,
        jobs: list[JobPlan],
        reason: str | None,
        *,
        main: bool = False,
    ) -> None:
        key = digest(self._unit_key(plan, use, cell, jobs, reason))
        unit = UnitPlan(
            key=key,
            suite=selection.suite,
            suite_version=selection.version,
            task=_task_key(plan.task),
            encoder=use.label,
            cell=cell,
            jobs=jobs,
            seed=plan.seed,
            base=self._base_fields(selection, plan, use, cell),
            main=main or is_main_cell(plan.task, cell),
            reason=reason,
        )
        self._plan.units.append(unit)

    def _unit_key(self, plan: TaskPlan, use: EncoderUse, cell: Cell, jobs: list[JobPlan], reason: str | None) -> list[Any]:
        file = plan.task.file
        tables = [
            [
                job.fit,
                [[name, table.key] for name, table in sorted(job.test.items())],
                job.base and job.base.key,
                job.calibrate and job.calibrate.key,
            ]
            for job in jobs
        ]
        return [
            [file.task, file.version, file.main, file.groups, file.data.cluster],
            [cell.evaluator.name, cell.params, cell.stamp, cell.target, cell.fit and cell.fit.name],
            [cell.codec.name, [list(link) for link in cell.codec.chain]],
            [cell.shift.name, cell.shift.severity, cell.shift.shift_type] if cell.shift else None,
            [use.label, use.identity.kind, use.identity.digest] if not jobs else use.label,
            tables,
            cell.selection,
            plan.data.fingerprint,
            plan.seed,
            reason,
        ]

    def _base_fields(self, selection: Selection, plan: TaskPlan, use: EncoderUse, cell: Cell) -> dict[str, Any]:
        shift, file = cell.shift, plan.task.file
        return {
            "suite": selection.suite,
            "suite_version": selection.version,
            "task": file.task,
            "task_version": file.version,
            "encoder": use.label if use.layer is None else use.label.rpartition("@")[0],
            "encoder_identity": f"{use.identity.kind}:{use.identity.digest}",
            "layer": use.layer,
            "prompt": self._prompt(use, plan),
            "dataset": file.data.dataset,
            "dataset_fingerprint": plan.data.fingerprint,
            "split": plan.data.test_label,
            "selection": cell.selection,
            "fit": cell.fit.name if cell.fit else None,
            "target": cell.target,
            "shift": shift.name if shift else "clean",
            "shift_kind": shift.kind if shift else None,
            "shift_type": shift.shift_type if shift else None,
            "severity": shift.severity if shift else 0,
            "regime": self._regime(use, shift),
            "made_on": FLOAT32 if shift and shift.mechanism == "attack" else None,
            "codec": cell.codec.name,
            "queries": cell.params.get("queries"),
            "evaluator": cell.evaluator.name,
            "seed": plan.seed,
            "protocols": {"encoder": use.stamp, "evaluator": cell.stamp, **({"shift": shift.stamp} if shift and shift.stamp else {})},
        }

    def _regime(self, use: EncoderUse, shift: ShiftUse | None) -> str | None:
        """Say whether the encoder was trained on a corruption; None where it does not declare what it was trained on."""
        known = self._registry.get("encoder", use.reference).training_augmentations
        if shift is None or shift.kind != "corruption" or known is None:
            return None
        return "seen" if shift.plugin in known else "unseen"

    def _prompt(self, use: EncoderUse, plan: TaskPlan) -> str | None:
        spec: EncoderSpec = self._registry.get("encoder", use.reference)
        roles = {ROLES.get(part, "document") for part, pool in plan.data.pools.items() if pool.modality == "text"}
        prompts = {role: spec.prompts[role] for role in sorted(roles) if spec.prompts.get(role)}
        if spec.prompts and roles and not prompts:
            LOG.warning(
                "encoder `%s` declares prompts for %s; task `%s` uses none of them", use.label, ", ".join(spec.prompts), plan.task.name
            )
        return canonical(prompts) if prompts else None

    # --- tables, views and fits -----------------------------------------------------------------------------------

    def _plan_job(self, plan: TaskPlan, use: EncoderUse, cell: Cell, rows: JobRows) -> JobPlan:
        needs, shift = cell.evaluator.needs, cell.shift
        fit = self._plan_fit(plan, use, cell, rows) if cell.fit is not None else None
        attacked = self._attacked(plan, use, cell, rows)
        embedded = shift if shift is not None and shift.embeds else None
        test = {part: self._table(plan, use, part, at, embedded, attacked) for part, at in rows.test.items()}
        clean = None
        if "clean" in needs:
            clean = {part: self._table(plan, use, part, at) for part, at in rows.test.items()}
        train = plan.data.roles.get("train")
        base = self._table(plan, use, "items", train) if "base" in needs and train is not None and len(train) else None
        return JobPlan(fit=fit, test=test, clean=clean, calibrate=self._calibration(plan, use, cell, fit, rows.fold), base=base)

    def _calibration(self, plan: TaskPlan, use: EncoderUse, cell: Cell, fit: str | None, fold: int | None) -> TablePlan | None:
        """Return the rows that a codec is learned on where there is no fit."""
        if not cell.codec.chain or fit is not None:
            return None
        part = plan.task.file.data.calibrate
        if part is not None:
            if part not in plan.data.pools:
                raise UsageError(f"{plan.task.where('data', 'calibrate')}: no part `{part}`; parts are {', '.join(plan.data.pools)}")
            return self._table(plan, use, part, plan.data.test_rows[part])
        train = plan.data.roles.get("train")
        if train is not None and fold is not None and plan.data.folds is not None:
            train = train[plan.data.folds[train] != fold]  # never on the rows that are scored
        if train is None or not len(train):
            raise UsageError(
                f"{plan.task.where('codecs')}: codec `{cell.codec.name}` has no rows to learn from; name a training split or `data.calibrate: PART`"
            )
        return self._table(plan, use, "items", train)

    def _attacked(self, plan: TaskPlan, use: EncoderUse, cell: Cell, rows: JobRows) -> str | None:
        """Return the float32 fit that an attack goes through; under folds it is that row's own."""
        shift = cell.shift
        if shift is None or shift.mechanism != "attack" or shift.through is None:
            return None
        spec, params, stamp = self._maker(plan).evaluator(shift.through)
        if spec.fit is None or spec.head is None:
            raise UsageError(f"{plan.task.where('attacks', shift.name, 'through')}: evaluator `{spec.name}` has no head to attack")
        fit = self._maker(plan).fits(shift.through)[0]
        target = plan.task.file.data.targets[0]
        jobs, _ = self._maker(plan).rows(fit, target, None, carve="validation" in spec.needs)
        own = next(job for job in jobs if job.fold == rows.fold)
        through = Cell(
            alias=shift.through,
            evaluator=spec,
            params=params,
            stamp=stamp,
            fit=fit,
            target=target,
            shift=None,
            codec=CodecUse(name=FLOAT32),
            selection="",
            jobs=[own],
        )
        return self._plan_fit(plan, use, through, own)

    def _maker(self, plan: TaskPlan) -> CellMaker:
        return CellMaker(self._registry, plan.task, plan.data, limit=self._limit, seed=plan.seed)

    def _plan_fit(self, plan: TaskPlan, use: EncoderUse, cell: Cell, rows: JobRows) -> str:
        assert cell.fit is not None
        assert rows.train is not None
        train = self._table(plan, use, "items", rows.train)
        validation = None
        if rows.validation is not None:
            validation = self._table(plan, use, "items", rows.validation)
        key = digest(
            [
                [cell.evaluator.name, cell.params, cell.stamp, cell.target],
                [list(link) for link in cell.codec.chain],
                [train.key, validation and validation.key, rows.carved],
                plan.seed,
            ]
        )
        if key not in self._plan.fits:
            self._plan.fits[key] = FitPlan(
                key=key,
                evaluator=cell.evaluator.name,
                params=cell.params,
                target=cell.target,
                codec=cell.codec,
                train=train,
                validation=validation,
                carved=rows.carved,
                seed=plan.seed,
                name=cell.fit.name,
            )
        return key

    def _table(
        self, plan: TaskPlan, use: EncoderUse, part: str, positions: Array, shift: ShiftUse | None = None, attacked: str | None = None
    ) -> TablePlan:
        pool = plan.data.pools[part]
        mark = (_task_key(plan.task), use.label, part, rows_digest(positions), shift and (shift.name, shift.severity), attacked)
        if mark not in self._tables:
            segments = []
            for source, rows in pool.segments(positions):
                family = self._view(plan, use, pool, source, rows, shift, attacked)
                segments.append(Segment(family=family, rows=rows))
            key = digest([[[segment.family, rows_digest(segment.rows)] for segment in segments], pool.digest(positions)])
            self._tables[mark] = TablePlan(part=part, segments=tuple(segments), positions=positions, key=key)
        return self._tables[mark]

    def _view(
        self, plan: TaskPlan, use: EncoderUse, pool: Pool, source: int, rows: Array, shift: ShiftUse | None, attacked: str | None
    ) -> str:
        spec: EncoderSpec = self._registry.get("encoder", use.reference)
        role = ROLES.get(pool.part, "document")
        where = pool.sources[source]
        size = (
            None
            if pool.modality != "image" or "image_size" in self._registry.get("dataset", where.dataset).params
            else plan.task.file.data.image_size
        )
        prompt = spec.prompts.get(role) if pool.modality == "text" else None
        target = plan.task.file.data.targets[0] if attacked else None
        key = {
            "encoder": [use.reference, use.params, use.identity.kind, use.identity.digest, use.stamp],
            "layer": use.layer,
            "dtype": self._dtype,
            "source": [where.dataset, where.params, where.split, pool.fingerprints[source], self._registry.stamp("dataset", where.dataset)],
            "part": pool.part,
            "role": role,
            "prompt": prompt,
            "transform": {"image_size": size},
            "shift": _shift_key(shift, plan.seed),
            "severity": shift.severity if shift else 0,
            "attacked": [attacked, target] if attacked else None,
        }
        family = digest(key)
        known = self._plan.views.get(family)
        if known is None:
            self._plan.views[family] = ViewPlan(
                family=family,
                key=key,
                encoder=use.label,
                source=where,
                part=pool.part,
                modality=pool.modality,
                role=role,
                prompt=prompt,
                layer=use.layer,
                image_size=size,
                shift=shift,
                shift_seed=plan.seed,
                attacked=attacked,
                task=_task_key(plan.task),
                target=target,
                rows=np.sort(rows),
                cached=use.cached and use.identity.kind != "none",
            )
        else:
            known.rows = np.union1d(known.rows, rows)
        return family


def _task_key(task: Task) -> str:
    return task.name


def modalities_of(spec: EncoderSpec, use: EncoderUse) -> tuple[str, ...]:
    """Return an encoder's modalities; a spec that declares none takes the one of its parameter ``modality``."""
    return spec.modalities or (str(use.params["modality"]),)


def _applicable(spec: EncoderSpec, use: EncoderUse, task: Task) -> bool:
    return set(task.file.modalities) <= set(modalities_of(spec, use))


def _shift_reason(spec: EncoderSpec, cell: Cell) -> str | None:
    shift = cell.shift
    if shift is None or not shift.embeds:
        return None
    if spec.precomputed:
        return "precomputed vectors cannot be shifted"
    if "gradient" in shift.access and not spec.differentiable:
        return f"`{shift.plugin}` needs gradients and the encoder is not differentiable"
    return None


def _shift_key(shift: ShiftUse | None, seed: int) -> Any:
    if shift is None:
        return None
    chain = shift.severities if shift.mechanism == "attack" else None  # an attack hands its best on to larger budgets
    return [shift.plugin, shift.params, shift.stamp, shift.mechanism, chain, shift.through, seed]


def main_target(task: Task) -> str | None:
    """Return the target of the task's main cell, None where the task has none."""
    return task.main.where.get("target", next(iter(task.file.data.targets), None))


def is_main_cell(task: Task, cell: Cell) -> bool:
    """Say whether a cell is the one that the task names as its main cell."""
    where = task.main.where
    if cell.alias != task.main.alias or main_over_cells(task) is not None:
        return False
    fit = _main_fit(task)
    shift = where.get("shift", "clean")
    severity = where.get("severity", f"{cell.shift.severities[0]:g}" if cell.shift and cell.shift.severities else None)
    return (
        (cell.fit is None or cell.fit.name == fit)
        and (cell.shift.name if cell.shift else "clean") == shift
        and (cell.shift is None or severity is None or f"{cell.shift.severity:g}" == severity)
        and cell.codec.name == where.get("codec", FLOAT32)
        and (cell.target is None or cell.target == main_target(task))
    )


def check_main(task: Task, cells: Sequence[Cell]) -> None:
    """Check that the task's main cell is among its cells.

    Raises:
        TaskFileError: it is not; the message names what no cell has.
    """
    over = main_over_cells(task)
    if any(is_main_cell(task, cell) for cell in cells):
        return
    own = [cell for cell in cells if cell.alias == task.main.alias]
    known: dict[str, set[str]] = {
        "fit": {cell.fit.name for cell in own if cell.fit} | ({str(over["fit"])} if over else set()),
        "target": {cell.target for cell in own if cell.target},
        "codec": {cell.codec.name for cell in own},
        "shift": {cell.shift.name if cell.shift else "clean" for cell in own},
        "severity": {f"{cell.shift.severity:g}" for cell in own if cell.shift and cell.shift.severity is not None},
    }
    for name, values in known.items():
        wanted = task.main.where.get(name)
        if wanted is not None and wanted not in values:
            there = ", ".join(sorted(values)) or "none"
            raise TaskFileError(f"{task.where('main')}: `main`: no cell of `{task.main.alias}` has {name}={wanted}; there is {there}")
    if over is not None:
        return
    where = ", ".join(f"{name}={value}" for name, value in task.main.where.items())
    raise TaskFileError(
        f"{task.where('main')}: `main`: no cell of `{task.main.alias}` has all of {where}; `cross` names axes to be crossed"
    )


def _main_fit(task: Task) -> str:
    """Return the fit that the main value is about, the first unless the task says otherwise."""
    fits = task.file.evaluators[task.main.alias].fits or list(task.file.fits)
    return str(task.main.where.get("fit", fits[0]))


def main_over_cells(task: Task) -> dict[str, Any] | None:
    """Return what the main record must match where it is made of several cells: those of several attacks, or of several draws of the fit."""
    where, fit = task.main.where, _main_fit(task)
    drawn = "/" not in fit and fit in task.file.fits and task.file.fits[fit].draws > 1
    common = {"codec": where.get("codec", FLOAT32), "target": main_target(task)}
    if "variant" in where:
        common["variant"] = where["variant"]
    if "robust" in where:
        return {
            "over": "attack",
            "shift": "robust",
            "severity": parse_fraction(where["robust"]),
            "fit": f"{fit}/0" if drawn else fit,
            **common,
        }
    if not drawn:
        return None
    severity = {"severity": parse_fraction(where["severity"])} if "severity" in where else {}
    return {"over": "draw", "fit": fit, "shift": where.get("shift", "clean"), **severity, **common}
