"""Compare exact search with faiss and scikit-learn: equal neighbours first, then time and memory.

Run ``python benchmarks/search.py`` or ``python -m benchmarks.search``; it prints a table and writes its section of ``benchmarks/RESULTS.md``.
With OMP_NUM_THREADS=2 it writes a section of its own, timed on the wall.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command line sets it: two OpenMP runtimes that spin would slow each other
sys.path.insert(0, str(Path(__file__).parents[1]))

import faiss
import numpy as np
from sklearn.neighbors import NearestNeighbors

from benchmarks._threads import clock_name, compare_sides, is_met, num_threads, section_name
from benchmarks._timing import Comparison, machine, peak_mebibytes, seconds, table, write_section
from evalharness.numerics import top_k

Array = np.ndarray
QUERIES, GALLERY, DIMENSIONS, K = 5_000, 50_000, 384, 200
SORTED_QUERIES = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Hold one comparison; both sides return values (Q, k), nearest first, and positions (Q, k)."""

    name: str
    peer: str
    target: float | None
    metric: str
    queries: Array
    gallery: Array
    theirs: Callable[[], tuple[Array, Array]]

    def ours(self) -> tuple[Array, Array]:
        """Search with the harness."""
        return top_k(self.queries, self.gallery, K, metric=self.metric)

    def check(self) -> None:
        """Assert that ours is a full sort in float64, and that both sides find the same up to the rounding of float32."""
        (values, found), (peer_values, peer_found) = self.ours(), self.theirs()
        at = np.random.default_rng(0).integers(0, len(self.queries), SORTED_QUERIES)
        np.testing.assert_array_equal(found[at], self.sort(self.queries[at]))
        np.testing.assert_allclose(values, peer_values, rtol=1e-4, atol=1e-4)
        shared = np.mean([len(np.intersect1d(mine, theirs)) for mine, theirs in zip(found, peer_found, strict=True)])
        assert shared > 0.999 * K, f"{shared} of {K} neighbours are shared"

    def sort(self, queries: Array) -> Array:
        """Return the nearest rows by a full sort of values in float64, rounded to float32, ties by position."""
        own, others = queries.astype(np.float64), self.gallery.astype(np.float64)
        nearness = own @ others.T
        if self.metric == "l2":
            nearness = -np.sqrt(np.square(own).sum(axis=1)[:, None] + np.square(others).sum(axis=1) - 2 * nearness)
        return np.argsort(-nearness.astype(np.float32), axis=1, kind="stable")[:, :K]


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
    size = f"{QUERIES:,} × {GALLERY:,} × {DIMENSIONS}, k = {K}"
    flat, brute = "faiss `IndexFlatIP`, index built before", "scikit-learn `NearestNeighbors(algorithm='brute')`"
    return [
        Case(
            name=f"inner product, {size}",
            peer=flat,
            target=1.0,
            metric="dot",
            queries=queries,
            gallery=gallery,
            theirs=search_flat(queries, gallery),
        ),
        Case(
            name=f"inner product, 100 clusters in order, {size}",
            peer=flat,
            target=1.0,
            metric="dot",
            queries=near,
            gallery=ordered,
            theirs=search_flat(near, ordered),
        ),
        Case(
            name=f"cosine, {size}",
            peer=brute,
            target=3.0,
            metric="cosine",
            queries=queries,
            gallery=gallery,
            theirs=search_brute(queries, gallery, "cosine"),
        ),
        Case(
            name=f"Euclidean, {size}",
            peer=brute,
            target=3.0,
            metric="l2",
            queries=queries,
            gallery=gallery,
            theirs=search_brute(queries, gallery, "euclidean"),
        ),
    ]


def row_of(case: Case, found: Comparison, peaks: tuple[float, float]) -> list[str]:
    """Return a row of the table."""
    mine, others = (seconds(float(np.median(side))) for side in (found.ours, found.theirs))
    ratio = f"{found.ratio:.2f} ({found.low:.2f} to {found.high:.2f})"
    target = "" if case.target is None else f"{case.target:g}"
    return [case.name, case.peer, mine, others, ratio, target, is_met(found, case.target), *(f"{peak:.0f} MiB" for peak in peaks)]


def memory_rows() -> list[list[str]]:
    """Return how much memory a search takes as the gallery grows."""
    generator, rows = np.random.default_rng(0), []
    queries = unit_rows(1000, generator)
    for size in (10_000, 50_000, 200_000, 500_000):
        gallery = unit_rows(size, generator)
        peak = peak_mebibytes(lambda gallery=gallery: top_k(queries, gallery, K))  # type: ignore[misc]
        rows.append([f"{size:,}", f"{gallery.nbytes / 2**20:.0f} MiB", f"{peak:.0f} MiB"])
    return rows


def main() -> None:
    """Check, time, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=5, help="how often each side runs")
    parser.add_argument("--no-write", action="store_true", help="print only")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    faiss.omp_set_num_threads(num_threads())
    memory = memory_rows()
    rows = []
    for case in cases():
        case.check()
        peaks = peak_mebibytes(case.ours), peak_mebibytes(case.theirs)
        rows.append(row_of(case, compare_sides(case.ours, case.theirs, turns=options.turns), peaks))
        print(*rows[-1], sep=" | ", flush=True)
    text = report(rows, memory)
    print(text)
    if not options.no_write:
        write_section(section_name("search"), text)


def report(rows: list[list[str]], memory: list[list[str]]) -> str:
    """Return the section."""
    header = ["what", "against", "ours", "theirs", "times faster (95 %)", "target", "met", "our peak beyond inputs", "their peak"]
    name = section_name("search")
    return "\n".join(
        [
            f"## {name}",
            "",
            f"`python benchmarks/search.py` on {machine()[:-1]}, faiss {faiss.__version__}.",
            "",
            f"Both sides take turns in one process; {clock_name()}.",
            f"First neighbours are asserted: those of {SORTED_QUERIES} queries are a full sort in float64 with ties by position, and both sides share all but the rounding of float32.",
            "A target is met where the lower end of the interval of the ratio of medians reaches 0.9 of it.",
            "",
            table(header, rows),
            "",
            f"Memory beyond inputs of a search for {K} neighbours of 1,000 queries by cosine:",
            "",
            table(["gallery", "its own size", "peak"], memory),
        ]
    )


if __name__ == "__main__":
    main()
