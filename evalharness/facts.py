"""What ``run.json`` says of a run beside its results: settings, versions, hardware, and the facts that a stranger needs to read and check its records."""

from __future__ import annotations

import datetime as dt
import math
import os
import platform
import shutil
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from evalharness.keys import plain, strict
from evalharness.plan import Plan, TaskPlan, UnitPlan
from evalharness.planner import main_over_cells, main_target
from evalharness.pools import TaskData
from evalharness.records import CELL_FIELDS
from evalharness.registry import Registry
from evalharness.store.views import rows_digest
from evalharness.types import EvaluatorSpec, MetricInfo

if TYPE_CHECKING:
    from evalharness.session import Settings

FORMAT = 4
_METRIC_FIELDS = ("name", "columns", "low", "high", "unit", "higher_is_better", "chance", "interval")


def run_facts(plan: Plan, settings: Settings, registry: Registry, now: dt.datetime) -> dict[str, Any]:
    """Return everything volatile, and what every task and metric of the run is."""
    return {
        "format": FORMAT,
        "started": now.isoformat(timespec="microseconds"),
        "command": settings.command,
        "settings": _settings_facts(settings),
        "plugins": list(registry.requests),
        "tasks": {task.task.name: _task_facts(task) for task in plan.tasks.values()},
        "evaluators": {
            spec.name: _evaluator_facts(spec)
            for spec in {cell.evaluator.name: cell.evaluator for task in plan.tasks.values() for cell in task.cells}.values()
        },
        "encoders": {
            label: {"reference": use.reference, "params": plain(use.params), "identity": use.identity.kind}
            for label, use in plan.encoders.items()
        },
        "versions": find_versions(),
        "hardware": {
            "machine": platform.machine(),
            "system": platform.system(),
            "cores": _cores(),
            "threads": os.environ.get("OMP_NUM_THREADS"),
            "disk_free": shutil.disk_usage("/").free,
        },
    }


def _settings_facts(settings: Settings) -> dict[str, Any]:
    return {
        "device": settings.device,
        "devices": list(settings.devices),
        "dtype": settings.dtype,
        "batch_size": settings.batch_size,
        "limit": settings.limit,
        "seed": settings.seed,
        "force": settings.force,
    }


def _task_facts(plan: TaskPlan) -> dict[str, Any]:
    file, main = plan.task.file, plan.task.main
    return {
        "version": file.version,
        "modality": "+".join(file.modalities),
        "main": file.main,
        "main_alias": main.alias,
        "main_metric": main.metric,
        "main_variant": main.where.get("variant"),
        "main_across": main_over_cells(plan.task),
        "margin": file.margin,
        "summary": file.summary,
        "dataset": file.data.dataset,
        "target_kind": _target_kind(plan),
        "fingerprint": plan.data.fingerprint,
        "cluster": file.data.cluster,
        "groups": [[entry] if isinstance(entry, str) else list(entry) for entry in file.groups],
        "robust": {name: list(attacks) for name, attacks in file.robust.items()},
        "reach": {alias: use.reach for alias, use in file.evaluators.items() if use.reach is not None},
        "codecs": list(dict.fromkeys(cell.codec.name for cell in plan.cells)),
        "seed": plan.seed,
    }


def _target_kind(plan: TaskPlan) -> str | None:
    """Return the kind of the main target."""
    target = main_target(plan.task)
    return next((pool.columns[target].kind for pool in plan.data.pools.values() if target in pool.columns), None)


def _evaluator_facts(spec: EvaluatorSpec) -> dict[str, Any]:
    return {"main": spec.main, "mains": dict(spec.mains), "metrics": [describe_metric(metric) for metric in spec.metrics]}


def describe_metric(metric: MetricInfo) -> dict[str, Any]:
    """Return what is said of a metric, as JSON gives it back."""
    return {**{name: _strict(getattr(metric, name)) for name in _METRIC_FIELDS}, "reduce": reducer_name(metric)}


def _strict(value: Any) -> Any:
    """Return a value for strict JSON, where an open end of a range is a text."""
    return str(value) if isinstance(value, float) and math.isinf(value) else plain(value)


def reducer_name(metric: MetricInfo) -> str | None:
    """Return a reducer's name; one that a plugin gives is marked by a star and must be asked of the plugin."""
    if metric.reduce is None or isinstance(metric.reduce, str):
        return metric.reduce
    return f"*{getattr(metric.reduce, '__name__', 'reducer')}"


def read_metric(facts: Mapping[str, Any], known: Sequence[MetricInfo] = ()) -> MetricInfo | None:
    """Return the metric that facts describe; None where its reducer belongs to a plugin that is not at hand."""
    reduce: Any = facts["reduce"]
    if isinstance(reduce, str) and reduce.startswith("*"):
        reduce = next((metric.reduce for metric in known if metric.name == facts["name"] and callable(metric.reduce)), None)
        if reduce is None:
            return None
    fields = {name: facts[name] for name in _METRIC_FIELDS}
    fields = {name: float(value) if name in ("low", "high") and isinstance(value, str) else value for name, value in fields.items()}
    return MetricInfo(**{**fields, "columns": tuple(facts["columns"])}, reduce=reduce)


def planned_lines(plan: Plan) -> list[dict[str, Any]]:
    """Return a line a planned unit: what a complete run holds, and which rows each must have scored."""
    cells = [
        {
            "suite": unit.suite,
            "unit": unit.key,
            "task": unit.task,
            "encoder": unit.encoder,
            "alias": unit.cell.alias,
            "fingerprint": plan.tasks[unit.task].data.fingerprint,
            "rows": _planned_rows(unit, plan.tasks[unit.task].data),
            "main": unit.main,
            "cell": {name: strict(unit.base.get(name)) for name in CELL_FIELDS} | {"params": strict(dict(unit.cell.params))},
        }
        for unit in plan.units
    ]
    across = [
        {
            "suite": unit.suite,
            "unit": unit.key,
            "task": unit.task,
            "encoder": unit.encoder,
            "alias": unit.alias,
            "members": [member.key for member in unit.members],
        }
        for unit in plan.across
    ]
    return [*cells, *across]


def _planned_rows(unit: UnitPlan, data: TaskData) -> dict[str, list[list[Any]]]:
    """Return number and digest of the rows to be scored, by part or link.

    Where what is scored depends on links there are two: all rows, and those of them that have an answer.
    """
    parts = list(dict.fromkeys(part for job in unit.jobs for part in job.test))
    joined = {part: np.unique(np.concatenate([job.test[part].positions for job in unit.jobs if part in job.test])) for part in parts}
    planned = {part: [rows] for part, rows in joined.items()}
    for name, links in data.links.items():
        if links.source in joined and links.target in joined:
            inside = np.isin(links.rows[:, 0], joined[links.source]) & np.isin(links.rows[:, 1], joined[links.target])
            planned[name] = [np.flatnonzero(inside), np.flatnonzero(inside & np.isfinite(links.grades))]
            planned[links.source].append(np.unique(links.rows[inside & (links.grades > 0), 0]))
    return {part: [[len(rows), rows_digest(rows)] for rows in alternatives] for part, alternatives in planned.items()}


def find_versions() -> dict[str, str]:
    """Return the versions of the packages that numbers are made with, those installed."""
    from importlib.metadata import PackageNotFoundError, version

    versions = {"python": platform.python_version()}
    for package in ("evalharness", "torch", "numpy", "scipy", "faiss-cpu", "datasets"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
