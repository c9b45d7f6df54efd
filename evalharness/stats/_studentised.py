"""The bootstrap of t, for means and ratios of sums over units."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from evalharness.errors import UsageError
from evalharness.stats._checks import as_vector, check_level
from evalharness.stats._intervals import MAX_UNDEFINED, _clip
from evalharness.stats._reducers import divide
from evalharness.types import Array, Interval

if TYPE_CHECKING:
    from evalharness.stats._resamples import Resamples


def bootstrap_t(
    resamples: Resamples,
    numerators: Any,
    denominators: Any | None = None,
    *,
    level: float = 0.95,
    low: float | None = None,
    high: float | None = None,
) -> Interval:
    """Return the studentised bootstrap interval of a mean, or of a ratio of sums, over the units of ``resamples``.

    Each replicate is set against its own standard error, which makes the interval as skewed as the data ask for.
    It covers best of all where values are skewed and have no upper end, as log losses; below about ten units it is wide, and :func:`t_interval` does as well.
    It needs values that vary in nearly every resample, so it is not for values that are mostly equal, as hits.

    Args:
        resamples: the resamples of n rows, or of their clusters.
        numerators: (n,) finite.
        denominators: (n,) finite, not negative; None for ones, a mean.
        level: the confidence level, a fraction.
        low: the least value that the statistic can take, to clip the bounds; None for none.
        high: the largest.

    Returns:
        The interval with ``n`` = the number of units; NaN bounds where the error is 0 or undefined in more than 5 % of resamples.

    Raises:
        UsageError: the lengths differ from n, a value is not finite, or ``level`` is outside (0, 1).

    Source:
        Efron & Tibshirani 1993, section 12.5, with the linearised standard error of a ratio.
    """
    check_level(level)
    tops = as_vector(numerators, "numerators")
    bottoms = np.ones(resamples.n) if denominators is None else as_vector(denominators, "denominators")
    if len(tops) != resamples.n or len(bottoms) != resamples.n or not (np.isfinite(tops).all() and np.isfinite(bottoms).all()):
        raise UsageError(f"`numerators` and `denominators` must hold {resamples.n} finite values, got {len(tops)} and {len(bottoms)}")
    units = resamples.num_units
    nothing = Interval(low=math.nan, high=math.nan, level=level, method="bootstrap-t", n=units)
    if units < 2 or not bottoms.any():
        return nothing
    centre = float(tops.sum() / bottoms.sum())
    # About the centre sums of squares lose nothing to rounding.
    table = resamples.unit_sums(np.stack([tops - centre * bottoms, bottoms], axis=1))
    products = np.stack([table[:, 0], table[:, 1], table[:, 0] ** 2, table[:, 0] * table[:, 1], table[:, 1] ** 2], axis=1)
    error = _shift_and_error(products.sum(axis=0, keepdims=True), units)[1]
    shifts, errors = _shift_and_error(resamples.sum_units(products), units)
    least = 1e-9 * max(float(error[0]), float(np.abs(tops).max()) / 1e6)
    t = divide(shifts, np.where(errors > least, errors, 0.0))
    known = t[np.isfinite(t)]
    if not error[0] > least or len(known) < (1 - MAX_UNDEFINED) * len(t) or len(known) < 2:
        return nothing
    below, above = np.quantile(known, ((1 - level) / 2, (1 + level) / 2))
    bounds = centre - float(above) * float(error[0]), centre - float(below) * float(error[0])
    return Interval(low=_clip(bounds[0], low, high), high=_clip(bounds[1], low, high), level=level, method="bootstrap-t", n=units)


def _shift_and_error(sums: Array, units: int) -> tuple[Array, Array]:
    """Return ratios and their standard errors (r,) from sums (r, 5) over units of a, b, a², ab, b²."""
    shift = divide(sums[:, 0], sums[:, 1])
    squares = sums[:, 2] - 2 * shift * sums[:, 3] + shift**2 * sums[:, 4]
    return shift, divide(np.sqrt(np.maximum(squares, 0.0) * units / (units - 1)), sums[:, 1])
