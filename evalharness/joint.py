"""Several cells, or several encoders in one cell, on the same resamples: what every difference, mean and rank set is made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from evalharness import stats
from evalharness.estimates import (
    LEVEL,
    NO_INTERVAL,
    Estimate,
    Items,
    Resampler,
    episode_estimate,
    nothing,
    scope_of,
    value_of,
)
from evalharness.forms import FEW_UNITS
from evalharness.types import Array, Interval, MetricInfo


class Joint:
    """Hold one metric on P pieces of items; a row, or cluster, that several pieces share is drawn as often in each.

    The resamples run over the union of all rows, so that paired, disjoint and partly shared rows need no cases of their own.
    """

    def __init__(self, metric: MetricInfo, pieces: Sequence[Items], resampler: Resampler, rows: Array | None = None) -> None:
        """Join pieces; ``rows`` widens the union of their rows by others that are drawn with them."""
        self.metric = metric
        self.pieces = [piece.in_order() for piece in pieces]
        self._resampler = resampler
        self.values = np.array([value_of(metric, piece) for piece in self.pieces])
        self.rows = np.unique(np.concatenate([*[piece.rows for piece in self.pieces], *([] if rows is None else [rows])]))
        self.n = len(self.rows)

    @cached_property
    def paired(self) -> bool:
        """Say whether all pieces hold the same rows."""
        first = self.pieces[0].rows
        return all(len(piece.rows) == len(first) and bool((piece.rows == first).all()) for piece in self.pieces[1:])

    @cached_property
    def disjoint(self) -> bool:
        """Say whether no two pieces share a row or a cluster."""
        if self.clusters is None:
            return sum(len(piece.rows) for piece in self.pieces) == self.n
        held = [np.unique(self.clusters[at]) for at in self._places]
        return sum(map(len, held)) == len(np.unique(np.concatenate(held)))

    @property
    def episodic(self) -> bool:
        """Say whether the items are episodes, the same for all pieces."""
        return all(piece.episodic for piece in self.pieces)

    @cached_property
    def clusters(self) -> Array | None:
        """Return the unit of every row of the union, or None where rows are their own."""
        flat = [piece.flat_clusters for piece in self.pieces]
        if all(clusters is None for clusters in flat):
            return None
        # A piece without clusters has rows of their own; their codes lie beyond all others.
        highest = max(int(clusters.max(initial=0)) for clusters in flat if clusters is not None)
        codes = highest + 1 + np.arange(self.n, dtype=np.int64)
        for at, clusters in zip(self._places, flat, strict=True):
            if clusters is not None:
                codes[at] = clusters
        return codes

    @cached_property
    def _places(self) -> list[Array]:
        return [np.searchsorted(self.rows, piece.rows) for piece in self.pieces]

    @cached_property
    def units(self) -> int:
        """Return the number of independent units: classes of episodes, clusters, or rows."""
        if self.episodic:
            return self.pieces[0].num_classes
        return self.n if self.clusters is None else len(np.unique(self.clusters))

    @property
    def scope(self) -> str:
        """Return what an interval over these pieces covers."""
        return self.pieces[0].episode_units if self.episodic else scope_of(self.pieces[0])

    @cached_property
    def replicates(self) -> Array:
        """Return the metric on every resample, (P, R); half-samples for statistics of a whole cloud, empty where there are none."""
        if self.metric.reduce is None:
            found = [piece.replicates.get(self.metric.name) for piece in self.pieces]
            if not self.paired or any(each is None or len(each) != len(found[0]) for each in found):  # type: ignore[arg-type]
                return np.empty((len(self.pieces), 0))
            return np.stack([np.asarray(each, dtype=np.float64) for each in found])
        reduce = stats.get_reducer(self.metric.reduce)
        resamples = self._resampler.of(self.rows, self.clusters)
        return np.stack(
            [
                resamples.apply(reduce, *columns) if len(at) == self.n else resamples.apply_at(reduce, at, *columns)
                for at, columns in zip(self._places, self._columns, strict=True)
            ]
        )

    @property
    def _columns(self) -> list[list[Array]]:
        return [[piece.columns[name] for name in self.metric.columns] for piece in self.pieces]

    @cached_property
    def left_out(self) -> Array:
        """Return the metric without each unit in turn, (P, U)."""
        reduce = stats.get_reducer(self.metric.reduce)  # type: ignore[arg-type]
        blocks = list(stats.jackknife_blocks(self.n, self.clusters, limit=None))
        return np.stack(
            [
                np.concatenate([reduce(*columns, np.ascontiguousarray(block[:, at])) for block in blocks])
                for at, columns in zip(self._places, self._columns, strict=True)
            ]
        )

    # --- combinations ---------------------------------------------------------------------------------------------

    def combine(self, weights: Sequence[float], level: float = LEVEL) -> Estimate:
        """Return a weighted sum of the pieces' values with its interval: a difference, a mean, a slope."""
        factors = np.asarray(weights, dtype=np.float64)
        value = float(factors @ self.values)
        estimate = Estimate(value=value, interval=nothing(self.units), scope=self.scope, n=self.n, n_units=self.units)
        if not math.isfinite(value):
            return replace(estimate, status="insufficient", reason="undefined on these items")
        if self.episodic:
            return self._combine_episodes(factors, value, level)
        if self.metric.reduce == "calibration_error" and not _is_contrast(factors):
            return replace(estimate, reason="a mean of calibration errors, which chance alone raises, has no interval")
        if self.units < NO_INTERVAL:
            few = f"{self.units} independent units: too few for an interval"
            return replace(estimate, status="insufficient", reason=few)
        interval = self._interval(factors, value, level)
        reason = None if math.isfinite(interval.low) else self._unclear(factors)
        return replace(estimate, interval=interval, reason=reason)

    def _unclear(self, factors: Array) -> str:
        if self.metric.reduce is None and not self.replicates.shape[1]:
            return "statistics of whole clouds of other rows are not compared"
        return "the two never differ" if _is_contrast(factors) else "the statistic does not vary, or is undefined in too many resamples"

    def _limits(self, factors: Array) -> dict[str, float]:
        used = factors[factors != 0]  # 0 times an open end is no number
        ends = np.stack([used * self.metric.low, used * self.metric.high])
        return {"low": float(ends.min(axis=0).sum()), "high": float(ends.max(axis=0).sum())}

    def _interval(self, factors: Array, value: float, level: float) -> Interval:
        limits: dict[str, Any] = self._limits(factors)
        if self.metric.reduce is None:
            deltas = factors @ self.replicates if self.replicates.shape[1] else np.empty(0)
            return replace(stats.half_sample(value, deltas, level, n=self.units, **limits), method="paired-half-sample")
        if self._newcombe(factors):
            first, second = (1, 0) if factors[0] < 0 else (0, 1)
            sizes = [len(piece.rows) for piece in self.pieces]
            hits = self.values * sizes
            return stats.newcombe(hits[first], sizes[first], hits[second], sizes[second], level)
        name = "paired" if self.paired else "unpaired" if self.disjoint else "partly-paired"
        if self.units < FEW_UNITS:
            found = stats.jackknife_interval(value, factors @ self.left_out, level, **limits)
        else:
            # The basic form of a difference goes with the p value of `stats.paired_difference`, which inverts it.
            contrast = _is_contrast(factors)
            method = "basic" if self.metric.reduce == "macro_f1" or contrast else "percentile"
            found = stats.bootstrap(value, factors @ self.replicates, method=method, level=level, n=self.units, expand=True, **limits)  # type: ignore[arg-type]
        return replace(found, method=f"{name}-{found.method}")

    def _newcombe(self, factors: Array) -> bool:
        pair = len(factors) == 2 and sorted(factors) == [-1.0, 1.0]
        return pair and self.metric.interval == "wilson" and self.clusters is None and self.disjoint

    def _combine_episodes(self, factors: Array, value: float, level: float) -> Estimate:
        """Combine the scores episode by episode; the classes are the units."""
        if not self.paired:
            estimate = Estimate(value=value, interval=nothing(self.units), scope=self.scope, n=self.n, n_units=self.units)
            return replace(estimate, reason="other episodes are not compared")
        scores = self.combined_scores(factors)
        found = episode_estimate(self.metric, value, scores, self.pieces[0], level, limits=False)
        return replace(found, interval=replace(found.interval, method=f"paired-{found.interval.method}"))

    def combined_scores(self, factors: Array) -> Array:
        """Return the weighted sum of the pieces' only column, item by item; the pieces hold the same rows."""
        name = self.metric.columns[0]
        return np.asarray(factors @ np.stack([np.asarray(piece.columns[name], dtype=np.float64) for piece in self.pieces]))

    def error(self, weights: Sequence[float] | Array) -> float:
        """Return the standard error of a weighted sum of the pieces' values, NaN where it is not known.

        Episodes: over classes; few units: by the jackknife; else the spread of its replicates.
        """
        factors = np.asarray(weights, dtype=np.float64)
        if self.episodic:
            return self._episode_error(factors)
        if self.metric.reduce is not None and self.units < FEW_UNITS:
            return stats.jackknife_error(factors @ self.left_out) if self.units > 1 else math.nan
        deltas = factors @ self.replicates
        deltas = deltas[np.isfinite(deltas)]
        return float(deltas.std(ddof=1)) if len(deltas) > 1 else math.nan

    def _episode_error(self, factors: Array) -> float:
        clusters = self.pieces[0].clusters
        if not self.paired or clusters is None:
            return math.nan
        scores = self.combined_scores(factors)
        return stats.episode_jackknife(scores, clusters, self.units).error if scores.any() else 0.0

    def ratio(self, over: Sequence[float] = (1.0, 0.0), under: Sequence[float] = (0.0, 1.0), level: float = LEVEL) -> Estimate:
        """Return one weighted sum of the pieces' values over another, with its interval; by default the first piece's over the second's."""
        both = np.array([over, under])
        first, second = (float(value) for value in both @ self.values)
        value = first / second if second else math.nan
        estimate = Estimate(value=value, interval=nothing(self.units), scope=self.scope, n=self.n, n_units=self.units)
        if not math.isfinite(value):
            return replace(estimate, status="insufficient", reason="the reference is 0")
        if self.metric.reduce is None or self.episodic or self.units < NO_INTERVAL:
            return replace(estimate, reason="no interval of a ratio here; see the difference")
        if self.units < FEW_UNITS:
            interval = stats.jackknife_interval(value, _quotient(both @ self.left_out), level, low=0.0)
        else:
            interval = stats.bootstrap(
                value, _quotient(both @ self.replicates), method="percentile", level=level, n=self.units, expand=True, low=0.0
            )
        reason = None if math.isfinite(interval.low) else "the two never differ"
        name = "paired" if self.paired else "unpaired" if self.disjoint else "partly-paired"
        return replace(estimate, interval=replace(interval, method=f"{name}-{interval.method}"), reason=reason)


def _is_contrast(factors: Array) -> bool:
    """Say whether weights sum to 0, to rounding."""
    return abs(float(factors.sum())) <= 1e-9 * float(np.abs(factors).sum())


def _quotient(pair: Array) -> Array:
    return np.asarray(np.divide(pair[0], pair[1], out=np.full(pair.shape[1], np.nan), where=pair[1] != 0))
