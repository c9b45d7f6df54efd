"""Clusters of vectors against classes: k-means from several seeds, the best by inertia, and what a fresh half of the items would give."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from evalharness import EvaluatorSpec, MetricInfo, Outcome, Side, Table, hookimpl, stats
from evalharness.errors import DataError, UsageError

if TYPE_CHECKING:
    import torch

REDUCED = ("v_measure", "homogeneity", "completeness", "adjusted_rand")
HALF_SEEDS = 3


def score(
    fitted: None,
    test: Side,
    *,
    generator: torch.Generator,
    clean: Side | None = None,
    exact: Side | None = None,
    base: Table | None = None,
    metric: str = "cosine",
    clusters: int | None = None,
    seeds: int = 10,
    replicates: int = 20,
) -> list[Outcome]:
    """Cluster the items and return class and cluster of each, the agreement of both, and that on random halves clustered afresh.

    The clustering of least inertia among ``seeds`` counts; a cluster is named by the row of its first item.
    ``clusters`` is by default the number of classes present.
    Under ``metric: cosine`` vectors are scaled to unit length first.

    Raises:
        DataError: fewer than two classes are present, or there are fewer items than clusters.
        UsageError: a parameter makes no sense.
        VectorsError: a vector is not finite, or has norm 0 under cosine.

    Source:
        Rosenberg & Hirschberg 2007 (V-measure), Hubert & Arabie 1985 (Rand), Vinh et al. 2010 (mutual information).
    """
    del fitted, clean, exact, base
    _check(metric, clusters, seeds, replicates)
    table = test.items
    assert table.target is not None
    truth = table.target.values
    classes = len(np.unique(truth))
    if classes < 2:
        raise DataError(f"`clustering` needs items of at least two classes, got {classes}")
    halves = _draw_halves(len(table), replicates, generator)
    vectors = _prepare(table, metric)
    found = _cluster(vectors, clusters or classes, seeds, generator)
    inertia = found.inertia.cpu().numpy()
    labels, best = found.labels.cpu().numpy(), int(inertia.argmin())
    scalars = agreement(truth, labels[best])
    converged = bool(found.converged[best])
    return [
        Outcome(
            item="sample",
            part="items",
            rows=table.rows,
            columns={"truth": truth, "assigned": _name_by_row(labels[best], table.rows)},
            scalars=scalars,
            replicates=_replicate(vectors, truth, halves, clusters, min(seeds, HALF_SEEDS), generator),
            details={
                "clusters": clusters or classes,
                "classes": classes,
                "inertia": float(inertia[best]),
                "seeds_not_converged": int((~found.converged).sum()),
                "over_seeds": _spread([agreement(truth, each) for each in labels]),
            },
            status="measured" if converged else "not_converged",
            reason=None if converged else "the clustering of least inertia had not converged after the last iteration",
        )
    ]


def _check(metric: str, clusters: int | None, seeds: int, replicates: int) -> None:
    if metric not in ("cosine", "l2"):
        raise UsageError(f"expected `metric` to be `cosine` or `l2`, got `{metric}`")
    if seeds < 1 or replicates < 2:
        raise UsageError(f"expected `seeds` of at least 1 and `replicates` of at least 2, got {seeds} and {replicates}")
    if clusters is not None and clusters < 2:
        raise UsageError(f"expected `clusters` of at least 2, or null for the number of classes, got {clusters}")


def _prepare(table: Table, metric: str) -> torch.Tensor:
    from evalharness.numerics import check_finite, normalise_rows

    vectors = table.vectors.dense().float()
    if metric == "cosine":
        unit: torch.Tensor = normalise_rows(vectors, table.ids)
        return unit
    check_finite(vectors, table.ids)
    return vectors


def _cluster(vectors: torch.Tensor, clusters: int, seeds: int, generator: torch.Generator) -> Any:
    from evalharness.numerics import k_means, one_thread

    with one_thread():
        return k_means(vectors, clusters, num_seeds=seeds, generator=generator)


def _name_by_row(labels: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the row of the first item of each item's cluster, (N,), so that clusters of different folds stay apart."""
    _, first, codes = np.unique(labels, return_index=True, return_inverse=True)
    named: np.ndarray = rows[first[codes]]
    return named


def agreement(truth: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Return all measures of agreement between classes (N,) and clusters (N,), in either's codes."""
    from sklearn.metrics import adjusted_mutual_info_score

    one = np.ones((1, len(truth)), dtype=np.int8)
    values = {name: float(stats.get_reducer(name)(truth, labels, one)[0]) for name in REDUCED}
    return {**values, "adjusted_mutual_info": float(adjusted_mutual_info_score(truth, labels))}


def _draw_halves(size: int, replicates: int, generator: torch.Generator) -> np.ndarray:
    """Return random subsets of half the positions, without replacement, (R, size // 2) int64."""
    import torch

    halves: np.ndarray = torch.rand(replicates, size, generator=generator).argsort(dim=1)[:, : size // 2].numpy()
    return halves


def _replicate(
    vectors: torch.Tensor, truth: np.ndarray, halves: np.ndarray, clusters: int | None, seeds: int, generator: torch.Generator
) -> dict[str, np.ndarray]:
    """Return the agreement on each half (R, H), clustered afresh, as arrays (R,); NaN where a half is too small or of one class."""
    found = []
    for half in halves:
        own = truth[half]
        wanted = clusters or len(np.unique(own))
        if len(np.unique(own)) < 2 or len(half) < wanted:
            continue
        clustering = _cluster(vectors[half.tolist()], wanted, seeds, generator)
        found.append(agreement(own, clustering.labels[clustering.inertia.argmin()].cpu().numpy()))
    lost = [np.nan] * (len(halves) - len(found))
    return {name: np.array([each[name] for each in found] + lost) for name in (*REDUCED, "adjusted_mutual_info")}


def _spread(values: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Return mean and standard deviation of each measure over the seeds; the deviation of one seed is NaN."""
    columns = {name: np.array([each[name] for each in values]) for name in values[0]}
    return {
        name: {"mean": float(column.mean()), "sd": float(column.std(ddof=1)) if len(column) > 1 else float("nan")}
        for name, column in columns.items()
    }


METRICS = (
    MetricInfo(name="v_measure", reduce=None, interval="half-sample"),
    MetricInfo(name="homogeneity", reduce=None, interval="half-sample"),
    MetricInfo(name="completeness", reduce=None, interval="half-sample"),
    MetricInfo(name="adjusted_rand", reduce=None, low=-0.5, unit="score", chance=0.0, interval="half-sample"),
    MetricInfo(name="adjusted_mutual_info", reduce=None, low=-1.0, unit="score", chance=0.0, interval="half-sample"),
)


@hookimpl
def evalharness_evaluators() -> Iterable[EvaluatorSpec]:
    """Register `clustering`."""
    yield EvaluatorSpec(
        name="clustering",
        summary="Agreement of k-means clusters with classes: V-measure, adjusted Rand index and mutual information",
        source="Rosenberg & Hirschberg 2007; Hubert & Arabie 1985; Vinh et al. 2010",
        params={"metric": "cosine", "clusters": None, "seeds": 10, "replicates": 20},
        target_kinds=("class",),
        metrics=METRICS,
        main="v_measure",
        score=score,
    )
