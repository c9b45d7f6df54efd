"""Draw multinomial counts exactly and fast: almost all of a resample comes from single random bytes."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from evalharness.types import Array

_DIRECT_BELOW = 32
_CHUNK_ROWS = 256
_CHUNK_CELLS = 2**18
_PIECE = 2**16  # larger pieces are mapped and unmapped by the allocator each time
_ESCAPE = 255
_SLACK = 3.0


def draw_counts(num_units: int, resamples: int, generator: np.random.Generator) -> Iterator[Array]:
    """Yield how often each of ``num_units`` is drawn in ``num_units`` draws with replacement, a chunk of resamples at a time.

    The chunk's size depends on ``num_units`` alone and a last one is drawn whole and cut, so fewer resamples are the first of more.

    Args:
        num_units: U, at least 1.
        resamples: R.
        generator: the source of randomness.

    Yields:
        (r, U) int8, the r sum to R.
    """
    rows = max(1, min(_CHUNK_ROWS, _CHUNK_CELLS // num_units))
    for start in range(0, resamples, rows):
        tally = np.zeros((rows, num_units), dtype=np.uint8)
        drawn = _fill_poisson(tally, generator) if num_units >= _DIRECT_BELOW else np.zeros(rows, dtype=np.int64)
        _top_up(tally, num_units - drawn, generator)
        # A multinomial count above 127 has probability below 1e-200, so int8 is exact.
        yield tally.view(np.int8)[: resamples - start]


def _fill_poisson(tally: Array, generator: np.random.Generator) -> Array:
    """Fill each row with independent Poisson counts whose sum is at most the number of units, and return the sums, (r,) int64.

    Given their sum S, independent Poisson counts are a multinomial of S draws; so S may be whatever, if the rest is drawn one by one.
    A rate a little below 1 makes the rest short, and rows of too large a sum rare; those are made anew.
    """
    rows, units = tally.shape
    table, residual = _poisson_table(1 - _SLACK / math.sqrt(units))
    sums = np.full(rows, units + 1, dtype=np.int64)
    todo = np.arange(rows)
    while len(todo):
        fresh = tally if len(todo) == rows else np.empty((len(todo), units), dtype=np.uint8)
        flat = fresh.reshape(-1)
        for start in range(0, flat.size, _PIECE):
            part = flat[start : start + _PIECE]
            part[:] = _poisson(part.size, table, residual, generator)
        if fresh is not tally:
            tally[todo] = fresh
        sums[todo] = fresh.sum(axis=1, dtype=np.int32)
        todo = todo[sums[todo] > units]
    return sums


@functools.lru_cache(maxsize=64)
def _poisson_table(rate: float) -> tuple[bytes, Array]:
    """Return the count that each byte stands for, and the distribution function of the counts that no whole byte covers.

    Count k owns the whole part of 256 P(k) bytes; the few bytes left stand for an escape, to be drawn from the remainders.
    """
    orders = np.arange(64)
    chances = 256 * np.exp(orders * math.log(rate) - rate - np.array([math.lgamma(order + 1) for order in orders]))
    owned = np.floor(chances).astype(np.int64)
    table = np.repeat(orders, owned).astype(np.uint8)
    residual = np.cumsum(chances - owned)
    return bytes(table) + bytes([_ESCAPE]) * (256 - len(table)), residual / residual[-1]


def _poisson(size: int, table: bytes, residual: Array, generator: np.random.Generator) -> Array:
    """Return ``size`` Poisson counts, uint8."""
    words = generator.integers(0, 2**64, size=-(-size // 8), dtype=np.uint64)
    counts = np.frombuffer(bytearray(words.astype("<u8", copy=False)).translate(table), dtype=np.uint8)[:size]
    escaped = np.flatnonzero(counts == _ESCAPE)
    counts[escaped] = np.searchsorted(residual, generator.random(len(escaped)), side="right")
    return counts


def _top_up(tally: Array, lacking: Array, generator: np.random.Generator) -> None:
    """Add ``lacking`` single draws to each row."""
    rows, units = tally.shape
    at = generator.integers(0, units, size=int(lacking.sum()))
    at += np.repeat(np.arange(rows) * units, lacking)
    np.add.at(tally.reshape(-1), at, np.uint8(1))
