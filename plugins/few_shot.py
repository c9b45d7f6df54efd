"""Few-shot episodes: the nearest centroid of a few support items, all episodes scored in blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from evalharness import EvaluatorSpec, MetricInfo, Outcome, Side, Table, hookimpl
from evalharness.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch

    from evalharness.numerics import Episodes

BLOCK_BYTES = 64 * 2**20


def score(
    fitted: None,
    test: Side,
    *,
    generator: torch.Generator,
    clean: Side | None = None,
    exact: Side | None = None,
    base: Table | None = None,
    way: int = 5,
    shot: int | Sequence[int] = (1, 5),
    query: int = 15,
    episodes: int = 600,
    head: str = "nearest-centroid",
    metric: str = "l2",
    main_shot: int | None = None,
) -> list[Outcome]:
    """Return the accuracy of every episode, one outcome a shot, the main shot first (5 where asked for, else the largest).

    The episodes follow from the generator and the labels alone, so that encoders are compared on the same ones.
    Rows without a label are left out.

    Raises:
        DataError: there are fewer classes than ``way``, or a class has fewer than shot + query items; the message names it.
        UsageError: a parameter makes no sense.

    Source:
        METRICS.md 3; Snell et al. 2017 with ``l2``; with ``cosine`` unit vectors are averaged and compared by angle.
    """
    del fitted, clean, exact, base
    import torch

    from evalharness.numerics import sample_episodes

    shots = _order_shots([shot] if isinstance(shot, int) else list(shot), main_shot)
    _check_choice("head", head, ("nearest-centroid",))
    _check_choice("metric", metric, ("l2", "cosine"))
    table = test.items
    assert table.target is not None
    labels = torch.from_numpy(np.ascontiguousarray(table.target.values))
    sizes = {"way": way, "query": query, "episodes": episodes}
    # In ascending order, whichever is the main one: the generator moves on from shot to shot.
    drawn = {each: sample_episodes(labels, shot=each, generator=generator, names=table.target.names, **sizes) for each in sorted(shots)}
    vectors = table.vectors.dense().float()
    return [_outcome(vectors, drawn[each], table, each, metric) for each in shots]


def _check_choice(name: str, given: str, known: Sequence[str]) -> None:
    if given not in known:
        raise UsageError(f"expected `{name}` of `few-shot` to be {' or '.join(f'`{each}`' for each in known)}, got `{given}`")


def _order_shots(shots: list[int], main_shot: int | None) -> list[int]:
    if not shots or min(shots) < 1:
        raise UsageError(f"expected `shot` to be positive, got {shots}")
    if main_shot is not None and main_shot not in shots:
        raise UsageError(f"expected `main_shot` to be one of `shot` = {shots}, got {main_shot}")
    main = main_shot if main_shot is not None else 5 if 5 in shots else max(shots)
    return [main, *sorted(set(shots) - {main})]


def _outcome(vectors: torch.Tensor, drawn: Episodes, table: Table, shot: int, metric: str) -> Outcome:
    assert table.target is not None
    present, sizes = np.unique(table.target.values[table.target.values >= 0], return_counts=True)
    accuracy = score_episodes(vectors, drawn, metric)
    details: dict[str, Any] = {"num_classes": len(present), "smallest_class": int(sizes.min()), "items": int(sizes.sum())}
    return Outcome(
        item="episode",
        part="items",
        rows=np.arange(len(accuracy)),
        columns={"accuracy": accuracy.cpu()},
        clusters=np.searchsorted(present, drawn.classes.numpy()),
        variant={"shot": shot},
        details=details,
    )


def score_episodes(vectors: torch.Tensor, drawn: Episodes, metric: str) -> torch.Tensor:
    """Return the share of queries (E,) float64 that are nearest to the centroid of their own class; ties go to the class drawn first."""
    import torch

    from evalharness.numerics import normalise_rows

    vectors = normalise_rows(vectors) if metric == "cosine" else vectors - vectors.mean(dim=0)  # l2 does not change, rounding does
    support, query = drawn.support.to(vectors.device), drawn.query.to(vectors.device)
    num_episodes, way, num_queries = query.shape
    own = torch.arange(way, device=vectors.device)[:, None]
    step = max(1, BLOCK_BYTES // (4 * vectors.shape[1] * way * (num_queries + support.shape[2])))
    hits = []
    for start in range(0, num_episodes, step):
        centroids = vectors[support[start : start + step]].mean(dim=2)
        scores = _score_queries(vectors[query[start : start + step]].flatten(1, 2), centroids, metric)
        hits.append((scores.argmax(dim=2).view(-1, way, num_queries) == own).double().mean(dim=(1, 2)))
    return torch.cat(hits)


def _score_queries(queries: torch.Tensor, centroids: torch.Tensor, metric: str) -> torch.Tensor:
    """Return scores (e, Q, way), higher is nearer, of queries (e, Q, D) for centroids (e, way, D).

    Squared distances of l2 lack the term of the query alone, which changes no order.
    """
    if metric == "cosine":
        # Opposite support vectors can cancel; such a centroid has no direction and scores 0.
        centroids = centroids / centroids.norm(dim=2, keepdim=True).clamp_min(1e-12)
        return queries @ centroids.mT
    return queries @ centroids.mT - centroids.square().sum(dim=2).unsqueeze(1) / 2


@hookimpl
def evalharness_evaluators() -> Iterable[EvaluatorSpec]:
    """Register `few-shot`."""
    yield EvaluatorSpec(
        name="few-shot",
        summary="Nearest centroids in random episodes of a few classes and a few support items",
        source="Snell et al. 2017; episodes after Vinyals et al. 2016",
        params={
            "way": 5,
            "shot": (1, 5),
            "query": 15,
            "episodes": 600,
            "head": "nearest-centroid",
            "metric": "l2",
            "main_shot": None,
        },
        target_kinds=("class",),
        metrics=(MetricInfo(name="accuracy", columns=("accuracy",)),),
        main="accuracy",
        score=score,
    )
