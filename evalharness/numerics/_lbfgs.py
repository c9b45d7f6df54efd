"""L-BFGS for many independent problems at once, each with its own history, step and end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

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


@dataclass(slots=True)
class _State:
    """Hold the problems that still run; ``problems`` (A,) says which they are."""

    problems: torch.Tensor
    points: torch.Tensor
    values: torch.Tensor
    gradients: torch.Tensor
    steps: list[torch.Tensor] = field(default_factory=list)
    changes: list[torch.Tensor] = field(default_factory=list)
    inverse: list[torch.Tensor] = field(default_factory=list)
    scale: torch.Tensor | None = None

    def keep(self, mask: torch.Tensor) -> None:
        """Retire the problems that ``mask`` does not name."""
        self.problems, self.points, self.values, self.gradients = (
            part[mask] for part in (self.problems, self.points, self.values, self.gradients)
        )
        self.steps = [part[mask] for part in self.steps]
        self.changes = [part[mask] for part in self.changes]
        self.inverse = [part[mask] for part in self.inverse]
        self.scale = None if self.scale is None else self.scale[mask]


def dot(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return inner products (A,) of rows."""
    products: torch.Tensor = torch.linalg.vecdot(first, second)
    return products


def minimise(points: torch.Tensor, evaluate: Evaluate, finished: Finished, *, max_iterations: int, memory: int = 10) -> Minimum:
    """Minimise P smooth convex problems.

    Args:
        points: (P, n) start, in coordinates where the Hessian is near the identity.
        evaluate: (points (A, n), problems (A,)) to values (A,) float64 and gradients (A, n).
        finished: (problems, values (A,), gradients (A, n), directions (A, n)) to (A,) bool.
        max_iterations: the most steps.
        memory: pairs of the history, each two copies of the points.

    Returns:
        The end of each problem; one that can no longer descend at this precision ends unconverged.
    """
    everything = torch.arange(len(points), device=points.device)
    values, gradients = evaluate(points, everything)
    end = Minimum(
        points.clone(), values.clone(), gradients.clone(), torch.zeros_like(everything, dtype=torch.bool), torch.zeros_like(everything)
    )
    state = _State(everything, points, values, gradients)
    for iteration in range(max_iterations + 1):
        directions = _direct(state)
        done = finished(state.problems, state.values, state.gradients, directions)
        _record(end, state, done, iteration)
        if bool(done.any()):
            state.keep(~done)
            directions = directions[~done]
        if not len(state.problems) or iteration == max_iterations:
            break
        moved = _step(state, directions, evaluate, memory)
        if not bool(moved.all()):
            _record(end, state, torch.zeros_like(moved), iteration)
            state.keep(moved)
    return end


def _record(end: Minimum, state: _State, done: torch.Tensor, iteration: int) -> None:
    at = state.problems
    end.converged[at] = done
    end.iterations[at] = iteration
    end.points[at], end.values[at], end.gradients[at] = state.points, state.values, state.gradients


def _direct(state: _State) -> torch.Tensor:
    """Return the descent directions (A, n) of the two-loop recursion (Nocedal 1980)."""
    direction = -state.gradients
    kept = []
    for step, change, inverse in zip(reversed(state.steps), reversed(state.changes), reversed(state.inverse), strict=True):
        factor = inverse * dot(step, direction)
        direction = torch.addcmul(direction, change, factor[:, None], value=-1)
        kept.append(factor)
    if state.scale is not None:
        direction = direction * state.scale[:, None]
    for step, change, inverse, factor in zip(state.steps, state.changes, state.inverse, reversed(kept), strict=True):
        direction = torch.addcmul(direction, step, (factor - inverse * dot(change, direction))[:, None])
    return direction


def _step(state: _State, directions: torch.Tensor, evaluate: Evaluate, memory: int) -> torch.Tensor:
    """Move every problem along its direction, halving the step of those that do not descend enough; return which moved."""
    slopes = dot(state.gradients, directions).to(torch.float64)
    # Rounding of the value hides descents below this; the slope at the new point then decides (approximate Wolfe condition).
    slack = torch.finfo(directions.dtype).eps * state.values.abs()
    lengths = torch.ones_like(slopes)
    points, values, gradients = state.points + directions, state.values.clone(), state.gradients.clone()
    waiting = torch.arange(len(slopes), device=slopes.device)
    for _ in range(_MAX_HALVINGS):
        values[waiting], gradients[waiting] = evaluate(points[waiting], state.problems[waiting])
        descent = values[waiting] - state.values[waiting]
        sufficient = descent <= _SUFFICIENT * lengths[waiting] * slopes[waiting]
        flat = (descent <= slack[waiting]) & (dot(gradients[waiting], directions[waiting]).abs() <= 0.9 * slopes[waiting].abs())
        waiting = waiting[~(sufficient | flat)]
        if not len(waiting):
            break
        lengths[waiting] *= 0.5
        points[waiting] = state.points[waiting] + lengths[waiting, None].to(directions.dtype) * directions[waiting]
    moved = torch.ones_like(slopes, dtype=torch.bool)
    moved[waiting] = False
    points[waiting], values[waiting], gradients[waiting] = state.points[waiting], state.values[waiting], state.gradients[waiting]
    _remember(state, points - state.points, gradients - state.gradients, memory)
    state.points, state.values, state.gradients = points, values, gradients
    return moved


def _remember(state: _State, step: torch.Tensor, change: torch.Tensor, memory: int) -> None:
    """Add a pair to the history; one without positive curvature gets weight 0."""
    curvature, size = dot(step, change), dot(change, change)
    valid = curvature > torch.finfo(step.dtype).eps * size.sqrt() * dot(step, step).sqrt()
    one = torch.ones_like(curvature)
    inverse = torch.where(valid, 1 / torch.where(valid, curvature, one), 0 * one)
    scale = torch.where(valid, curvature / torch.where(valid, size, one), one if state.scale is None else state.scale)
    state.scale = scale
    for history, latest in ((state.steps, step), (state.changes, change), (state.inverse, inverse)):
        history.append(latest)
        if len(history) > memory:
            history.pop(0)
