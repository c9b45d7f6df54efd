"""Semantic similarity: the cosine of pairs beside their gold scores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from evalharness import EvaluatorSpec, MetricInfo, Outcome, Side, Table, hookimpl
from evalharness.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from evalharness.types import Array

BLOCK_BYTES = 64 * 2**20


def score(
    fitted: None,
    test: Side,
    *,
    generator: torch.Generator,
    clean: Side | None = None,
    exact: Side | None = None,
    base: Table | None = None,
) -> list[Outcome]:
    """Return cosine and gold score of every linked pair; pairs without a gold score are left out and counted.

    With a codec both sides are decoded.
    A constant gold score makes the correlations undefined, which the metrics report as NaN.

    Raises:
        DataError: there is not one set of links, or no pair has a gold score.
        VectorsError: a vector has norm 0 or is not finite.

    Source:
        METRICS.md 13; correlations over all pairs of the one data set, never over pooled data sets.
    """
    del fitted, generator, clean, exact, base
    if len(test.links) != 1:
        raise DataError(f"`similarity` needs one set of linked pairs, got {', '.join(test.links) or 'none'}")
    name, links = next(iter(test.links.items()))
    kept = np.flatnonzero(~np.isnan(links.grades))
    if not len(kept):
        raise DataError(f"none of the {len(links.grades)} pairs of `{name}` has a gold score")
    cosine = pair_cosines(test.parts[links.source], test.parts[links.target], links.rows[kept])
    missing = len(links.grades) - len(kept)
    details = {"pairs_without_score": missing} if missing else {}
    columns = {"cosine": cosine, "gold": links.grades[kept]}
    return [Outcome(item="pair", part=name, rows=kept, columns=columns, details=details)]


def pair_cosines(source: Table, target: Table, rows: Array) -> torch.Tensor:
    """Return the cosines (L,) float64 of pairs of rows (L, 2)."""
    import torch

    from evalharness.numerics import normalise_rows

    left = normalise_rows(source.vectors.dense(), source.ids)
    right = left if source is target else normalise_rows(target.vectors.dense(), target.ids)
    pairs = torch.from_numpy(np.ascontiguousarray(rows)).to(left.device)
    step = max(1, BLOCK_BYTES // (16 * left.shape[1]))
    # Summed row by row in float64, so that equal pairs get equal cosines and tie.
    blocks = [pairs[start : start + step] for start in range(0, len(pairs), step)]
    cosines = [(left[block[:, 0]].double() * right[block[:, 1]].double()).sum(dim=1) for block in blocks]
    return torch.cat(cosines).clamp(-1, 1).cpu()


METRICS = (
    MetricInfo(name="spearman", columns=("cosine", "gold"), reduce="spearman", low=-1.0, unit="correlation"),
    MetricInfo(name="pearson", columns=("cosine", "gold"), reduce="pearson", low=-1.0, unit="correlation"),
)


@hookimpl
def evalharness_evaluators() -> Iterable[EvaluatorSpec]:
    """Register `similarity`."""
    yield EvaluatorSpec(
        name="similarity",
        summary="Correlation of the cosine of pairs with their gold scores",
        source="Agirre et al. 2012 (STS); Spearman after Reimers et al. 2016",
        target_kinds=("number",),
        metrics=METRICS,
        main="spearman",
        score=score,
    )
