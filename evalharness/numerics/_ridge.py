"""Ridge regression for a whole grid of penalties, with exact leave-one-out errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from evalharness.errors import DataError, UsageError
from evalharness.numerics._arrays import as_float, as_kind, as_tensor, require_matrix
from evalharness.numerics._design import Rows, make_design

_BLOCK_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class RidgePath:
    """Hold A fits of K targets, tensors or arrays as the features were.

    ``weights``: (A, D, K); ``bias``: (A, K); ``loo_error``: (A, K) mean squared leave-one-out error, float64;
    NaN where a row decides its own fit alone.
    """

    alphas: tuple[float, ...]
    weights: Any
    bias: Any
    loo_error: Any

    def predict(self, features: Any) -> Any:
        """Return predictions (A, N, K) for features (N, D), of their kind."""
        rows = as_tensor(features)
        weights, bias = as_tensor(self.weights).to(rows.device), as_tensor(self.bias).to(rows.device)
        return as_kind(as_float(rows).to(weights.dtype) @ weights + bias[:, None], features)


def ridge_path(features: Any, targets: Any, alphas: Any) -> RidgePath:
    """Fit ridge regression for all penalties and targets at once.

    Each fit minimises ‖y - Z w - b‖² + α‖w‖² with an unpenalised bias; one eigendecomposition serves all.

    Args:
        features: (N, D) tensor or array, finite, N at least 2.
        targets: (N,) or (N, K) numbers, finite; (N,) counts as K = 1.
        alphas: (A,) not negative. The penalty is on a sum, so its meaning grows with N.

    Returns:
        The fits, computed in float64; weights in float32 unless the features are float64.

    Raises:
        VectorsError: the features have a wrong shape or are not finite.
        DataError: the targets are not finite, or there are fewer than two rows.
        UsageError: shapes differ or a penalty is negative.

    Source:
        METRICS.md 1.3; leave-one-out residual e / (1 - h), Allen 1974, h with the share 1 / N of the bias.
    """
    given = as_float(as_tensor(features))
    require_matrix(given, "features")
    rows = Rows(given.to(torch.float64), given.device)
    rows.check("features")
    values = _check_targets(targets, given)
    grid = _check_alphas(alphas).to(given.device)
    design = make_design(rows, None, small=0.0, hold=True)
    assert design.held is not None
    rotated, mean = design.held[0, :, :-1], values.mean(0)
    factors = 1 / (design.variances[0] * len(given) + grid[:, None])
    weights = (rotated.T @ (values - mean)) * factors[..., None]
    set_of = torch.zeros(len(grid), dtype=torch.int64, device=given.device)
    fitted, shift = design.restore(weights.mT, mean.expand(len(grid), -1), set_of)
    return RidgePath(
        alphas=tuple(grid.tolist()),
        weights=as_kind(fitted.mT.to(given.dtype), features),
        bias=as_kind(shift.to(given.dtype), features),
        loo_error=as_kind(_leave_one_out(rotated, values - mean, weights, factors), features),
    )


def _check_targets(targets: Any, rows: torch.Tensor) -> torch.Tensor:
    values = as_tensor(targets, rows.device).to(torch.float64)
    values = values[:, None] if values.ndim == 1 else values
    if values.ndim != 2 or len(values) != len(rows):
        raise UsageError(f"`targets` must be ({len(rows)},) or ({len(rows)}, K), got shape {tuple(values.shape)}")
    if len(rows) < 2:
        raise DataError(f"ridge regression needs at least 2 rows, got {len(rows)}")
    if not bool(values.isfinite().all()):
        raise DataError(f"`targets` must be finite, got NaN or infinity in {int((~values.isfinite()).any(1).sum())} rows: drop them first")
    return values


def _check_alphas(alphas: Any) -> torch.Tensor:
    grid = torch.tensor(np.asarray(alphas.cpu() if isinstance(alphas, torch.Tensor) else alphas, dtype=np.float64))
    if grid.ndim != 1 or not len(grid) or not bool((grid.isfinite() & (grid >= 0)).all()):
        raise UsageError(f"`alphas` must be a list of numbers, none negative, got {alphas!r}")
    return grid


def _leave_one_out(rotated: torch.Tensor, centred: torch.Tensor, weights: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """Return mean squared leave-one-out errors (A, K) of rows (N, r); ``factors`` (A, r) maps squared coordinates to leverages."""
    count, rank, width = weights.shape
    rows, stacked = len(centred), weights.permute(1, 0, 2).flatten(1)
    errors = torch.zeros((count, width), dtype=torch.float64, device=centred.device)
    step = max(1, _BLOCK_BYTES // (8 * count * width + 8 * rank))
    for start in range(0, rows, step):
        block = rotated[start : start + step]
        left = 1 - 1 / rows - block.square() @ factors.T
        left = torch.where(left > 1e-10, left, torch.nan)
        residuals = centred[start : start + step, None] - (block @ stacked).view(-1, count, width)
        errors += (residuals / left[:, :, None]).square().sum(0)
    return errors / rows
