"""Intervals: Wilson, Newcombe, bootstrap, jackknife, half-sample, simultaneous."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from evalharness.errors import UsageError
from evalharness.stats._checks import as_vector, check_level
from evalharness.types import Array, Interval

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_UNDEFINED = 0.05


def _normal_quantile(probability: float) -> float:
    from scipy.special import ndtri

    return float(ndtri(probability))


def _t_quantile(probability: float, degrees: float) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(degrees, probability))


def _clip(bound: float, low: float | None, high: float | None) -> float:
    if math.isnan(bound):
        return bound
    return min(max(bound, -math.inf if low is None else low), math.inf if high is None else high)


def wilson(successes: float, n: float, level: float = 0.95) -> Interval:
    """Return Wilson's score interval of a proportion.

    >>> round(wilson(8, 10).low, 6), round(wilson(8, 10).high, 6)
    (0.490162, 0.943318)

    Args:
        successes: hits in [0, n]; a float where items carry part of a hit.
        n: trials; a float where the number is an effective one. 0 gives NaN bounds.
        level: the confidence level, a fraction.

    Returns:
        The interval, bounds in [0, 1]; ``n`` rounded down.

    Raises:
        UsageError: ``successes`` is outside [0, n] or ``level`` outside (0, 1).

    Source:
        Wilson 1927, without continuity correction.
    """
    check_level(level)
    if not 0 <= successes <= n:
        raise UsageError(f"`successes` must lie in [0, n], got {successes} of {n}")
    if n == 0:
        return Interval(low=math.nan, high=math.nan, level=level, method="wilson", n=0)
    low, high = _score_bounds(successes / n, n, _normal_quantile((1 + level) / 2))
    return Interval(low=low, high=high, level=level, method="wilson", n=int(n))


def wilson_effective(share: float, leave_one_out: Any, n: float, level: float = 0.95) -> Interval:
    """Return Wilson's interval of a proportion over clusters, with as many trials as would have the jackknife's error if they were independent.

    A t quantile at U - 1 degrees stands for the normal one.

    Args:
        share: the proportion, in [0, 1].
        leave_one_out: (U,) the proportion without each cluster, see :func:`leave_one_out`.
        n: the number of rows, which the effective number never exceeds.
        level: the confidence level, a fraction.

    Returns:
        The interval, bounds in [0, 1], with ``n`` = U; where the clusters do not differ they count one trial each.
        NaN bounds for fewer than two clusters or an undefined value.

    Raises:
        UsageError: ``share`` is outside [0, 1] or ``level`` outside (0, 1).

    Source:
        Korn & Graubard 1998 and Dean & Pagano 2015 (Wilson's interval for complex surveys).
    """
    check_level(level)
    left_out = as_vector(leave_one_out, "leave_one_out")
    units = len(left_out)
    if units < 2 or not (math.isfinite(share) and np.isfinite(left_out).all()):
        return Interval(low=math.nan, high=math.nan, level=level, method="wilson-effective", n=units)
    if not 0 <= share <= 1:
        raise UsageError(f"`share` must lie in [0, 1], got {share}")
    error = jackknife_error(left_out)
    trials = min(share * (1 - share) / error**2, n) if error > 1e-9 else units
    low, high = _score_bounds(share, trials, _t_quantile((1 + level) / 2, units - 1))
    return Interval(low=low, high=high, level=level, method="wilson-effective", n=units)


def _score_bounds(share: float, n: float, z: float) -> tuple[float, float]:
    """Return the shares that lie ``z`` of their own standard errors away."""
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return 0.0 if share == 0 else max(0.0, centre - half), 1.0 if share == 1 else min(1.0, centre + half)


def newcombe(successes_1: float, n_1: float, successes_2: float, n_2: float, level: float = 0.95) -> Interval:
    """Return Newcombe's interval of the difference p1 - p2 of two independent proportions.

    Args:
        successes_1: hits of the first sample, in [0, n_1].
        n_1: its size; 0 gives NaN bounds.
        successes_2: hits of the second sample, in [0, n_2].
        n_2: its size; 0 gives NaN bounds.
        level: the confidence level, a fraction.

    Returns:
        The interval, bounds in [-1, 1]; ``n`` is the sum of the sizes.

    Raises:
        UsageError: hits outside their range, or ``level`` outside (0, 1).

    Source:
        Newcombe 1998, method 10 (Wilson limits, no continuity correction).
    """
    first, second = wilson(successes_1, n_1, level), wilson(successes_2, n_2, level)
    share_1 = successes_1 / n_1 if n_1 else math.nan
    share_2 = successes_2 / n_2 if n_2 else math.nan
    difference = share_1 - share_2
    low = difference - math.hypot(share_1 - first.low, second.high - share_2)
    high = difference + math.hypot(first.high - share_1, share_2 - second.low)
    return Interval(low=low, high=high, level=level, method="newcombe", n=int(n_1 + n_2))


def _defined(replicates: Any) -> Array | None:
    """Return the defined replicates, or None where too many are undefined or all are equal."""
    values = as_vector(replicates, "replicates")
    kept = values[np.isfinite(values)]
    if len(kept) < 2 or len(values) - len(kept) > MAX_UNDEFINED * len(values):
        return None
    spread = float(np.ptp(kept))
    return kept if spread > 1e-12 * float(np.abs(kept).max()) else None


def _bca_probabilities(value: float, replicates: Array, jackknife: Array, level: float) -> tuple[float, float]:
    from scipy.special import ndtr

    tie = 1e-10 * float(np.ptp(replicates))
    below = float(np.mean(replicates < value - tie) + 0.5 * np.mean(np.abs(replicates - value) <= tie))
    edge = 0.5 / len(replicates)
    bias = _normal_quantile(min(max(below, edge), 1 - edge))
    deviations = jackknife.mean() - jackknife
    squares = float((deviations**2).sum())
    acceleration = float((deviations**3).sum()) / (6 * squares**1.5) if squares > 0 else 0.0
    tails = []
    for probability in ((1 - level) / 2, (1 + level) / 2):
        shifted = bias + _normal_quantile(probability)
        tails.append(float(ndtr(bias + shifted / (1 - acceleration * shifted))))
    return tails[0], tails[1]


def expanded_level(level: float, units: int) -> float:
    """Return the level at which a percentile interval of few units is as wide as a t interval of theirs.

    The bootstrap's spread is too small by the root of (U - 1) / U and its tails are normal where those of a t are longer.
    The level widens for both, and tends to ``level`` as units grow.

    >>> round(expanded_level(0.95, 10), 4), round(expanded_level(0.95, 1000), 4)
    (0.9829, 0.9504)

    Args:
        level: the confidence level, a fraction.
        units: U, at least 2.

    Raises:
        UsageError: ``units`` is below 2 or ``level`` outside (0, 1).

    Source:
        Hesterberg 2015, "What teachers should know about the bootstrap", the expanded percentile interval.
    """
    from scipy.special import ndtr

    check_level(level)
    if units < 2:
        raise UsageError(f"`units` must be at least 2, got {units}")
    return 2 * float(ndtr(math.sqrt(units / (units - 1)) * _t_quantile((1 + level) / 2, units - 1))) - 1


def bootstrap(
    value: float,
    replicates: Any,
    *,
    method: Literal["basic", "percentile", "bca", "se"] = "basic",
    level: float = 0.95,
    jackknife: Any | None = None,
    low: float | None = None,
    high: float | None = None,
    n: int | None = None,
    expand: bool = False,
) -> Interval:
    """Return a bootstrap interval from replicates of a statistic.

    Args:
        value: the statistic on all rows.
        replicates: (R,) the statistic on resamples; up to 5 % may be NaN and are left out.
        method: ``basic`` (2 value - quantile), ``percentile``, ``bca``, or ``se`` (value ± t · standard deviation).
        level: the confidence level, a fraction.
        jackknife: (U,) leave-one-unit-out values, needed by ``bca``.
        low: the least value that the statistic can take, to clip the bounds; None for none.
        high: the largest.
        n: the number of units; default the length of ``jackknife``, else the number of replicates.
        expand: widen the quantiles for few units by :func:`expanded_level`; needs ``n``.

    Returns:
        The interval; NaN bounds where the value or more replicates are undefined, or where all replicates are equal.

    Raises:
        UsageError: the method is unknown, ``bca`` lacks ``jackknife``, ``expand`` or ``se`` lacks ``n``, or ``level`` is outside (0, 1).

    Source:
        Efron 1987 for BCa; replicates equal to the value count half in its bias term, as in scipy.
    """
    check_level(level)
    if method not in ("basic", "percentile", "bca", "se"):
        raise UsageError(f"`method` must be `basic`, `percentile`, `bca` or `se`, got {method!r}")
    if method == "bca" and jackknife is None:
        raise UsageError("`method='bca'` needs `jackknife`, the leave-one-out values; make them with `leave_one_out`")
    if (expand or method == "se") and n is None:
        raise UsageError("`expand` and `method='se'` need `n`, the number of independent units")
    left_out = None if jackknife is None else as_vector(jackknife, "jackknife")
    size = n if n is not None else len(np.atleast_1d(replicates)) if left_out is None else len(left_out)
    kept = _defined(replicates)
    bounds = (math.nan, math.nan)
    if kept is not None and math.isfinite(value) and (n is None or n >= 2):
        wide = expanded_level(level, size) if expand else level
        bounds = _bootstrap_bounds(value, kept, method, wide, left_out, size)
    name = f"bootstrap-{method}{'-expanded' if expand and method != 'se' else ''}"
    return Interval(low=_clip(bounds[0], low, high), high=_clip(bounds[1], low, high), level=level, method=name, n=size)


def _bootstrap_bounds(value: float, kept: Array, method: str, level: float, left_out: Array | None, units: int) -> tuple[float, float]:
    if method == "se":
        half = _t_quantile((1 + level) / 2, units - 1) * float(kept.std(ddof=1))
        return value - half, value + half
    tails = ((1 - level) / 2, (1 + level) / 2)
    if method == "bca" and left_out is not None:
        tails = _bca_probabilities(value, kept, left_out[np.isfinite(left_out)], level)
    below, above = (float(bound) for bound in np.quantile(kept, tails))
    return (2 * value - above, 2 * value - below) if method == "basic" else (below, above)


def jackknife_error(leave_one_out: Any) -> float:
    """Return the delete-one-unit jackknife's standard error from leave-one-out values (U,); NaN for fewer than two.

    >>> round(jackknife_error([4.0, 3.5, 1.5]), 6)
    1.527525
    """
    left_out = as_vector(leave_one_out, "leave_one_out")
    if len(left_out) < 2:
        return math.nan
    return math.sqrt((len(left_out) - 1) / len(left_out) * float(np.square(left_out - left_out.mean()).sum()))


def jackknife_interval(
    value: float,
    leave_one_out: Any,
    level: float = 0.95,
    *,
    low: float | None = None,
    high: float | None = None,
    transform: Literal["fisher"] | None = None,
) -> Interval:
    """Return value ± t · SE with the delete-one-unit jackknife's standard error.

    For a mean this is the usual t interval.

    Args:
        value: the statistic on all rows.
        leave_one_out: (U,) the statistic without each unit, see :func:`leave_one_out`.
        level: the confidence level, a fraction.
        low: the least value that the statistic can take, to clip the bounds; None for none.
        high: the largest.
        transform: ``fisher`` takes a correlation to Fisher's z, makes the interval there and takes its bounds back.

    Returns:
        The interval with ``n`` = U; NaN bounds for fewer than two units, an undefined value, no spread, or a correlation of ±1 under ``fisher``.

    Raises:
        UsageError: ``level`` is outside (0, 1), or the transform is unknown.

    Source:
        Efron & Tibshirani 1993, section 11; t quantile at U - 1 degrees of freedom.
    """
    check_level(level)
    if transform not in (None, "fisher"):
        raise UsageError(f"`transform` must be `fisher` or None, got {transform!r}")
    left_out, centre, units = as_vector(leave_one_out, "leave_one_out"), value, len(np.atleast_1d(leave_one_out))
    if transform == "fisher":
        outside = np.abs(left_out) >= 1
        left_out = np.arctanh(np.where(outside, np.nan, left_out))
        centre = math.atanh(value) if abs(value) < 1 else math.nan
    half = math.nan
    if units >= 2 and math.isfinite(centre) and np.isfinite(left_out).all():
        error = jackknife_error(left_out)
        scale = 1e-12 * max(abs(centre), float(np.abs(left_out).max()))
        half = _t_quantile((1 + level) / 2, units - 1) * error if error > scale else math.nan
    bounds = (math.tanh(centre - half), math.tanh(centre + half)) if transform == "fisher" else (value - half, value + half)
    name = "jackknife-fisher" if transform == "fisher" else "jackknife"
    return Interval(low=_clip(bounds[0], low, high), high=_clip(bounds[1], low, high), level=level, method=name, n=units)


def t_interval(values: Any, level: float = 0.95) -> Interval:
    """Return mean ± t · s / √n, the interval for few independent values; :func:`jackknife_interval` of a mean gives the same.

    >>> round(t_interval([0.6, 0.7, 0.8, 0.9, 0.5]).high, 6)
    0.896324

    Args:
        values: (n,) finite; one a unit, so take each cluster's mean first.
        level: the confidence level, a fraction.

    Returns:
        The interval; NaN bounds for fewer than two values or no spread.

    Raises:
        UsageError: ``level`` is outside (0, 1).
    """
    held = as_vector(values, "values")
    units = len(held)
    if units < 2:
        check_level(level)
        return Interval(low=math.nan, high=math.nan, level=level, method="t", n=units)
    found = jackknife_interval(float(held.mean()), (held.sum() - held) / (units - 1), level)
    return replace(found, method="t")


def detectable_difference(error: float, level: float = 0.95, power: float = 0.8) -> float:
    """Return the smallest true difference that a two-sided test at ``level`` finds with probability ``power``.

    >>> round(detectable_difference(0.01), 4)
    0.028

    Args:
        error: the standard error of the difference, not negative; NaN gives NaN.
        level: the confidence level, a fraction.
        power: a fraction; at .5 the difference is what is just significant.

    Returns:
        (z at (1 + level) / 2 + z at power) · error, at least 0.

    Raises:
        UsageError: ``error`` is negative, or ``level`` or ``power`` is outside (0, 1).

    Source:
        Cohen 1988; the chance to find a difference of the wrong sign is left out.
    """
    check_level(level)
    if not 0 < power < 1:
        raise UsageError(f"`power` must lie strictly between 0 and 1, got {power}; pass a fraction such as 0.8")
    if error < 0:
        raise UsageError(f"`error` must not be negative, got {error}")
    return max(0.0, _normal_quantile((1 + level) / 2) + _normal_quantile(power)) * error


def half_sample(
    value: float,
    replicates: Any,
    level: float = 0.95,
    *,
    low: float | None = None,
    high: float | None = None,
    n: int | None = None,
) -> Interval:
    """Return value ± t · standard deviation of the replicates, for statistics of a whole cloud.

    A half drawn without replacement varies about the whole as the whole varies about the truth, and holds no duplicates.
    Its bias from the smaller n is removed by taking deviations from the replicates' own mean; quantiles of so few replicates cover less.

    Args:
        value: the statistic on all rows.
        replicates: (R,) the statistic on random halves.
        level: the confidence level, a fraction.
        low: the least value that the statistic can take, to clip the bounds; None for none.
        high: the largest.
        n: the number of units to state; default the number of replicates.

    Returns:
        The interval; NaN bounds where it is undefined or all replicates are equal.

    Raises:
        UsageError: ``level`` is outside (0, 1).

    Source:
        Politis, Romano & Wolf 1999 (subsampling with b = n/2, where the finite-population factor is 1).
    """
    check_level(level)
    kept = _defined(replicates)
    bounds = (math.nan, math.nan)
    if kept is not None and math.isfinite(value):
        half = _t_quantile((1 + level) / 2, len(kept) - 1) * float(kept.std(ddof=1))
        bounds = (value - half, value + half)
    size = len(np.atleast_1d(replicates)) if n is None else n
    return Interval(low=_clip(bounds[0], low, high), high=_clip(bounds[1], low, high), level=level, method="half-sample", n=size)


def simultaneous_level(level: float, groups: int) -> float:
    """Return the level that each of ``groups`` intervals needs so that all hold at once, after Bonferroni.

    >>> round(simultaneous_level(0.95, 5), 6)
    0.99

    Raises:
        UsageError: ``groups`` is below 1 or ``level`` outside (0, 1).
    """
    check_level(level)
    if groups < 1:
        raise UsageError(f"`groups` must be at least 1, got {groups}")
    return 1 - (1 - level) / groups


def one_sided_level(level: float) -> float:
    """Return the two-sided level whose lower (or upper) bound alone holds with probability ``level``.

    >>> round(one_sided_level(0.95), 6)
    0.9

    Raises:
        UsageError: ``level`` is outside (0.5, 1).
    """
    check_level(level)
    if level <= 0.5:
        raise UsageError(f"`level` of one side must lie above 0.5, got {level}")
    return 2 * level - 1


class WorstGroup(NamedTuple):
    """Hold the worst group: ``group`` counted from 0 among those given, its ``value``, and a ``bound`` below (or above) every group's truth."""

    group: int
    value: float
    bound: float


def worst_group_bound(values: Any, intervals: Sequence[Interval], *, level: float = 0.95, higher_is_better: bool = True) -> WorstGroup:
    """Return the worst group and a bound that no group's truth lies below, with probability ``level``.

    The least of the lower bounds needs no correction for the number of groups: it exceeds the least truth only where the bound of that one group does.
    One-sided bounds at ``level`` are enough, so intervals at ``one_sided_level(level)``; wider ones only make it more careful.

    Args:
        values: (G,) the groups' values; leave out groups that are too small.
        intervals: one a group, each made at ``one_sided_level(level)`` or above.
        level: the level of the bound.
        higher_is_better: False bounds the largest value from above.

    Returns:
        The first of the worst groups, its value and the least lower bound (the largest upper bound); NaN where any bound is undefined.

    Raises:
        UsageError: there are no groups, the lengths differ, or an interval was made at a lower level than it needs.

    Source:
        Berger 1982 (intersection-union tests): all groups are above a bound if each is.
    """
    scores = as_vector(values, "values")
    if len(scores) == 0 or len(scores) != len(intervals):
        raise UsageError(f"`values` and `intervals` must hold one entry a group, got {len(scores)} and {len(intervals)}")
    needed = one_sided_level(level)
    if any(interval.level < needed - 1e-9 for interval in intervals):
        raise UsageError(f"`intervals` must be made at level {needed:.6g} or above, see `one_sided_level`")
    group = int(np.argmin(scores) if higher_is_better else np.argmax(scores))
    bounds = np.array([interval.low if higher_is_better else interval.high for interval in intervals])
    return WorstGroup(group, float(scores[group]), float(bounds.min() if higher_is_better else bounds.max()))
