"""What a plan would cost: rows, bytes, and time from the throughput of earlier passes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from evalharness.plan import Plan, UnitPlan, needed_views
from evalharness.store.files import cache_folder, read_lines
from evalharness.store.views import ViewCache

SECONDS_A_FIT = 0.5
SECONDS_A_UNIT = 0.05
TYPICAL_ROWS_A_SECOND = 500.0
TYPICAL_DIM = 512


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


def estimate_plan(plan: Plan, todo: Sequence[UnitPlan]) -> Estimate:
    """Count views, fits and units to do an encoder, with bytes and time; a rate that is not known is a typical one and marked so."""
    cache = ViewCache()
    rates = known_rates()
    table = []
    total = 0.0
    for label in plan.encoders:
        units = [unit for unit in todo if unit.encoder == label]
        views = needed_views(plan, units)
        missing = [view for view in views if not (view.cached and cache.find(view.family, view.rows))]
        fits = {job.fit for unit in units for job in unit.jobs if job.fit}
        rows = sum(len(view.rows) for view in missing)
        rate, dim = rates.get(label, (TYPICAL_ROWS_A_SECOND, TYPICAL_DIM))
        seconds = rows / rate + len(fits) * SECONDS_A_FIT + len(units) * SECONDS_A_UNIT
        total += seconds
        mark = "" if label in rates or not rows else " (rate assumed)"
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
        f"{len(plan.tasks)} tasks, {len(plan.encoders)} encoders, {len(plan.units)} units, of which {len(plan.units) - len(todo)} are done; about {_time(total)}.",
        *_power_lines(plan),
    ]
    return Estimate(headings=["encoder", "views to embed", "rows", "bytes", "fits", "units", "time"], table=table, lines=lines)


def _power_lines(plan: Plan) -> list[str]:
    """Say what difference of two accuracies each task's number of rows could show, at 80 % power and half of the items discordant by chance."""
    lines = []
    for task in plan.tasks.values():
        n = sum(len(rows) for rows in task.data.test_rows.values()) if "items" in task.data.test_rows else 0
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
