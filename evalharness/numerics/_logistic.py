"""Multinomial logistic regression for a whole grid of penalties at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from evalharness.errors import DataError, UsageError
from evalharness.numerics._arrays import as_float, as_kind, as_tensor, require_finite, require_matrix
from evalharness.numerics._eigenbasis import Eigenbasis, make_eigenbasis
from evalharness.numerics._lbfgs import Minimum, dot, minimise

MAX_OBJECTIVE_ERROR = 1e-6
# At strong fits the curvature is less than both models of it say: against tight optima the estimate came out up to 13 times too small.
_ESTIMATE_SAFETY = 25.0
ABSENT_BIAS = -1e4
_HISTORY = 10
_BLOCK_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class LogisticPath:
    """Hold P fits, tensors or arrays as the features were.

    ``weights``: (P, D, C) and ``bias``: (P, C); a class without training rows has weight 0 and bias -1e4.
    ``converged``: (P,) bool; ``gradient``: (P,) largest entry of the gradient of the mean loss with its penalty, for the features as given;
    ``gradient_at_zero``: the same at zero weights; ``objective``: (P,) C·ΣCE + ½‖W‖², float64; ``iterations``: (P,) int64.
    """

    inverse_penalties: tuple[float, ...]
    weights: Any
    bias: Any
    converged: Any
    gradient: Any
    gradient_at_zero: float
    objective: Any
    iterations: Any

    def logits(self, features: Any) -> Any:
        """Return logits (P, N, C) of features (N, D), of their kind."""
        rows = as_tensor(features)
        weights, bias = as_tensor(self.weights).to(rows.device), as_tensor(self.bias).to(rows.device)
        return as_kind(as_float(rows).to(weights.dtype) @ weights + bias[:, None], features)

    def predict(self, features: Any) -> Any:
        """Return class codes (P, N) int64 of features (N, D); the smaller code wins a tie."""
        rows = as_tensor(features)
        count, _, num_classes = self.weights.shape
        step = max(1, _BLOCK_BYTES // (8 * count * num_classes))
        parts = [_first_largest(self.logits(rows[start : start + step])) for start in range(0, max(1, len(rows)), step)]
        return as_kind(torch.cat(parts, 1), features)


def _first_largest(logits: torch.Tensor) -> torch.Tensor:
    """Return the first position of the maximum along the last axis, which Tensor.argmax does not promise."""
    positions = torch.arange(logits.shape[-1], device=logits.device)
    return positions.where(logits == logits.amax(-1, keepdim=True), logits.shape[-1]).amin(-1)


@dataclass(slots=True)
class _Problem:
    """Hold the data of all fits in the eigenbasis.

    Coordinates are scaled by ``scaling`` (P, r + 1), the root of the diagonal Hessian s/C + λ that uniform probabilities would give, bias last;
    there the Hessian is near the identity.
    """

    basis: Eigenbasis
    design: torch.Tensor
    targets: torch.Tensor
    share: torch.Tensor | None
    num_classes: int
    penalties: torch.Tensor
    scaling: torch.Tensor
    block_rows: int

    def evaluate(self, points: torch.Tensor, problems: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return mean losses with penalty (A,) float64 and gradients (A, (r + 1) · C), by one wide product a block of rows."""
        count, scaling = len(problems), self.scaling[problems, :, None]
        weights = points.view(count, -1, self.num_classes) / scaling
        stacked = weights.permute(1, 0, 2).reshape(weights.shape[1], -1)
        losses = torch.zeros(count, dtype=torch.float64, device=points.device)
        gradients = torch.zeros_like(stacked)
        for start in range(0, len(self.design), self.block_rows):
            rows = slice(start, start + self.block_rows)
            logits = (self.design[rows] @ stacked).view(-1, count, self.num_classes)
            loss, residuals = _cross_entropy(logits, self.targets[rows], None if self.share is None else self.share[rows])
            losses += loss
            gradients.addmm_(self.design[rows].T, residuals.view(len(residuals), -1))
        total = 1 if self.share is not None else len(self.design)
        penalised = weights[:, :-1]
        norms = penalised.flatten(1).square().sum(1, dtype=torch.float64)
        slopes = (gradients / total).view(-1, count, self.num_classes).permute(1, 0, 2).contiguous()
        slopes[:, :-1] += self.penalties[problems, None, None].to(points.dtype) * penalised
        return losses / total + self.penalties[problems] / 2 * norms, (slopes / scaling).flatten(1)

    def to_float64(self) -> _Problem:
        """Return the same fits in double precision."""
        design = self.design.double()
        basis = Eigenbasis(design, self.basis.basis.double(), self.basis.mean.double(), self.basis.variances)
        share = None if self.share is None else self.share.double()
        return replace(
            self,
            basis=basis,
            design=design,
            share=share,
            scaling=self.scaling.double(),
            block_rows=max(1, self.block_rows // 2),
        )

    def original_gradients(self, gradients: torch.Tensor, problems: torch.Tensor) -> torch.Tensor:
        """Return the largest entry (A,) of gradients with respect to weights and bias of the features as given."""
        slopes = gradients.view(len(problems), -1, self.num_classes) * self.scaling[problems, :, None]
        by_bias = slopes[:, -1]
        by_weight = self.basis.basis @ slopes[:, :-1] + self.basis.mean[:, None] * by_bias[:, None]
        return torch.maximum(by_weight.abs().amax((1, 2)), by_bias.abs().amax(1))


def _cross_entropy(logits: torch.Tensor, targets: torch.Tensor, share: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return summed losses (A,) float64 and residuals p - y (n, A, C), which overwrite the logits (n, A, C)."""
    index = targets[:, None, None].expand(-1, logits.shape[1], 1)
    logits -= logits.amax(2, keepdim=True)
    true = logits.gather(2, index)[..., 0]
    residuals = logits.exp_()
    norms = residuals.sum(2, keepdim=True)
    residuals /= norms
    # The probability of all other classes, summed without the true one, keeps its digits where 1 - p would lose them.
    residuals.scatter_(2, index, 0.0)
    others = residuals.sum(2)
    losses = torch.where(others < 0.5, -torch.log1p(-others), norms[..., 0].log() - true)
    residuals.scatter_(2, index, -others.unsqueeze(2))
    if share is not None:
        losses *= share[:, None]
        residuals *= share[:, None, None]
    return losses.sum(0, dtype=torch.float64), residuals


def logistic_path(
    features: Any,
    labels: Any,
    inverse_penalties: Any,
    *,
    tolerance: float = 1e-4,
    max_iterations: int = 2000,
    sample_weight: Any | None = None,
    num_classes: int | None = None,
    memory_bytes: int = 2**30,
) -> LogisticPath:
    """Fit multinomial logistic regression for all inverse penalties at once.

    Each fit minimises C · Σ CE(softmax(W z + b), y) + ½‖W‖² with an unpenalised bias, by L-BFGS in the scaled eigenbasis of the features.
    With two classes W stands for the one column w that sets them apart, as in scikit-learn: the penalty is ½‖w‖², and the two columns returned are -w/2 and w/2.
    A fit has converged when the gradient of the mean loss has no entry above ``tolerance`` times the largest at zero weights,
    and its estimated relative error of the objective, gᵀH⁻¹g / 2, is at most 1e-6 by the preconditioner and by the quasi-Newton model.
    Fits that float32 cannot bring there are finished in float64.

    Args:
        features: (N, D) tensor or array, finite; standardise them first.
        labels: (N,) integer codes from 0, at least two different ones.
        inverse_penalties: (P,) positive, METRICS' C.
        tolerance: relative size of the gradient, positive.
        max_iterations: the most L-BFGS steps of a fit.
        sample_weight: (N,) not negative, multiplies each row's loss; None for ones.
        num_classes: C of the result; default the largest label + 1.
        memory_bytes: bounds the L-BFGS history; penalties are fitted in turns where it does not fit.

    Returns:
        The fits, float64 for float64 features, else float32.

    Raises:
        VectorsError: the features have a wrong shape or are not finite.
        DataError: there is only one class, or labels are negative or too large.
        UsageError: an argument has a wrong value or shape.

    Source:
        METRICS.md 1.1; convergence is relative since an absolute 1e-4 is nearly met by zero weights with 1,000 classes.
    """
    rows = as_float(as_tensor(features))
    require_matrix(rows, "features")
    require_finite(rows, "features")
    grid = _check_grid(inverse_penalties, tolerance, max_iterations)
    codes, classes, size = _check_labels(labels, rows, num_classes)
    weight = _check_weight(sample_weight, rows)
    basis = make_eigenbasis(rows, weight)
    total = float(len(rows) if weight is None else weight.sum())
    share = None if weight is None else weight / total
    strengths = grid.to(rows.device) * total / (2 if len(classes) == 2 else 1)
    problem = _pose(basis, codes, len(classes), share, strengths, rows.dtype)
    end, relative_to = _solve(problem, tolerance, max_iterations, memory_bytes)
    return _finish(problem, end, relative_to, classes, size, grid, total, rows.dtype, features)


def _check_grid(inverse_penalties: Any, tolerance: float, max_iterations: int) -> torch.Tensor:
    grid = torch.tensor(
        np.asarray(inverse_penalties.cpu() if isinstance(inverse_penalties, torch.Tensor) else inverse_penalties, dtype=np.float64)
    )
    if grid.ndim != 1 or not len(grid) or not bool((grid.isfinite() & (grid > 0)).all()):
        raise UsageError(f"`inverse_penalties` must be a list of positive numbers, got {inverse_penalties!r}")
    if not tolerance > 0:
        raise UsageError(f"`tolerance` must be positive, got {tolerance}")
    if max_iterations < 0:
        raise UsageError(f"`max_iterations` must not be negative, got {max_iterations}")
    return grid


def _check_labels(labels: Any, rows: torch.Tensor, num_classes: int | None) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return codes among the classes present (N,), those classes, and the number of classes of the result."""
    codes = as_tensor(labels, rows.device)
    if codes.shape != (len(rows),) or codes.is_floating_point():
        raise UsageError(f"`labels` must be ({len(rows)},) integer codes, got shape {tuple(codes.shape)} of {codes.dtype}")
    if not len(codes):
        raise DataError("`labels` is empty: a probe needs rows of at least two classes")
    if int(codes.min()) < 0:
        raise DataError(f"`labels` holds {int((codes < 0).sum())} negative codes: drop unlabelled rows first")
    classes, inverse = torch.unique(codes.to(torch.int64), return_inverse=True)
    size = int(classes[-1]) + 1 if num_classes is None else num_classes
    if int(classes[-1]) >= size:
        raise DataError(f"`labels` holds code {int(classes[-1])}, but `num_classes` is {size}")
    if len(classes) < 2:
        raise DataError(f"`labels` holds only class {int(classes[0])}: a probe needs at least two classes")
    return inverse, classes, size


def _check_weight(sample_weight: Any | None, rows: torch.Tensor) -> torch.Tensor | None:
    if sample_weight is None:
        return None
    weight = as_tensor(sample_weight, rows.device).to(torch.float64)
    if weight.shape != (len(rows),) or not bool((weight.isfinite() & (weight >= 0)).all()) or not bool(weight.sum() > 0):
        raise UsageError(f"`sample_weight` must be ({len(rows)},) numbers, not negative and not all 0")
    return weight


def _pose(
    basis: Eigenbasis, codes: torch.Tensor, num_classes: int, share: torch.Tensor | None, strengths: torch.Tensor, dtype: torch.dtype
) -> _Problem:
    penalties = 1 / strengths
    curvature = torch.cat([basis.variances, basis.variances.new_ones(1)]) / num_classes
    penalised = torch.cat([torch.ones_like(basis.variances), basis.variances.new_zeros(1)])
    scaling = (curvature + penalties[:, None] * penalised).sqrt().to(dtype)
    design = basis.design
    width = len(penalties) * num_classes * design.element_size()
    budget = 8 * _BLOCK_BYTES if design.is_cuda else _BLOCK_BYTES
    return _Problem(
        basis=basis,
        design=design,
        targets=codes,
        share=None if share is None else share.to(dtype),
        num_classes=num_classes,
        penalties=penalties,
        scaling=scaling,
        block_rows=max(1, budget // width),
    )


def _solve(problem: _Problem, tolerance: float, max_iterations: int, memory_bytes: int) -> tuple[Minimum, torch.Tensor]:
    """Run the fits in groups whose history fits, and return them with the gradient at zero."""
    size = problem.design.shape[1] * problem.num_classes
    together = max(1, memory_bytes // ((2 * _HISTORY + 8) * size * problem.design.element_size()))
    start = problem.design.new_zeros((1, size))
    at_zero = problem.evaluate(start, torch.zeros(1, dtype=torch.int64, device=start.device))[1]
    reference = problem.original_gradients(at_zero, torch.zeros(1, dtype=torch.int64, device=start.device))[0].to(torch.float64)
    parts = []
    for first in range(0, len(problem.penalties), together):
        chosen = torch.arange(first, min(first + together, len(problem.penalties)), device=start.device)
        parts.append(_run(problem, chosen, start.expand(len(chosen), -1).clone(), reference, tolerance, max_iterations))
    end = Minimum(*(torch.cat([getattr(part, name) for part in parts]) for name in Minimum.__slots__))
    stalled = ((~end.converged) & (end.iterations < max_iterations)).nonzero().flatten()
    if len(stalled) and problem.design.dtype == torch.float32:
        _resume(problem.to_float64(), end, stalled, reference, tolerance, max_iterations, max(1, together // 2))
    return end, reference


def _resume(
    problem: _Problem,
    end: Minimum,
    stalled: torch.Tensor,
    reference: torch.Tensor,
    tolerance: float,
    max_iterations: int,
    together: int,
) -> None:
    """Go on in float64 with fits whose descent float32 no longer resolves, and write their ends."""
    for chosen in torch.split(stalled, together):
        left = max_iterations - int(end.iterations[chosen].max())
        finer = _run(problem, chosen, end.points[chosen].to(torch.float64), reference, tolerance, left)
        end.points[chosen], end.gradients[chosen] = finer.points.to(end.points.dtype), finer.gradients.to(end.gradients.dtype)
        end.values[chosen], end.converged[chosen] = finer.values, finer.converged
        end.iterations[chosen] += finer.iterations


def _run(
    problem: _Problem, chosen: torch.Tensor, start: torch.Tensor, reference: torch.Tensor, tolerance: float, max_iterations: int
) -> Minimum:
    def finished(problems: torch.Tensor, values: torch.Tensor, gradients: torch.Tensor, directions: torch.Tensor) -> torch.Tensor:
        by_scale = dot(gradients, gradients).to(torch.float64) / 2
        by_model = -dot(gradients, directions).to(torch.float64) / 2
        done = torch.maximum(by_scale, by_model) <= MAX_OBJECTIVE_ERROR / _ESTIMATE_SAFETY * values.abs()
        at = done.nonzero().flatten()
        if len(at):
            done[at] = problem.original_gradients(gradients[at], chosen[problems[at]]) <= tolerance * reference
        return done

    return minimise(
        start, lambda points, problems: problem.evaluate(points, chosen[problems]), finished, max_iterations=max_iterations, memory=_HISTORY
    )


def _finish(
    problem: _Problem,
    end: Minimum,
    reference: torch.Tensor,
    classes: torch.Tensor,
    size: int,
    grid: torch.Tensor,
    total: float,
    dtype: torch.dtype,
    like: Any,
) -> LogisticPath:
    """Rotate the fits back, spread them over all classes, and word them as the caller's kind."""
    scaled = end.points.view(len(grid), -1, problem.num_classes) / problem.scaling[..., None]
    fitted, intercept = problem.basis.restore(scaled[:, :-1].to(torch.float64), scaled[:, -1].to(torch.float64))
    weights = fitted.new_zeros((len(grid), fitted.shape[1], size)).index_copy_(2, classes, fitted)
    bias = fitted.new_full((len(grid), size), ABSENT_BIAS).index_copy_(1, classes, intercept)
    largest = problem.original_gradients(end.gradients, torch.arange(len(grid), device=end.points.device))
    return LogisticPath(
        inverse_penalties=tuple(grid.tolist()),
        weights=as_kind(weights.to(dtype), like),
        bias=as_kind(bias.to(dtype), like),
        converged=as_kind(end.converged, like),
        gradient=as_kind(largest.to(torch.float64), like),
        gradient_at_zero=float(reference),
        objective=as_kind(end.values * grid.to(end.values.device) * total, like),
        iterations=as_kind(end.iterations, like),
    )
