"""Reducers of ranks: Spearman, area under the ROC curve, average precision; each sorts once and sums over ties."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from evalharness.stats._reducers import REDUCERS, divide, make_reducer, real

if TYPE_CHECKING:
    from evalharness.types import Array


def _tie_groups(values: Array) -> tuple[Array, Array, Array]:
    """Return the order (M,), the start of each tie group in it (U,), and the group of each row in the given order (M,)."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    first = np.ones(len(ordered), dtype=bool)
    first[1:] = ordered[1:] != ordered[:-1]
    groups = np.empty(len(values), dtype=np.int64)
    groups[order] = np.cumsum(first) - 1
    return order, np.flatnonzero(first), groups


def _group_sums(weights: Array, order: Array, starts: Array) -> Array:
    return np.asarray(np.add.reduceat(weights[:, order], starts, axis=1, dtype=np.float64))


def _mid_ranks(values: Array, weights: Array) -> Array:
    """Return mid-ranks (r, M) less half of the total, as if each row stood ``weight`` times."""
    order, starts, groups = _tie_groups(values)
    sums = _group_sums(weights, order, starts)
    ends = np.cumsum(sums, axis=1)
    # Whole and half numbers below 2^53 throughout, so ranks and their means are exact.
    middles = ends - sums / 2 - ends[:, -1:] / 2
    return np.asarray(middles[:, groups])


@make_reducer
def spearman(first: Array, second: Array, weights: Array) -> Array:
    """Return weighted Spearman correlations with mid-ranks; NaN where a column is constant on the rows drawn.

    Args:
        first: (M,) numbers.
        second: (M,) numbers.
        weights: (R, M) not negative integers.

    Returns:
        (R,) float64 in [-1, 1].
    """
    ranks = _mid_ranks(first, weights)
    others = _mid_ranks(second, weights)
    w = real(weights)
    scaled = ranks * w
    joint = np.einsum("rm,rm->r", scaled, others)
    spread = np.einsum("rm,rm->r", scaled, ranks)
    np.multiply(others, w, out=scaled)
    return np.asarray(np.clip(divide(joint, np.sqrt(spread * np.einsum("rm,rm->r", scaled, others))), -1.0, 1.0))


@make_reducer
def auc(score: Array, positive: Array, weights: Array) -> Array:
    """Return weighted areas under the ROC curve; a tied pair counts half, NaN without both classes.

    Args:
        score: (M,) numbers, higher for positives.
        positive: (M,) bool or 0/1.
        weights: (R, M) not negative.

    Returns:
        (R,) float64 in [0, 1].

    Source:
        Mann & Whitney 1947.
    """
    order, starts, _ = _tie_groups(score)
    is_positive = positive.astype(bool)
    hits = _group_sums(weights * is_positive, order, starts)
    misses = _group_sums(weights * ~is_positive, order, starts)
    below = np.cumsum(misses, axis=1) - misses / 2
    return divide(np.einsum("rg,rg->r", hits, below), hits.sum(axis=1) * misses.sum(axis=1))


@make_reducer
def average_precision(score: Array, positive: Array, weights: Array) -> Array:
    """Return weighted average precisions, one threshold a distinct score; NaN without positives.

    Args:
        score: (M,) numbers, higher for positives.
        positive: (M,) bool or 0/1.
        weights: (R, M) not negative.

    Returns:
        (R,) float64 in [0, 1].

    Source:
        The step-wise sum of scikit-learn's ``average_precision_score``, without interpolation.
    """
    order, starts, _ = _tie_groups(-score.astype(np.float64))
    hits = _group_sums(weights * positive.astype(bool), order, starts)
    ranked = np.cumsum(_group_sums(weights, order, starts), axis=1)
    found = np.cumsum(hits, axis=1)
    precision = np.divide(found, ranked, out=np.zeros_like(found), where=ranked > 0)
    return divide(np.einsum("rg,rg->r", hits, precision), found[:, -1])


REDUCERS.update(spearman=spearman, auc=auc, average_precision=average_precision)
