"""Row selections by hash of id: orders, shares, budgets, folds and limits that every encoder shares.

A draw is keyed by what it is about (task seed, purpose, data set, target), so that it is the same on every machine, nested in its size, and unaffected by the order of rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from evalharness.errors import DataError, UnknownNameError, UsageError, unknown_name
from evalharness.keys import seed_of
from evalharness.types import Array, Column

_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def hash_ids(ids: Array) -> Array:
    """Return a 64-bit hash of each id, (N,) uint64."""
    digests = [hashlib.blake2b(str(item).encode(), digest_size=8).digest() for item in ids]
    return np.frombuffer(b"".join(digests), dtype=np.uint64) if digests else np.empty(0, dtype=np.uint64)


def draw_keys(hashes: Array, *about: object) -> Array:
    """Mix the hashes of ids with what a draw is about, (N,) uint64; the order of the result is a random order of the ids."""
    with np.errstate(over="ignore"):
        mixed = hashes ^ np.uint64(seed_of(*about))
        for shift, factor in zip((30, 27), _MIX, strict=True):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * factor
        return mixed ^ (mixed >> np.uint64(31))


def strata(columns: Sequence[Column], size: int) -> Array:
    """Return one code a row for the crossing of class columns, (N,) int64; number columns are cut at their quintiles."""
    codes = np.zeros(size, dtype=np.int64)
    for column in columns:
        values = column.values
        if column.kind == "number":
            edges = np.nanquantile(values, [0.2, 0.4, 0.6, 0.8]) if np.isfinite(values).any() else np.zeros(4)
            values = np.searchsorted(edges, np.nan_to_num(values))
        elif column.kind == "multilabel":
            values = values.argmax(axis=1)
        codes = np.unique(codes * (int(values.max(initial=0)) + 2) + values + 1, return_inverse=True)[1]
    return codes


def stratified_order(keys: Array, strata_codes: Array) -> Array:
    """Order rows so that every prefix holds each stratum in proportion, (N,) int64 positions.

    Within a stratum rows come by key; row r of a stratum of n stands at (r + u) / n, u drawn by key.
    """
    order = np.lexsort((keys, strata_codes))
    sorted_codes = strata_codes[order]
    starts = np.flatnonzero(np.r_[True, sorted_codes[1:] != sorted_codes[:-1]]) if len(order) else np.empty(0, np.int64)
    counts = np.diff(np.r_[starts, len(order)])
    rank = np.arange(len(order)) - np.repeat(starts, counts)
    offset = (keys[order[starts]] >> np.uint64(11)).astype(np.float64) / 2.0**53
    place = (rank + np.repeat(offset, counts)) / np.repeat(counts, counts)
    return order[np.lexsort((keys[order], place))]


def take_share(keys: Array, strata_codes: Array, share: float) -> Array:
    """Return the sorted positions of a stratified share of the rows, at least one.

    Raises:
        UsageError: the share does not lie in (0, 1].
    """
    if not 0 < share <= 1:
        raise UsageError(f"expected a share in (0, 1], got {share:g}")
    count = max(1, round(share * len(keys))) if len(keys) else 0
    return np.sort(stratified_order(keys, strata_codes)[:count])


def take_cluster_share(keys: Array, strata_codes: Array, share: float, clusters: Array) -> Array:
    """Return the sorted positions of whole clusters that together hold about a share of the rows, at least one cluster."""
    _, first, inverse, counts = np.unique(clusters, return_index=True, return_inverse=True, return_counts=True)
    order = stratified_order(keys[first], strata_codes[first])
    held = np.cumsum(counts[order])
    chosen = order[: max(1, int(np.searchsorted(held, share * len(keys), side="right")))]
    return np.flatnonzero(np.isin(inverse, chosen))


def take_per_class(keys: Array, column: Column, k: int) -> Array:
    """Return the sorted positions of k rows of every class, nested in k.

    Raises:
        DataError: a class has fewer than k rows; the message names the smallest.
    """
    codes = column.values
    order = np.lexsort((keys, codes))
    order = order[codes[order] >= 0]
    present, starts, counts = np.unique(codes[order], return_index=True, return_counts=True)
    if len(present) and counts.min() < k:
        at = int(counts.argmin())
        raise DataError(
            f"a budget of {k}/class needs {k} rows of every class, but class `{column.names[present[at]]}` has {counts[at]}; "
            f"the largest possible budget is {counts[at]}/class"
        )
    return np.sort(np.concatenate([order[start : start + k] for start in starts])) if len(present) else order


def assign_folds(keys: Array, strata_codes: Array, folds: int, clusters: Array | None = None) -> Array:
    """Assign rows to K folds, stratified, whole clusters together; (N,) int64 in [0, K).

    Raises:
        DataError: there are fewer rows (or clusters) than folds.
    """
    units = len(keys) if clusters is None else len(np.unique(clusters))
    if units < folds:
        raise DataError(f"{folds} folds need at least {folds} independent rows, there are {units}")
    result = np.empty(len(keys), dtype=np.int64)
    if clusters is None:
        # Numbered on from stratum to stratum: each is spread over all folds, and so is what is left over.
        result[np.lexsort((keys, strata_codes))] = np.arange(len(keys)) % folds
        return result
    _, first, inverse, counts = np.unique(clusters, return_index=True, return_inverse=True, return_counts=True)
    load = np.zeros((int(strata_codes.max()) + 1, folds))
    by_cluster = np.empty(len(first), dtype=np.int64)
    for unit in np.lexsort((keys[first], -counts)):  # whole clusters, largest first, to the emptiest fold of their stratum
        stratum = strata_codes[first[unit]]
        fold = int(np.lexsort((load.sum(axis=0), load[stratum]))[0])
        load[stratum, fold] += counts[unit]
        by_cluster[unit] = fold
    result[:] = by_cluster[inverse]
    return result


def _name(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def match_where(where: Mapping[str, object], columns: Mapping[str, Column], size: int, what: str) -> Array:
    """Return a mask of the rows whose columns have the given values; a list means any of them.

    Raises:
        UnknownNameError: a column or a value does not exist.
    """
    mask = np.ones(size, dtype=bool)
    for name, wanted in where.items():
        if name not in columns or columns[name].kind != "class":
            classes = [key for key, column in columns.items() if column.kind == "class"]
            raise UnknownNameError(f"{what}: {unknown_name('class column', name, classes)}")
        column = columns[name]
        values = [_name(value) for value in (wanted if isinstance(wanted, (list, tuple)) else [wanted])]
        for value in values:
            if value not in column.names:
                raise UnknownNameError(f"{what}: {unknown_name(f'value of `{name}`', value, column.names)}")
        mask &= np.isin(column.values, [column.names.index(value) for value in values])
    return mask
