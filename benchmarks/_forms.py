"""Forms of intervals to simulate: the one that the product chooses, and others in its place."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.special import ndtri

from evalharness import stats
from evalharness.estimates import LEVEL, Items, Resampler, estimate
from evalharness.types import Interval, MetricInfo

Array = np.ndarray
USED = "used"
MOST_LEFT_OUT = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Hold one thing to simulate: ``draw`` gives a fresh data set, of which ``metric`` has the value ``truth`` in the long run.

    ``rejected`` forms are those that the design decided against; ``others`` are shown for comparison.
    """

    what: str
    size: str
    metric: MetricInfo
    truth: float
    draw: Callable[[np.random.Generator], Items]
    rejected: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    effort: float = 1.0


@dataclass(slots=True)
class Tally:
    """Count how often an interval holds the truth, and how wide it is."""

    covered: int = 0
    given: int = 0
    total: int = 0
    below: int = 0
    width: float = 0.0

    def add(self, interval: Interval, truth: float) -> None:
        """Count one interval; one without bounds is not given."""
        self.total += 1
        if math.isfinite(interval.low) and math.isfinite(interval.high):
            self.given += 1
            self.covered += interval.low <= truth <= interval.high
            self.below += truth < interval.low
            self.width += interval.high - interval.low

    @property
    def coverage(self) -> float:
        """Return the share of given intervals that hold the truth."""
        return self.covered / self.given if self.given else math.nan


@dataclass(slots=True)
class Simulated:
    """Hold what a setting's simulation found: tallies by form, the method that was used, the spread and mean of the estimates."""

    setting: Setting
    method: str
    spread: float
    centre: float
    tallies: dict[str, Tally] = field(default_factory=dict)

    def relative_width(self, form: str) -> float:
        """Return the mean width over that of an interval of the true standard error, 2 · 1.96 · SD."""
        tally = self.tallies[form]
        return tally.width / max(1, tally.given) / (2 * float(ndtri((1 + LEVEL) / 2)) * self.spread)


def simulate(setting: Setting, repeats: int, seed: int = 0, pool: int = 16) -> Simulated:
    """Draw data sets and count what each form of interval covers.

    Resample counts come from a small pool of seeds, so that their own chance averages out and few need to be made.
    """
    generator = np.random.default_rng([seed, *setting.what.encode(), *setting.size.encode()])
    resamplers = [Resampler(at, keep=64) for at in range(pool)]
    forms = (*setting.rejected, *setting.others)
    tallies = {form: Tally() for form in (USED, *forms)}
    values, methods = [], set()
    for at in range(repeats):
        items, resampler = setting.draw(generator), resamplers[at % pool]
        found = estimate(setting.metric, items, resampler)
        tallies[USED].add(found.interval, setting.truth)
        if math.isfinite(found.interval.low):
            methods.add(found.interval.method)
        values.append(found.value)
        given = Given(setting.metric, items, found.value, resampler)
        for form in forms:
            tallies[form].add(FORMS[form](given), setting.truth)
    method = " or ".join(sorted(methods)) or "none"
    return Simulated(setting, method, float(np.nanstd(values, ddof=1)), float(np.nanmean(values)), tallies)


class Given:
    """Hold one data set with what several forms need, made once."""

    def __init__(self, metric: MetricInfo, items: Items, value: float, resampler: Resampler) -> None:
        self.metric, self.items, self.value, self.resampler = metric, items, value, resampler
        self.n = len(items.rows)
        self.units = self.n if items.flat_clusters is None else len(np.unique(items.flat_clusters))
        self.limits: dict[str, Any] = {"low": metric.low, "high": metric.high}
        self._replicates: Array | None = None
        self._left_out: Array | None = None

    @property
    def columns(self) -> list[Array]:
        """Return the metric's columns."""
        return [self.items.columns[name] for name in self.metric.columns]

    @property
    def reduce(self) -> Any:
        """Return the metric's reducer."""
        assert self.metric.reduce is not None
        return self.metric.reduce

    @property
    def replicates(self) -> Array:
        """Return bootstrap replicates over units."""
        if self._replicates is None:
            self._replicates = self.resampler.of(self.items.rows, self.items.flat_clusters).apply(self.reduce, *self.columns)
        return self._replicates

    @property
    def left_out(self) -> Array:
        """Return leave-one-unit-out values."""
        if self._left_out is None:
            clusters = self.items.flat_clusters
            self._left_out = stats.leave_one_out(self.reduce, *self.columns, clusters=clusters, limit=MOST_LEFT_OUT)
        return self._left_out

    def nothing(self) -> Interval:
        """Return an interval without bounds."""
        return Interval(low=math.nan, high=math.nan, level=LEVEL, method="none", n=self.n)


def _bootstrap(method: Any) -> Callable[[Given], Interval]:
    def make(given: Given) -> Interval:
        jackknife = given.left_out if method == "bca" else None
        return stats.bootstrap(given.value, given.replicates, method=method, jackknife=jackknife, **given.limits)

    return make


def _jackknife(given: Given) -> Interval:
    return stats.jackknife_interval(given.value, given.left_out, **given.limits)


def _fisher(given: Given) -> Interval:
    return stats.jackknife_interval(given.value, given.left_out, transform="fisher")


def _wald(given: Given) -> Interval:
    half = float(ndtri((1 + LEVEL) / 2)) * math.sqrt(given.value * (1 - given.value) / given.n)
    return Interval(low=given.value - half, high=given.value + half, level=LEVEL, method="wald", n=given.n)


def _rows_wilson(given: Given) -> Interval:
    return stats.wilson(given.value * given.n, given.n)


def _rows_bootstrap(given: Given) -> Interval:
    """Return the percentile bootstrap of rows, as if those of a cluster were independent."""
    replicates = given.resampler.of(given.items.rows, None).apply(given.reduce, *given.columns)
    return stats.bootstrap(given.value, replicates, method="percentile", **given.limits)


def _within_classes(method: Any) -> Callable[[Given], Interval]:
    """Return a bootstrap that keeps the number of rows of each true class."""

    def make(given: Given) -> Interval:
        truth = given.columns[0]
        weights = np.zeros((2000, given.n), dtype=np.int8)
        generator = given.resampler.generator("within")
        for code in np.unique(truth):
            at = np.flatnonzero(truth == code)
            weights[:, at] = stats.counts(len(at), 2000, generator)
        return stats.bootstrap(given.value, stats.get_reducer(given.reduce)(*given.columns, weights), method=method, **given.limits)

    return make


def _bootstrap_cloud(given: Given) -> Interval:
    """Return the percentile bootstrap of a whole-cloud statistic, whose duplicates are pairs at distance 0."""
    return stats.bootstrap(given.value, given.items.details["bootstrap"], method="percentile")


def _episodes(given: Given) -> Interval:
    return stats.episode_interval(given.columns[0])


def _query_class(given: Given) -> Interval:
    """Return the bootstrap of queries clustered by their class, which leaves out what the other classes of an episode do."""
    hits, counts = given.items.details["by_class"]
    replicates = stats.Resamples(len(hits), 2000, given.n).apply("ratio", hits, counts)
    return stats.bootstrap(given.value, replicates, method="percentile")


def _product_weights(given: Given) -> Interval:
    """Return the bootstrap of classes with an episode weighted by the product of its classes' counts."""
    assert given.items.clusters is not None
    counts = stats.counts(given.items.num_classes, 500, np.random.default_rng(given.n)).astype(np.float64)
    weights = counts[:, given.items.clusters].prod(axis=2)
    return stats.bootstrap(given.value, stats.mean(given.columns[0], weights), method="percentile")


def _half_quantiles(given: Given) -> Interval:
    """Return value + quantiles of half-samples about their mean."""
    replicates = given.items.replicates[given.metric.name]
    low, high = given.value + np.quantile(replicates - replicates.mean(), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(low=float(low), high=float(high), level=LEVEL, method="half-quantiles", n=given.n)


def _expanded(method: Any) -> Callable[[Given], Interval]:
    """Return a bootstrap interval whose quantiles are widened for few units."""

    def make(given: Given) -> Interval:
        jackknife = given.left_out if method == "bca" else None
        return stats.bootstrap(
            given.value, given.replicates, method=method, jackknife=jackknife, n=given.units, expand=True, **given.limits
        )

    return make


def _spread(given: Given) -> Interval:
    """Return value ± t · SD of replicates."""
    return stats.bootstrap(given.value, given.replicates, method="se", n=given.units, **given.limits)


def _spread_outside(given: Given) -> Interval:
    """Return value ± t · SD of replicates where a calibration error lies outside the band of a calibrated model."""
    band = stats.calibration_band(given.columns[0], given.resampler.generator("band"))
    return given.nothing() if given.value <= band else _spread(given)


def _studentised(given: Given) -> Interval:
    return stats.bootstrap_t(given.resampler.of(given.items.rows, given.items.flat_clusters), *given.columns, **given.limits)


def _effective(given: Given) -> Interval:
    return stats.wilson_effective(given.value, given.left_out, given.n)


FORMS: Mapping[str, Callable[[Given], Interval]] = {
    "percentile": _bootstrap("percentile"),
    "basic": _bootstrap("basic"),
    "BCa": _bootstrap("bca"),
    "t on the jackknife": _jackknife,
    "t of Fisher's z": _fisher,
    "t · SD": _spread,
    "t · SD outside the band": _spread_outside,
    "studentised": _studentised,
    "Wilson at effective n": _effective,
    "percentile expanded": _expanded("percentile"),
    "basic expanded": _expanded("basic"),
    "BCa expanded": _expanded("bca"),
    "Wald": _wald,
    "Wilson over rows": _rows_wilson,
    "percentile over rows": _rows_bootstrap,
    "percentile within classes": _within_classes("percentile"),
    "basic within classes": _within_classes("basic"),
    "percentile with duplicates": _bootstrap_cloud,
    "quantiles of halves": _half_quantiles,
    "over episodes": _episodes,
    "by the query's class": _query_class,
    "product weights": _product_weights,
}
