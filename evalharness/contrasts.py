"""Differences of a cell to its reference cell, paired item by item where the rows are the same, and accuracy under the worst of several attacks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from evalharness import stats
from evalharness.summaries import LEVEL, NO_INTERVAL, Estimate, Items, Resampler, SummaryPlan, estimate, make_metric_record, scope_of
from evalharness.types import Array, Interval, MetricInfo


def contrast_records(
    plan: SummaryPlan, outcomes: Sequence[Items], references: Mapping[str, Items], reference: str, resampler: Resampler
) -> Iterator[dict[str, Any]]:
    """Yield the difference of the evaluator's main metric to a reference cell, variant by variant.

    Items of the same rows are compared pair by pair on the same resamples; other rows are taken as an independent sample.
    """
    metric = next(info for info in plan.evaluator.metrics if info.name == plan.evaluator.main)
    if metric.reduce is None:
        return
    for items in outcomes:
        other = references.get(items.variant)
        if other is None or not all(name in items.columns and name in other.columns for name in metric.columns):
            continue
        found = _difference(metric, items, other, resampler)
        yield make_metric_record(plan, items, metric, found, statistic="difference", reference=reference)


def _difference(metric: MetricInfo, items: Items, other: Items, resampler: Resampler) -> Estimate:
    items, other = _in_order(items), _in_order(other)
    paired = len(items.rows) == len(other.rows) and bool((items.rows == other.rows).all())
    reduce = stats.get_reducer(metric.reduce)  # type: ignore[arg-type]
    mine, theirs = [items.columns[name] for name in metric.columns], [other.columns[name] for name in metric.columns]
    values = [float(reduce(*columns, np.ones((1, len(columns[0]))))[0]) for columns in (mine, theirs)]
    units = len(items.rows) if items.clusters is None or items.clusters.ndim > 1 else len(np.unique(items.clusters))
    scope = scope_of(items)
    if units < NO_INTERVAL or not all(map(math.isfinite, values)):
        nothing = Interval(low=math.nan, high=math.nan, level=LEVEL, method="none", n=units)
        return Estimate(value=values[0] - values[1], interval=nothing, scope=scope, n=len(items.rows), n_units=units, status="insufficient")
    span = metric.high - metric.low
    limits = {"low": -span, "high": span}
    if not paired and metric.interval == "wilson" and items.clusters is None and other.clusters is None:
        sizes = len(items.rows), len(other.rows)
        interval = stats.newcombe(values[0] * sizes[0], sizes[0], values[1] * sizes[1], sizes[1], LEVEL)
    else:
        first, second = (reduce(*columns, _counts(resampler, each)) for columns, each in ((mine, items), (theirs, other)))
        interval = stats.paired_difference(values[0], values[1], first, second, LEVEL, n=units, **limits).interval
        interval = replace(interval, method=f"{'paired' if paired else 'unpaired'}-{interval.method}")
    reason = None if math.isfinite(interval.low) else "the two never differ"
    return Estimate(value=values[0] - values[1], interval=interval, scope=scope, n=len(items.rows), n_units=units, reason=reason)


def _counts(resampler: Resampler, items: Items) -> Array:
    clusters = items.clusters if items.clusters is None or items.clusters.ndim == 1 else None
    return resampler.counts(items.rows, clusters)


def _in_order(items: Items) -> Items:
    order = np.argsort(items.rows, kind="stable")
    return items if (order == np.arange(len(order))).all() else items.take(order)


def robust_record(
    plan: SummaryPlan, metric: MetricInfo, clean: Items, attacked: Sequence[Items], resampler: Resampler, *, over: str, main: bool
) -> dict[str, Any]:
    """Return the record of the per-item minimum over attacks, items that are wrong unattacked counting as broken.

    Source: Croce & Hein 2020: an item is robust where every attack fails.
    """
    (column,) = metric.columns
    pieces = [_in_order(items) for items in (clean, *attacked)]
    worst = np.minimum.reduce([np.asarray(items.columns[column], dtype=np.float64) for items in pieces])
    items = replace(pieces[0], columns={column: worst})
    found = estimate(metric, items, resampler)
    return make_metric_record(plan, items, metric, found, over=over, main=main)
