"""Audits over many overlapping subgroups: crossings of columns, and calibration in every one of them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from evalharness.errors import DataError, UsageError
from evalharness.stats._checks import as_vector
from evalharness.stats._reducers import assign_bins
from evalharness.types import Array


class Crossing(NamedTuple):
    """Hold a subgroup: the ``columns`` that are crossed, the ``codes`` it has in them, and its number of rows ``n``."""

    columns: tuple[str, ...]
    codes: tuple[int, ...]
    n: int

    def members(self, columns: Mapping[str, Any]) -> Array:
        """Return (N,) bool, which rows of ``columns`` belong to the crossing."""
        return np.logical_and.reduce([np.asarray(columns[name]) == code for name, code in zip(self.columns, self.codes, strict=True)])


def intersections(columns: Mapping[str, Any], *, minimum: int = 30) -> list[Crossing]:
    """Return all crossings of one, two, up to all columns that hold at least ``minimum`` rows.

    Columns that cannot reach the minimum together are not crossed further, so the work follows the crossings that exist.

    >>> intersections({"sex": [0, 0, 1, 1], "age": [0, 1, 1, -1]}, minimum=2)
    [Crossing(columns=('sex',), codes=(0,), n=2), Crossing(columns=('sex',), codes=(1,), n=2), Crossing(columns=('age',), codes=(1,), n=2)]

    Args:
        columns: names to (N,) int codes, -1 for missing; such a row belongs to no crossing of that column.
        minimum: the least number of rows, at least 1.

    Returns:
        Crossings, those of fewer columns first, then in the order of columns and codes.

    Raises:
        UsageError: columns have different lengths or hold no whole codes, or ``minimum`` is below 1.
    """
    held = {name: np.asarray(codes) for name, codes in columns.items()}
    if minimum < 1:
        raise UsageError(f"`minimum` must be at least 1, got {minimum}")
    for name, codes in held.items():
        if codes.ndim != 1 or (codes.size and codes.dtype.kind not in "iub") or len(codes) != len(next(iter(held.values()))):
            raise UsageError(
                f"column `{name}` must hold whole codes, one a row as the other columns, got shape {codes.shape} of {codes.dtype}"
            )
    found: list[Crossing] = []
    alive: dict[tuple[str, ...], list[Crossing]] = {}
    for order in range(1, len(held) + 1):
        for names in itertools.combinations(held, order):
            # A crossing is no larger than the same crossing without its last column.
            if order > 1 and not (alive.get(names[:-1]) and alive.get(names[1:])):
                continue
            alive[names] = _cross(names, [held[name] for name in names], minimum)
            found += alive[names]
    return found


def _cross(names: tuple[str, ...], columns: list[Array], minimum: int) -> list[Crossing]:
    table = np.stack(columns, axis=1).astype(np.int64)
    table = table[(table >= 0).all(axis=1)]
    codes, sizes = np.unique(table, axis=0, return_counts=True)
    return [Crossing(names, tuple(int(code) for code in row), int(n)) for row, n in zip(codes, sizes, strict=True) if n >= minimum]


class Multicalibration(NamedTuple):
    """Hold the worst cell of an audit: ``value`` = |``bias``| · n / N, its ``group``, its score ``bin`` from 0, and its number of rows ``n``.

    ``bias`` is the mean of hit - confidence in the cell, negative where the model is too sure.
    """

    value: float
    group: int
    bin: int
    n: int
    bias: float


def multicalibration(truth_hits: Any, confidence: Any, groups: Any, *, bins: int = 10) -> Multicalibration:
    """Return the largest |mean(hit - confidence)| · share of rows over all cells of group and score bin.

    The largest of many noisy cells lies above 0 for a calibrated model too; read it beside ``n``.

    Args:
        truth_hits: (N,) 0 or 1, whether the event of which ``confidence`` speaks took place.
        confidence: (N,) probabilities in [0, 1].
        groups: (N,) int codes, -1 for none; or (N, G) bool memberships, for groups that overlap.
        bins: the number of bins of equal width, open below, closed above, 0 in the first.

    Returns:
        The first of the worst cells.

    Raises:
        DataError: no row belongs to a group, or a value is NaN or outside its range.
        UsageError: the lengths do not fit, or ``bins`` is below 1.

    Source:
        Hébert-Johnson et al. 2018, as in METRICS.md section 8.
    """
    hits, scores, given = as_vector(truth_hits, "truth_hits"), as_vector(confidence, "confidence"), np.asarray(groups)
    total = len(hits)
    if scores.shape != hits.shape or given.ndim not in (1, 2) or len(given) != total:
        raise UsageError(f"expected one hit, confidence and group a row, got {total}, {len(scores)} and shape {given.shape}")
    if bins < 1:
        raise UsageError(f"`bins` must be at least 1, got {bins}")
    if not (np.isin(hits, (0, 1)).all() and ((scores >= 0) & (scores <= 1)).all()):
        raise DataError("`truth_hits` must be 0 or 1 and `confidence` lie in [0, 1], and neither NaN")
    rows, codes = _memberships(given)
    if not len(rows):
        raise DataError("no row belongs to a group")
    cells = codes * bins + assign_bins(scores, bins)[rows]
    sizes = np.bincount(cells)
    bias = np.bincount(cells, weights=(hits - scores)[rows])
    at = int(np.argmax(np.abs(bias)))
    return Multicalibration(float(abs(bias[at])) / total, at // bins, at % bins, int(sizes[at]), float(bias[at]) / max(1, int(sizes[at])))


def _memberships(groups: Array) -> tuple[Array, Array]:
    """Return rows and the group each stands in, a row once for each of its groups."""
    if groups.ndim == 2:
        rows, codes = np.nonzero(groups)
        return rows, codes
    if groups.dtype.kind not in "iub":
        raise UsageError(f"`groups` must hold whole codes or be a (N, G) table of memberships, got {groups.dtype}")
    rows = np.flatnonzero(groups >= 0)
    return rows, groups[rows].astype(np.int64)
