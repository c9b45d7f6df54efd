"""Compare exact search with faiss and scikit-learn: equal neighbours first, then time and memory.

Run ``python benchmarks/search.py`` or ``python -m benchmarks.search``; it prints a table and writes its section of ``benchmarks/RESULTS.md``.
With OMP_NUM_THREADS=2 it writes a section of its own, timed on the wall.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command line sets it: two OpenMP runtimes that spin would slow each other
sys.path.insert(0, str(Path(__file__).parents[1]))

import faiss
import numpy as np
from sklearn.neighbors import NearestNeighbors

from benchmarks._report import Case, run
from benchmarks._timing import num_threads, peak_mebibytes, table
from evalharness.numerics import top_k

Array = np.ndarray
QUERIES, GALLERY, DIMENSIONS, K = 5_000, 50_000, 384, 200
SORTED_QUERIES = 40


def sort_all(queries: Array, gallery: Array, metric: str) -> Array:
    """Return the nearest rows by a full sort of values in float64, rounded to float32, ties by position."""
    own, others = queries.astype(np.float64), gallery.astype(np.float64)
    nearness = own @ others.T
    if metric == "l2":
        nearness = -np.sqrt(np.square(own).sum(axis=1)[:, None] + np.square(others).sum(axis=1) - 2 * nearness)
    return np.argsort(-nearness.astype(np.float32), axis=1, kind="stable")[:, :K]


def search_case(
    name: str, peer: str, target: float, metric: str, queries: Array, gallery: Array, theirs: Callable[[], tuple[Array, Array]]
) -> Case:
    """Return one comparison; both sides return values (Q, k), nearest first, and positions (Q, k)."""

    def ours() -> tuple[Array, Array]:
        return top_k(queries, gallery, K, metric=metric)

    def check() -> None:
        (values, found), (peer_values, peer_found) = ours(), theirs()
        at = np.random.default_rng(0).integers(0, len(queries), SORTED_QUERIES)
        np.testing.assert_array_equal(found[at], sort_all(queries[at], gallery, metric))
        np.testing.assert_allclose(values, peer_values, rtol=1e-4, atol=1e-4)
        shared = np.mean([len(np.intersect1d(mine, other)) for mine, other in zip(found, peer_found, strict=True)])
        assert shared > 0.999 * K, f"{shared} of {K} neighbours are shared"

    size = f"{QUERIES:,} x {GALLERY:,} x {DIMENSIONS}, k = {K}"
    return Case(name=f"{name}, {size}", peer=peer, target=target, check=check, ours=ours, theirs=theirs, turns=5)


def unit_rows(size: int, generator: np.random.Generator, centres: Array | None = None) -> Array:
    """Return random unit vectors (size, D) float32, about centres in turn where these are given, in order of centre."""
    rows = generator.standard_normal((size, DIMENSIONS), dtype=np.float32)
    if centres is not None:
        rows = rows * np.float32(0.7) + centres[np.arange(size) * len(centres) // size]
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def search_flat(queries: Array, gallery: Array) -> Callable[[], tuple[Array, Array]]:
    """Return a search by faiss; its index is built beforehand, which copies the gallery."""
    index = faiss.IndexFlatIP(gallery.shape[1])
    index.add(gallery)
    return lambda: index.search(queries, K)


def search_brute(queries: Array, gallery: Array, metric: str) -> Callable[[], tuple[Array, Array]]:
    """Return a search by scikit-learn, as similarities for cosine."""
    index = NearestNeighbors(n_neighbors=K, algorithm="brute", metric=metric).fit(gallery)

    def search() -> tuple[Array, Array]:
        distances, found = index.kneighbors(queries)
        return (1 - distances if metric == "cosine" else distances), found

    return search


def cases() -> list[Case]:
    """Return all comparisons."""
    generator = np.random.default_rng(0)
    queries, gallery = unit_rows(QUERIES, generator), unit_rows(GALLERY, generator)
    centres = generator.standard_normal((100, DIMENSIONS), dtype=np.float32)
    near, ordered = unit_rows(QUERIES, generator, centres), unit_rows(GALLERY, generator, centres)
    flat, brute = f"faiss {faiss.__version__} `IndexFlatIP`, index built before", "scikit-learn `NearestNeighbors(algorithm='brute')`"
    ordering = "inner product, 100 clusters in order"
    return [
        search_case("inner product", flat, 1.0, "dot", queries, gallery, search_flat(queries, gallery)),
        search_case(ordering, flat, 1.0, "dot", near, ordered, search_flat(near, ordered)),
        search_case("cosine", brute, 3.0, "cosine", queries, gallery, search_brute(queries, gallery, "cosine")),
        search_case("Euclidean", brute, 3.0, "l2", queries, gallery, search_brute(queries, gallery, "euclidean")),
    ]


def memory_rows() -> list[list[str]]:
    """Return how much memory a search takes as the gallery grows."""
    generator, rows = np.random.default_rng(0), []
    queries = unit_rows(1000, generator)
    for size in (10_000, 50_000, 200_000, 500_000):
        gallery = unit_rows(size, generator)
        peak = peak_mebibytes(lambda gallery=gallery: top_k(queries, gallery, K))  # type: ignore[misc]
        rows.append([f"{size:,}", f"{gallery.nbytes / 2**20:.0f} MiB", f"{peak:.0f} MiB"])
    return rows


def memory_lines() -> list[str]:
    """Return the table of memory."""
    return [
        f"Memory beyond inputs of a search for {K} neighbours of 1,000 queries by cosine:",
        "",
        table(["gallery", "its own size", "peak"], memory_rows()),
    ]


NOTES = [
    f"Neighbours of {SORTED_QUERIES} queries are those of a full sort in float64 with ties by position, and both sides share all but the rounding of float32."
]

if __name__ == "__main__":
    faiss.omp_set_num_threads(num_threads())
    run("search", __doc__, cases, NOTES, memory_lines)
