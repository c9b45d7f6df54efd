"""What a plan would cost: rows, bytes, and time from what earlier passes and units took on this machine."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evalharness.errors import StoreError, counted
from evalharness.plan import Plan, UnitPlan, needed_views
from evalharness.store.files import append_line, cache_folder, read_lines
from evalharness.store.views import ViewCache

SECONDS_A_FIT = 0.5
SECONDS_A_UNIT = 0.05
TYPICAL_ROWS_A_SECOND = 500.0
TYPICAL_DIM = 512
UNITS_FILE = "unit-times.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Hold what ``--dry-run`` prints."""

    headings: list[str]
    table: list[list[str]]
    lines: list[str]


def known_rates() -> dict[str, tuple[float, int]]:
    """Return rows a second and dimension by encoder label, from the passes noted in the cache."""
    rates = {}
    for line in read_lines(cache_folder() / "throughput.jsonl"):
        if isinstance(line, dict) and line.get("seconds"):
            rates[str(line["encoder"])] = (line["rows"] / line["seconds"], int(line.get("dim", TYPICAL_DIM)))
    return rates


class UnitTimes:
    """Know what a unit took, fit and intervals with it, by task and evaluator; else by evaluator; else what is typical."""

    def __init__(self) -> None:
        self._units: Counter[tuple[str | None, str]] = Counter()
        self._seconds: Counter[tuple[str | None, str]] = Counter()
        for line in read_lines(cache_folder() / UNITS_FILE):
            if isinstance(line, dict) and line.get("units"):
                for task in (str(line["task"]), None):
                    self._units[task, str(line["evaluator"])] += line["units"]
                    self._seconds[task, str(line["evaluator"])] += line["seconds"]

    def seconds(self, units: Sequence[UnitPlan]) -> tuple[float, bool]:
        """Return what units would take, and whether that is known of all of them."""
        total, sure = 0.0, True
        for key, own in _by_evaluator(units).items():
            known = next((each for each in (key, (None, key[1])) if self._units[each]), None)
            sure = sure and known is not None
            if known is not None:
                total += len(own) * self._seconds[known] / self._units[known]
            else:
                total += len({job.fit for unit in own for job in unit.jobs if job.fit}) * SECONDS_A_FIT + len(own) * SECONDS_A_UNIT
        return total, sure


def _by_evaluator(units: Sequence[UnitPlan]) -> dict[tuple[str | None, str], list[UnitPlan]]:
    found: dict[tuple[str | None, str], list[UnitPlan]] = {}
    for unit in units:
        found.setdefault((unit.task, unit.cell.evaluator.name), []).append(unit)
    return found


def note_units(seconds: Mapping[tuple[str, str], Sequence[float]]) -> None:
    """Keep what the units of tasks and evaluators took, for later estimates; a cache that cannot be written keeps nothing."""
    try:
        for (task, evaluator), taken in seconds.items():
            line = {"task": task, "evaluator": evaluator, "units": len(taken), "seconds": round(sum(taken), 4)}
            append_line(cache_folder() / UNITS_FILE, line, sync=False)
    except (StoreError, OSError):
        return


def estimate_plan(plan: Plan, todo: Sequence[UnitPlan]) -> Estimate:
    """Count views, fits and units to do an encoder, with bytes and time; a rate that is not known is a typical one and marked so."""
    cache = ViewCache()
    rates, times = known_rates(), UnitTimes()
    table = []
    total = 0.0
    for label in plan.encoders:
        units = [unit for unit in todo if unit.encoder == label]
        views = needed_views(plan, units)
        missing = [view for view in views if not (view.cached and cache.find(view.family, view.rows))]
        fits = {job.fit for unit in units for job in unit.jobs if job.fit}
        rows = sum(len(view.rows) for view in missing)
        rate, dim = rates.get(label, (TYPICAL_ROWS_A_SECOND, TYPICAL_DIM))
        scoring, sure = times.seconds(units)
        seconds = rows / rate + scoring
        total += seconds
        mark = "" if (label in rates or not rows) and (sure or not units) else " (rate assumed)"
        table.append(
            [
                label,
                f"{len(missing)} of {len(views)}",
                f"{rows:,}",
                _bytes(4 * dim * rows),
                str(len(fits)),
                str(len(units)),
                _time(seconds) + mark,
            ]
        )
    lines = [
        f"{counted(len(plan.tasks), 'task')}, {counted(len(plan.encoders), 'encoder')}, {counted(len(plan.units), 'unit')}, {_done(len(plan.units) - len(todo))}; about {_time(total)}.",
        *_power_lines(plan),
    ]
    return Estimate(headings=["encoder", "views to embed", "rows", "bytes", "fits", "units", "time"], table=table, lines=lines)


def _done(count: int) -> str:
    return f"of which {count} {'is' if count == 1 else 'are'} done"


def _power_lines(plan: Plan) -> list[str]:
    """Say what difference of two accuracies each task's number of rows could show, at 80 % power and half of the items discordant by chance."""
    lines = []
    for task in plan.tasks.values():
        n = sum(len(rows) for rows in task.data.test_rows.values()) if "items" in task.data.test_rows else 0
        n = n if plan.limit is None else min(n, plan.limit)
        if n:
            smallest = (1.959964 + 0.841621) * math.sqrt(0.2 / n)
            lines.append(
                f"{task.task.name}: {n} test rows; two encoders that disagree on a fifth of them differ visibly from {smallest:.3f} on."
            )
    return lines


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def _time(seconds: float) -> str:
    if seconds < 60:
        return f"{math.ceil(seconds)} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
