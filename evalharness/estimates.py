"""A value and its interval from the items of one or several cells: every number is a reducer over stored columns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from evalharness import stats
from evalharness.forms import make_interval
from evalharness.keys import digest_bytes, seed_of
from evalharness.store.results import StoredOutcome
from evalharness.types import Array, Interval, MetricInfo

LEVEL = 0.95
RESAMPLES = 2000
NO_INTERVAL = 5
ROUNDING = 1e-9


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

    @property
    def episodic(self) -> bool:
        """Say whether each item is an episode over several classes."""
        return self.item == "episode" and self.clusters is not None and self.clusters.ndim == 2

    @property
    def episode_units(self) -> str:
        """Return what the independent units of episodes are: classes, or superclasses where each episode stays in one."""
        assert self.clusters is not None
        return "superclasses" if self.clusters.shape[1] == 1 else "classes"

    @property
    def flat_clusters(self) -> Array | None:
        """Return the independent unit of each item, (M,), or None where items are their own."""
        return self.clusters if self.clusters is not None and self.clusters.ndim == 1 else None

    def take(self, at: Array) -> Items:
        """Return some of the items, without whole-cloud statistics."""
        return replace(
            self,
            rows=self.rows[at],
            columns={name: values[at] for name, values in self.columns.items()},
            clusters=None if self.clusters is None else self.clusters[at],
            scalars={},
            replicates={},
            details={},
            reason=None,
        )

    def in_order(self) -> Items:
        """Return the same items in the order of their rows, whole-cloud statistics with them."""
        order = np.argsort(self.rows, kind="stable")
        if (order == np.arange(len(order))).all():
            return self
        return replace(self.take(order), scalars=self.scalars, replicates=self.replicates, details=self.details, reason=self.reason)

    def has(self, metric: MetricInfo) -> bool:
        """Say whether the metric can be computed from these items."""
        return metric.name in self.scalars if metric.reduce is None else all(name in self.columns for name in metric.columns)


def restore_items(facts: Mapping[str, Any], stored: StoredOutcome) -> Items:
    """Take up stored items again; ``facts`` say what their columns do not."""
    held = dict(stored.columns)
    clusters = held.pop("cluster", None)
    return Items(
        variant=facts["variant"],
        item=facts["item"],
        part=facts["part"],
        rows=stored.rows,
        columns=held,
        clusters=clusters,
        scalars={name: _number(value) for name, value in facts.get("scalars", {}).items()},
        replicates={name: np.array([_number(value) for value in values]) for name, values in facts.get("replicates", {}).items()},
        cluster_name=facts["cluster"],
        num_classes=facts["num_classes"],
        status=facts["status"],
        reason=facts.get("reason"),
    )


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


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
    p: float = math.nan


class Resampler:
    """Give resample counts for a row set, the same for every encoder, and keep the last few."""

    def __init__(self, seed: int, resamples: int = RESAMPLES, keep: int = 4) -> None:
        self._seed = seed
        self._resamples = resamples
        self._keep = keep
        self._known: dict[str, stats.Resamples] = {}

    def of(self, rows: Array, clusters: Array | None) -> stats.Resamples:
        """Return the resamples of items at the given rows."""
        key = digest_bytes(rows.astype(np.int64).tobytes(), b"" if clusters is None else clusters.astype(np.int64).tobytes())
        if key not in self._known:
            while len(self._known) >= self._keep:
                self._known.pop(next(iter(self._known)))
            self._known[key] = stats.Resamples(len(rows), self._resamples, seed_of(self._seed, "bootstrap", key), clusters)
        return self._known[key]

    def generator(self, *about: Any) -> np.random.Generator:
        """Return a source of randomness for a simulation about these items."""
        return np.random.default_rng(seed_of(self._seed, *about))


def nothing(n: int) -> Interval:
    """Return the interval that says nothing."""
    return Interval(low=math.nan, high=math.nan, level=LEVEL, method="none", n=n)


def value_of(metric: MetricInfo, items: Items) -> float:
    """Return a metric's value on some items; NaN where it is undefined."""
    if metric.reduce is None:
        return float(items.scalars.get(metric.name, math.nan))
    n = len(items.rows)
    reduce = stats.get_reducer(metric.reduce)
    return float(reduce(*[items.columns[name] for name in metric.columns], np.ones((1, n)))[0]) if n else math.nan


def estimate(metric: MetricInfo, items: Items, resampler: Resampler, level: float = LEVEL) -> Estimate:
    """Return a metric's value on some items with the interval that its kind and the number of units ask for."""
    if metric.reduce is None:
        return _cloud_estimate(metric, items, level)
    value, n = value_of(metric, items), len(items.rows)
    if items.episodic:
        return episode_estimate(metric, value, items.columns[metric.columns[0]], items, level)
    clusters = items.flat_clusters
    units = n if clusters is None else len(np.unique(clusters))
    scope = scope_of(items)
    reason: str | None = None
    if metric.interval == "none":
        return Estimate(value=value, interval=nothing(n), scope=None, n=n, n_units=units)
    if units < NO_INTERVAL:
        reason = f"{units} independent units: too few for an interval{_list_units(metric, items)}"
        return Estimate(value=value, interval=nothing(n), scope=scope, n=n, n_units=units, status="insufficient", reason=reason)
    if metric.reduce == "calibration_error" and (reason := _within_band(metric, value, items, resampler)):
        return Estimate(value=value, interval=nothing(n), scope=scope, n=n, n_units=units, reason=reason)
    interval = _interval(metric, value, items, units, resampler, level)
    if not math.isfinite(interval.low):
        reason = "the statistic does not vary, or is undefined in too many resamples"
    elif not interval.low - ROUNDING <= value <= interval.high + ROUNDING:
        reason = (
            f"resamples lie from {interval.low:.4g} to {interval.high:.4g} and not about the value: many leave out what few items carry"
        )
        interval = nothing(n)
    return Estimate(value=value, interval=interval, scope=scope, n=n, n_units=units, reason=reason)


def _list_units(metric: MetricInfo, items: Items) -> str:
    """Return the value of each unit, where each has one."""
    codes = items.rows if items.flat_clusters is None else items.flat_clusters
    values = [value_of(metric, items.take(np.flatnonzero(codes == code))) for code in np.unique(codes)]
    return f"; they have {', '.join(f'{value:.4g}' for value in values)}" if values and np.isfinite(values).all() else ""


def scope_of(items: Items) -> str:
    """Return what an interval over these items covers."""
    if items.clusters is not None and items.cluster_name:
        return f"clusters by {items.cluster_name}"
    return {"sample": "test items", "query": "queries", "pair": "pairs", "episode": "episodes (sampler only)"}[items.item]


def _within_band(metric: MetricInfo, value: float, items: Items, resampler: Resampler) -> str | None:
    """Say so where a calibration error is no larger than a perfectly calibrated model's, about which an interval would mislead."""
    confidence = items.columns[metric.columns[0]].astype(np.float64)
    if not (len(confidence) and np.isfinite(confidence).all() and math.isfinite(value)):
        return None
    band = stats.calibration_band(confidence, resampler.generator("calibration", len(confidence)))
    return f"a perfectly calibrated model shows up to {band:.3g} here" if value <= band else None


def _interval(metric: MetricInfo, value: float, items: Items, units: int, resampler: Resampler, level: float) -> Interval:
    n, clusters = len(items.rows), items.flat_clusters
    if metric.interval == "wilson" and clusters is None:
        return stats.wilson(value * n, n, level)
    if metric.interval == "wilson":
        without = stats.leave_one_out("mean", items.columns[metric.columns[0]], clusters=clusters, limit=None)
        return stats.wilson_effective(value, without, n, level)
    columns = [items.columns[name] for name in metric.columns]
    return make_interval(metric, value, columns, clusters, units, resampler.of(items.rows, clusters), level)


def episode_estimate(metric: MetricInfo, value: float, scores: Array, items: Items, level: float, *, limits: bool = True) -> Estimate:
    """Return the class-level estimate of a mean over episodes."""
    assert items.clusters is not None
    found = stats.episode_jackknife(scores, items.clusters, items.num_classes, level)
    interval = clipped(metric, found.interval) if limits else found.interval
    return Estimate(
        value=value, interval=interval, scope=items.episode_units, n=len(scores), n_units=items.num_classes, reason=found.reason
    )


def sampler_estimate(metric: MetricInfo, items: Items, value: float) -> Estimate:
    """Return the estimate over episodes alone, which covers the sampler's chance and not the data's."""
    interval = clipped(metric, stats.episode_interval(items.columns[metric.columns[0]]))
    return Estimate(value=value, interval=interval, scope="episodes (sampler only)", n=len(items.rows), n_units=len(items.rows))


def clipped(metric: MetricInfo, interval: Interval) -> Interval:
    """Keep an interval within its metric's range."""
    low, high = (float(np.clip(bound, metric.low, metric.high)) for bound in (interval.low, interval.high))
    return replace(interval, low=low, high=high)


def _cloud_estimate(metric: MetricInfo, items: Items, level: float) -> Estimate:
    value = value_of(metric, items)
    replicates = items.replicates.get(metric.name)
    n = len(items.rows)
    if metric.interval == "none":
        return Estimate(value=value, interval=nothing(n), scope=None, n=n, n_units=n)
    if replicates is None:
        return Estimate(value=value, interval=nothing(n), scope=None, n=n, n_units=n, reason=f"{n} items: too few for half-samples")
    interval = stats.half_sample(value, replicates, level, low=metric.low, high=metric.high)
    reason = None if math.isfinite(interval.low) else "the statistic does not vary, or is undefined in too many half-samples"
    return Estimate(value=value, interval=interval, scope=scope_of(items), n=n, n_units=n, reason=reason)
