"""L-BFGS for many independent problems at once, each with its own history, step and end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

Evaluate = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
Finished = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
_SUFFICIENT = 1e-4
_MAX_HALVINGS = 12


@dataclass(slots=True)
class Minimum:
    """Hold the end of a minimisation of P problems: points (P, n), values, gradients, whether each converged, iterations run."""

    points: torch.Tensor
    values: torch.Tensor
    gradients: torch.Tensor
    converged: torch.Tensor
    iterations: torch.Tensor


def dot(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return inner products (A,) of rows."""
    products: torch.Tensor = torch.linalg.vecdot(first, second)
    return products


@dataclass(slots=True)
class _History:
    """Hold the last k pairs of A problems and their inner products, so that a direction takes two passes over the pairs, not ten.

    ``pairs``: (A, memory, 2, n) steps and changes of gradients, in slots that are reused; ``order``: (k,) the slots from old to new.
    From old to new too, in float64: ``by_change``: (A, k, k) steps times changes; ``changes``: (A, k, k) changes times changes;
    ``along``: (A, k, 2) pairs times the latest gradient. ``scale``: (A,) float64, the initial inverse Hessian, a multiple of the identity.
    """

    pairs: torch.Tensor
    order: torch.Tensor
    by_change: torch.Tensor
    changes: torch.Tensor
    along: torch.Tensor
    scale: torch.Tensor

    @classmethod
    def begin(cls, like: torch.Tensor, memory: int) -> _History:
        """Return an empty history for problems with points like (A, n)."""
        count, size = like.shape
        order = torch.empty(0, dtype=torch.int64, device=like.device)
        scale = torch.ones(count, dtype=torch.float64, device=like.device)
        products = scale.new_empty((count, 0, 0))
        return cls(like.new_empty((count, memory, 2, size)), order, products, products, scale.new_empty((count, 0, 2)), scale)

    def keep(self, mask: torch.Tensor) -> None:
        """Forget the problems that ``mask`` does not name."""
        self.pairs, self.by_change, self.changes, self.along, self.scale = (
            part[mask] for part in (self.pairs, self.by_change, self.changes, self.along, self.scale)
        )

    def add(self, step: torch.Tensor, change: torch.Tensor, gradients: torch.Tensor) -> None:
        """Add a pair (A, n) each, and take in the gradients that follow it; a pair without positive curvature counts as none."""
        count, memory = self.pairs.shape[:2]
        full = len(self.order) == memory
        slot = int(self.order[0]) if full else len(self.order)
        self.order = torch.cat([self.order[int(full) :], self.order.new_tensor([slot])])
        latest = torch.stack([step, change, gradients], 1)
        curvature, size, length = dot(step, change).double(), dot(change, change).double(), dot(step, step).double()
        valid = curvature > torch.finfo(step.dtype).eps * (size * length).sqrt()
        if not bool(valid.all()):
            latest[:, :2] *= valid[:, None, None]
        self.pairs[:, slot] = latest[:, :2]
        products = (self._used() @ latest.mT).view(count, -1, 2, 3)[:, self.order].double()
        self.along = products[..., 2]
        self.by_change = _grow(self.by_change, products[:, :, 0, 1], products[:, :, 1, 0], full=full)
        self.changes = _grow(self.changes, products[:, :, 1, 1], products[:, :, 1, 1], full=full)
        # A pair that counts as none must leave its place on the diagonal invertible.
        self.by_change[:, -1, -1] = torch.where(valid, curvature, 1.0)
        self.scale = torch.where(valid, curvature / torch.where(valid, size, 1.0), self.scale)

    def direct(self, gradients: torch.Tensor) -> torch.Tensor:
        """Return descent directions (A, n), by the compact form of the inverse Hessian (Byrd, Nocedal & Schnabel 1994, equation 3.1)."""
        scale = self.scale[:, None].to(gradients.dtype)
        if not len(self.order):
            return gradients * -scale
        upper, widened = self.by_change.triu(), self.scale[:, None, None]
        inner = self.changes * widened
        inner.diagonal(dim1=1, dim2=2).add_(upper.diagonal(dim1=1, dim2=2))
        turned = torch.linalg.solve_triangular(upper, self.along[..., :1], upper=True)
        of_steps = torch.linalg.solve_triangular(upper.mT, inner @ turned - widened * self.along[..., 1:], upper=False)
        factors = torch.empty_like(self.along, dtype=gradients.dtype)
        factors[:, self.order] = torch.cat([-of_steps, turned * widened], 2).to(gradients.dtype)
        combined = factors.flatten(1)[:, None] @ self._used()
        return torch.addcmul(combined[:, 0], gradients, scale, value=-1)

    def _used(self) -> torch.Tensor:
        """Return all pairs (A, 2k, n), a view."""
        return self.pairs[:, : len(self.order)].flatten(1, 2)


def _grow(square: torch.Tensor, column: torch.Tensor, row: torch.Tensor, *, full: bool) -> torch.Tensor:
    """Return matrices (A, k, k) with a last column and row (A, k), which share their end; where ``full``, the first ones go."""
    kept = square[:, 1:, 1:] if full else square
    return torch.cat([torch.cat([kept, row[:, None, :-1]], 1), column[..., None]], 2)


@dataclass(slots=True)
class _State:
    """Hold the problems that still run; ``problems`` (A,) says which they are."""

    problems: torch.Tensor
    points: torch.Tensor
    values: torch.Tensor
    gradients: torch.Tensor
    history: _History

    def keep(self, mask: torch.Tensor) -> None:
        """Retire the problems that ``mask`` does not name."""
        self.problems, self.points, self.values, self.gradients = (
            part[mask] for part in (self.problems, self.points, self.values, self.gradients)
        )
        self.history.keep(mask)


def minimise(
    points: torch.Tensor,
    evaluate: Evaluate,
    finished: Finished,
    *,
    max_iterations: int,
    least: int = 0,
    memory: int = 10,
    known: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> Minimum:
    """Minimise P smooth convex problems.

    Args:
        points: (P, n) start, in coordinates where the Hessian is near the identity.
        evaluate: (points (A, n), problems (A,)) to values (A,) float64 and gradients (A, n).
        finished: (problems, values (A,), gradients (A, n), directions (A, n)) to (A,) bool.
        max_iterations: the most steps.
        least: steps before ``finished`` is asked; a problem that cannot descend is asked earlier.
        memory: pairs of the history, each two copies of the points.
        known: what ``evaluate`` gives at the start, where that was asked before.

    Returns:
        The end of each problem; one that can no longer descend at this precision ends unconverged.
    """
    everything = torch.arange(len(points), device=points.device)
    values, gradients = evaluate(points, everything) if known is None else known
    end = Minimum(
        points.clone(), values.clone(), gradients.clone(), torch.zeros_like(everything, dtype=torch.bool), torch.zeros_like(everything)
    )
    state = _State(everything, points, values, gradients, _History.begin(points, min(memory, max(1, max_iterations))))
    for iteration in range(max_iterations + 1):
        directions = state.history.direct(state.gradients)
        over, done = iteration == max_iterations, torch.zeros_like(state.problems, dtype=torch.bool)
        if over or iteration >= least:
            done = finished(state.problems, state.values, state.gradients, directions)
        if over or bool(done.any()):
            _record(end, state, done, iteration)
            state.keep(~done)
            directions = directions[~done]
        if over or not len(state.problems):
            break
        moved = _step(state, directions, evaluate)
        if not bool(moved.all()):
            stuck = finished(state.problems, state.values, state.gradients, directions) & ~moved
            _record(end, state, stuck, iteration)
            state.keep(moved)
        if not len(state.problems):
            break
    return end


def _record(end: Minimum, state: _State, done: torch.Tensor, iteration: int) -> None:
    at = state.problems
    end.converged[at] = done
    end.iterations[at] = iteration
    end.points[at], end.values[at], end.gradients[at] = state.points, state.values, state.gradients


def _step(state: _State, directions: torch.Tensor, evaluate: Evaluate) -> torch.Tensor:
    """Move every problem along its direction, halving the step of those that do not descend enough; return which moved."""
    slopes = dot(state.gradients, directions).to(torch.float64)
    # Rounding of the value hides descents below this; the slope at the new point then decides (approximate Wolfe condition).
    slack = 4 * torch.finfo(directions.dtype).eps * state.values.abs()
    points = state.points + directions
    values, gradients = evaluate(points, state.problems)
    waiting, length = torch.arange(len(slopes), device=slopes.device), 1.0
    for attempt in range(_MAX_HALVINGS + 1):
        descent = values[waiting] - state.values[waiting]
        sufficient = descent <= _SUFFICIENT * length * slopes[waiting]
        flat = (descent <= slack[waiting]) & (dot(gradients[waiting], directions[waiting]).abs() <= 0.9 * slopes[waiting].abs())
        waiting = waiting[~(sufficient | flat)]
        if not len(waiting) or attempt == _MAX_HALVINGS:
            break
        length *= 0.5
        points[waiting] = state.points[waiting] + length * directions[waiting]
        values[waiting], gradients[waiting] = evaluate(points[waiting], state.problems[waiting])
    moved = torch.ones_like(slopes, dtype=torch.bool)
    moved[waiting] = False
    points[waiting], values[waiting], gradients[waiting] = state.points[waiting], state.values[waiting], state.gradients[waiting]
    state.history.add(points - state.points, gradients - state.gradients, gradients)
    state.points, state.values, state.gradients = points, values, gradients
    return moved
