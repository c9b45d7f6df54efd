"""Checks of a task against what is registered: names, parameters, and what can be asked of them; no data is touched."""

from __future__ import annotations

from evalharness.cells import CellMaker
from evalharness.errors import EvalHarnessError, TaskFileError, UnknownNameError, unknown_name
from evalharness.keys import canonical
from evalharness.registry import Registry
from evalharness.suites import Task
from evalharness.types import EvaluatorSpec


def _check_reach(task: Task, alias: str, spec: EvaluatorSpec) -> None:
    """Check that a score can be reached, and that there are budgets to reach it with."""
    use, place = task.file.evaluators[alias], task.where("evaluators", alias, "reach")
    fits = [name for name in use.fits or task.file.fits if name in task.file.fits]
    if "train" not in spec.needs or len({str(task.file.fits[name].budget) for name in fits}) < 2:
        raise TaskFileError(f"{place}: `reach` asks how many labels a score needs, so `{alias}` needs two fits of different `budget`")
    metrics = [metric for metric in spec.metrics if metric.name in {spec.main, *spec.mains.values()}]
    assert use.reach is not None
    if not any(metric.low < use.reach <= metric.high for metric in metrics):
        ranges = ", ".join(f"{metric.name} lies in [{metric.low:g}, {metric.high:g}]" for metric in metrics)
        raise TaskFileError(f"{place}: {use.reach:g} is no score to be reached: {ranges}")


def check_registered(registry: Registry, task: Task) -> None:
    """Check that every name of a task is registered and every parameter known, without touching data.

    Raises:
        TaskFileError: the message names file and line and offers near matches.
    """
    maker = object.__new__(CellMaker)
    maker._registry, maker._task = registry, task
    known: dict[str, str] = {}
    for alias, use in task.file.evaluators.items():
        spec, params, _ = maker.evaluator(alias)
        twin = known.setdefault(canonical([spec.name, params, use.fits]), alias)
        if twin != alias:
            raise TaskFileError(f"{task.where('evaluators', alias)}: evaluators `{twin}` and `{alias}` are the same; remove one")
        if use.reach is not None:
            _check_reach(task, alias, spec)
        if alias == task.main.alias and task.main.metric not in {metric.name for metric in spec.metrics}:
            names = [metric.name for metric in spec.metrics]
            raise TaskFileError(f"{task.where('main')}: evaluator `{spec.name}`: {unknown_name('metric', task.main.metric, names)}")
    if task.file.checks != "none":
        raise TaskFileError(f"{task.where('checks')}: no checks of attacks are registered in this version; write `checks: none`")
    maker._make_codecs()
    for shift in [*maker._make_shifts(), *maker._make_attacks()]:
        if shift.plugin is None:
            continue
        modality = registry.get("shift", shift.plugin).modality
        if modality not in task.file.modalities:
            place = ("attacks" if shift.mechanism == "attack" else "shifts", shift.name)
            raise TaskFileError(
                f"{task.where(*place)}: shift `{shift.plugin}` changes {modality} inputs, the task's are {', '.join(task.file.modalities)}"
            )
    try:
        registry.params("dataset", task.file.data.dataset, task.file.data.params)
    except EvalHarnessError as error:
        place = ("data", "dataset") if isinstance(error, UnknownNameError) else ("data", "params")
        raise TaskFileError(f"{task.where(*place)}: {error}") from error
