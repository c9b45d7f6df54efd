"""The plan: what a run would do, as views, fits and units.

A plan is made of strings, numbers and row arrays; it imports no torch, can be printed, and can be sent to another process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evalharness.cells import Cell, CodecUse, ShiftUse
from evalharness.keys import digest
from evalharness.pools import TaskData
from evalharness.stamp import EncoderUse, Source
from evalharness.suites import Task
from evalharness.types import Array


@dataclass(slots=True, kw_only=True)
class ViewPlan:
    """One view: everything that can change a vector, and the rows that this run asks of it."""

    family: str
    key: Mapping[str, Any]
    encoder: str
    source: Source
    part: str
    modality: str
    role: str
    prompt: str | None
    layer: str | None
    image_size: int | None
    shift: ShiftUse | None
    shift_seed: int
    attacked: str | None  # the fit whose head is attacked
    task: str
    target: str | None
    rows: Array
    cached: bool = True

    @property
    def group(self) -> str:
        """Return what views of one pass share: all but layer and severity."""
        less = {name: value for name, value in self.key.items() if name not in ("layer", "severity")}
        return digest(less)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Rows of one source in one view; ``views`` is the family."""

    family: str
    rows: Array


@dataclass(slots=True, kw_only=True)
class TablePlan:
    """Rows of one part that a fit or a score needs, as view segments and as positions in the pool."""

    part: str
    segments: tuple[Segment, ...]
    positions: Array
    key: str


@dataclass(slots=True, kw_only=True)
class FitPlan:
    """A node of the plan: one evaluator learned once."""

    key: str
    evaluator: str
    params: Mapping[str, Any]
    target: str | None
    codec: CodecUse
    train: TablePlan
    validation: TablePlan | None
    carved: bool
    seed: int
    name: str


@dataclass(slots=True, kw_only=True)
class JobPlan:
    """One fold of a unit: the fit and the tables that it scores."""

    fit: str | None
    test: dict[str, TablePlan]
    clean: dict[str, TablePlan] | None = None
    calibrate: TablePlan | None = None
    base: TablePlan | None = None


@dataclass(slots=True, kw_only=True)
class UnitPlan:
    """One cell for one encoder: what is stored as a whole."""

    key: str
    suite: str | None
    suite_version: int | None
    task: str
    encoder: str
    cell: Cell
    jobs: list[JobPlan]
    seed: int
    base: dict[str, Any]
    main: bool
    reason: str | None = None


@dataclass(slots=True, kw_only=True)
class AcrossUnit:
    """What is made of all cells of one evaluator for one encoder: differences, means, slopes; it follows its members and is done again with any of them."""

    key: str
    suite: str | None
    suite_version: int | None
    task: str
    encoder: str
    alias: str
    members: list[UnitPlan]
    robust: dict[str, list[str]]
    main: dict[str, Any] | None
    reach: float | None = None


@dataclass(slots=True, kw_only=True)
class TaskPlan:
    """What units of one task share."""

    task: Task
    data: TaskData
    cells: list[Cell]
    shifts: list[ShiftUse]
    seed: int
    row_sets: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Plan:
    """All that a run would do."""

    encoders: dict[str, EncoderUse]
    tasks: dict[str, TaskPlan]
    views: dict[str, ViewPlan]
    fits: dict[str, FitPlan]
    units: list[UnitPlan]
    across: list[AcrossUnit]
    limit: int | None
    dtype: str


def job_tables(job: JobPlan, plan: Plan) -> list[TablePlan]:
    """Return all tables that a job reads: what it scores, what its fit learns from, and what the fits under its attacks learn from."""
    tables = [*job.test.values(), *(job.clean or {}).values()]
    tables += [table for table in (job.calibrate, job.base) if table is not None]
    if job.fit is not None:
        tables += fit_tables(plan.fits[job.fit])
    for table in list(tables):
        for segment in table.segments:
            attacked = plan.views[segment.family].attacked
            if attacked is not None:
                tables += fit_tables(plan.fits[attacked])
    return tables


def fit_tables(fit: FitPlan) -> list[TablePlan]:
    """Return the tables that a fit learns from."""
    return [table for table in (fit.train, fit.validation) if table is not None]


def needed_views(plan: Plan, units: Sequence[UnitPlan]) -> list[ViewPlan]:
    """Return the views that units read, each once."""
    families: dict[str, None] = {}
    for unit in units:
        for job in unit.jobs:
            for table in job_tables(job, plan):
                families |= dict.fromkeys(segment.family for segment in table.segments)
    return [plan.views[family] for family in families]
