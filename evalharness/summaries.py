"""From outcomes to records: values, intervals and subgroups of one cell."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from evalharness import stats
from evalharness.estimates import LEVEL, Estimate, Items, Resampler, estimate, nothing, sampler_estimate
from evalharness.forms import FEW_UNITS
from evalharness.records import make_record
from evalharness.types import Array, Column, Interval, MetricInfo

PERMUTATIONS = 999


@dataclass(slots=True, kw_only=True)
class SummaryPlan:
    """Hold what a unit's records need beside its items."""

    base: Mapping[str, Any]
    metrics: Sequence[MetricInfo]
    main_metrics: frozenset[str]  # those that get subgroups and differences
    params: Mapping[str, Any]
    main_cell: bool
    main_metric: str
    main_variant: str | None
    groups: Callable[[str], Sequence[tuple[str, Column | None]]]  # part -> (label, class column over its row set, None where it has none)
    unit: str


def summarise(plan: SummaryPlan, outcomes: Sequence[Items], resampler: Resampler) -> Iterator[dict[str, Any]]:
    """Yield the records of a unit: each metric of each variant, an episode interval beside the class-level one, and subgroups of the main metric."""
    for at, items in enumerate(outcomes):
        main_variant = at == 0 if plan.main_variant is None else items.variant == plan.main_variant
        for metric in plan.metrics:
            if not items.has(metric):
                continue
            found = estimate(metric, items, resampler)
            is_main = plan.main_cell and main_variant and metric.name == plan.main_metric
            yield make_metric_record(plan, items, metric, found, main=is_main)
            if items.episodic and metric.reduce is not None:
                yield make_metric_record(plan, items, metric, sampler_estimate(metric, items, found.value), over="episodes")
            if metric.name in plan.main_metrics and metric.reduce is not None and items.item != "episode":
                yield from group_records(plan, [items], metric, resampler, _estimate_one)


EstimateSide = Callable[[MetricInfo, list[Items], Resampler, float], Estimate]


def _estimate_one(metric: MetricInfo, side: list[Items], resampler: Resampler, level: float) -> Estimate:
    return estimate(metric, side[0], resampler, level)


def group_records(
    plan: SummaryPlan, side: list[Items], metric: MetricInfo, resampler: Resampler, estimate_side: EstimateSide
) -> Iterator[dict[str, Any]]:
    """Yield the subgroups of one cell: ``side`` holds its items, or those of every draw, of the same rows, that it is the mean over."""
    items = side[0]
    for label, column in plan.groups(items.part):
        if column is None:
            yield no_group_record(plan, metric, items, label)
            continue
        codes = column.values[items.rows]
        present = [int(code) for code in np.unique(codes) if code >= 0]
        parts = {code: [piece.take(np.flatnonzero(column.values[piece.rows] == code)) for piece in side] for code in present}
        found = {code: estimate_side(metric, parts[code], resampler, LEVEL) for code in present}
        over = "draw" if len(side) > 1 else None
        for code in present:
            each = found[code] if len(parts[code][0].rows) >= FEW_UNITS else _too_few(found[code])
            fields: dict[str, Any] = {"statistic": "mean" if over else "value", "over": over, "group": f"{label}={column.names[code]}"}
            yield make_metric_record(plan, items, metric, each, **fields)
        large = [code for code in present if len(parts[code][0].rows) >= FEW_UNITS and math.isfinite(found[code].value)]
        if len(large) > 1:
            named = {f"{label}={column.names[code]}": parts[code] for code in large}
            null = _permuted(plan, side, metric, np.where(np.isin(codes, large), codes, -1), resampler, label)
            at_level = partial(_estimate_all, metric, named, resampler, estimate_side)
            yield from extreme_records(plan, items, metric, f"group:{label}", at_level, null)


def _estimate_all(
    metric: MetricInfo, sides: Mapping[str, list[Items]], resampler: Resampler, estimate_side: EstimateSide, level: float
) -> dict[str, Estimate]:
    return {name: estimate_side(metric, side, resampler, level) for name, side in sides.items()}


def _too_few(found: Estimate) -> Estimate:
    return replace(found, status="insufficient", reason=f"{found.n} items, fewer than {FEW_UNITS}")


def _permuted(
    plan: SummaryPlan, side: list[Items], metric: MetricInfo, codes: Array, resampler: Resampler, label: str
) -> stats.WorstGroupNull | None:
    """Return what the worst group would be if groups made no difference, by permuting their labels; in the main cell alone, as it takes a thousand of them."""
    if not plan.main_cell or not isinstance(metric.reduce, str) or (len(side) > 1 and metric.reduce != "mean"):
        return None
    items = side[0]
    columns = [items.columns[name] for name in metric.columns]
    if len(side) > 1:  # the same rows in each draw: the mean over draws, item by item
        columns = [np.mean([piece.in_order().columns[metric.columns[0]] for piece in side], axis=0)]
        order = np.argsort(items.rows, kind="stable")
        items, codes = items.in_order(), codes[order]
    return stats.worst_group_null(
        columns,
        codes,
        metric.reduce,
        resampler.generator("groups", label, metric.name, len(codes)),
        clusters=items.flat_clusters,
        classes=items.columns.get("truth"),
        permutations=PERMUTATIONS,
        minimum=FEW_UNITS,
        higher_is_better=metric.higher_is_better is not False,
    )


def extreme_records(
    plan: SummaryPlan,
    items: Items,
    metric: MetricInfo,
    over: str,
    at_level: Callable[[float], Mapping[str, Estimate]],
    null: stats.WorstGroupNull | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the worst of several groups or domains with a bound over all at once, and gap and ratio with the bounds that follow from all intervals.

    ``at_level`` gives the estimates of all of them by name at a level.
    """
    low_ends = at_level(stats.one_sided_level(LEVEL))
    names = list(low_ends)
    values = np.array([low_ends[name].value for name in names])
    lower_is_worse = metric.higher_is_better is not False
    worst = stats.worst_group_bound(values, [low_ends[name].interval for name in names], level=LEVEL, higher_is_better=lower_is_worse)
    low, high = (worst.bound, math.nan) if lower_is_worse else (math.nan, worst.bound)
    wide = at_level(stats.simultaneous_level(LEVEL, len(names)))
    intervals = [wide[name].interval for name in names]
    method = f"simultaneous-{intervals[worst.group].method}"
    one = wide[names[worst.group]]
    bound = Interval(low=low, high=high, level=LEVEL, method=f"one-sided-{intervals[worst.group].method}", n=len(names))
    scope = f"all {over.partition(':')[0]}s at once"
    found = replace(one, interval=bound, scope=scope, status="measured", reason=_worst_reason(len(names), over, null))
    if not math.isfinite(worst.bound):
        found = replace(
            found, reason=f"no bound over {len(names)} {over.partition(':')[0]}s: one of them has too few units, or does not vary"
        )
    found = found if null is None else replace(found, p=null.p)
    yield make_metric_record(plan, items, metric, found, statistic="worst", over=over, group=names[worst.group])
    lows, highs = np.array([item.low for item in intervals]), np.array([item.high for item in intervals])
    total, units = sum(each.n for each in wide.values()), sum(each.n_units for each in wide.values())
    if over.startswith("group:") and items.flat_clusters is not None:
        units = min(units, len(np.unique(items.flat_clusters)))  # a cluster may stand in several groups
    known = bool(np.isfinite(lows).all() and np.isfinite(highs).all())
    unknown = None if known else "a bound is not known: one of them has too few units, or does not vary"
    ends = (max(0.0, float(lows.max() - highs.min())), float(highs.max() - lows.min())) if known else (math.nan, math.nan)
    gap = Interval(low=ends[0], high=ends[1], level=LEVEL, method=method, n=len(names))
    spread = Estimate(value=float(np.ptp(values)), interval=gap, scope=scope, n=total, n_units=units, reason=unknown)
    yield make_metric_record(plan, items, metric, spread, statistic="gap", over=over)
    if metric.low >= 0 and values.max() > 0:
        sides = (max(0.0, float(lows.min() / highs.max())), _most_even(lows, highs)) if known else (math.nan, math.nan)
        share = Interval(low=sides[0], high=sides[1], level=LEVEL, method=method, n=len(names))
        even = Estimate(value=float(values.min() / values.max()), interval=share, scope=scope, n=total, n_units=units, reason=unknown)
        yield make_metric_record(plan, items, metric, even, statistic="ratio", over=over)


def _most_even(lows: Array, highs: Array) -> float:
    """Return the largest ratio of minimum to maximum that intervals allow: 1 where one value lies in all of them."""
    return 1.0 if lows.max() <= highs.min() else float(highs.min() / lows.max())


def _worst_reason(count: int, over: str, null: stats.WorstGroupNull | None) -> str:
    text = f"one-sided bound over {count} {over.partition(':')[0]}s"
    if null is None:
        return text
    if not math.isfinite(null.p):
        return f"{text}; no permutation null: {null.reason}"
    return f"{text}; with labels permuted the worst is {null.expected:.3g} on average"


def make_metric_record(
    plan: SummaryPlan,
    items: Items,
    metric: MetricInfo,
    found: Estimate,
    *,
    statistic: str = "value",
    over: str | None = None,
    reference: str | None = None,
    group: str | None = None,
    main: bool = False,
    base: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the record of one estimate, of the cell ``base`` or else the plan's own; a value outside its metric's range is a failure."""
    status, reason = (items.status, items.reason) if items.status != "measured" else (found.status, found.reason)
    if math.isfinite(found.value) and statistic == "value" and not metric.low - 1e-6 <= found.value <= metric.high + 1e-6:
        status, reason = "failed", f"value {found.value:g} outside [{metric.low:g}, {metric.high:g}]"
    if not math.isfinite(found.value) and status == "measured":
        status, reason = "insufficient", "undefined on these items"
    record = make_record(
        **(plan.base if base is None else base),
        params={**plan.params, **({"variant": items.variant} if items.variant else {})},
        metric=metric.name,
        statistic=statistic,
        over=over,
        reference=reference,
        group=group,
        value=found.value,
        low=found.interval.low,
        high=found.interval.high,
        level=found.interval.level,
        method=found.interval.method,
        scope=found.scope,
        n=found.n,
        n_units=found.n_units,
        p=found.p,
        higher_is_better=metric.higher_is_better,
        main=main,
        status=status,
        reason=reason,
        unit=plan.unit,
    )
    record["_variant"] = items.variant
    return record


def no_group_record(plan: SummaryPlan, metric: MetricInfo, items: Items, label: str) -> dict[str, Any]:
    """Return the record that says that these items have no such groups."""
    reason = f"part `{items.part}` has no class column `{label}`"
    found = Estimate(value=math.nan, interval=nothing(0), scope=None, n=0, n_units=0, status="not_applicable", reason=reason)
    return make_metric_record(plan, items, metric, found, over=f"group:{label}", group=label)


def empty_record(plan: SummaryPlan, status: str, reason: str, *, base: Mapping[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """Return the one record of a unit that gave no value: failed or not applicable."""
    name = fields.get("metric", plan.main_metric if plan.main_cell else min(plan.main_metrics))
    metric = next(info for info in plan.metrics if info.name == name)
    given = {"statistic": "value", "main": plan.main_cell, "metric": name, **fields}
    return make_record(
        **(plan.base if base is None else base),
        params=dict(plan.params),
        n=0,
        n_units=0,
        higher_is_better=metric.higher_is_better,
        status=status,
        reason=reason,
        unit=plan.unit,
        **given,
    )
