"""Spectra and spread of a cloud of vectors."""

from __future__ import annotations

import math
from typing import Any

import torch

from evalharness.errors import DataError, UsageError, VectorsError
from evalharness.numerics._arrays import as_float, as_kind, as_tensor, normalise_rows, require_finite, require_matrix

_DIRECT_ENTRIES = 2**22
_BLOCK_BYTES = 64 * 2**20


def singular_values(vectors: Any, *, centre: bool = True) -> Any:
    """Return the singular values of vectors, largest first.

    Args:
        vectors: (..., N, D) tensor or array, finite, N at least 2; leading axes are separate clouds.
        centre: whether to subtract the mean row first.

    Returns:
        (..., min(N, D)) float64. Above 4 million entries they come from the smaller Gram matrix, where values below 1e-6 of the largest are set to 0.

    Raises:
        VectorsError: the shape has fewer than two axes, or an entry is not finite.
        DataError: there are fewer than two rows.
    """
    return as_kind(_spectrum(vectors, centre=centre), vectors)


def _spectrum(vectors: Any, *, centre: bool) -> torch.Tensor:
    rows = as_float(as_tensor(vectors))
    if rows.ndim < 2:
        raise VectorsError(f"`vectors` must have shape (..., rows, dimensions), got {tuple(rows.shape)}")
    if rows.shape[-2] < 2:
        raise DataError(f"a spectrum needs at least 2 rows, got {rows.shape[-2]}")
    require_finite(rows.flatten(0, -2), "vectors")
    rows = rows.to(torch.float64)
    size = rows.square().sum((-1, -2)).sqrt()
    rows = rows - rows.mean(-2, keepdim=True) if centre else rows
    values = _singular_values(rows)
    # What centring leaves of equal rows is rounding.
    return torch.where(values > 1e-14 * size[..., None], values, 0.0)


def _singular_values(rows: torch.Tensor) -> torch.Tensor:
    if rows.shape[-1] * rows.shape[-2] <= _DIRECT_ENTRIES:
        direct: torch.Tensor = torch.linalg.svdvals(rows)
        return direct
    gram = rows.mT @ rows if rows.shape[-1] <= rows.shape[-2] else rows @ rows.mT
    squares: torch.Tensor = torch.linalg.eigvalsh(gram).flip(-1)
    floor = squares[..., :1] * 1e-12
    return torch.where(squares > floor, squares, 0.0).clamp_min(0).sqrt()


def _require_spread(values: torch.Tensor) -> None:
    if not bool((values[..., 0] > 0).all()):
        raise DataError("all rows of `vectors` are equal: their spectrum is empty")


def _entropy_rank(shares: torch.Tensor) -> torch.Tensor:
    entropy: torch.Tensor = torch.special.entr(shares).sum(-1)
    return entropy.exp()


def effective_rank(vectors: Any, *, centre: bool = True) -> Any:
    """Return exp of the entropy of the singular values' shares.

    Args:
        vectors: (..., N, D) tensor or array, N at least 2; compare clouds of equal N only.
        centre: whether to subtract the mean row first.

    Returns:
        (...,) float64 in [1, min(N, D)].

    Raises:
        VectorsError: a wrong shape or an entry that is not finite.
        DataError: fewer than two rows, or no spread.

    Source:
        Roy & Vetterli 2007; on singular values, not on eigenvalues.
    """
    values = _spectrum(vectors, centre=centre)
    _require_spread(values)
    return as_kind(_entropy_rank(values / values.sum(-1, keepdim=True)), vectors)


def rankme(vectors: Any) -> Any:
    """Return RankMe: the effective rank of uncentred vectors, 1e-7 added to each share.

    Args:
        vectors: (..., N, D) tensor or array, N at least 2.

    Returns:
        (...,) float64.

    Raises:
        VectorsError: a wrong shape or an entry that is not finite.
        DataError: fewer than two rows, or only zeros.

    Source:
        Garrido et al. 2023, equation 1.
    """
    values = _spectrum(vectors, centre=False)
    _require_spread(values)
    shares = values / values.sum(-1, keepdim=True) + 1e-7
    return as_kind(_entropy_rank(shares), vectors)


def participation_ratio(vectors: Any, *, centre: bool = True) -> Any:
    """Return (Σλ)² / Σλ² of the covariance eigenvalues.

    Args:
        vectors: (..., N, D) tensor or array, N at least 2.
        centre: whether to subtract the mean row first.

    Returns:
        (...,) float64 in [1, min(N, D)].

    Raises:
        VectorsError: a wrong shape or an entry that is not finite.
        DataError: fewer than two rows, or no spread.
    """
    values = _spectrum(vectors, centre=centre)
    _require_spread(values)
    squares = (values / values[..., :1]).square()
    return as_kind(squares.sum(-1).square() / squares.square().sum(-1), vectors)


def stable_rank(vectors: Any, *, centre: bool = True) -> Any:
    """Return Σσ² / σ₁².

    Args:
        vectors: (..., N, D) tensor or array, N at least 2.
        centre: whether to subtract the mean row first.

    Returns:
        (...,) float64 in [1, min(N, D)].

    Raises:
        VectorsError: a wrong shape or an entry that is not finite.
        DataError: fewer than two rows, or no spread.
    """
    values = _spectrum(vectors, centre=centre)
    _require_spread(values)
    return as_kind((values / values[..., :1]).square().sum(-1), vectors)


def isoscore(vectors: Any) -> Any:
    """Return IsoScore, (participation ratio - 1) / (D - 1).

    Args:
        vectors: (..., N, D) tensor or array, N and D at least 2.

    Returns:
        (...,) float64 in [0, 1].

    Raises:
        VectorsError: a wrong shape or an entry that is not finite.
        DataError: fewer than two rows, only one dimension, or no spread.

    Source:
        Rudman et al. 2022, algebraically simplified.
    """
    dimensions = as_tensor(vectors).shape[-1]
    if dimensions < 2:
        raise DataError("IsoScore needs at least 2 dimensions, got 1")
    return as_kind((as_tensor(participation_ratio(vectors)) - 1) / (dimensions - 1), vectors)


def alignment(first: Any, second: Any, *, alpha: float = 2.0) -> Any:
    """Return the mean of ‖x - x⁺‖^α over pairs of unit vectors.

    Args:
        first: (N, D) tensor or array; rows are normalised first.
        second: (N, D), the partner of each row.
        alpha: the power.

    Returns:
        float64 in [0, 2^α]; lower is better aligned.

    Raises:
        VectorsError: shapes differ, or a row has norm 0 or is not finite.
        DataError: there are no pairs.

    Source:
        Wang & Isola 2020.
    """
    one, other = as_tensor(normalise_rows(first, what="first")).double(), as_tensor(normalise_rows(second, what="second")).double()
    if one.shape != other.shape:
        raise VectorsError(f"`first` and `second` must hold pairs of rows, got shapes {tuple(one.shape)} and {tuple(other.shape)}")
    if not len(one):
        raise DataError("alignment needs at least one pair")
    return as_kind(torch.linalg.vector_norm(one - other, dim=1).pow(alpha).mean(), first)


def uniformity(vectors: Any, t: float = 2.0, *, weights: Any | None = None, block_bytes: int = _BLOCK_BYTES) -> Any:
    """Return log of the mean of exp(-t‖z_i - z_j‖²) over pairs i < j of unit vectors.

    Args:
        vectors: (N, D) tensor or array; rows are normalised first, N at least 2.
        t: the sharpness, positive.
        weights: (R, N) 0/1 subsets, as half-samples are: one value each over the pairs within; None for all rows.
        block_bytes: memory for one block of pairs.

    Returns:
        float64, at most 0, lower is more spread; with ``weights`` (R,), NaN where a subset has fewer than two rows.

    Raises:
        VectorsError: a wrong shape, or a row has norm 0 or is not finite.
        DataError: fewer than two rows.
        UsageError: ``t`` is not positive or ``weights`` do not fit.

    Source:
        Wang & Isola 2020, without self-pairs.
    """
    rows = as_tensor(vectors).double()
    require_matrix(rows, "vectors")
    rows = normalise_rows(rows)
    if len(rows) < 2:
        raise DataError(f"uniformity needs at least 2 rows, got {len(rows)}")
    if not t > 0:
        raise UsageError(f"`t` must be positive, got {t}")
    if weights is not None:
        return as_kind(_subset_uniformity(rows, t, as_tensor(weights, rows.device), block_bytes), vectors)
    total = rows.new_tensor(-torch.inf)
    step = max(1, block_bytes // (16 * len(rows)))
    for start in range(0, len(rows), step):
        block = _exponents(rows, start, step, t)
        total = torch.logaddexp(total, block.flatten().logsumexp(0))
    return as_kind((total - math.log(len(rows) * (len(rows) - 1) / 2)).clamp_max(0.0), vectors)


def _exponents(rows: torch.Tensor, start: int, step: int, t: float) -> torch.Tensor:
    """Return -t‖z_i - z_j‖² (b, N - start) of a block of rows with all from ``start``, minus infinity unless i < j."""
    block, later = rows[start : start + step], rows[start:]
    exponents = (block @ later.T).sub_(1).mul_(2 * t).clamp_(max=0)
    return exponents.masked_fill_(torch.ones_like(exponents, dtype=torch.bool).tril_(), -torch.inf)


def _subset_uniformity(rows: torch.Tensor, t: float, weights: torch.Tensor, block_bytes: int) -> torch.Tensor:
    if weights.ndim != 2 or weights.shape[1] != len(rows):
        raise UsageError(f"`weights` must be (subsets, {len(rows)}), got shape {tuple(weights.shape)}")
    if not bool(((weights == 0) | (weights == 1)).all()):
        raise UsageError("`weights` must be 0 or 1: pairs of a repeated row with itself would count as close")
    chosen = weights.to(rows.dtype)
    sums = rows.new_zeros(len(chosen))
    step = max(1, block_bytes // (16 * len(rows)))
    for start in range(0, len(rows), step):
        kernel = _exponents(rows, start, step, t).exp_()
        sums += ((chosen[:, start : start + step] @ kernel) * chosen[:, start:]).sum(1)
    size = chosen.sum(1)
    return torch.where(size >= 2, (sums / (size * (size - 1) / 2)).log(), torch.nan)
