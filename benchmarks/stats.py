"""Compare ``evalharness.stats`` with scipy and scikit-learn: equal results first, then time and memory.

Run ``python benchmarks/stats.py`` or ``python -m benchmarks.stats``; it prints a table and writes its section of ``benchmarks/RESULTS.md``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from scipy.stats import bootstrap, spearmanr
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score

from benchmarks._report import Case, run
from benchmarks._timing import peak_mebibytes, table
from evalharness import stats

Array = np.ndarray
ITEMS = 10_000


def means_case() -> Case:
    """Return the bootstrap of ten means over shared resamples against ten calls of scipy."""
    columns = np.random.default_rng(0).standard_exponential((ITEMS, 10))

    def theirs(count: int = 10) -> list[Any]:
        return [
            bootstrap((columns[:, at],), np.mean, n_resamples=10_000, method="percentile", vectorized=True, batch=100, rng=at)
            for at in range(count)
        ]

    def ours() -> Array:
        return stats.Resamples(ITEMS, 10_000, seed=0).means(columns)

    def check() -> None:
        mine = ours()
        for at, reference in enumerate(theirs(2)):
            got = stats.bootstrap(columns[:, at].mean(), mine[:, at], method="percentile")
            error = columns[:, at].std() / ITEMS**0.5
            # The 2.5 % quantile of 10,000 replicates has a standard error of .027 standard deviations.
            expected = np.array(reference.confidence_interval)
            np.testing.assert_allclose([got.low, got.high], expected, atol=6 * 0.027 * error)
            np.testing.assert_allclose(mine[:, at].std(), error, rtol=0.03)

    name = "means of 10 metrics, 10,000 resamples, 10,000 items"
    return Case(
        name=name, peer="10 × `scipy.stats.bootstrap` (batch 100, its fastest)", target=10, turns=5, check=check, ours=ours, theirs=theirs
    )


def loop_case(name: str, peer: str, reducer: str, columns: tuple[Array, ...], score: Callable[..., float], target: float | None) -> Case:
    """Return 1,000 resamples of a reducer against a library's function in a loop."""

    def ours() -> Array:
        return stats.Resamples(ITEMS, 1000, seed=0).apply(reducer, *columns)

    def theirs() -> list[float]:
        generator = np.random.default_rng(0)
        draws = (generator.integers(0, ITEMS, ITEMS) for _ in range(1000))
        return [score(*(column[drawn] for column in columns)) for drawn in draws]

    def check() -> None:
        weights = next(stats.Resamples(ITEMS, 1000, seed=0).blocks())[:25]
        expected = [score(*(np.repeat(column, row) for column in columns)) for row in weights]
        np.testing.assert_allclose(ours()[:25], expected, rtol=1e-9)

    return Case(name=name, peer=peer, target=target, turns=7, check=check, ours=ours, theirs=theirs)


def cases() -> list[Case]:
    """Return all comparisons, those with a target first."""
    generator = np.random.default_rng(1)
    truth = generator.integers(0, 100, ITEMS)
    prediction = np.where(generator.random(ITEMS) < 0.7, truth, generator.integers(0, 100, ITEMS))
    first = generator.standard_normal(ITEMS)
    second = first + generator.standard_normal(ITEMS)
    positive = generator.random(ITEMS) < 0.3
    size = "1,000 resamples, 10,000"
    return [
        means_case(),
        loop_case(
            f"macro-F1, {size} items, 100 classes",
            "`sklearn.metrics.f1_score` in a loop",
            "macro_f1",
            (truth, prediction),
            lambda y, p: f1_score(y, p, average="macro"),
            100,
        ),
        loop_case(
            f"Spearman, {size} pairs",
            "`scipy.stats.spearmanr` in a loop",
            "spearman",
            (first, second),
            lambda x, y: spearmanr(x, y).statistic,
            5,
        ),
        loop_case(
            f"AUC, {size} items",
            "`sklearn.metrics.roc_auc_score` in a loop",
            "auc",
            (second, positive),
            lambda s, y: roc_auc_score(y, s),
            None,
        ),
        loop_case(
            f"average precision, {size} items",
            "`sklearn.metrics.average_precision_score` in a loop",
            "average_precision",
            (second, positive),
            lambda s, y: average_precision_score(y, s),
            None,
        ),
    ]


def memory_rows() -> list[list[str]]:
    """Return how much memory a bootstrapped mean takes as items grow."""
    rows = []
    for items, resamples in ((10_000, 10_000), (100_000, 1000), (1_000_000, 200), (10_000_000, 20)):
        values = np.random.default_rng(0).random(items)
        held = stats.Resamples(items, resamples, seed=0)
        peak = peak_mebibytes(lambda held=held, values=values: held.apply("mean", values))  # type: ignore[misc]
        rows.append([f"{items:,}", f"{resamples:,}", f"{peak:.0f} MiB"])
    return rows


def memory_lines() -> list[str]:
    """Return the table of memory."""
    return [
        "Memory beyond inputs of a bootstrapped mean, counts made anew where they do not fit 32 MiB:",
        "",
        table(["items", "resamples", "peak"], memory_rows()),
    ]


if __name__ == "__main__":
    run("stats", __doc__, cases, ["Both sides draw their own resamples."], memory_lines)
