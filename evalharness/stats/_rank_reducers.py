"""Reducers of ranks: Spearman, area under the ROC curve, average precision.

Each sorts its columns once and then works with running sums of weights in sorted order, read off at the ends of tied groups.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from evalharness.stats._reducers import REDUCERS, Bound, divide, make_prepared, totals
from evalharness.types import Array

_EXACT_IN_INT32 = 2**23  # of a total, so that twice a sum times a count of one byte still fits
_MANY = 16
_GROUP = 16
_SUM_CELLS = 2**15


class _Ties(NamedTuple):
    """Hold how a column sorts: ``order`` (M,), the last place of each tied group in it ``ends`` (U,), the group of each row ``groups`` (M,)."""

    order: Array
    ends: Array
    groups: Array


def _sort(values: Array) -> _Ties:
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    ends = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))
    groups = np.empty(len(values), dtype=np.int64)
    groups[order] = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=-1))
    return _Ties(order, ends, groups)


def _arrange(weights: Array, order: Array) -> tuple[Array, int]:
    """Return weights in sorted order of rows, and the axis of the rows: the first for many resamples, whose sums then run in step."""
    if len(weights) < _MANY:
        return np.take(weights, order, axis=1), 1
    return np.take(np.ascontiguousarray(weights.T), order, axis=0), 0


def _running(arranged: Array, axis: int) -> Array:
    """Return running sums, exact for counts: int32 where that is certain to hold them."""
    narrow = arranged.dtype.itemsize == 1 and int(arranged.sum(axis=axis, dtype=np.int32).max(initial=0)) < _EXACT_IN_INT32
    if narrow and axis == 0:
        return _scan(arranged)
    sums = arranged.astype(np.int32 if narrow else np.float64)
    return np.cumsum(sums, axis=axis, out=sums)


def _scan(counts: Array) -> Array:
    """Return running sums over the first axis, (M, r) of one byte to int32, faster than numpy, which walks down one column at a time.

    Groups of 16 rows are summed first, all groups in step; 16 counts of one byte fit int16.
    """
    items, others = counts.shape
    groups = -(-items // _GROUP)
    within = np.zeros((groups, _GROUP, others), dtype=np.int16)
    within.reshape(-1, others)[:items] = counts
    for at in range(1, _GROUP):
        within[:, at] += within[:, at - 1]
    before = np.zeros((groups, 1, others), dtype=np.int32)
    np.cumsum(within[:-1, -1], axis=0, out=before[1:, 0])
    return (within + before).reshape(-1, others)[:items]


def _part(array: Array, axis: int, start: int | None, stop: int | None) -> Array:
    return array[start:stop] if axis == 0 else array[:, start:stop]


def _with_before(running: Array, axis: int, sign: int) -> Array:
    """Return each running sum plus (or minus) the one before it."""
    result = running.copy()
    after = _part(result, axis, 1, None)
    (np.add if sign > 0 else np.subtract)(after, _part(running, axis, None, -1), out=after)
    return result


def _sum_products(axis: int, *factors: Array) -> Array:
    """Return float64 sums of products over the axis, a few cells at a time so that copies stay in the cache."""
    items, others = factors[0].shape[axis], factors[0].shape[1 - axis]
    result = np.zeros(others)
    step = max(1, _SUM_CELLS // max(1, others))
    for start in range(0, items, step):
        parts = {id(factor): _part(factor, axis, start, start + step).astype(np.float64) for factor in factors}
        *rest, last = (parts[id(factor)] for factor in factors)
        product = rest[0] * rest[1] if len(rest) == 2 else rest[0]
        result += np.einsum("mr,mr->r" if axis == 0 else "rm,rm->r", product, last)
    return result


def _mid_ranks(arranged: Array, ties: _Ties, axis: int) -> tuple[Array, Array]:
    """Return twice the mid-ranks (M, r), counted from half a row, as if each row stood ``weight`` times, and the weights of tied groups (U, r)."""
    running = _running(arranged, axis)
    if len(ties.ends) == len(ties.order):
        return np.take(_with_before(running, axis, 1), ties.groups, axis=axis), arranged
    running = np.take(running, ties.ends, axis=axis)
    return np.take(_with_before(running, axis, 1), ties.groups, axis=axis), _with_before(running, axis, -1)


@make_prepared
def spearman(first: Array, second: Array) -> Bound:
    """Return weighted Spearman correlations with mid-ranks; NaN where a column is constant on the rows drawn.

    Args:
        first: (M,) numbers.
        second: (M,) numbers.
        weights: (R, M) not negative integers.

    Returns:
        (R,) float64 in [-1, 1].
    """
    by_first = _sort(first)
    ordered = _Ties(np.arange(len(first)), by_first.ends, by_first.groups[by_first.order])
    by_second = _sort(second[by_first.order])

    def kernel(weights: Array) -> Array:
        arranged, axis = _arrange(weights, by_first.order)
        x, sizes_x = _mid_ranks(arranged, ordered, axis)
        y, sizes_y = _mid_ranks(np.take(arranged, by_second.order, axis=axis), by_second, axis)
        # With ranks x / 2 and y / 2 of mean n / 2, four times the sums about the mean are these; n is whole, so little is lost.
        cube = totals(weights) ** 3
        joint = 3 * (_sum_products(axis, arranged, x, y) - cube)
        spread_x = cube - _sum_products(axis, sizes_x, sizes_x, sizes_x)
        untied = sizes_x.shape == sizes_y.shape == arranged.shape
        spread_y = spread_x if untied else cube - _sum_products(axis, sizes_y, sizes_y, sizes_y)
        return np.asarray(np.clip(divide(joint, np.sqrt(spread_x) * np.sqrt(spread_y)), -1.0, 1.0))

    return kernel


@make_prepared
def auc(score: Array, positive: Array) -> Bound:
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
    is_positive = positive.astype(bool)
    hits, misses = np.flatnonzero(is_positive), np.flatnonzero(~is_positive)
    misses = misses[np.argsort(score[misses], kind="stable")]
    # How many negatives lie below a positive, and how many below or level with it.
    below, level = (np.searchsorted(score[misses], score[hits], side=side) for side in ("left", "right"))

    def kernel(weights: Array) -> Array:
        if not len(hits) or not len(misses):
            return np.full(len(weights), np.nan)
        drawn, axis = _arrange(weights, np.append(misses[:1], misses))
        _part(drawn, axis, None, 1)[:] = 0
        running = _running(drawn, axis)
        beaten = np.take(running, below, axis=axis) + np.take(running, level, axis=axis)
        pairs = totals(weights[:, hits]) * _part(running, axis, -1, None).reshape(-1)
        return divide(_sum_products(axis, _arrange(weights, hits)[0], beaten), 2 * pairs)

    return kernel


@make_prepared
def average_precision(score: Array, positive: Array) -> Bound:
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
    ties = _sort(-score.astype(np.float64))
    hits = ties.order[positive.astype(bool)[ties.order]]
    reached = ties.ends[ties.groups[hits]]  # the last place, in order of score, of all rows at a positive's threshold
    found = np.searchsorted(reached, reached, side="right") - 1  # the last positive at that threshold

    def kernel(weights: Array) -> Array:
        if not len(hits):
            return np.full(len(weights), np.nan)
        arranged, axis = _arrange(weights, ties.order)
        ranked = np.take(_running(arranged, axis), reached, axis=axis)
        drawn = _arrange(weights, hits)[0]
        running = _running(drawn, axis)
        # Where nothing is ranked nothing is found either, and the precision has no weight.
        least = 1 if ranked.dtype.kind == "i" else np.finfo(np.float64).tiny
        precision = np.take(running, found, axis=axis) / np.maximum(ranked, least)
        return divide(_sum_products(axis, drawn, precision), _part(running, axis, -1, None).reshape(-1))

    return kernel


@functools.partial(make_prepared, axes=2)
def macro_average_precision(relevant: Array, score: Array) -> Bound:
    """Return the mean over labels of weighted average precisions; labels that no drawn row carries are left out, NaN where none is carried.

    Args:
        relevant: (M, L) bool or 0/1.
        score: (M, L) numbers, higher for labels that are carried.
        weights: (R, M) not negative.

    Returns:
        (R,) float64 in [0, 1].

    Source:
        METRICS.md 1.3; scikit-learn's ``average_precision_score(average="macro")`` over the labels with positives.
    """
    labels = np.flatnonzero(np.asarray(relevant, dtype=bool).any(axis=0))
    kernels = [average_precision.bind(score[:, label], relevant[:, label]) for label in labels]  # type: ignore[attr-defined]

    def kernel(weights: Array) -> Array:
        found = np.stack([each(weights) for each in kernels]) if kernels else np.empty((0, len(weights)))
        known = np.isfinite(found)
        return divide(np.where(known, found, 0.0).sum(axis=0), known.sum(axis=0))

    return kernel


REDUCERS.update(spearman=spearman, auc=auc, average_precision=average_precision, macro_average_precision=macro_average_precision)
