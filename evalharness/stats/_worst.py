"""What the worst of several groups would score if the groups did not matter."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from evalharness.errors import UsageError
from evalharness.stats._checks import unit_codes
from evalharness.stats._reducers import bind_columns, check_columns, divide, get_reducer, mean
from evalharness.types import Array

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from evalharness.stats._reducers import Reducer

_BLOCK_CELLS = 2**21


class WorstGroupNull(NamedTuple):
    """Hold the worst group's ``value``, the value ``expected`` if labels did not matter, and ``p``; ``reason`` says why ``p`` is NaN."""

    value: float
    expected: float
    p: float
    reason: str | None


class _Labels(NamedTuple):
    """Hold what moves: rows sorted by unit, the units' places in them, and the strata within which units trade labels."""

    order: Array  # (M,) rows, those of a unit together
    codes: Array  # (M,) unit of each sorted row
    start: Array  # (U,) first sorted row of each unit
    offset: Array  # (M,) place of a sorted row within its unit, 0 where the unit has one label only
    strata: list[Array]  # units that trade labels with each other
    labels: Array  # (M,) group of each sorted row
    mixed: bool  # whether some unit has several labels


def worst_group_null(
    columns: Sequence[Any],
    groups: Any,
    reducer: str | Reducer,
    generator: np.random.Generator,
    *,
    clusters: Any | None = None,
    classes: Any | None = None,
    permutations: int = 999,
    minimum: int = 30,
    higher_is_better: bool = True,
) -> WorstGroupNull:
    """Compare the worst group with the worst that appears when group labels are dealt out at random.

    The least of several noisy values lies below all truths, so a worst group alone shows nothing.
    Labels move between whole clusters, and only within a class, so neither a group's mix of classes nor the dependence within clusters passes for an effect.
    A cluster of several classes trades with all other clusters of several classes.
    A cluster of several groups hands its labels on as they stand, row by row, to a cluster of as many rows that also has several groups.
    Groups below ``minimum`` rows and rows without a group take no part.

    Args:
        columns: (N,) each, what the reducer takes before its weights.
        groups: (N,) int codes, -1 for none.
        reducer: a reducer or its name.
        generator: the source of randomness.
        clusters: (N,) labels of the independent units; None makes each row one.
        classes: (N,) codes of what the metric depends on anyway, such as the true class; None for a single one.
        permutations: how often the labels are dealt out.
        minimum: the least number of rows of a group that is looked at.
        higher_is_better: False makes the largest value the worst.

    Returns:
        The value, its mean over the permutations, and p = (b + 1) / (permutations + 1), small where the worst group is worse than chance makes one.
        Expected and p are NaN, with a reason, for fewer than two groups, or where no label can move, as when the group is a function of the class.

    Raises:
        DataError: there are no rows.
        UsageError: lengths differ, or ``permutations`` is below 1.

    Source:
        METRICS.md section 8; Phipson & Smyth 2010 for the p that is never 0.
    """
    reduce, held, codes = get_reducer(reducer), [np.asarray(column) for column in columns], np.asarray(groups)
    units, _ = unit_codes(len(codes), clusters)
    strata = np.zeros(len(codes), dtype=np.int64) if classes is None else np.asarray(classes)
    check_columns(reduce, held, len(codes))
    if strata.shape != codes.shape:
        raise UsageError(f"`groups` and `classes` must have one entry a row, got shapes {codes.shape} and {strata.shape}")
    if permutations < 1:
        raise UsageError(f"`permutations` must be at least 1, got {permutations}")
    names, sizes = np.unique(codes[codes >= 0], return_counts=True)
    rows = np.flatnonzero(np.isin(codes, names[sizes >= minimum]))
    if len(rows) == 0:
        return WorstGroupNull(math.nan, math.nan, math.nan, f"no group has {minimum} rows")
    labels = np.unique(codes[rows], return_inverse=True)[1].reshape(-1)
    held, num_groups = [column[rows] for column in held], int(labels.max()) + 1
    worst = np.fmin if higher_is_better else np.fmax
    value = float(worst.reduce([reduce(*held, (labels == group)[None])[0] for group in range(num_groups)]))
    plan = _plan(units[rows], labels, strata[rows])
    reason = _stuck(plan, labels, strata[rows], num_groups, minimum, clustered=clusters is not None)
    if reason or math.isnan(value):
        return WorstGroupNull(value, math.nan, math.nan, reason or "the metric is undefined in every group")
    null = np.concatenate([worst.reduce(each) for each in _null_values(plan, held, reduce, num_groups, permutations, generator)])
    tie = 1e-12 * max(1.0, abs(value))
    if np.nanmax(np.abs(null - value), initial=0.0) <= tie:
        return WorstGroupNull(value, math.nan, math.nan, "the worst group scores the same however labels are dealt out")
    as_bad = int((null <= value + tie).sum() if higher_is_better else (null >= value - tie).sum())
    return WorstGroupNull(value, float(np.nanmean(null)), (as_bad + 1) / (permutations + 1), None)


def _plan(units: Array, labels: Array, strata: Array) -> _Labels:
    """Sort rows by unit and find which units may trade labels."""
    codes = np.unique(units, return_inverse=True)[1].reshape(-1)
    order = np.argsort(codes, kind="stable")
    codes = codes[order]
    start = np.flatnonzero(np.diff(codes, prepend=-1))
    sizes = np.diff(start, append=len(codes))
    classes = np.unique(strata, return_inverse=True)[1].reshape(-1)[order]
    several_classes = np.minimum.reduceat(classes, start) != np.maximum.reduceat(classes, start)
    several_groups = np.minimum.reduceat(labels[order], start) != np.maximum.reduceat(labels[order], start)
    kind = np.stack([np.where(several_classes, -1, classes[start]), np.where(several_groups, sizes, 0)], axis=1)
    stratum = np.unique(kind, axis=0, return_inverse=True)[1].reshape(-1)
    by_stratum = np.argsort(stratum, kind="stable")
    parts = np.split(by_stratum, np.flatnonzero(np.diff(stratum[by_stratum])) + 1)
    offset = np.where(several_groups[codes], np.arange(len(codes)) - start[codes], 0)
    return _Labels(order, codes, start, offset, parts, labels[order], bool(several_groups.any()))


def _stuck(plan: _Labels, labels: Array, strata: Array, num_groups: int, minimum: int, *, clustered: bool) -> str | None:
    """Return why no label can move, or None."""
    if num_groups < 2:
        return f"only one group has {minimum} rows: there is nothing to compare it with"
    if any(_trades(plan, part) for part in plan.strata):
        return None
    pairs = np.unique(np.stack([strata.astype(np.int64), labels]), axis=1)
    if len(np.unique(pairs[0])) == pairs.shape[1]:
        return "the group is a function of the class: no label can move within a class"
    where = "no two clusters that could trade their groups differ in them" if clustered else "no class holds two groups"
    return f"{where}: no label can move"


def _trades(plan: _Labels, part: Array) -> bool:
    """Return whether the units of a stratum differ in their labels."""
    first = part[0]
    size = int((plan.codes == first).sum()) if plan.offset[plan.start[first] :][:2].any() else 1
    patterns = plan.labels[plan.start[part][:, None] + np.arange(size)]
    return bool((patterns != patterns[0]).any())


def _null_values(
    plan: _Labels, columns: list[Array], reduce: Reducer, num_groups: int, permutations: int, generator: np.random.Generator
) -> Iterator[Array]:
    """Yield (G, b) values of the groups, block by block, under labels dealt out at random."""
    held = [column[plan.order] for column in columns]
    rows, units = len(plan.codes), len(plan.start)
    if reduce is mean and units == rows and np.isin(held[0], (0, 1)).all():
        yield _deal_hits(plan, held[0].astype(bool), num_groups, permutations, generator)
        return
    summed = reduce is mean and not plan.mixed and not np.isnan(held[0].astype(np.float64)).any()
    bound = bind_columns(reduce, *held)
    step = max(1, _BLOCK_CELLS // (units if summed else rows))
    for begin in range(0, permutations, step):
        source = np.empty((min(step, permutations - begin), units), dtype=np.int64)
        for part in plan.strata:
            source[:, part] = generator.permuted(np.broadcast_to(part, (len(source), len(part))), axis=1)
        if summed:
            yield _mean_by_group(plan.labels[plan.start][source], held[0], plan, num_groups)
        else:
            dealt = plan.labels[plan.start[source][:, plan.codes] + plan.offset]
            yield np.stack([bound(dealt == group) for group in range(num_groups)])


def _deal_hits(plan: _Labels, hits: Array, num_groups: int, permutations: int, generator: np.random.Generator) -> Array:
    """Return (G, R) shares of hits: dealing labels to rows deals a stratum's hits to groups as coloured balls are drawn from an urn."""
    tops = np.zeros((permutations, num_groups), dtype=np.int64)
    for part in plan.strata:
        sizes = np.bincount(plan.labels[part], minlength=num_groups)
        tops += generator.multivariate_hypergeometric(sizes, int(hits[part].sum()), size=permutations, method="marginals")
    return np.asarray(tops / np.bincount(plan.labels, minlength=num_groups)).T


def _mean_by_group(dealt: Array, values: Array, plan: _Labels, num_groups: int) -> Array:
    """Return (G, b) means from the labels of units, (b, U)."""
    size = len(dealt)
    sums = np.add.reduceat(values.astype(np.float64), plan.start)
    counts = np.diff(plan.start, append=len(values)).astype(np.float64)
    cells = (dealt + num_groups * np.arange(size)[:, None]).ravel()
    tops, bottoms = (
        np.bincount(cells, weights=np.broadcast_to(each, dealt.shape).ravel(), minlength=size * num_groups) for each in (sums, counts)
    )
    return divide(tops, bottoms).reshape(size, num_groups).T
