"""Simultaneous rank sets of several models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from evalharness.errors import UsageError
from evalharness.stats._checks import as_vector, check_level

if TYPE_CHECKING:
    from evalharness.types import Array


def rank_sets(values: Any, replicates: Any, level: float = 0.95, *, higher_is_better: bool = True) -> list[tuple[int, int]]:
    """Return for each model the ranks that cannot be excluded, all of them right at once with probability ``level``.

    The critical value is the quantile of the largest |t| over all pairs, taken from the replicates.
    A pair whose difference never varies is decided by its sign, and a tie where it is 0.

    Args:
        values: (M,) the models' values, defined.
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
    check_level(level)
    scores = as_vector(values, "values") * (1 if higher_is_better else -1)
    draws = np.asarray(replicates, dtype=np.float64) * (1 if higher_is_better else -1)
    if draws.ndim != 2 or len(draws) != len(scores):
        raise UsageError(f"`replicates` must be (models, resamples) for {len(scores)} values, got shape {draws.shape}")
    if not (np.isfinite(scores).all() and np.isfinite(draws).all()):
        raise UsageError("`values` and `replicates` must be finite; leave out models that were not measured")
    if len(scores) < 2:
        return [(1, 1)] * len(scores)
    errors, largest = _studentise(scores, draws)
    critical = float(np.quantile(largest, level)) if draws.shape[1] else np.inf
    gaps = scores[:, None] - scores[None, :]
    beaten_by = (-gaps > critical * errors).sum(axis=1)
    beats = (gaps > critical * errors).sum(axis=1)
    return [(1 + int(worse), len(scores) - int(better)) for worse, better in zip(beaten_by, beats, strict=True)]


def _studentise(scores: Array, draws: Array) -> tuple[Array, Array]:
    """Return the standard errors of all differences (M, M), and for each replicate the largest |t| (R,)."""
    models = len(scores)
    errors = np.zeros((models, models))
    largest = np.zeros(draws.shape[1])
    for at in range(models - 1):  # a block of pairs: all those of one model
        deltas = draws[at] - draws[at + 1 :]
        errors[at, at + 1 :] = deltas.std(axis=1, ddof=1) if draws.shape[1] > 1 else 0.0
        deviations = np.abs(deltas - deltas.mean(axis=1, keepdims=True))
        scale = errors[at, at + 1 :, None]
        floor = 1e-12 * np.abs(draws).max(initial=1e-300)
        errors[at, at + 1 :][scale[:, 0] <= floor] = 0.0
        ratios = np.divide(deviations, scale, out=np.zeros_like(deviations), where=scale > floor)
        np.maximum(largest, ratios.max(axis=0, initial=0.0), out=largest)
    return errors + errors.T, largest
