"""Ridge regression for a whole grid of penalties, with exact leave-one-out errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from evalharness.errors import DataError, UsageError, VectorsError
from evalharness.numerics._arrays import as_float, as_kind, as_tensor
from evalharness.numerics._design import Rows, make_design

_BLOCK_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class RidgePath:
    """Hold A fits of K targets, tensors or arrays as the features were; with T tasks every shape begins with T.

    ``weights``: (A, D, K); ``bias``: (A, K); ``loo_error``: (A, K) mean squared leave-one-out error, float64;
    NaN where a row decides its own fit alone.
    """

    alphas: tuple[float, ...]
    weights: Any
    bias: Any
    loo_error: Any

    def predict(self, features: Any) -> Any:
        """Return predictions (A, N, K) for features (N, D), of their kind; with T tasks (T, A, N, K) for (N, D) or (T, N, D)."""
        rows = as_tensor(features)
        weights, bias = as_tensor(self.weights).to(rows.device), as_tensor(self.bias).to(rows.device)
        rows = as_float(rows).to(weights.dtype)
        return as_kind((rows if rows.ndim == 2 else rows[:, None]) @ weights + bias.unsqueeze(-2), features)


def ridge_path(features: Any, targets: Any, alphas: Any) -> RidgePath:
    """Fit ridge regression for all penalties, targets and tasks at once.

    Each fit minimises ‖y - Z w - b‖² + α‖w‖² with an unpenalised bias; one eigendecomposition of a task's features serves all.

    Args:
        features: (N, D) or (T, N, D) tensor or array, finite, N at least 2.
        targets: (N,) or (N, K) numbers, finite; (N,) counts as K = 1. With T tasks (T, N) or (T, N, K).
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
    if given.ndim not in (2, 3) or not given.shape[-1]:
        raise VectorsError(f"`features` must have shape (rows, dimensions) or (tasks, rows, dimensions), got {tuple(given.shape)}")
    rows = Rows(given.to(torch.float64), given.device)
    rows.check("features")
    values = _check_targets(targets, rows)
    grid = _check_alphas(alphas).to(given.device)
    design = make_design(rows, None, small=0.0, hold=True)
    mean = values.mean(1, keepdim=True)
    squares = design.variances * rows.shape[1]
    factors = 1 / (squares[:, None] + grid[:, None])
    assert design.held is not None
    projected = design.held[..., :-1].mT @ (values - mean)
    weights = projected[:, None] * factors[..., None]
    loo = _leave_one_out(design.held[..., :-1], values - mean, weights, factors)
    sets = torch.arange(len(values), device=given.device).repeat_interleave(len(grid))
    fitted, shift = design.restore(weights.flatten(0, 1), mean.expand(-1, len(grid), -1).flatten(0, 1), sets)

    shape = (len(values), len(grid))

    def arrange(part: torch.Tensor) -> Any:
        return as_kind(part if given.ndim == 3 else part[0], features)

    return RidgePath(
        alphas=tuple(grid.tolist()),
        weights=arrange(fitted.to(given.dtype).view(*shape, *fitted.shape[1:])),
        bias=arrange(shift.to(given.dtype).view(*shape, -1)),
        loo_error=arrange(loo),
    )


def _check_targets(targets: Any, rows: Rows) -> torch.Tensor:
    """Return targets (S, N, K) float64."""
    sets, count, _ = rows.shape
    values = as_tensor(targets, rows.device).to(torch.float64)
    several = rows.values.ndim == 3
    if values.ndim not in ((2, 3) if several else (1, 2)) or values.shape[: 1 + several] != rows.values.shape[: 1 + several]:
        wanted = f"({sets}, {count}) or ({sets}, {count}, K)" if several else f"({count},) or ({count}, K)"
        raise UsageError(f"`targets` must be {wanted}, got shape {tuple(values.shape)}")
    values = values if several else values[None]
    values = values[..., None] if values.ndim == 2 else values
    if count < 2:
        raise DataError(f"ridge regression needs at least 2 rows, got {count}")
    if not bool(values.isfinite().all()):
        bad = int((~values.isfinite()).any(2).sum())
        raise DataError(f"`targets` must be finite, got NaN or infinity in {bad} rows: drop them first")
    return values


def _check_alphas(alphas: Any) -> torch.Tensor:
    grid = torch.tensor(np.asarray(alphas.cpu() if isinstance(alphas, torch.Tensor) else alphas, dtype=np.float64))
    if grid.ndim != 1 or not len(grid) or not bool((grid.isfinite() & (grid >= 0)).all()):
        raise UsageError(f"`alphas` must be a list of numbers, none negative, got {alphas!r}")
    return grid


def _leave_one_out(design: torch.Tensor, centred: torch.Tensor, weights: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """Return mean squared leave-one-out errors (S, A, K) of designs (S, N, r); ``factors`` (S, A, r) maps squared coordinates to leverages."""
    sets, count, rank, width = weights.shape
    rows = centred.shape[1]
    stacked = weights.permute(0, 2, 1, 3).flatten(2)
    errors = torch.zeros((sets, count, width), dtype=torch.float64, device=centred.device)
    step = max(1, _BLOCK_BYTES // (8 * sets * (count * width + rank)))
    for start in range(0, rows, step):
        block = design[:, start : start + step]
        left = 1 - 1 / rows - block.square() @ factors.mT
        left = torch.where(left > 1e-10, left, torch.nan)
        residuals = centred[:, start : start + step, None] - (block @ stacked).view(sets, -1, count, width)
        errors += (residuals / left[..., None]).square().sum(1)
    return errors / rows
