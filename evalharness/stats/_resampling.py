"""Resample counts: how often each row is drawn, in blocks that stay small whatever the number of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from evalharness.errors import UsageError
from evalharness.stats._checks import unit_codes
from evalharness.stats._draws import chunk_rows, fill_counts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from evalharness.types import Array

BLOCK_BYTES = 4 * 2**20


def count_blocks(
    n: int,
    resamples: int,
    generator: np.random.Generator,
    clusters: Any | None = None,
    *,
    block_bytes: int = BLOCK_BYTES,
) -> Iterator[Array]:
    """Yield blocks of bootstrap counts, together the rows of :func:`counts`.

    Args:
        n: the number of rows, at least 1.
        resamples: R, the number of resamples.
        generator: the source of randomness; equal states give equal counts whatever ``block_bytes``.
        clusters: (n,) labels; whole clusters are drawn, as many as there are, so a row sum need not be n.
        block_bytes: about the size of a block, which holds some resamples at least.

    Yields:
        (r, n) int8 counts; the r sum to ``resamples``.

    Raises:
        DataError: ``n`` is 0.
        UsageError: ``resamples`` is negative or ``clusters`` has another length than n.
    """
    codes, num_units = unit_codes(n, clusters)
    if resamples < 0:
        raise UsageError(f"`resamples` must not be negative, got {resamples}")
    for drawn in unit_blocks(num_units, resamples, generator, row_bytes=n, block_bytes=block_bytes):
        yield drawn if clusters is None else drawn[:, codes]


def unit_blocks(
    num_units: int, resamples: int, generator: np.random.Generator, *, row_bytes: int = 0, block_bytes: int = BLOCK_BYTES
) -> Iterator[Array]:
    """Yield blocks of how often each unit is drawn, (r, U) int8; ``row_bytes`` is what the caller makes of each row."""
    together = chunk_rows(num_units)
    rows = max(1, int(block_bytes // (num_units + row_bytes)) // together) * together
    for start in range(0, resamples, rows):
        block = np.empty((min(rows, resamples - start), num_units), dtype=np.int8)
        fill_counts(block, generator)
        yield block


def counts(n: int, resamples: int, generator: np.random.Generator, clusters: Any | None = None) -> Array:
    """Return how often each row is drawn in each bootstrap resample.

    The same counts for two encoders make a paired comparison; :func:`count_blocks` gives them piecewise.

    >>> counts(4, 2, np.random.default_rng(0)).sum(axis=1)
    array([4, 4])

    Args:
        n: the number of rows, at least 1.
        resamples: R.
        generator: the source of randomness.
        clusters: (n,) labels; whole clusters are drawn.

    Returns:
        (R, n) int8 multinomial counts.

    Raises:
        DataError: ``n`` is 0.
        UsageError: ``resamples`` is negative or ``clusters`` has another length than n.
    """
    codes, num_units = unit_codes(n, clusters)
    if resamples < 0:
        raise UsageError(f"`resamples` must not be negative, got {resamples}")
    drawn = np.empty((resamples, num_units), dtype=np.int8)
    fill_counts(drawn, generator)
    return drawn if clusters is None else drawn[:, codes]


def jackknife_blocks(n: int, clusters: Any | None = None, *, limit: int | None = 1000, block_bytes: int = BLOCK_BYTES) -> Iterator[Array]:
    """Yield blocks of the rows of :func:`jackknife_weights`.

    Args:
        n: the number of rows, at least 1.
        clusters: (n,) labels of the units; None makes each row one.
        limit: with more units than this, they are left out in this many groups.
        block_bytes: the size of a block.

    Yields:
        (u, n) int8, 0 where a row is left out, else 1.

    Raises:
        DataError: ``n`` is 0.
        UsageError: ``limit`` is below 2 or ``clusters`` has another length than n.
    """
    codes, num_units = unit_codes(n, clusters)
    if limit is not None and limit < 2:
        raise UsageError(f"`limit` must be at least 2, got {limit}")
    if limit is not None and num_units > limit:
        codes, num_units = codes % limit, limit
    rows = max(1, block_bytes // n)
    for start in range(0, num_units, rows):
        units = np.arange(start, min(start + rows, num_units))
        yield (codes[None, :] != units[:, None]).astype(np.int8)


def jackknife_weights(n: int, clusters: Any | None = None, *, limit: int | None = 1000) -> Array:
    """Return the weights that leave one unit out at a time.

    Beyond ``limit`` units, unit u joins group u mod ``limit`` and groups are left out.
    A variance or BCa acceleration from groups estimates the same quantity, and cost stays linear in n.

    >>> jackknife_weights(3)[0]
    array([0, 1, 1], dtype=int8)

    Args:
        n: the number of rows, at least 1.
        clusters: (n,) labels of the units; None makes each row one.
        limit: the most rows of the result; None for no limit.

    Returns:
        (U, n) int8, U the number of units or ``limit``.

    Raises:
        DataError: ``n`` is 0.
        UsageError: ``limit`` is below 2 or ``clusters`` has another length than n.
    """
    return np.concatenate(list(jackknife_blocks(n, clusters, limit=limit)))
