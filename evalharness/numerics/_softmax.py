"""The objective of many logistic regressions at once: mean cross-entropy with an L2 penalty, and its gradient."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from evalharness.numerics._design import Design

# exp(-60) is far below what float32 resolves beside 1, and far above the denormal numbers that slow processors down a hundredfold.
_LOWEST = -60.0
_ABSENT = -1e30
FEW_COLUMNS = 64  # with more, products take as long either way round


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

    def codes_of(self, tasks: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        """Return the codes (B, m, n) of a block of rows for tasks (B, m)."""
        if len(self.codes) == 1:
            return self.codes[:, None, start:stop].expand(*tasks.shape, -1)
        return self.codes[tasks, start:stop]

    def sets_of(self, fits: torch.Tensor) -> torch.Tensor:
        """Return the set of features (A,) of each fit (A,)."""
        return self.tasks_of(fits) if len(self.design.mean) > 1 else torch.zeros_like(fits)

    def unscale(self, points: torch.Tensor, fits: torch.Tensor) -> torch.Tensor:
        """Return weights (A, columns, r + 1) of points (A, size)."""
        return points.view(len(fits), self.columns, -1) / self.scaling[fits, None].to(points.dtype)

    def scale(self, weights: torch.Tensor, fits: torch.Tensor) -> torch.Tensor:
        """Return points (A, size) of weights (A, columns, r + 1)."""
        return (weights * self.scaling[fits, None].to(weights.dtype)).flatten(1)

    def choose(self, fits: torch.Tensor, dtype: torch.dtype) -> ChosenFits:
        """Return fits (A,), ascending, ready to be evaluated in a precision."""
        return ChosenFits(
            problem=self,
            shrink=(1 / self.scaling[fits, None]).to(dtype),
            strengths=self.penalties[fits],
            spans=[
                (self.design.choose(sets), sets, first, last, self.tasks_of(fits[first:last]).view(groups, -1))
                for sets, groups, first, last in self._groups(fits)
            ],
        )

    def largest_slopes(self, gradients: torch.Tensor, fits: torch.Tensor) -> torch.Tensor:
        """Return the largest entry (A,) of gradients (A, size) with respect to weights and bias of the features as given."""
        slopes = gradients.view(len(fits), self.columns, -1) * self.scaling[fits, None].to(gradients.dtype)
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


@dataclass(slots=True, kw_only=True)
class ChosenFits:
    """Evaluate A fits of a problem; what hangs on the choice alone is made once.

    ``shrink``: (A, 1, r + 1), from points to weights; ``strengths``: (A,) float64;
    ``spans``: the design of B sets of features, those sets (B,) or None for all, first and last of their fits, and the tasks (B, m) of those.
    """

    problem: LogisticProblem
    shrink: torch.Tensor
    strengths: torch.Tensor
    spans: list[tuple[Design, torch.Tensor | None, int, int, torch.Tensor]]

    def evaluate(self, points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return objectives (A,) float64 and gradients (A, size) at points (A, size)."""
        weights = points.view(len(points), self.problem.columns, -1) * self.shrink
        parts = [self._sum(weights[first:last], tasks, design, sets) for design, sets, first, last, tasks in self.spans]
        losses, slopes = parts[0] if len(parts) == 1 else (torch.cat(part) for part in zip(*parts, strict=True))
        penalised = weights[..., :-1]
        slopes[..., :-1].addcmul_(penalised, self.strengths[:, None, None].to(points.dtype))
        values = losses + self.strengths / 2 * penalised.square().sum((1, 2), dtype=torch.float64)
        return values, slopes.mul_(self.shrink).flatten(1)

    def _sum(
        self, weights: torch.Tensor, tasks: torch.Tensor, design: Design, sets: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return mean losses (B m,) and their slopes (B m, columns, r + 1) of weights of that shape; row blocks stay in the cache."""
        problem, (groups, many) = self.problem, tasks.shape
        columns, width = weights.shape[1:]
        stacked = weights.view(groups, many * columns, width)
        if problem.absent is not None:
            stacked = stacked.clone()
            stacked.view(groups, many, columns, width)[..., -1].masked_fill_(problem.absent[tasks], _ABSENT)
        losses = torch.zeros((groups, many), dtype=torch.float64, device=weights.device)
        slopes = torch.zeros_like(stacked)
        rows = problem.codes.shape[1]
        step = max(16, problem.block_bytes // (weights.element_size() * groups * (many * columns + width)))
        for start in range(0, rows, step):
            block = design.block(start, start + step, sets).to(weights.dtype)
            logits = _logits(stacked, block, design, start).view(groups, many, columns, -1)
            loss, residuals = (_log_odds_loss if columns == 1 else _softmax_loss)(logits, problem.codes_of(tasks, start, start + step))
            if problem.share is not None:
                share = problem.share[tasks, start : start + step].to(weights.dtype)
                loss, residuals = loss * share, residuals * share.unsqueeze(-2)
            losses += loss.sum(-1, dtype=torch.float64)
            slopes.baddbmm_(residuals.view(groups, many * columns, -1), block)
        if problem.share is None:
            losses /= rows
            slopes /= rows
        return losses.flatten(), slopes.view(-1, columns, width)


def _logits(stacked: torch.Tensor, block: torch.Tensor, design: Design, start: int) -> torch.Tensor:
    """Return weights (B, c, r + 1) times rows (B, n, r + 1), (B, c, n): classes before rows, so that what follows runs along the rows."""
    if design.turned is not None and design.turned.dtype == stacked.dtype:
        return stacked @ design.turned[:, :, start : start + block.shape[1]]
    if stacked.shape[1] >= FEW_COLUMNS:
        return stacked @ block.mT
    # Rows times weights and then on its side: where columns are few, weights times rows takes half as long again.
    return (block @ stacked.mT).mT.contiguous()


def _softmax_loss(logits: torch.Tensor, codes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return losses (B, m, n) and residuals p - y (B, m, C, n), which overwrite the logits; ``codes``: (B, m, n)."""
    index = codes.unsqueeze(-2)
    logits -= logits.amax(-2, keepdim=True)
    true = logits.gather(-2, index)
    residuals = logits.clamp_min_(_LOWEST).exp_()
    # The probability of all other classes, summed without the true one, keeps its digits where 1 - p would lose them.
    own = residuals.gather(-2, index)
    residuals.scatter_(-2, index, 0.0)
    others = residuals.sum(-2, keepdim=True)
    losses = torch.log1p(others / own) + (_LOWEST - true).clamp_min_(0.0)
    norms = own.add_(others)
    residuals /= norms
    residuals.scatter_(-2, index, others.div_(norms).neg_())
    return losses.squeeze(-2), residuals


def _log_odds_loss(logits: torch.Tensor, codes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return losses (B, m, n) and residuals p - y (B, m, 1, n) of log odds (B, m, 1, n) of class 1; ``codes``: (B, m, n), 0 or 1."""
    sign = codes.to(logits.dtype).mul_(2).sub_(1)
    margins = logits.squeeze(-2) * sign
    wrong = torch.sigmoid(-margins.clamp_max(-_LOWEST))
    losses = torch.where(wrong < 0.5, -torch.log1p(-wrong), torch.nn.functional.softplus(-margins))
    return losses, wrong.mul_(sign).neg_().unsqueeze(-2)
