"""From a task to its cells: which rows are learned from, which are scored, under which shift and codec; the same for every encoder."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from evalharness.errors import DataError, TaskFileError, UnknownNameError, UsageError
from evalharness.pools import Pool, TaskData, where_label
from evalharness.registry import Registry
from evalharness.selection import match_where, stratified_order, take_per_class, take_share
from evalharness.suites import CodecFile, FitFile, ShiftFile, Task, UseFile
from evalharness.types import Array, EvaluatorSpec, ShiftSpec

FLOAT32 = "float32"
VALIDATION_SHARE = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftUse:
    """One shift at one severity; ``mechanism`` is that of the plugin, or ``rows`` and ``data`` for constructs of the task."""

    name: str
    mechanism: str
    severity: float
    kind: str
    shift_type: str
    plugin: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    severities: tuple[float, ...] = ()
    stamp: str = ""
    preserves: tuple[str, ...] = ("*",)
    select: Mapping[str, Any] = field(default_factory=dict)
    rows: Mapping[str, Any] = field(default_factory=dict)
    through: str | None = None
    access: tuple[str, ...] = ()

    @property
    def embeds(self) -> bool:
        """Say whether the shift changes inputs, so that views of its own are needed."""
        return self.mechanism in ("apply", "render", "attack")

    def keeps(self, target: str | None) -> bool:
        """Say whether a target column's value survives the shift."""
        return target is None or "*" in self.preserves or target in self.preserves


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecUse:
    """One codec, possibly a chain, with the parameters of every link."""

    name: str
    chain: tuple[tuple[str, Mapping[str, Any], str], ...] = ()  # (plugin, params, stamp)


@dataclass(frozen=True, slots=True, kw_only=True)
class FitUse:
    """One fit selection: ``name`` is recorded, ``draw`` counts from 0."""

    name: str
    file: FitFile
    draw: int = 0


@dataclass(slots=True, kw_only=True)
class JobRows:
    """Rows of one fit and of what it scores, as positions in the pools; one job a fold."""

    train: Array | None
    validation: Array | None
    carved: bool
    test: dict[str, Array]
    fold: int | None = None


@dataclass(slots=True, kw_only=True)
class Cell:
    """One cell of the product: an evaluator on a fit, a target, a shift and a codec."""

    alias: str
    evaluator: EvaluatorSpec
    params: Mapping[str, Any]
    stamp: str
    fit: FitUse | None
    target: str | None
    shift: ShiftUse | None
    codec: CodecUse
    selection: str
    jobs: list[JobRows]
    reason: str | None = None  # set where the cell is not applicable
    dropped: int = 0
    grouped: bool = True  # whether subgroups are asked of it


class CellMaker:
    """Lay out the cells of one task over its data."""

    def __init__(self, registry: Registry, task: Task, data: TaskData, *, limit: int | None, seed: int) -> None:
        self._registry = registry
        self._task = task
        self._data = data
        self._limit = limit
        self._seed = seed
        self._rows: dict[Any, tuple[list[JobRows], int]] = {}
        self._apart: set[int] = set()  # jobs whose test rows are known to be none of the fit's
        self.codecs = self._make_codecs()
        self.shifts = [*self._make_shifts(), *self._make_attacks()]

    # --- axes -----------------------------------------------------------------------------------------------------

    def evaluator(self, alias: str) -> tuple[EvaluatorSpec, dict[str, Any], str]:
        """Return an alias' evaluator, its full parameters and its stamp."""
        use: UseFile = self._task.file.evaluators[alias]
        place = ("evaluators", alias)
        spec: EvaluatorSpec = self._known("evaluator", use.use, (*place, "use"))
        params = self._checked_params("evaluator", use.use, use.params, place)
        return spec, params, self._registry.stamp("evaluator", use.use)

    def fits(self, alias: str) -> list[FitUse]:
        """Return the fits of an alias, draws one by one, the main one first."""
        names = self._task.file.evaluators[alias].fits or list(self._task.file.fits)
        return [
            FitUse(name=f"{name}/{draw}" if file.draws > 1 else name, file=file, draw=draw)
            for name in names
            for file in [self._task.file.fits[name]]
            for draw in range(file.draws)
        ]

    def _known(self, kind: str, name: str, place: tuple[str | int, ...]) -> Any:
        try:
            return self._registry.get(kind, name)
        except UnknownNameError as error:
            raise TaskFileError(f"{self._task.where(*place)}: {error}") from error

    def _checked_params(self, kind: str, name: str, given: dict[str, Any], place: tuple[str | int, ...]) -> dict[str, Any]:
        try:
            return self._registry.params(kind, name, given)
        except UsageError as error:
            bad = next((key for key in given if key not in self._registry.get(kind, name).params), "")
            raise TaskFileError(f"{self._task.where(*place, bad)}: {error}") from error

    def _make_codecs(self) -> list[CodecUse]:
        uses = [CodecUse(name=FLOAT32)]
        for at, entry in enumerate(self._task.file.codecs):
            name, params = (entry.use, entry.params) if isinstance(entry, CodecFile) else (entry, {})
            if name == FLOAT32:
                continue
            chain = []
            for link in name.split("+"):
                self._known("codec", link, ("codecs", at))
                full = self._checked_params("codec", link, params if "+" not in name else {}, ("codecs", at))
                chain.append((link, full, self._registry.stamp("codec", link)))
            shown = "?" + "&".join(f"{key}={value}" for key, value in sorted(params.items())) if params else ""
            uses.append(CodecUse(name=name + shown, chain=tuple(chain)))
        return uses

    def _make_shifts(self) -> Iterator[ShiftUse]:
        for name, file in self._task.file.shifts.items():
            if file.select is not None:
                yield from self._select_shift(name, file, file.select)
            elif file.data is not None:
                yield ShiftUse(name=name, mechanism="data", severity=1, kind="domain", shift_type=file.type or "data set")
            else:
                yield from self._plugin_shift(name, file)

    def _select_shift(self, name: str, file: ShiftFile, select: Mapping[str, Any]) -> Iterator[ShiftUse]:
        lists = {key: value if isinstance(value, list) else [value] for key, value in select.items()}
        for values in itertools.product(*lists.values()):
            chosen = dict(zip(lists, values, strict=True))
            yield ShiftUse(name=name, mechanism="rows", severity=1, kind="domain", shift_type=file.type or "domain", select=chosen)

    def _plugin_shift(self, name: str, file: ShiftFile) -> Iterator[ShiftUse]:
        place = ("shifts", name)
        spec: ShiftSpec = self._known("shift", str(file.use), (*place, "use"))
        if spec.mechanism == "attack":
            raise TaskFileError(f"{self._task.where(*place)}: shift `{spec.name}` is an attack; name it under `attacks`")
        params = self._checked_params("shift", str(file.use), file.params, place)
        base = self._shift_base(name, spec, params, tuple(file.severities or spec.severities), file.type)
        for severity in base.severities:
            yield replace(base, severity=severity, rows=file.rows or {})

    def _shift_base(
        self, name: str, spec: ShiftSpec, params: Mapping[str, Any], severities: tuple[float, ...], shift_type: str | None
    ) -> ShiftUse:
        return ShiftUse(
            name=name,
            mechanism=spec.mechanism,
            severity=severities[0],
            kind=spec.kind,
            shift_type=shift_type or spec.shift_type,
            plugin=spec.name,
            params=params,
            severities=severities,
            stamp=self._registry.stamp("shift", spec.name),
            preserves=spec.preserves(**params) if callable(spec.preserves) else spec.preserves,
            access=spec.access,
        )

    def _make_attacks(self) -> Iterator[ShiftUse]:
        attacks = dict(self._task.file.attacks)
        defaults = attacks.pop("defaults", None)
        shared = dict(defaults.params) if defaults else {}
        for name, file in attacks.items():
            place = ("attacks", name)
            spec: ShiftSpec = self._known("shift", str(file.use), (*place, "use"))
            common = {key: value for key, value in shared.items() if key in spec.params}
            params = self._checked_params("shift", str(file.use), {**common, **file.params}, place)
            budgets = tuple(sorted(file.budgets or (defaults.budgets if defaults and defaults.budgets else spec.severities)))
            base = self._shift_base(name, spec, params, budgets, None)
            through = None if file.through == "encoder" else file.through
            for budget in budgets:
                yield replace(base, severity=budget, through=through)

    # --- cells ----------------------------------------------------------------------------------------------------

    def cells(self) -> Iterator[Cell]:
        """Yield every cell: each evaluator's main cell, one axis at a time against it, and the crossings asked for."""
        for alias in self._task.file.evaluators:
            spec, params, stamp = self.evaluator(alias)
            seen = set()
            for fit, target, shift, codec in self._combinations(alias, spec):
                mark = (fit and fit.name, target, shift and (shift.name, shift.severity, str(shift.select)), codec.name)
                if mark in seen or ("clean" in spec.needs and (shift is None or not shift.embeds)):
                    continue
                seen.add(mark)
                cell = self._cell(alias, spec, params, stamp, fit, target, shift, codec)
                cell.grouped = self._is_grouped(cell)
                yield cell

    def _is_grouped(self, cell: Cell) -> bool:
        """Say whether a cell has subgroups: the evaluator's first cell, and those that ``cross`` asks for."""
        moved = {
            "fits": cell.fit is not None and cell.fit.file is not self.fits(cell.alias)[0].file,
            "targets": cell.target is not None and cell.target != self._task.file.data.targets[0],
            "shifts": cell.shift is not None and "clean" not in cell.evaluator.needs,
            "codecs": bool(cell.codec.chain) and cell.codec.name != self.codecs[0].name,
        }
        axes = {axis for axis, away in moved.items() if away}
        return not axes or any("groups" in crossing and axes <= set(crossing) for crossing in self._task.file.cross)

    def _combinations(self, alias: str, spec: EvaluatorSpec) -> Iterator[tuple[FitUse | None, str | None, ShiftUse | None, CodecUse]]:
        fits: list[FitUse | None] = list(self.fits(alias)) if spec.fit else [None]
        targets: list[str | None] = list(self._task.file.data.targets) if spec.target_kinds else [None]
        if not targets:
            raise TaskFileError(f"{self._task.where('data')}: evaluator `{spec.name}` needs `data.target`")
        shifts: list[ShiftUse | None] = [None, *self.shifts]
        axes: dict[str, list[Any]] = {"fits": fits, "targets": targets, "shifts": shifts, "codecs": list(self.codecs)}
        main = {name: values[:1] for name, values in axes.items()}
        if fits[0] is not None:  # all draws of the first fit together are its main cell
            main["fits"] = [fit for fit in fits if fit is not None and fit.file is fits[0].file]
        crossings = [[name] for name in axes] + [[axis for axis in cross if axis in axes] for cross in self._task.file.cross]
        for crossing in crossings:
            values = [axes[name] if name in crossing else main[name] for name in axes]
            yield from itertools.product(*values)

    def _cell(
        self,
        alias: str,
        spec: EvaluatorSpec,
        params: Mapping[str, Any],
        stamp: str,
        fit: FitUse | None,
        target: str | None,
        shift: ShiftUse | None,
        codec: CodecUse,
    ) -> Cell:
        cell = Cell(
            alias=alias,
            evaluator=spec,
            params=params,
            stamp=stamp,
            fit=fit,
            target=target,
            shift=shift,
            codec=codec,
            selection=self._selection_label(fit, shift),
            jobs=[],
        )
        cell.reason = self._not_applicable(spec, target, shift)
        if cell.reason is None:
            cell.jobs, cell.dropped = self.rows(fit, target, shift, carve="validation" in spec.needs)
            if fit is not None and not params.get("leave_one_out") and id(cell.jobs) not in self._apart:
                self._check_jobs(fit, cell.jobs)
        return cell

    def _not_applicable(self, spec: EvaluatorSpec, target: str | None, shift: ShiftUse | None) -> str | None:
        if target is not None:
            column = self._data.target(target)
            if column.kind not in spec.target_kinds:
                return f"`{spec.name}` takes {' or '.join(spec.target_kinds)} targets, `{target}` is a {column.kind} column"
        if shift is not None and not shift.keeps(target):
            return f"shift `{shift.name}` does not preserve `{target}`"
        return None

    def _selection_label(self, fit: FitUse | None, shift: ShiftUse | None) -> str:
        where = dict(shift.select) if shift is not None and shift.select else {}
        if not where and fit is not None:
            where |= fit.file.where
        if shift is not None:
            where |= shift.rows
        base = self._data.test_label
        if shift is not None and shift.mechanism == "data" and (entry := self._task.file.shifts[shift.name].data) is not None:
            base, where = f"{entry.dataset}:{entry.split}", {}
        label = base + (f"[{where_label(where)}]" if where else "")
        return label if self._limit is None else f"{label}[limit={self._limit}]"

    # --- rows -----------------------------------------------------------------------------------------------------

    def rows(self, fit: FitUse | None, target: str | None, shift: ShiftUse | None, *, carve: bool) -> tuple[list[JobRows], int]:
        """Return the jobs of a cell, one a fold, and how many rows were left out for want of a label."""
        key = (fit and fit.name, target, shift and (str(shift.select), str(shift.rows), shift.mechanism == "data" and shift.name), carve)
        if key not in self._rows:
            folds = self._data.folds
            numbers: list[int | None] = [None] if folds is None else list(range(int(folds.max()) + 1))
            pairs = [self._job(fit, target, shift, fold, carve=carve) for fold in numbers]
            self._rows[key] = [job for job, _ in pairs], sum(dropped for _, dropped in pairs)
        return self._rows[key]

    def _job(self, fit: FitUse | None, target: str | None, shift: ShiftUse | None, fold: int | None, *, carve: bool) -> tuple[JobRows, int]:
        data = self._data
        if "items" not in data.pools:
            return JobRows(train=None, validation=None, carved=False, test=data.linked_rows(self._limit, self._seed), fold=fold), 0
        pool = data.pools["items"]
        test, dropped = self._test_rows(pool, fit, target, shift, fold)
        train = validation = None
        carved = False
        if fit is not None:
            train, validation, carved = self._training_rows(pool, fit, target, fold, carve=carve)
        return JobRows(train=train, validation=validation, carved=carved, test={"items": test}, fold=fold), dropped

    def _test_rows(self, pool: Pool, fit: FitUse | None, target: str | None, shift: ShiftUse | None, fold: int | None) -> tuple[Array, int]:
        data = self._data
        mask = np.zeros(len(pool), dtype=bool)
        mask[data.roles["test"]] = True
        if shift is not None and shift.mechanism == "data":
            mask = pool.of_shift(shift.name)
        elif shift is not None and shift.select:
            mask &= self._match(pool, shift.select, ("shifts", shift.name, "select"))
        elif fit is not None and fit.file.where:
            mask &= self._match(pool, fit.file.where, ("fits", fit.name.partition("/")[0], "where"))
        if shift is not None and shift.rows:
            mask &= self._match(pool, shift.rows, ("shifts", shift.name, "rows"))
        labelled = pool.labelled(target) if target else np.ones(len(pool), dtype=bool)
        dropped = int((mask & ~labelled).sum())
        rows = np.flatnonzero(mask & labelled)
        if not len(rows):
            raise DataError(
                f"{self._task.where('data')}: task `{self._task.name}` has no test rows for {self._selection_label(fit, shift)}"
            )
        rows = self._limited(pool, rows, target, self._limit)
        return (rows if fold is None or data.folds is None else rows[data.folds[rows] == fold]), dropped if not fold else 0

    def _training_rows(
        self, pool: Pool, fit: FitUse, target: str | None, fold: int | None, *, carve: bool
    ) -> tuple[Array, Array | None, bool]:
        data = self._data
        rows = data.roles["train"] if fold is None or data.folds is None else np.flatnonzero((data.folds != fold) & data.joined)
        if not len(rows):
            raise DataError(
                f"{self._task.where('data')}: task `{self._task.name}` has no training rows; name a split or `folds` under `data.splits`"
            )
        if fit.file.where:
            rows = rows[self._match(pool, fit.file.where, ("fits", fit.name.partition("/")[0], "where"))[rows]]
        rows = rows[pool.labelled(target)[rows]] if target else rows
        if not len(rows):
            raise DataError(f"{self._task.where('fits')}: fit `{fit.name}` of task `{self._task.name}` selects no labelled training rows")
        rows = self._budgeted(pool, rows, fit, target)
        return self._with_validation(pool, rows, fit, target, carve=carve)

    def _check_jobs(self, fit: FitUse, jobs: list[JobRows]) -> None:
        for job in jobs:
            if job.train is not None:
                learned = job.train if job.validation is None else np.concatenate([job.train, job.validation])
                self._check_overlap(self._data.pools["items"], fit, learned, job.test["items"])
        self._apart.add(id(jobs))

    def _check_overlap(self, pool: Pool, fit: FitUse, learned: Array, test: Array) -> None:
        """Refuse test rows that the fit has seen, by id within a data set; an evaluator with ``leave_one_out`` excludes them itself."""
        names = [source.dataset for source in pool.sources]
        group = np.array([names.index(name) for name in names])[pool.source_of]
        for code in np.unique(group[test]):
            shared = np.intersect1d(pool.ids[learned[group[learned] == code]], pool.ids[test[group[test] == code]])
            if len(shared):
                raise DataError(
                    f"{self._task.where('data')}: {len(shared)} test rows of task `{self._task.name}` stand in the training rows of fit `{fit.name}`, "
                    f"`{shared[0]}` first; split them, or use `folds`"
                )

    def _budgeted(self, pool: Pool, rows: Array, fit: FitUse, target: str | None) -> Array:
        budget = fit.file.budget
        keys = pool.keys(self._seed, "budget", target, fit.draw)[rows]
        if isinstance(budget, str):
            if target is None or pool.columns[target].kind != "class":
                raise DataError(f"{self._task.where('fits')}: a budget of `{budget}` needs a class target")
            try:
                return rows[take_per_class(keys, pool.columns[target].take(rows), int(budget.partition("/")[0]))]
            except DataError as error:
                raise DataError(f"{self._task.where('fits', fit.name.partition('/')[0])}: {error}") from error
        if budget is not None:
            rows = rows[take_share(keys, pool.strata([target] if target else [])[rows], float(budget))]
        needed = pool.num_classes(target) if target else 0
        return self._limited(pool, rows, target, None if self._limit is None else max(self._limit, 2 * needed))

    def _with_validation(
        self, pool: Pool, rows: Array, fit: FitUse, target: str | None, *, carve: bool
    ) -> tuple[Array, Array | None, bool]:
        if not carve:
            return rows, None, False
        explicit = self._data.roles.get("validation")
        if explicit is not None:
            if fit.file.where:
                explicit = explicit[self._match(pool, fit.file.where, ("fits",))[explicit]]
            explicit = explicit[pool.labelled(target)[explicit]] if target else explicit
            explicit = np.setdiff1d(explicit, rows)
            if len(explicit):
                return rows, self._limited(pool, explicit, target, self._limit), False
        if len(rows) < 2:
            raise DataError(
                f"{self._task.where('fits')}: fit `{fit.name}` has {len(rows)} row; two are needed to learn from one and validate on the other"
            )
        share = pool.share(
            rows, VALIDATION_SHARE, [target] if target else [], self._task.file.data.cluster, self._seed, "validation", target, fit.draw
        )
        mask = np.zeros(len(rows), dtype=bool)
        mask[share] = True
        mask = _keep_one_of_each(mask, rows, pool, target)
        if not mask.any():  # every class has a single row; an evaluator that must choose says that it cannot
            return rows, None, False
        return rows[~mask], rows[mask], True

    def _limited(self, pool: Pool, rows: Array, target: str | None, limit: int | None) -> Array:
        if limit is None or len(rows) <= limit:
            return rows
        columns = list(dict.fromkeys([*([target] if target else []), *[name for name in ("domain",) if name in pool.columns]]))
        keys = pool.keys(self._seed, "limit", target)[rows]
        return np.sort(rows[stratified_order(keys, pool.strata(columns)[rows])[:limit]])

    def _match(self, pool: Pool, where: Mapping[str, Any], place: tuple[str, ...]) -> Array:
        return match_where(where, pool.columns, len(pool), self._task.where(*place))


def _keep_one_of_each(mask: Array, rows: Array, pool: Pool, target: str | None) -> Array:
    """Leave at least one row of every class in training, so that a class of one member can be learned."""
    if target is None or pool.columns[target].kind != "class":
        return mask
    codes = pool.columns[target].values[rows]
    lost = np.setdiff1d(codes[mask], codes[~mask])
    for code in lost:
        mask[np.flatnonzero(mask & (codes == code))[0]] = False
    return mask
