"""Geometry of a cloud of vectors: how many dimensions it uses and how evenly it spreads, without labels."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from evalharness import EvaluatorSpec, MetricInfo, Outcome, Side, Table, hookimpl
from evalharness.errors import DataError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

BLOCK_BYTES = 128 * 2**20
LEAST_ROWS = 4
COMPLETE, DIMENSIONAL = 0.1, 0.1
FLOOR = 1e-12  # squared singular values below this share of the largest are rounding of the Gram matrix


def score(
    fitted: None,
    test: Side,
    *,
    generator: torch.Generator,
    clean: Side | None = None,
    exact: Side | None = None,
    base: Table | None = None,
    rows: int = 2000,
    replicates: int = 50,
) -> list[Outcome]:
    """Return the statistics of each part's cloud, and their values on random halves of it.

    At most ``rows`` rows are used, drawn with the halves from the generator, so that encoders are compared on the same ones.
    A cloud of equal vectors has uniformity 0 and undefined (NaN) ranks.

    Raises:
        DataError: a part has fewer than four rows.
        UsageError: ``rows`` or ``replicates`` is too small.
        VectorsError: a vector has norm 0 or is not finite.

    Source:
        METRICS.md 11: Roy & Vetterli 2007 (effective rank), Garrido et al. 2023 (RankMe), Wang & Isola 2020 (uniformity).
    """
    del fitted, clean, exact, base
    if rows < LEAST_ROWS or replicates < 2:
        raise UsageError(f"expected `rows` of at least {LEAST_ROWS} and `replicates` of at least 2, got {rows} and {replicates}")
    several = len(test.parts) > 1
    outcomes = []
    for part, table in test.parts.items():
        if len(table) < LEAST_ROWS:
            raise DataError(f"`geometry` needs at least {LEAST_ROWS} rows, part `{part}` has {len(table)}")
        outcomes.append(_outcome(part, table, generator, rows, replicates, variant={"part": part} if several else {}))
    return outcomes


def _outcome(part: str, table: Table, generator: torch.Generator, rows: int, replicates: int, variant: dict[str, Any]) -> Outcome:
    import torch

    from evalharness.numerics import check_directions

    at = torch.randperm(len(table), generator=generator)[:rows].sort().values.numpy()
    vectors = table.vectors.take(at).dense().float()
    check_directions(vectors, table.ids[at])
    halves = draw_halves(len(at), replicates, generator).to(vectors.device)
    scalars, samples = measure(vectors, halves)
    return Outcome(
        item="sample",
        part=part,
        rows=table.rows[at],
        scalars=scalars,
        replicates=samples,
        variant=variant,
        details={"collapse": find_collapse(vectors, scalars["effective_rank"]), "dimensions": vectors.shape[1]},
    )


def draw_halves(size: int, replicates: int, generator: torch.Generator) -> torch.Tensor:
    """Return random subsets of half the positions, without replacement, (R, size // 2) int64."""
    import torch

    return torch.rand(replicates, size, generator=generator).argsort(dim=1)[:, : size // 2]


def measure(vectors: torch.Tensor, halves: torch.Tensor) -> tuple[dict[str, float], dict[str, Any]]:
    """Return the statistics of vectors (N, D), and those of the subsets (R, H) as arrays (R,)."""
    import torch

    from evalharness.numerics import uniformity

    rows = vectors.double()
    values = {name: float(value) for name, value in _ranks(*_spectra(rows)).items()}
    values["uniformity"] = float(uniformity(rows))
    step = max(1, BLOCK_BYTES // (8 * rows.shape[1] * (2 * halves.shape[1] + min(rows.shape[1], halves.shape[1]))))
    blocks = [_ranks(*_spectra(rows[halves[start : start + step]])) for start in range(0, len(halves), step)]
    samples = {name: torch.cat([block[name] for block in blocks]).cpu().numpy() for name in blocks[0]}
    weights = torch.zeros(len(halves), len(rows), dtype=torch.bool, device=rows.device).scatter_(1, halves, value=True)
    samples["uniformity"] = uniformity(rows, weights=weights).cpu().numpy()
    return values, samples


def _spectra(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the singular values of clouds (..., N, D) float64, centred and as they are, from the smaller Gram matrix."""
    centred = rows - rows.mean(dim=-2, keepdim=True)
    # What centring leaves of equal rows is rounding.
    least = 1e-28 * rows.square().sum(dim=(-1, -2))[..., None]
    return _singular_values(centred, least), _singular_values(rows, least)


def _singular_values(rows: torch.Tensor, least: torch.Tensor) -> torch.Tensor:
    import torch

    from evalharness.numerics import one_thread

    gram = rows.mT @ rows if rows.shape[-1] <= rows.shape[-2] else rows @ rows.mT
    with one_thread():
        squares: torch.Tensor = torch.linalg.eigvalsh(gram)
    return torch.where((squares > FLOOR * squares[..., -1:]) & (squares > least), squares, 0.0).clamp_min(0).sqrt()


def _ranks(centred: torch.Tensor, raw: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return effective rank, participation ratio and RankMe (...,) of singular values (..., K); NaN without spread."""
    squares = centred.square()
    return {
        "effective_rank": _entropy_rank(centred / centred.sum(dim=-1, keepdim=True)),
        "participation_ratio": squares.sum(dim=-1).square() / squares.square().sum(dim=-1),
        "rankme": _entropy_rank(raw / raw.sum(dim=-1, keepdim=True) + 1e-7),
    }


def _entropy_rank(shares: torch.Tensor) -> torch.Tensor:
    import torch

    rank: torch.Tensor = torch.special.entr(shares).sum(dim=-1).exp()
    return rank


def find_collapse(vectors: torch.Tensor, effective_rank: float) -> dict[str, bool]:
    """Say whether a cloud (N, D) has collapsed: to a point (``complete``), or to few dimensions (``dimensional``).

    Complete: the unit vectors' standard deviation, averaged over dimensions, is below 0.1 / sqrt(D), where an even spread has 1 / sqrt(D).
    Dimensional: the effective rank is below a tenth of min(N, D), or undefined.

    Source:
        METRICS.md 11; the limits are ours.
    """
    from evalharness.numerics import normalise_rows

    size, dim = vectors.shape
    spread = float(normalise_rows(vectors).double().std(dim=0, correction=0).mean())
    return {"complete": spread < COMPLETE / math.sqrt(dim), "dimensional": not effective_rank >= DIMENSIONAL * min(size, dim)}


METRICS = (
    MetricInfo(name="effective_rank", reduce=None, low=1.0, high=math.inf, unit="dimensions", interval="half-sample"),
    MetricInfo(name="uniformity", reduce=None, low=-8.0, high=0.0, unit="log", higher_is_better=False, interval="half-sample"),
    MetricInfo(name="participation_ratio", reduce=None, low=1.0, high=math.inf, unit="dimensions", interval="half-sample"),
    MetricInfo(name="rankme", reduce=None, low=1.0, high=math.inf, unit="dimensions", interval="half-sample"),
)


@hookimpl
def evalharness_evaluators() -> Iterable[EvaluatorSpec]:
    """Register `geometry`."""
    yield EvaluatorSpec(
        name="geometry",
        summary="Effective rank, participation ratio, RankMe and uniformity, with collapse flags",
        source="Roy & Vetterli 2007; Garrido et al. 2023; Wang & Isola 2020",
        params={"rows": 2000, "replicates": 50},
        target_kinds=(),
        metrics=METRICS,
        main="effective_rank",
        score=score,
    )
