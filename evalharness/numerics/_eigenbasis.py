"""Centre features and rotate them into the eigenbasis of their covariance, where probes are well conditioned."""

from __future__ import annotations

from dataclasses import dataclass

import torch

_BLOCK_ROWS = 8192


@dataclass(slots=True)
class Eigenbasis:
    """Hold rotated features: ``design[:, :-1]`` = (features - ``mean``) @ ``basis``.

    ``design``: (N, r + 1), its last column ones; ``basis``: (D, r) with orthonormal columns; ``mean``: (D,);
    ``variances``: (r,) mean squares of the rotated columns, float64, descending, positive.
    Directions in which the features do not vary are left out: no penalised fit has weight there.
    """

    design: torch.Tensor
    basis: torch.Tensor
    mean: torch.Tensor
    variances: torch.Tensor

    def restore(self, weights: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return weights (P, D, T) and bias (P, T) for the features as given, of (P, r, T) and (P, T)."""
        original = torch.einsum("dr,prt->pdt", self.basis.to(weights.dtype), weights)
        return original, bias - torch.einsum("d,pdt->pt", self.mean.to(weights.dtype), original)


def make_eigenbasis(features: torch.Tensor, sample_weight: torch.Tensor | None = None) -> Eigenbasis:
    """Rotate features (N, D), float32 or float64, weighted by ``sample_weight`` (N,) where given.

    The smaller of covariance (D, D) and Gram matrix (N, N) is decomposed, in float64.
    """
    rows, dimensions = features.shape
    share = features.new_full((rows,), 1 / rows, dtype=torch.float64) if sample_weight is None else sample_weight / sample_weight.sum()
    mean = share.to(features.dtype) @ features
    root = share.sqrt()[:, None].to(features.dtype)
    scaled = (features - mean) * root if rows < dimensions else None
    variances, vectors = torch.linalg.eigh(_covariance(features, mean, root) if scaled is None else (scaled @ scaled.T).double())
    variances, vectors = variances.flip(0).clamp_min(0), vectors.flip(1)
    kept = max(1, int((variances > variances[0] * torch.finfo(features.dtype).eps * 4).sum()))
    variances, vectors = variances[:kept].clamp_min(torch.finfo(torch.float64).tiny), vectors[:, :kept]
    if scaled is not None:
        # Orthonormal up to rounding only, since each column is divided by its own singular value; QR repairs that.
        vectors = torch.linalg.qr(scaled.double().T @ vectors / variances.sqrt()).Q
    basis = vectors.to(features.dtype)
    return Eigenbasis(_rotate(features, mean, basis), basis, mean, variances)


def _covariance(features: torch.Tensor, mean: torch.Tensor, root: torch.Tensor) -> torch.Tensor:
    """Return the weighted covariance (D, D) float64, without a copy of the features."""
    total = features.new_zeros((features.shape[1], features.shape[1]), dtype=torch.float64)
    for start in range(0, len(features), _BLOCK_ROWS):
        block = (features[start : start + _BLOCK_ROWS] - mean) * root[start : start + _BLOCK_ROWS]
        total += block.T @ block
    return total


def _rotate(features: torch.Tensor, mean: torch.Tensor, basis: torch.Tensor) -> torch.Tensor:
    design = features.new_ones((len(features), basis.shape[1] + 1))
    for start in range(0, len(features), _BLOCK_ROWS):
        rows = slice(start, start + _BLOCK_ROWS)
        design[rows, :-1] = (features[rows] - mean) @ basis
    return design
