"""Simultaneous comparisons of all pairs of models, and the rank sets that follow from them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from evalharness.errors import UsageError
from evalharness.stats._checks import as_vector, check_level
from evalharness.types import Array

_ROUNDING = 1e-12


def rank_sets(values: Any, replicates: Any, level: float = 0.95, *, higher_is_better: bool = True) -> list[tuple[int, int]]:
    """Return for each model the ranks that cannot be excluded, all of them right at once with probability ``level``.

    Pairs are told apart by :func:`pairwise`; the rank set of a model is [1 + those clearly better, M - those clearly worse].
    A pair whose difference never varies is decided by its sign, and is a tie where it is 0.

    >>> draws = np.random.default_rng(0).standard_normal((3, 4000))
    >>> rank_sets([0.80, 0.78, 0.70], 0.01 * draws)
    [(1, 2), (1, 2), (3, 3)]

    Args:
        values: (M,) the models' values, finite.
        replicates: (M, R) their values on shared resamples.
        level: the simultaneous level.
        higher_is_better: whether rank 1 belongs to the largest value.

    Returns:
        M pairs (best, worst), ranks counted from 1.

    Raises:
        UsageError: the shapes do not fit, a value is not finite, or ``level`` is outside (0, 1).

    Source:
        Mogstad, Romano, Shaikh & Wilhelm 2024 (R package csranks), two-sided, without the stepwise refinement.
    """
    found = pairwise(values, replicates, level)
    sign = 1.0 if higher_is_better else -1.0
    return rank_sets_from_errors(sign * as_vector(values, "values"), found.error, found.critical)


def rank_sets_from_errors(values: Any, errors: Any, critical: float) -> list[tuple[int, int]]:
    """Return rank sets from the standard errors of all differences, as for means over several tasks.

    Two models are told apart where their values differ by more than ``critical`` standard errors of the difference.
    An error of 0 says that the difference cannot vary: equal values (to rounding) are then a tie, others are told apart.
    An error of NaN or infinity says that nothing is known of the pair: it is never told apart.

    >>> rank_sets_from_errors([0.80, 0.78, 0.70], 0.01 * 2**0.5 * (1 - np.eye(3)), 2.343701)
    [(1, 2), (1, 2), (3, 3)]

    Args:
        values: (M,) finite; the largest has rank 1, so negate values of which lower is better.
        errors: (M, M) symmetric, not negative; the diagonal is not read.
        critical: how many errors apart is clear, as the quantile of the largest |t| over all pairs.

    Returns:
        M pairs (best, worst), ranks counted from 1.

    Raises:
        UsageError: the shapes do not fit, a value is not finite, an error or ``critical`` is negative, or ``critical`` is NaN.
    """
    scores, scale = as_vector(values, "values"), np.asarray(errors, dtype=np.float64)
    models = len(scores)
    if scale.shape != (models, models):
        raise UsageError(f"`errors` must be ({models}, {models}) for {models} values, got shape {scale.shape}")
    if not np.isfinite(scores).all():
        raise UsageError("`values` must be finite; leave out models that were not measured")
    if (scale < 0).any() or not critical >= 0:
        raise UsageError(f"`errors` and `critical` must not be negative, got {np.nanmin(scale, initial=0.0):g} and {critical:g}")
    gaps = scores[:, None] - scores[None, :]
    gaps[np.abs(gaps) <= _rounding(scores)] = 0.0
    needed = np.where(scale == 0, 0.0, np.inf)
    # An infinite critical value leaves a pair that never varies decided, a critical value of 0 an unknown pair open.
    np.multiply(scale, critical, out=needed, where=np.isfinite(scale) & (scale > 0))
    beaten_by, beats = (-gaps > needed).sum(axis=1), (gaps > needed).sum(axis=1)
    return [(1 + int(better), models - int(worse)) for better, worse in zip(beaten_by, beats, strict=True)]


class Pairwise(NamedTuple):
    """Hold all differences of M models, row minus column, with what is true of all of them at once.

    ``difference``, ``error``, ``low``, ``high`` and ``p`` are (M, M); ``critical`` is the quantile of the largest |t|.
    """

    difference: Array
    error: Array
    low: Array
    high: Array
    p: Array
    critical: float


def pairwise(values: Any, replicates: Any, level: float = 0.95) -> Pairwise:
    """Compare all pairs of models at once on shared resamples: intervals that all hold together, and p values adjusted for the number of pairs.

    The reference is the largest |t| over all pairs in each resample (single-step max-T), which knows how the pairs depend on each other.
    So it is never wider than Bonferroni up to the noise of the resamples.

    Args:
        values: (M,) the models' values, finite.
        replicates: (M, R) their values on shared resamples.
        level: the simultaneous level.

    Returns:
        Differences, their bootstrap standard errors, bounds, p in (0, 1] by (b + 1) / (R + 1), and the critical value.
        A pair that never varies has error 0, equal bounds, and p = 1 where it ties, else 1 / (R + 1); the critical value is 0 where no pair varies.

    Raises:
        UsageError: the shapes do not fit, a value is not finite, or ``level`` is outside (0, 1).

    Source:
        Westfall & Young 1993, section 2.6 (single-step max-T), with t about the mean of the replicates.
    """
    check_level(level)
    scores, draws = as_vector(values, "values"), np.asarray(replicates, dtype=np.float64)
    if draws.ndim != 2 or len(draws) != len(scores) or draws.shape[1] < 2:
        raise UsageError(
            f"`replicates` must be (models, resamples) for {len(scores)} values, two resamples or more, got shape {draws.shape}"
        )
    if not (np.isfinite(scores).all() and np.isfinite(draws).all()):
        raise UsageError("`values` and `replicates` must be finite; leave out models that were not measured")
    error, largest = _studentise(draws)
    critical = float(np.quantile(largest, level))
    difference = scores[:, None] - scores[None, :]
    difference[np.abs(difference) <= _rounding(scores)] = 0.0
    half = np.multiply(error, critical, out=np.zeros_like(error), where=error > 0)
    t = np.divide(np.abs(difference), error, out=np.where(difference != 0, np.inf, 0.0), where=error > 0)
    reached = len(largest) - np.searchsorted(np.sort(largest), t * (1 - _ROUNDING), side="left")
    p = np.where(difference == 0, 1.0, (reached + 1) / (len(largest) + 1))
    return Pairwise(difference, error, difference - half, difference + half, p, critical)


def _rounding(scores: Array) -> float:
    return _ROUNDING * float(np.abs(scores).max(initial=0.0))


def _studentise(draws: Array) -> tuple[Array, Array]:
    """Return the standard errors of all differences (M, M), and for each replicate the largest |t| (R,)."""
    models, resamples = draws.shape
    errors = np.zeros((models, models))
    largest = np.zeros(resamples)
    floor = _ROUNDING * np.abs(draws).max(initial=1e-300)
    for at in range(models - 1):  # a block of pairs: all those of one model
        deltas = draws[at] - draws[at + 1 :]
        deltas -= deltas.mean(axis=1, keepdims=True)
        scale = np.sqrt(np.einsum("pr,pr->p", deltas, deltas) / (resamples - 1))
        varying = scale > floor
        if varying.any():
            errors[at, at + 1 :][varying] = scale[varying]
            np.maximum(largest, np.abs(deltas[varying] / scale[varying, None]).max(axis=0), out=largest)
    return errors + errors.T, largest
