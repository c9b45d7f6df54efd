"""Fair timing: the two sides take turns in one process, and the ratio of their times carries an interval."""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import re
import threading
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "RESULTS.md"
STATUS = Path("/proc/self/status")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Hold the seconds of both sides, turn by turn, and the ratio theirs / ours of the medians with a 95 % bootstrap interval."""

    ours: tuple[float, ...]
    theirs: tuple[float, ...]
    ratio: float
    low: float
    high: float


def num_threads() -> int:
    """Return the number of threads that both sides are told to use."""
    return int(os.environ.get("OMP_NUM_THREADS", "1"))


def clock(function: Callable[[], Any], calls: int = 1) -> float:
    """Return the seconds of one call, the mean of several; garbage is collected beforehand and not within.

    With one thread they are the processor's, which leaves out what other processes on the machine take;
    with several they are those of the wall, since the processor's add up over threads.
    """
    read = time.process_time if num_threads() == 1 else time.perf_counter
    gc.collect()
    gc.disable()
    start = read()
    for _ in range(calls):
        function()
    spent = read() - start
    gc.enable()
    return spent / calls


def compare(ours: Callable[[], Any], theirs: Callable[[], Any], *, turns: int = 7, theirs_scale: float = 1.0, seed: int = 0) -> Comparison:
    """Time two functions in turn after one warm-up of each.

    Args:
        ours: what should be faster; called several times a turn where it takes less than a third of a second.
        theirs: what it is compared with.
        turns: how often each side has its turn; who goes first alternates.
        theirs_scale: what one call of theirs must be multiplied by, where it does a part of the work; say so in the table.
        seed: of the bootstrap over turns.
    """
    calls = max(1, min(10, round(0.3 / max(clock(ours), 1e-3))))
    theirs()
    times: dict[int, list[float]] = {0: [], 1: []}
    for turn in range(turns):
        for side in (turn % 2, 1 - turn % 2):
            times[side].append(clock(ours, calls) if side == 0 else clock(theirs) * theirs_scale)
    mine, others = np.array(times[0]), np.array(times[1])
    draws = np.random.default_rng(seed).integers(0, turns, (4000, turns))
    # Turns are drawn whole, since what slows the machine slows both sides of a turn.
    ratios = np.median(others[draws], axis=1) / np.median(mine[draws], axis=1)
    low, high = np.quantile(ratios, [0.025, 0.975])
    ratio = float(np.median(others) / np.median(mine))
    return Comparison(ours=tuple(times[0]), theirs=tuple(times[1]), ratio=ratio, low=float(low), high=float(high))


def peak_mebibytes(function: Callable[[], Any]) -> float:
    """Return the most memory that a call holds beyond what was there before, by resident memory or by allocations, whichever is more.

    Resident memory misses what reuses memory freed before, allocations miss what libraries take without telling Python.
    """
    gc.collect()
    tracemalloc.start()
    function()
    traced = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    return max(traced, _resident_rise(function))


def peak_anonymous_mebibytes(function: Callable[[], Any], interval: float = 0.002) -> float:
    """Return the most memory of its own that a call holds beyond what was there before, sampled while it runs; pages of files are left out.

    A memory map's pages count as resident though the system may take them back at any time.
    """
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    before, seen, over = _resident("RssAnon"), [0.0], threading.Event()

    def watch() -> None:
        while not over.wait(interval):
            seen[0] = max(seen[0], _resident("RssAnon"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        function()
    finally:
        over.set()
        watcher.join()
    return max(0.0, seen[0] - before) / 1024


def _resident_rise(function: Callable[[], Any]) -> float:
    """Return the rise of resident memory in MiB, 0 where the system does not tell; Linux sets its highest mark back when 5 is written."""
    gc.collect()
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        before = _resident("VmRSS")
        function()
        return (_resident("VmHWM") - before) / 1024
    except (OSError, AttributeError):
        return 0.0


def _resident(field: str) -> float:
    match = re.search(rf"{field}:\s+(\d+) kB", STATUS.read_text())
    return float(match[1]) if match else 0.0


def seconds(value: float) -> str:
    """Word a duration."""
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s"


def machine() -> str:
    """Return one line about the processor and the versions that matter."""
    import scipy
    import sklearn

    model = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text()) if Path("/proc/cpuinfo").exists() else None
    name = model[1] if model else platform.processor() or platform.machine()
    threads = os.environ.get("OMP_NUM_THREADS", "default")
    versions = f"Python {platform.python_version()}, numpy {np.__version__}, scipy {scipy.__version__}, scikit-learn {sklearn.__version__}"
    return f"{name}, {os.cpu_count()} cores, OMP_NUM_THREADS={threads}; {versions}."


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def write_section(name: str, text: str, path: Path = RESULTS) -> None:
    """Replace the section ``name`` of the file of results, or add it; the rest stays."""
    opening, closing = f"<!-- {name} -->", f"<!-- /{name} -->"
    section = f"{opening}\n{text.strip()}\n{closing}"
    old = path.read_text() if path.exists() else "# Benchmarks\n\nWritten by the scripts in this folder, each its own section.\n"
    pattern = re.compile(re.escape(opening) + ".*?" + re.escape(closing), re.DOTALL)
    new = pattern.sub(lambda _: section, old) if pattern.search(old) else f"{old.rstrip()}\n\n{section}\n"
    path.write_text(new)
