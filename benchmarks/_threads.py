"""How many threads a comparison runs with, and what is timed: processor seconds with one, seconds on the wall with several."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks._timing import Comparison, compare

SHARE_OF_TARGET = 0.9


def num_threads() -> int:
    """Return the number of threads that both sides are told to use."""
    return int(os.environ["OMP_NUM_THREADS"])


def section_name(name: str) -> str:
    """Return the section of the file of results: one a number of threads."""
    return name if num_threads() == 1 else f"{name}-{num_threads()}-threads"


def compare_sides(ours: Callable[[], Any], theirs: Callable[[], Any], *, turns: int) -> Comparison:
    """Time two functions in turn: of the processor with one thread, on the wall with several, whose processor seconds add up."""
    if num_threads() == 1:
        return compare(ours, theirs, turns=turns)
    ours(), theirs()
    times: dict[int, list[float]] = {0: [], 1: []}
    for turn in range(turns):
        for side in (turn % 2, 1 - turn % 2):
            gc.collect()
            start = time.perf_counter()
            (ours, theirs)[side]()
            times[side].append(time.perf_counter() - start)
    mine, others = np.array(times[0]), np.array(times[1])
    draws = np.random.default_rng(0).integers(0, turns, (4000, turns))
    low, high = np.quantile(np.median(others[draws], axis=1) / np.median(mine[draws], axis=1), [0.025, 0.975])
    ratio = float(np.median(others) / np.median(mine))
    return Comparison(ours=tuple(times[0]), theirs=tuple(times[1]), ratio=ratio, low=float(low), high=float(high))


def clock_name() -> str:
    """Say what is timed."""
    return "times are of the processor" if num_threads() == 1 else f"times are of the wall, {num_threads()} threads a side"


def is_met(found: Comparison, target: float | None) -> str:
    """Say whether a target is met, and nothing where there is none."""
    return "" if target is None else "yes" if found.low >= SHARE_OF_TARGET * target else "no"
