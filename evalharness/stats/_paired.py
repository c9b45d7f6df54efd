"""Paired comparisons: McNemar, sign flips, Holm, paired bootstrap."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from evalharness.errors import DataError, UsageError
from evalharness.stats._checks import as_vector, unit_codes
from evalharness.stats._intervals import bootstrap

if TYPE_CHECKING:
    from collections.abc import Iterator

    from evalharness.types import Array, Interval

EXACT_BELOW = 25
_BLOCK_CELLS = 2**22


class McNemar(NamedTuple):
    """Hold McNemar's test: ``p`` is exact below 25 discordant items, else that of the plain chi-square; all two-sided."""

    p: float
    exact: float
    mid_p: float
    chi_square: float
    chi_square_p: float
    corrected: float
    corrected_p: float


def mcnemar(b: int, c: int) -> McNemar:
    """Test whether two classifiers err equally often on the same items.

    Args:
        b: items that only the first gets right.
        c: items that only the second gets right.

    Returns:
        The test; p = 1 where nothing is discordant.

    Raises:
        UsageError: a count is negative.

    Source:
        McNemar 1947; Fagerland et al. 2013 for the mid-p; the correction is Edwards'.
    """
    if b < 0 or c < 0:
        raise UsageError(f"`b` and `c` are counts and must not be negative, got {b} and {c}")
    total = b + c
    if total == 0:
        return McNemar(1.0, 1.0, 1.0, 0.0, 1.0, 0.0, 1.0)
    from scipy.stats import binom, chi2

    tail = float(binom.cdf(min(b, c), total, 0.5))
    exact = min(1.0, 2 * tail)
    mid_p = 1.0 - float(binom.pmf(b, total, 0.5)) if b == c else 2 * tail - float(binom.pmf(min(b, c), total, 0.5))
    plain = (b - c) ** 2 / total
    corrected = max(abs(b - c) - 1, 0) ** 2 / total
    plain_p, corrected_p = float(chi2.sf(plain, 1)), float(chi2.sf(corrected, 1))
    return McNemar(exact if total < EXACT_BELOW else plain_p, exact, mid_p, plain, plain_p, corrected, corrected_p)


def sign_flip(differences: Any, generator: np.random.Generator, clusters: Any | None = None, *, flips: int = 9999) -> float:
    """Return the two-sided p of a mean difference under random signs of whole units.

    All sign patterns are walked where they number at most ``flips`` + 1, else p = (b + 1) / (flips + 1), never 0.

    >>> sign_flip([0.1, 0.2, -0.05, 0.15, 0.3], np.random.default_rng(0))
    0.125

    Args:
        differences: (n,) paired differences, finite.
        generator: the source of randomness.
        clusters: (n,) labels; the signs of a cluster's rows flip together.
        flips: the number of random sign patterns.

    Returns:
        p in (0, 1]; 1 where all differences are 0.

    Raises:
        DataError: there are no differences or some are not finite.
        UsageError: ``flips`` is below 1 or ``clusters`` has another length.
    """
    values = as_vector(differences, "differences")
    codes, num_units = unit_codes(len(values), clusters)
    if not np.isfinite(values).all():
        raise DataError(f"`differences` must be finite, got NaN or infinity at {int((~np.isfinite(values)).sum())} of {len(values)}")
    if flips < 1:
        raise UsageError(f"`flips` must be at least 1, got {flips}")
    sums = np.bincount(codes, weights=values, minlength=num_units)
    sums = sums[sums != 0]
    if len(sums) == 0:
        return 1.0
    exact = len(sums) <= math.log2(flips + 1)
    observed = abs(float(sums.sum())) - 1e-12 * float(np.abs(sums).sum())
    blocks = _all_signs(len(sums)) if exact else _random_signs(len(sums), flips, generator)
    extreme = sum(int((np.abs(2 * (block @ sums) - sums.sum()) >= observed).sum()) for block in blocks)
    return extreme / 2 ** len(sums) if exact else (extreme + 1) / (flips + 1)


def _all_signs(units: int) -> Iterator[Array]:
    step = max(1, _BLOCK_CELLS // units)
    for start in range(0, 2**units, step):
        patterns = np.arange(start, min(start + step, 2**units))
        yield ((patterns[:, None] >> np.arange(units)) & 1).astype(np.float64)


def _random_signs(units: int, flips: int, generator: np.random.Generator) -> Iterator[Array]:
    step = max(1, _BLOCK_CELLS // units)
    width = -(-units // 8)
    for start in range(0, flips, step):
        rows = min(step, flips - start)
        packed = np.frombuffer(generator.bytes(rows * width), dtype=np.uint8).reshape(rows, width)
        yield np.unpackbits(packed, axis=1, count=units).astype(np.float64)


class PairedDifference(NamedTuple):
    """Hold a paired difference a - b, its interval and two-sided p; ``p`` is 1 where the two never differ."""

    difference: float
    interval: Interval
    p: float


def paired_difference(
    value_a: float,
    value_b: float,
    replicates_a: Any,
    replicates_b: Any,
    level: float = 0.95,
    *,
    low: float | None = None,
    high: float | None = None,
    n: int | None = None,
    expand: bool = False,
) -> PairedDifference:
    """Compare two statistics on the same resamples.

    p is twice the smaller share of replicates whose deviation from the difference reaches the difference, with (b + 1) / (R + 1);
    it inverts the basic bootstrap interval, so p < 1 - level and an interval without 0 go together.

    Args:
        value_a: the first statistic.
        value_b: the second.
        replicates_a: (R,) the first on resamples.
        replicates_b: (R,) the second on the same resamples, drawn with the same counts.
        level: the confidence level, a fraction.
        low: the least possible difference, to clip the bounds; None for none.
        high: the largest.
        n: the number of units to state; default the number of replicates.
        expand: widen interval and p for few units as :func:`bootstrap` does; needs ``n``.

    Returns:
        The difference, its basic bootstrap interval and p; identical replicates are a tie: NaN bounds and p = 1.

    Raises:
        UsageError: the two have different numbers of replicates, ``expand`` lacks ``n``, or ``level`` is outside (0, 1).
    """
    first, second = as_vector(replicates_a, "replicates_a"), as_vector(replicates_b, "replicates_b")
    if len(first) != len(second):
        raise UsageError(f"`replicates_a` and `replicates_b` must come from the same resamples, got {len(first)} and {len(second)}")
    difference = value_a - value_b
    deltas = first - second
    interval = bootstrap(difference, deltas, method="basic", level=level, low=low, high=high, n=n, expand=expand)
    p = _two_sided(difference, deltas[np.isfinite(deltas)])
    return PairedDifference(difference, interval, _expanded_p(p, n) if expand and n is not None else p)


def _expanded_p(p: float, units: int) -> float:
    """Return the p of which the expanded interval at level 1 - p just reaches 0."""
    from scipy.special import ndtri, stdtr

    if units < 2 or not 0 < p < 1:
        return p if units >= 2 else math.nan
    return float(min(1.0, 2 * stdtr(units - 1, ndtri(p / 2) * math.sqrt((units - 1) / units))))


def _two_sided(difference: float, deltas: Array) -> float:
    if not math.isfinite(difference) or len(deltas) == 0:
        return math.nan
    tie = 1e-12 * max(abs(difference), float(np.abs(deltas).max()))
    if abs(difference) <= tie and float(np.abs(deltas).max()) <= tie:
        return 1.0
    deviations = deltas - difference
    above = int((deviations >= difference - tie).sum())
    below = int((deviations <= difference + tie).sum())
    return min(1.0, 2 * (min(above, below) + 1) / (len(deltas) + 1))
