"""From outcomes to records: values, intervals, subgroups; every number is a reducer over stored columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from evalharness import stats
from evalharness.keys import digest_bytes, seed_of
from evalharness.records import make_record
from evalharness.types import Array, Column, EvaluatorSpec, Interval, MetricInfo

LEVEL = 0.95
RESAMPLES = 2000
FEW_UNITS = 30
NO_INTERVAL = 5
JACKKNIFE_LIMIT = 500
_BCA = {"auc", "spearman", "pearson", "r2"}
_BASIC = {"macro_f1", "balanced_accuracy"}


@dataclass(slots=True, kw_only=True)
class Items:
    """Hold one variant's items over all folds, as they are stored."""

    variant: str
    item: str
    part: str
    rows: Array
    columns: dict[str, Array]
    clusters: Array | None
    scalars: Mapping[str, float] = field(default_factory=dict)
    replicates: Mapping[str, Array] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)
    status: str = "measured"
    reason: str | None = None
    cluster_name: str | None = None
    num_classes: int = 0

    def take(self, at: Array) -> Items:
        """Return some of the items, without whole-cloud statistics."""
        return Items(
            variant=self.variant,
            item=self.item,
            part=self.part,
            rows=self.rows[at],
            columns={name: values[at] for name, values in self.columns.items()},
            clusters=None if self.clusters is None else self.clusters[at],
            status=self.status,
            reason=self.reason,
            cluster_name=self.cluster_name,
            num_classes=self.num_classes,
        )


def restore_items(facts: Mapping[str, Any], rows: Array, columns: Mapping[str, Array]) -> Items:
    """Take up stored items again; ``facts`` say what their columns do not."""
    held = dict(columns)
    clusters = held.pop("cluster", None)
    return Items(
        variant=facts["variant"],
        item=facts["item"],
        part=facts["part"],
        rows=rows,
        columns=held,
        clusters=clusters,
        cluster_name=facts["cluster"],
        num_classes=facts["num_classes"],
        status=facts["status"],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Hold a value, its interval, what the interval covers and how many independent units it rests on."""

    value: float
    interval: Interval
    scope: str | None
    n: int
    n_units: int
    status: str = "measured"
    reason: str | None = None


class Resampler:
    """Give resample counts for a row set, the same for every encoder, and keep the last few."""

    def __init__(self, seed: int, resamples: int = RESAMPLES, keep: int = 4) -> None:
        self._seed = seed
        self._resamples = resamples
        self._keep = keep
        self._known: dict[str, Array] = {}

    def counts(self, rows: Array, clusters: Array | None) -> Array:
        """Return counts (R, M) int8 for items at the given rows."""
        key = digest_bytes(rows.astype(np.int64).tobytes(), b"" if clusters is None else clusters.astype(np.int64).tobytes())
        if key not in self._known:
            while len(self._known) >= self._keep:
                self._known.pop(next(iter(self._known)))
            generator = np.random.default_rng(seed_of(self._seed, "bootstrap", key))
            self._known[key] = stats.counts(len(rows), self._resamples, generator, clusters)
        return self._known[key]


def _nothing(n: int) -> Interval:
    return Interval(low=math.nan, high=math.nan, level=LEVEL, method="none", n=n)


def estimate(metric: MetricInfo, items: Items, resampler: Resampler, level: float = LEVEL) -> Estimate:
    """Return a metric's value on some items with the interval that its kind and the number of units ask for."""
    if metric.reduce is None:
        return _cloud_estimate(metric, items, level)
    columns = [items.columns[name] for name in metric.columns]
    reduce = stats.get_reducer(metric.reduce)
    n = len(items.rows)
    value = float(reduce(*columns, np.ones((1, n)))[0]) if n else math.nan
    if items.item == "episode" and items.clusters is not None and items.clusters.ndim == 2:
        return _episode_estimate(metric, value, columns[0], items, level)
    units = n if items.clusters is None else len(np.unique(items.clusters))
    scope = scope_of(items)
    if metric.interval == "none":
        return Estimate(value=value, interval=_nothing(n), scope=None, n=n, n_units=units)
    if units < NO_INTERVAL:
        reason = f"{units} independent units: too few for an interval"
        return Estimate(value=value, interval=_nothing(n), scope=scope, n=n, n_units=units, status="insufficient", reason=reason)
    interval = _interval(metric, value, columns, items, units, resampler, level)
    unclear = None if math.isfinite(interval.low) else "the statistic does not vary, or is undefined in too many resamples"
    return Estimate(value=value, interval=interval, scope=scope, n=n, n_units=units, reason=unclear)


def scope_of(items: Items) -> str:
    """Return what an interval over these items covers."""
    if items.clusters is not None and items.cluster_name:
        return f"clusters by {items.cluster_name}"
    return {"sample": "test items", "query": "queries", "pair": "pairs", "episode": "episodes (sampler only)"}[items.item]


def _interval(
    metric: MetricInfo, value: float, columns: Sequence[Array], items: Items, units: int, resampler: Resampler, level: float
) -> Interval:
    n, clusters = len(items.rows), items.clusters
    reduce = stats.get_reducer(metric.reduce)  # type: ignore[arg-type]
    limits = {"low": metric.low, "high": metric.high}
    if metric.interval == "wilson" and clusters is None:
        return stats.wilson(value * n, n, level)
    if units < FEW_UNITS or metric.interval == "jackknife":
        left_out = np.concatenate([reduce(*columns, block) for block in stats.jackknife_blocks(n, clusters, limit=None)])
        return stats.jackknife_interval(value, left_out, level, **limits)
    replicates = reduce(*columns, resampler.counts(items.rows, clusters))
    if metric.reduce in _BCA:
        left_out = np.concatenate([reduce(*columns, block) for block in stats.jackknife_blocks(n, clusters, limit=JACKKNIFE_LIMIT)])
        return stats.bootstrap(value, replicates, method="bca", level=level, jackknife=left_out, n=units, **limits)
    method = "basic" if metric.reduce in _BASIC else "percentile"
    return stats.bootstrap(value, replicates, method=method, level=level, n=units, **limits)  # type: ignore[arg-type]


def _episode_estimate(metric: MetricInfo, value: float, scores: Array, items: Items, level: float) -> Estimate:
    assert items.clusters is not None
    found = stats.episode_jackknife(scores, items.clusters, items.num_classes, level)
    return Estimate(
        value=value,
        interval=_clipped(metric, found.interval),
        scope="classes",
        n=len(scores),
        n_units=items.num_classes,
        reason=found.reason,
    )


def _clipped(metric: MetricInfo, interval: Interval) -> Interval:
    """Keep an interval within its metric's range."""
    low, high = (float(np.clip(bound, metric.low, metric.high)) for bound in (interval.low, interval.high))
    return replace(interval, low=low, high=high)


def _cloud_estimate(metric: MetricInfo, items: Items, level: float) -> Estimate:
    value = float(items.scalars.get(metric.name, math.nan))
    replicates = items.replicates.get(metric.name)
    n = len(items.rows)
    if replicates is None or metric.interval == "none":
        return Estimate(value=value, interval=_nothing(n), scope=None, n=n, n_units=n)
    interval = stats.half_sample(value, replicates, level, low=metric.low, high=metric.high)
    return Estimate(value=value, interval=interval, scope=scope_of(items), n=n, n_units=n)


# --- records ------------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class SummaryPlan:
    """Hold what a unit's records need beside its items."""

    base: Mapping[str, Any]
    evaluator: EvaluatorSpec
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
        for metric in plan.evaluator.metrics:
            if not _has(metric, items):
                continue
            found = estimate(metric, items, resampler)
            is_main = plan.main_cell and main_variant and metric.name == plan.main_metric
            yield make_metric_record(plan, items, metric, found, main=is_main)
            if found.scope == "classes":
                yield make_metric_record(plan, items, metric, _sampler_estimate(metric, items, found.value), over="episodes")
            if metric.name == plan.evaluator.main and metric.reduce is not None and items.item != "episode":
                for label, column in plan.groups(items.part):
                    if column is None:
                        yield no_group_record(plan, metric, items, label)
                        continue
                    yield from _group_records(plan, items, metric, resampler, label, column)


def _has(metric: MetricInfo, items: Items) -> bool:
    return metric.name in items.scalars if metric.reduce is None else all(name in items.columns for name in metric.columns)


def _sampler_estimate(metric: MetricInfo, items: Items, value: float) -> Estimate:
    interval = _clipped(metric, stats.episode_interval(items.columns[metric.columns[0]]))
    return Estimate(value=value, interval=interval, scope="episodes (sampler only)", n=len(items.rows), n_units=len(items.rows))


def _group_records(
    plan: SummaryPlan, items: Items, metric: MetricInfo, resampler: Resampler, label: str, column: Column
) -> Iterator[dict[str, Any]]:
    codes = column.values[items.rows]
    present = [int(code) for code in np.unique(codes) if code >= 0]
    parts = {code: items.take(np.flatnonzero(codes == code)) for code in present}
    large = [code for code in present if len(parts[code].rows) >= FEW_UNITS]
    for code in present:
        found = estimate(metric, parts[code], resampler)
        if code not in large:
            found = _insufficient(found)
        yield make_metric_record(plan, items, metric, found, group=f"{label}={column.names[code]}")
    if len(large) < 2:
        return
    level = stats.simultaneous_level(LEVEL, len(large))
    wide = {code: estimate(metric, parts[code], resampler, level) for code in large}
    yield from _extremes(plan, items, metric, label, column, wide)


def _insufficient(found: Estimate) -> Estimate:
    reason = f"{found.n} items, fewer than {FEW_UNITS}"
    return Estimate(
        value=found.value,
        interval=found.interval,
        scope=found.scope,
        n=found.n,
        n_units=found.n_units,
        status="insufficient",
        reason=reason,
    )


def _extremes(
    plan: SummaryPlan, items: Items, metric: MetricInfo, label: str, column: Column, wide: Mapping[int, Estimate]
) -> Iterator[dict[str, Any]]:
    """Yield the worst group with a bound over all groups at once, and the gap with the bounds that follow from them."""
    codes = list(wide)
    values = np.array([wide[code].value for code in codes])
    intervals = [wide[code].interval for code in codes]
    lower_is_worse = metric.higher_is_better is not False
    worst = stats.worst_group_bound(values, intervals, level=LEVEL, higher_is_better=lower_is_worse)
    name = f"{label}={column.names[codes[worst.group]]}"
    low, high = (worst.bound, math.nan) if lower_is_worse else (math.nan, worst.bound)
    n = wide[codes[worst.group]].n
    bound = Interval(low=low, high=high, level=LEVEL, method=f"simultaneous-{intervals[0].method}", n=len(codes))
    reason = f"one-sided bound over {len(codes)} groups"
    yield make_metric_record(
        plan,
        items,
        metric,
        Estimate(value=worst.value, interval=bound, scope="all groups at once", n=n, n_units=n, reason=reason),
        statistic="worst",
        over=f"group:{label}",
        group=name,
    )
    lows, highs = np.array([item.low for item in intervals]), np.array([item.high for item in intervals])
    gap = Interval(
        low=max(0.0, float(lows.max() - highs.min())), high=float(highs.max() - lows.min()), level=LEVEL, method=bound.method, n=len(codes)
    )
    total = sum(wide[code].n for code in codes)
    yield make_metric_record(
        plan,
        items,
        metric,
        Estimate(value=float(values.max() - values.min()), interval=gap, scope="all groups at once", n=total, n_units=total),
        statistic="gap",
        over=f"group:{label}",
    )


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
) -> dict[str, Any]:
    """Return the record of one estimate; a value outside its metric's range is a failure."""
    status, reason = (items.status, items.reason) if items.status != "measured" else (found.status, found.reason)
    if math.isfinite(found.value) and statistic == "value" and not metric.low - 1e-6 <= found.value <= metric.high + 1e-6:
        status, reason = "failed", f"value {found.value:g} outside [{metric.low:g}, {metric.high:g}]"
    if not math.isfinite(found.value) and status == "measured":
        status, reason = "insufficient", "undefined on these items"
    record = make_record(
        **plan.base,
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
    nothing = Estimate(
        value=math.nan,
        interval=_nothing(0),
        scope=None,
        n=0,
        n_units=0,
        status="not_applicable",
        reason=f"part `{items.part}` has no class column `{label}`",
    )
    return make_metric_record(plan, items, metric, nothing, over=f"group:{label}", group=label)


def empty_record(plan: SummaryPlan, status: str, reason: str) -> dict[str, Any]:
    """Return the one record of a unit that gave no value: failed or not applicable."""
    metric = next(info for info in plan.evaluator.metrics if info.name == plan.evaluator.main)
    name = plan.main_metric if plan.main_cell else metric.name
    return make_record(
        **plan.base,
        params=dict(plan.params),
        metric=name,
        statistic="value",
        n=0,
        n_units=0,
        higher_is_better=metric.higher_is_better,
        main=plan.main_cell,
        status=status,
        reason=reason,
        unit=plan.unit,
    )
