"""Resamples that can be walked again and again, kept in memory only where they are small."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from evalharness.errors import UsageError
from evalharness.stats._checks import unit_codes
from evalharness.stats._reducers import bind_columns, check_columns, divide, get_reducer, mean, moment_product, ratio
from evalharness.stats._resampling import BLOCK_BYTES, counts, jackknife_blocks, unit_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from evalharness.stats._reducers import Reducer
    from evalharness.types import Array

_KEEP_BYTES = 32 * 2**20


class Resamples:
    """Give the bootstrap counts of one set of rows, block by block, as often as they are asked for.

    The rows are those of ``counts(n, resamples, np.random.default_rng(seed), clusters)``.
    Where the counts of all units need at most ``keep_bytes`` they are kept, else they are made anew on every walk, so memory stays small at any n.

    >>> draws = Resamples(4, 1000, seed=0)
    >>> draws.apply("mean", np.array([1.0, 2.0, 3.0, 4.0])).shape
    (1000,)

    Args:
        n: the number of rows, at least 1.
        resamples: R, the number of resamples.
        seed: whatever ``np.random.default_rng`` takes as a seed, except a generator.
        clusters: (n,) labels; whole clusters are drawn.
        keep_bytes: the most memory that kept counts may take.

    Attributes:
        n: the number of rows.
        num_units: U, the number of units that are drawn: rows, or clusters.
        resamples: R.

    Raises:
        DataError: ``n`` is 0.
        UsageError: ``resamples`` is negative, ``clusters`` has another length than n, or ``seed`` is a generator.
    """

    def __init__(self, n: int, resamples: int, seed: Any, clusters: Any | None = None, *, keep_bytes: int = _KEEP_BYTES) -> None:
        if isinstance(seed, (np.random.Generator, np.random.BitGenerator)):
            raise UsageError("`seed` must be a seed, not a generator, which could not be walked twice")
        codes, self.num_units = unit_codes(n, clusters)
        if resamples < 0:
            raise UsageError(f"`resamples` must not be negative, got {resamples}")
        self.n, self.resamples = n, resamples
        self._codes = None if clusters is None else codes
        self._seed = seed
        self._keep = resamples * self.num_units <= keep_bytes
        self._kept: Array | None = None

    def _unit_blocks(self) -> Iterator[Array]:
        """Yield blocks of how often each unit is drawn, (r, U) int8."""
        if self._keep and self._kept is None:
            self._kept = counts(self.num_units, self.resamples, np.random.default_rng(self._seed))
            self._kept.flags.writeable = False
        if self._kept is None:
            yield from unit_blocks(self.num_units, self.resamples, np.random.default_rng(self._seed))
            return
        rows = max(1, BLOCK_BYTES // self.n)
        for start in range(0, self.resamples, rows):
            yield self._kept[start : start + rows]

    def blocks(self) -> Iterator[Array]:
        """Yield (r, n) int8 counts of the rows; the r sum to ``resamples``."""
        for block in self._unit_blocks():
            yield block if self._codes is None else block[:, self._codes]

    def apply(self, reducer: str | Reducer, *columns: Any) -> Array:
        """Return a reducer's value on each resample.

        Args:
            reducer: a reducer or its name.
            *columns: (n,) each, what the reducer takes before its weights.

        Returns:
            (R,) float64; NaN where a resample leaves the statistic undefined.

        Raises:
            UsageError: the reducer is unknown or a column has another length than n.
        """
        return self._apply(reducer, None, columns)

    def apply_at(self, reducer: str | Reducer, positions: Any, *columns: Any) -> Array:
        """Return a reducer's value on the part of each resample that falls on some of the rows.

        Args:
            reducer: a reducer or its name.
            positions: (m,) int64, which of the n rows ``columns`` hold; a row may stand more than once.
            *columns: (m,) each.

        Returns:
            (R,) float64; NaN where a resample holds none of these rows or leaves the statistic undefined.

        Raises:
            UsageError: the reducer is unknown, a position lies outside [0, n), or a column has another length than ``positions``.
        """
        at = np.asarray(positions, dtype=np.int64)
        if at.ndim != 1 or (at.size and not 0 <= at.min() <= at.max() < self.n):
            raise UsageError(f"`positions` must be a vector of rows in [0, {self.n}), got shape {at.shape}")
        return self._apply(reducer, at, columns)

    def _apply(self, reducer: str | Reducer, at: Array | None, columns: tuple[Any, ...]) -> Array:
        reduce = get_reducer(reducer)
        held = [np.asarray(column) for column in columns]
        size = self.n if at is None else len(at)
        check_columns(reduce, held, size)
        if reduce is mean and len(held) == 1:
            return self._means(held[0][:, None], at)[:, 0]
        if reduce is ratio and len(held) == 2:
            sums = self._sums(np.stack(held, axis=1).astype(np.float64), at)
            return divide(sums[:, 0], sums[:, 1])
        codes = self._codes if at is None else at if self._codes is None else self._codes[at]
        bound = bind_columns(reduce, *held)
        results = [bound(block if codes is None else np.take(block, codes, axis=1)) for block in self._unit_blocks()]
        return np.concatenate(results) if results else np.zeros(0)

    def means(self, columns: Any) -> Array:
        """Return the means of several columns on each resample, in one product.

        Args:
            columns: (n, T) numbers or hits.

        Returns:
            (R, T) float64; NaN where a resample holds a row whose entry is NaN.

        Raises:
            UsageError: ``columns`` is not (n, T).
        """
        held = np.asarray(columns)
        if held.ndim != 2 or len(held) != self.n:
            raise UsageError(f"`columns` must be ({self.n}, metrics), one row a row, got shape {held.shape}")
        return self._means(held, None)

    def unit_sums(self, columns: Any) -> Array:
        """Return the sums of each unit's rows, (n, T) to (U, T); the rows themselves without clusters."""
        return self._by_unit(np.asarray(columns, dtype=np.float64), None)

    def sum_units(self, table: Any) -> Array:
        """Return sums over the units drawn in each resample, (U, T) finite to (R, T)."""
        held = np.asarray(table, dtype=np.float64)
        sums = np.empty((self.resamples, held.shape[1]))
        start = 0
        for block in self._unit_blocks():
            sums[start : start + len(block)] = moment_product(block, held)
            start += len(block)
        return sums

    def _means(self, columns: Array, at: Array | None) -> Array:
        held = columns.astype(np.float64, copy=False)
        if at is None and self._codes is None:
            return self._sums(held, at) / self.n
        sums = self._sums(np.concatenate([held, np.ones((len(held), 1))], axis=1), at)
        return divide(sums[:, :-1], sums[:, -1:])

    def _sums(self, columns: Array, at: Array | None) -> Array:
        """Return sums over the rows drawn, (m, T) to (R, T), from the sums of units; NaN where an entry drawn is NaN."""
        missing = np.isnan(columns)
        lacking = np.flatnonzero(missing.any(axis=0))
        filled = np.concatenate([np.where(missing, 0.0, columns), missing[:, lacking]], axis=1) if len(lacking) else columns
        sums = self.sum_units(self._by_unit(filled, at))
        result, drawn = sums[:, : columns.shape[1]], sums[:, columns.shape[1] :] > 0
        result[:, lacking] = np.where(drawn, np.nan, result[:, lacking])
        return result

    def _by_unit(self, table: Array, at: Array | None) -> Array:
        """Return the sums of each unit's rows, (m, T) to (U, T)."""
        codes = self._codes if at is None else at if self._codes is None else self._codes[at]
        if codes is None:
            return table
        sums = [np.bincount(codes, weights=table[:, column], minlength=self.num_units) for column in range(table.shape[1])]
        return np.stack(sums, axis=1)


def leave_one_out(reducer: str | Reducer, *columns: Any, clusters: Any | None = None, limit: int | None = 1000) -> Array:
    """Return a statistic without each unit in turn, for :func:`jackknife_interval` and for BCa.

    >>> leave_one_out("mean", np.array([1.0, 2.0, 6.0]))
    array([4. , 3.5, 1.5])

    Args:
        reducer: a reducer or its name.
        *columns: (n,) each, what the reducer takes before its weights.
        clusters: (n,) labels of the units; None makes each row one.
        limit: with more units than this, they are left out in this many groups, see :func:`jackknife_weights`; None for no limit.

    Returns:
        (U,) float64, U the number of units or ``limit``; in the order of the sorted labels, or of rows.

    Raises:
        DataError: there are no rows.
        UsageError: lengths differ, the reducer is unknown, or ``limit`` is below 2.
    """
    reduce, held = get_reducer(reducer), [np.asarray(column) for column in columns]
    n = len(held[0]) if held else 0
    sums = reduce in (mean, ratio) and all(column.shape == (n,) and not np.isnan(column.astype(np.float64)).any() for column in held)
    if sums and (limit is None or limit >= 2):
        codes, num_units = unit_codes(n, clusters)
        if limit is not None and num_units > limit:
            codes, num_units = codes % limit, limit
        tops = np.bincount(codes, weights=held[0].astype(np.float64), minlength=num_units)
        bottoms = np.bincount(codes, weights=held[1] if reduce is ratio else None, minlength=num_units).astype(np.float64)
        return divide(tops.sum() - tops, bottoms.sum() - bottoms)
    bound = bind_columns(reduce, *held)
    return np.concatenate([bound(block) for block in jackknife_blocks(n, clusters, limit=limit)])
