"""How far a shift moves vectors: by cosine and distance, against the nearest neighbour and against strangers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from evalharness import EvaluatorSpec, MetricInfo, Outcome, Side, Table, hookimpl
from evalharness.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import torch


def score(
    fitted: None,
    test: Side,
    *,
    generator: torch.Generator,
    clean: Side | None = None,
    exact: Side | None = None,
    base: Table | None = None,
) -> list[Outcome]:
    """Return how far each item's vector moved, one outcome a part.

    All distances are Euclidean between unit vectors, in [0, 2].
    ``distance`` is from the clean to the shifted vector, ``neighbour_distance`` from the clean vector to its nearest clean neighbour,
    ``stranger_distance`` from it to another item drawn at random, and ``swapped`` says whether the shifted vector has another nearest clean neighbour.
    An item is never its own neighbour or stranger; it is left out by position, so a duplicate counts.

    Raises:
        DataError: the clean rows are not those of the shifted ones, or there are fewer than two.
        VectorsError: a vector has norm 0 or is not finite.

    Source:
        METRICS.md 6 (r_T = E d(f(x), f(Tx)) / E d(f(x), f(x'))) and 7.
    """
    del fitted, exact, base
    assert clean is not None
    several = len(test.parts) > 1
    outcomes = []
    for part, table in test.parts.items():
        columns = _measure(table, clean.parts[part], part, generator)
        outcomes.append(Outcome(item="sample", part=part, rows=table.rows, columns=columns, variant={"part": part} if several else {}))
    return outcomes


def _measure(shifted: Table, clean: Table, part: str, generator: torch.Generator) -> Mapping[str, Any]:
    import torch

    from evalharness.numerics import normalise_rows, top_k

    if len(clean) != len(shifted) or not np.array_equal(clean.ids, shifted.ids):
        raise DataError(f"`displacement` compares the same rows clean and shifted; part `{part}` has other clean rows")
    if len(clean) < 2:
        raise DataError(f"`displacement` needs two rows at least to have neighbours, part `{part}` has {len(clean)}")
    before = normalise_rows(clean.vectors.dense(), clean.ids, what="clean vectors")
    after = normalise_rows(shifted.vectors.dense(), shifted.ids, what="shifted vectors")
    own = torch.arange(len(before), device=before.device)
    near, nearest = top_k(before, before, 1, metric="l2", exclude=own[:, None])
    _, nearest_after = top_k(after, before, 1, metric="l2", exclude=own[:, None])
    distance = _distances(before, after)
    strangers = draw_strangers(len(before), generator).to(before.device)
    return {
        # Exact where the cosine is near 1, unlike the sum of products.
        "cosine": (1 - distance.square() / 2).cpu(),
        "distance": distance.cpu(),
        "neighbour_distance": near[:, 0].cpu(),
        "stranger_distance": _distances(before, before[strangers]).cpu(),
        "swapped": (nearest != nearest_after)[:, 0].cpu(),
    }


def _distances(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return the distances (N,) float64 of paired unit rows (N, D)."""
    import torch

    distances: torch.Tensor = torch.linalg.vector_norm(one - other, dim=1, dtype=torch.float64)
    return distances.clamp_max(2.0)


def draw_strangers(size: int, generator: torch.Generator) -> torch.Tensor:
    """Return another position for each of ``size`` positions, (size,) int64, uniform over the others."""
    import torch

    steps = torch.randint(1, size, (size,), generator=generator)
    return (torch.arange(size) + steps) % size


METRICS = (
    MetricInfo(name="displacement", columns=("distance",), high=2.0, unit="distance", higher_is_better=False),
    MetricInfo(name="cosine", columns=("cosine",), low=-1.0, unit="cosine"),
    MetricInfo(
        name="relative_displacement",
        columns=("distance", "neighbour_distance"),
        reduce="ratio",
        high=math.inf,
        unit="ratio",
        higher_is_better=False,
    ),
    MetricInfo(name="neighbour_swap_rate", columns=("swapped",), higher_is_better=False, interval="wilson"),
    MetricInfo(
        name="invariance_ratio",
        columns=("distance", "stranger_distance"),
        reduce="ratio",
        high=math.inf,
        unit="ratio",
        higher_is_better=None,
    ),
)


@hookimpl
def evalharness_evaluators() -> Iterable[EvaluatorSpec]:
    """Register `displacement`."""
    yield EvaluatorSpec(
        name="displacement",
        summary="How far a shift moves vectors, beside the nearest neighbour and beside strangers",
        source="METRICS.md 6 and 7",
        target_kinds=(),
        metrics=METRICS,
        main="displacement",
        needs=frozenset({"clean"}),
        score=score,
    )
