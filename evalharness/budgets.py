"""Records over label budgets: what ten times the labels add, and how many labels a stated score needs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from evalharness.estimates import LEVEL, Estimate, Items, Resampler, nothing
from evalharness.joint import Joint
from evalharness.types import Array, Interval, MetricInfo

if TYPE_CHECKING:
    from evalharness.across import CellResult


def order_budgets(cells: Sequence[CellResult]) -> list[CellResult]:
    """Return the cells that differ in how many labels they learned from, fewest first; of equal numbers the first stands."""
    found: dict[int, CellResult] = {}
    for cell in cells:
        if cell.labels:
            found.setdefault(cell.labels, cell)
    return [found[labels] for labels in sorted(found)]


class LabelCurve:
    """Hold one metric at B label budgets, each the mean over its draws, on the same resamples of the test items."""

    def __init__(self, metric: MetricInfo, labels: Sequence[int], sides: Sequence[Sequence[Items]], resampler: Resampler) -> None:
        self._metric = metric
        self._decades = np.log10(np.asarray(labels, dtype=np.float64))
        self._spread = np.zeros((len(sides), sum(map(len, sides))))
        start = 0
        for at, side in enumerate(sides):
            self._spread[at, start : start + len(side)] = 1 / len(side)
            start += len(side)
        self._joint = Joint(metric, [piece for side in sides for piece in side], resampler)

    def slope(self) -> Estimate:
        """Return what ten times the labels add to the score, by least squares."""
        centred = self._decades - self._decades.mean()
        return self._joint.combine(list((centred / np.square(centred).sum()) @ self._spread))

    def reach(self, score: float) -> Estimate:
        """Return the labels at which the score is first reached, between budgets on a logarithmic scale.

        The interval is the percentile one over resamples of the test items; there is none where an end lies beyond the largest budget, or at the smallest.
        """
        joint = self._joint
        values = self._spread @ joint.values
        needed = self._cross(values[:, None], score)[0]
        estimate = Estimate(value=math.nan, interval=nothing(joint.units), scope=joint.scope, n=joint.n, n_units=joint.units)
        smallest, largest = (round(10.0 ** float(end)) for end in self._decades[[0, -1]])
        if not math.isfinite(needed):
            because = f"{score:g} is not reached with {largest} labels, the largest budget, which gives {values[-1]:.4g}"
            return replace(estimate, status="undecided", reason=because)
        if needed == self._decades[0]:
            because = f"at most {smallest} labels: the smallest budget gives {values[0]:.4g}, which is {score:g} or better"
            return replace(estimate, status="undecided", reason=because)
        interval, reason = self._reach_interval(score)
        return replace(estimate, value=float(10.0**needed), interval=interval, reason=reason)

    def _cross(self, values: Array, score: float) -> Array:
        return first_crossing(values, self._decades, score, higher=self._metric.higher_is_better is not False)

    def _reach_interval(self, score: float) -> tuple[Interval, str | None]:
        joint = self._joint
        if joint.episodic or joint.metric.reduce is None:
            return nothing(joint.units), "no interval of labels needed for this metric"
        found = self._cross(self._spread @ joint.replicates, score)
        low, high = np.quantile(found, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], method="inverted_cdf")
        if low == self._decades[0] and math.isfinite(high):
            return nothing(joint.units), f"at most {10.0**high:.0f} labels; in some resamples the smallest budget is enough"
        if not math.isfinite(high):
            return nothing(joint.units), f"at least {10.0**low:.0f} labels; in some resamples the largest budget is not enough"
        return Interval(low=float(10.0**low), high=float(10.0**high), level=LEVEL, method="percentile", n=joint.units), None


def first_crossing(values: Array, decades: Array, score: float, *, higher: bool = True) -> Array:
    """Return where curves (B, R) first reach a score, (R,) on the axis ``decades`` (B,); infinity where they never do.

    >>> first_crossing(np.array([[0.5], [0.7], [0.9]]), np.array([1.0, 2.0, 3.0]), 0.8)
    array([2.5])
    """
    above = values >= score if higher else values <= score
    reached = above.any(axis=0)
    at = above.argmax(axis=0)
    before = np.maximum(at - 1, 0)
    columns = np.arange(values.shape[1])
    low, high = values[before, columns], values[at, columns]
    rise = high - low
    share = np.divide(score - low, rise, out=np.zeros_like(rise), where=rise != 0)
    place = np.where(at == 0, decades[0], decades[before] + share * (decades[at] - decades[before]))
    return np.where(reached, place, np.inf)
