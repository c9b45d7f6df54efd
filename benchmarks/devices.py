"""Time the kernels on every device at hand, the CPU and a GPU where there is one, beside the matrix product that the device can do.

*Share* is the rate of a kernel's matrix products over that of a large float32 product measured on the same device in the same run:
what is missing are passes over memory, the launch of small kernels, and products too narrow to fill the device.
Work is counted as the products that the result needs: 4·N·D·C a step of a probe, 2·N·D·K a step of a k-means seed, 2·Q·N·D a search, 2·D a query and way of an episode.

Run ``python benchmarks/devices.py``; it prints a table and writes its section of ``benchmarks/RESULTS.md``.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch

from benchmarks._timing import machine, seconds, table, write_section
from evalharness.errors import counted
from evalharness.numerics import k_means, logistic_path, sample_episodes, score_episodes, top_k

TURNS = 3
SIZES = {"cpu": 2048, "cuda": 8192}  # of the large product


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Hold one kernel on one device: ``run`` gives the floating-point operations of the products that it needed."""

    name: str
    run: Callable[[], float]


def devices() -> list[torch.device]:
    """Return the devices at hand."""
    return [torch.device("cpu"), *([torch.device("cuda")] if torch.cuda.is_available() else [])]


def synchronise(device: torch.device) -> None:
    """Wait until a GPU has done what it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def timed(run: Callable[[], float], device: torch.device) -> tuple[float, float]:
    """Return the median seconds of a call after a warm-up, and its operations."""
    run()
    taken, work = [], 0.0
    for _ in range(TURNS):
        synchronise(device)
        start = time.perf_counter()
        work = run()
        synchronise(device)
        taken.append(time.perf_counter() - start)
    return float(np.median(taken)), work


def matrix_rate(device: torch.device) -> float:
    """Return the operations a second of a large float32 product."""
    size = SIZES[device.type]
    left, right = (torch.rand(size, size, device=device) for _ in range(2))

    def run() -> float:
        torch.mm(left, right)
        return 2.0 * size**3

    taken, work = timed(run, device)
    return work / taken


def kernels(device: torch.device) -> Iterator[Work]:
    """Yield the kernels, on made-up vectors of the sizes that the other benchmarks have."""
    draw = torch.Generator().manual_seed(0)

    def make(rows: int, dimensions: int, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
        labels = torch.arange(rows) % classes
        centres = torch.randn(classes, dimensions, generator=draw)
        return (0.4 * centres[labels] + torch.randn(rows, dimensions, generator=draw)).to(device), labels.to(device)

    for rows, dimensions, classes, penalties in ((5_000, 384, 20, 45), (20_000, 768, 100, 10)):
        vectors, labels = make(rows, dimensions, classes)
        grid = np.logspace(-6, 0, penalties)

        def probe(vectors: torch.Tensor = vectors, labels: torch.Tensor = labels, grid: Any = grid, classes: int = classes) -> float:
            steps = float((logistic_path(vectors, labels, grid).iterations + 1).sum())
            return 4.0 * steps * vectors.numel() * classes

        yield Work(name=f"probe, {penalties} penalties, {rows:,} x {dimensions}, {classes} classes", run=probe)
    gallery, _ = make(50_000, 384, 100)

    def search() -> float:
        top_k(gallery[:5_000], gallery, 200)
        return 2.0 * 5_000 * gallery.numel()

    yield Work(name="search, 5,000 x 50,000 x 384, k = 200", run=search)
    cloud, _ = make(10_000, 384, 30)

    def cluster() -> float:
        found = k_means(cloud, 30, num_seeds=10, generator=torch.Generator().manual_seed(1))
        return 2.0 * float(found.iterations.sum()) * cloud.numel() * 30

    yield Work(name="k-means, 30 clusters, 10 seeds, 10,000 x 384", run=cluster)
    vectors, labels = make(12_000, 640, 20)
    episodes = sample_episodes(labels, way=5, shot=5, query=15, episodes=1000, generator=torch.Generator().manual_seed(2))

    def score() -> float:
        score_episodes(vectors, episodes)
        return 2.0 * 1000 * 5 * 15 * 5 * 640

    yield Work(name="1,000 episodes 5-way 5-shot 15-query, 640-d", run=score)


def rows_of(device: torch.device) -> Iterator[list[str]]:
    """Yield the rows of one device."""
    name = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {counted(torch.get_num_threads(), 'thread')}"
    rate = matrix_rate(device)
    yield [name, f"float32 product, {SIZES[device.type]:,} cubed", "", f"{rate / 1e9:,.0f}", "1"]
    for work in kernels(device):
        taken, operations = timed(work.run, device)
        row = [name, work.name, seconds(taken), f"{operations / taken / 1e9:,.0f}", f"{operations / taken / rate:.2f}"]
        print(*row, sep=" | ", flush=True)
        yield row


def main() -> None:
    """Time, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, help="not used here; taken so that all scripts know it")
    parser.add_argument("--no-write", action="store_true", help="print only")
    options = parser.parse_args()
    found = [row for device in devices() for row in rows_of(device)]
    notes = (__doc__ or "").split("\n\n")[1]
    lines = [
        "## devices",
        "",
        f"`python benchmarks/devices.py` on {machine()}",
        "",
        notes,
        "" if torch.cuda.is_available() else "No GPU was at hand.",
        "",
        table(["device", "what", "time", "GFLOP/s", "share"], found),
    ]
    text = "\n".join(lines)
    print(text)
    if not options.no_write:
        write_section("devices", text)


if __name__ == "__main__":
    main()
