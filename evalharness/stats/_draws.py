"""Draw multinomial counts exactly and fast: almost all of a resample comes from a random byte each."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from evalharness.types import Array

_DIRECT_BELOW = 32
_CHUNK_ROWS = 256
_CHUNK_CELLS = 2**18
_PIECE = 2**17  # larger pieces are mapped and unmapped by the allocator each time
_ESCAPE = 2**16 - 1
_ORDERS = 48  # a count this large has probability below 1e-60
_SLACK = 3.0


def chunk_rows(num_units: int) -> int:
    """Return how many resamples are drawn together; blocks that are to be equal however they are cut hold a multiple of it."""
    return max(1, min(_CHUNK_ROWS, _CHUNK_CELLS // num_units))


def fill_counts(counts: Array, generator: np.random.Generator) -> None:
    """Fill each row with how often each of U units is drawn in U draws with replacement.

    A last chunk of rows is drawn whole and cut, so fewer resamples are the first of more.

    Args:
        counts: (r, U) int8, to be overwritten.
        generator: the source of randomness.
    """
    resamples, num_units = counts.shape
    rows = chunk_rows(num_units)
    for start in range(0, resamples, rows):
        whole = start + rows <= resamples
        # A multinomial count above 127 has probability below 1e-200, so int8 is exact.
        tally = (counts[start : start + rows] if whole else np.empty((rows, num_units), dtype=np.int8)).view(np.uint8)
        if num_units >= _DIRECT_BELOW:
            drawn = _fill_poisson(tally, generator)
        else:
            tally[:], drawn = 0, np.zeros(rows, dtype=np.int64)
        _top_up(tally, num_units - drawn, generator)
        if not whole:
            counts[start:] = tally.view(np.int8)[: resamples - start]


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


@functools.lru_cache(maxsize=16)
def _poisson_table(rate: float) -> tuple[Array, Array]:
    """Return the pair of counts that each of 65,536 numbers stands for, and the distribution function of what they cannot express.

    A pair of counts owns the whole part of 65,536 times its probability; the few numbers left are escapes, drawn from the remainders.
    """
    orders = np.arange(_ORDERS)
    chances = np.exp(orders * math.log(rate) - rate - np.array([math.lgamma(order + 1) for order in orders]))
    joint = (2**16 * np.outer(chances, chances)).ravel()
    owned = np.floor(joint).astype(np.int64)
    table = np.full(2**16, _ESCAPE, dtype=np.uint16)
    table[: owned.sum()] = np.repeat(_pair(np.arange(len(joint))), owned)
    residual = np.cumsum(joint - owned)
    return table, residual / residual[-1]


def _pair(cell: Array) -> Array:
    """Return two counts side by side, as one uint16, from their cell in the joint table."""
    return np.asarray(cell // _ORDERS * 256 + cell % _ORDERS, dtype=np.uint16)


def _poisson(size: int, table: Array, residual: Array, generator: np.random.Generator) -> Array:
    """Return ``size`` Poisson counts, uint8."""
    numbers = generator.integers(0, 2**64, size=-(-size // 8), dtype=np.uint64).view(np.uint16)
    pairs = np.empty(len(numbers), dtype=np.uint16)
    np.take(table, numbers, out=pairs, mode="wrap")
    escaped = np.flatnonzero(pairs == _ESCAPE)
    pairs[escaped] = _pair(np.searchsorted(residual, generator.random(len(escaped)), side="right"))
    return pairs.view(np.uint8)[:size]


def _top_up(tally: Array, lacking: Array, generator: np.random.Generator) -> None:
    """Add ``lacking`` single draws to each row."""
    rows, units = tally.shape
    at = generator.integers(0, units, size=int(lacking.sum()))
    at += np.repeat(np.arange(rows) * units, lacking)
    np.add.at(tally.reshape(-1), at, np.uint8(1))
