"""The objective of many logistic regressions at once: mean cross-entropy with an L2 penalty, and its gradient."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from evalharness.numerics._design import Design

# exp(-60) is far below what float32 resolves beside 1, and far above the denormal numbers that slow processors down a hundredfold.
_LOWEST = -60.0
_ABSENT = -1e30


@dataclass(slots=True)
class LogisticProblem:
    """Hold F = T·P fits of T tasks (labels, and features of their own where the design has T sets) at P penalties; fit f is task f // P.

    A softmax has C columns of weights; two classes have one column w, that of their log odds, as in scikit-learn.
    Coordinates are scaled by ``scaling`` (F, r + 1), the root of the diagonal Hessian that uniform probabilities would give, bias last;
    there the Hessian of a strongly penalised fit is near the identity.

    ``codes``: (T, N) int64 in [0, C); ``share``: (T, N) row weights that sum to 1, None for equal ones;
    ``absent``: (T, C) bool, classes that a task has no rows of, None where there are none;
    ``penalties``: (F,) float64, λ of the mean loss.
    """

    design: Design
    codes: torch.Tensor
    share: torch.Tensor | None
    absent: torch.Tensor | None
    num_classes: int
    penalties: torch.Tensor
    scaling: torch.Tensor
    block_bytes: int

    @property
    def columns(self) -> int:
        """Return the columns of weights of a fit."""
        return 1 if self.num_classes == 2 else self.num_classes

    @property
    def size(self) -> int:
        """Return the unknowns of a fit."""
        return self.design.width * self.columns

    def tasks_of(self, fits: torch.Tensor) -> torch.Tensor:
        """Return the task (A,) of each fit (A,)."""
        return fits // (len(self.penalties) // len(self.codes))

    def sets_of(self, fits: torch.Tensor) -> torch.Tensor:
        """Return the set of features (A,) of each fit (A,)."""
        return self.tasks_of(fits) if len(self.design.mean) > 1 else torch.zeros_like(fits)

    def unscale(self, points: torch.Tensor, fits: torch.Tensor) -> torch.Tensor:
        """Return weights (A, r + 1, columns) of points (A, size)."""
        return points.view(len(fits), -1, self.columns) / self.scaling[fits, :, None].to(points.dtype)

    def scale(self, weights: torch.Tensor, fits: torch.Tensor) -> torch.Tensor:
        """Return points (A, size) of weights (A, r + 1, columns)."""
        return (weights * self.scaling[fits, :, None].to(weights.dtype)).flatten(1)

    def evaluate(self, points: torch.Tensor, fits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return objectives (A,) float64 and gradients (A, size) at points (A, size); ``fits`` (A,) ascend."""
        weights = self.unscale(points, fits)
        parts = [
            self._sum(weights[first:last].view(groups, -1, *weights.shape[1:]), fits[first:last].view(groups, -1), sets)
            for sets, groups, first, last in self._groups(fits)
        ]
        losses, slopes = (torch.cat([part[which].flatten(0, 1) for part in parts]) for which in (0, 1))
        strengths = self.penalties[fits]
        penalised = weights[:, :-1]
        slopes[:, :-1] += strengths[:, None, None].to(points.dtype) * penalised
        values = losses + strengths / 2 * penalised.flatten(1).square().sum(1, dtype=torch.float64)
        return values, (slopes / self.scaling[fits, :, None].to(points.dtype)).flatten(1)

    def largest_slopes(self, gradients: torch.Tensor, fits: torch.Tensor) -> torch.Tensor:
        """Return the largest entry (A,) of gradients (A, size) with respect to weights and bias of the features as given."""
        slopes = gradients.view(len(fits), -1, self.columns) * self.scaling[fits, :, None].to(gradients.dtype)
        by_weight, by_bias = self.design.raise_slopes(slopes, self.sets_of(fits))
        return torch.maximum(by_weight.abs().amax((1, 2)), by_bias.abs().amax(1)).to(torch.float64)

    def _groups(self, fits: torch.Tensor) -> Iterator[tuple[torch.Tensor | None, int, int, int]]:
        """Yield sets of features (B,), None for all of them, their number, and the span of their fits, equally many of each."""
        if len(self.design.mean) == 1:
            yield None, 1, 0, len(fits)
            return
        present, counts = torch.unique_consecutive(self.tasks_of(fits), return_counts=True)
        if bool((counts == counts[0]).all()):
            yield None if len(present) == len(self.codes) else present, len(present), 0, len(fits)
            return
        ends = counts.cumsum(0).tolist()
        for task, first, last in zip(present, [0, *ends], ends, strict=False):
            yield task[None], 1, first, last

    def _sum(self, weights: torch.Tensor, fits: torch.Tensor, sets: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Return mean losses (B, m) and their slopes (B, m, r + 1, columns) of weights of that shape; row blocks stay in the cache."""
        groups, many, width, columns = weights.shape
        tasks = self.tasks_of(fits)
        stacked = weights.permute(0, 2, 1, 3).reshape(groups, width, -1)
        if self.absent is not None:
            stacked.view(groups, width, many, columns)[:, -1].masked_fill_(self.absent[tasks], _ABSENT)
        losses = torch.zeros((groups, many), dtype=torch.float64, device=weights.device)
        slopes = torch.zeros_like(stacked)
        rows = self.codes.shape[1]
        step = max(16, self.block_bytes // (weights.element_size() * groups * (many * columns + width)))
        for start in range(0, rows, step):
            block = self.design.block(start, start + step, sets).to(weights.dtype)
            logits = (block @ stacked).view(groups, -1, many, columns)
            own = self.codes[tasks, start : start + step].mT
            loss, residuals = (_log_odds_loss if columns == 1 else _softmax_loss)(logits, own)
            if self.share is not None:
                share = self.share[tasks, start : start + step].mT.to(weights.dtype)
                loss, residuals = loss * share, residuals * share[..., None]
            losses += loss.sum(1, dtype=torch.float64)
            slopes.baddbmm_(block.mT, residuals.view(groups, -1, many * columns))
        if self.share is None:
            losses, slopes = losses / rows, slopes / rows
        return losses, slopes.view(groups, width, many, columns).permute(0, 2, 1, 3)


def _softmax_loss(logits: torch.Tensor, codes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return losses (B, n, m) and residuals p - y (B, n, m, C), which overwrite the logits; ``codes``: (B, n, m)."""
    index = codes[..., None]
    logits -= logits.amax(-1, keepdim=True)
    true = logits.gather(-1, index)
    residuals = logits.clamp_min_(_LOWEST).exp_()
    # The probability of all other classes, summed without the true one, keeps its digits where 1 - p would lose them.
    own = residuals.gather(-1, index)
    residuals.scatter_(-1, index, 0.0)
    others = residuals.sum(-1, keepdim=True)
    norms = own + others
    residuals /= norms
    others /= norms
    losses = torch.where(others < 0.5, -torch.log1p(-others), norms.log() - true)[..., 0]
    residuals.scatter_(-1, index, -others)
    return losses, residuals


def _log_odds_loss(logits: torch.Tensor, codes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return losses (B, n, m) and residuals p - y (B, n, m, 1) of log odds (B, n, m, 1) of class 1; ``codes``: (B, n, m), 0 or 1."""
    sign = codes.to(logits.dtype).mul_(2).sub_(1)
    margins = logits[..., 0] * sign
    wrong = torch.sigmoid(-margins.clamp_max(-_LOWEST))
    losses = torch.where(wrong < 0.5, -torch.log1p(-wrong), torch.nn.functional.softplus(-margins))
    return losses, wrong.mul_(sign).neg_()[..., None]
