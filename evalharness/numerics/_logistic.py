"""Logistic regression for whole grids of penalties, and for many targets, folds and draws, at once."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch

from evalharness.errors import DataError, UsageError, VectorsError
from evalharness.numerics._arrays import as_float, as_kind, as_tensor
from evalharness.numerics._continuation import follow_path
from evalharness.numerics._design import Rows, make_design
from evalharness.numerics._lbfgs import Minimum, dot, minimise
from evalharness.numerics._softmax import FEW_COLUMNS, LogisticProblem
from evalharness.numerics._tasks import Tasks, check_features, check_grid, check_tasks

MAX_OBJECTIVE_ERROR = 1e-6
_ERROR_BY_TOLERANCE = MAX_OBJECTIVE_ERROR / 1e-4
# The curvature is less than both models of it say: against tight optima the estimate came out up to 70 times too small at weak penalties.
_ESTIMATE_SAFETY = 60.0
# A fit that starts next to its end knows nothing yet of its curvature; these steps teach it.
_LEAST_STEPS = 4
ABSENT_BIAS = -1e4
_HISTORY = 7
_VECTORS = 2 * _HISTORY + 10
_BLOCK_BYTES = 8 * 2**20
_CUDA_BLOCK_BYTES = 512 * 2**20
_ROTATION_GAIN = 4.0


@dataclass(frozen=True, slots=True)
class LogisticPath:
    """Hold the fits of P penalties, tensors or arrays as the features were; with T tasks every shape begins with T.

    ``weights``: (P, D, C) and ``bias``: (P, C); a class without training rows has weight 0 and bias -1e4.
    ``converged``: (P,) bool; ``gradient``: (P,) largest entry of the gradient of the mean loss with its penalty, for the features as given;
    ``gradient_at_zero``: () the same at zero weights; ``objective``: (P,) C·ΣCE + ½‖W‖², float64; ``iterations``: (P,) int64.
    """

    inverse_penalties: tuple[float, ...]
    weights: Any
    bias: Any
    converged: Any
    gradient: Any
    gradient_at_zero: Any
    objective: Any
    iterations: Any

    def logits(self, features: Any) -> Any:
        """Return logits (P, N, C) of features (N, D), of their kind; with T tasks (T, P, N, C) of features (N, D) or (T, N, D).

        Raises:
            VectorsError: the features have other dimensions than those of the fit.
        """
        rows = as_tensor(features)
        weights, bias = as_tensor(self.weights).to(rows.device), as_tensor(self.bias).to(rows.device)
        rows = as_float(rows).to(weights.dtype)
        if rows.ndim not in (2, 3) or rows.shape[-1] != weights.shape[-2]:
            raise VectorsError(f"`features` must have {weights.shape[-2]} dimensions, as those of the fit, got shape {tuple(rows.shape)}")
        return as_kind((rows if rows.ndim == 2 else rows[:, None]) @ weights + bias.unsqueeze(-2), features)

    def predict(self, features: Any) -> Any:
        """Return class codes (P, N) int64 of features (N, D), or (T, P, N); the smaller code wins a tie."""
        rows = as_tensor(features)
        step = max(1, 16 * _BLOCK_BYTES // (8 * int(np.prod(self.bias.shape))))
        blocks = range(0, max(1, rows.shape[-2]), step)
        return as_kind(torch.cat([_first_largest(self.logits(rows[..., start : start + step, :])) for start in blocks], -1), features)


def _first_largest(logits: torch.Tensor) -> torch.Tensor:
    """Return the first position of the maximum along the last axis, which numpy's argmax promises and Tensor.argmax does not."""
    if logits.device.type == "cpu":
        return torch.from_numpy(logits.numpy().argmax(-1))
    positions = torch.arange(logits.shape[-1], device=logits.device)
    return positions.where(logits == logits.amax(-1, keepdim=True), logits.shape[-1]).amin(-1)


def logistic_path(
    features: Any,
    labels: Any,
    inverse_penalties: Any,
    *,
    tolerance: float = 1e-4,
    max_iterations: int = 2000,
    sample_weight: Any | None = None,
    class_weight: Any | None = None,
    num_classes: int | None = None,
    memory_bytes: int = 2**30,
) -> LogisticPath:
    """Fit multinomial logistic regression for all inverse penalties, and all of T tasks, at once.

    Each fit minimises C · Σ CE(softmax(W z + b), y) + ½‖W‖² with an unpenalised bias, by L-BFGS in the scaled eigenbasis of the features.
    With two classes W stands for the one column w that sets them apart, as in scikit-learn: the penalty is ½‖w‖², and the two columns returned are -w/2 and w/2.
    A fit has converged when the gradient of the mean loss has no entry above ``tolerance`` times the largest at zero weights,
    and its estimated relative error of the objective, gᵀH⁻¹g / 2, is at most 1e-6 by the preconditioner and by the quasi-Newton model.
    Fits that float32 cannot bring there are finished in float64.

    Tasks are several sets of labels on the same rows (targets), several sets of rows (draws, episodes), or several weightings of the same rows (folds, where a held-out row weighs 0):
    whichever of features, labels and sample weights has a first axis of T.

    Args:
        features: (N, D) or (T, N, D) tensor or array, finite; a memory map of (N, D) is read in blocks. Standardise them first.
        labels: (N,) or (T, N) integer codes from 0, at least two different ones in a task.
        inverse_penalties: (P,) positive, METRICS' C.
        tolerance: relative size of the gradient, positive; above 1e-4 the error of the objective may be larger in proportion.
        max_iterations: the most L-BFGS steps of a fit.
        sample_weight: (N,) or (T, N), not negative, multiplies each row's loss; None for ones.
        class_weight: (C,), not negative, multiplies the loss of each class' rows; "balanced" for N / (C · rows of the class); None for ones.
        num_classes: C of the result; default the largest label + 1.
        memory_bytes: bounds what is held beyond features and result: the rotated features, which are made anew in blocks where they do not fit a quarter of it,
            the L-BFGS history, fits being solved in turns where it does not fit half, and the rows of a product.

    Returns:
        The fits, float64 for float64 features, else float32.

    Raises:
        VectorsError: the features have a wrong shape or are not finite.
        DataError: there is only one class in a task, or labels are negative or too large.
        UsageError: an argument has a wrong value or shape.

    Source:
        METRICS.md 1.1; convergence is relative since an absolute 1e-4 is nearly met by zero weights with 1,000 classes.
    """
    rows = check_features(features, memory_bytes)
    grid = check_grid(inverse_penalties, tolerance, max_iterations)
    tasks = check_tasks(rows, labels, sample_weight, class_weight, num_classes)
    limits = tolerance, max_iterations, memory_bytes
    # Tasks that have features of their own come a few at a time, so that what is held of them fits.
    together = max(1, memory_bytes // 4 // _held_bytes(rows, 1))
    if rows.shape[0] <= together:
        return _fit(rows, tasks, grid, features, *limits)
    parts = []
    for start in range(0, rows.shape[0], together):
        at = slice(start, start + together)
        own = Rows(rows.values[at] if together > 1 else rows.values[start], rows.device, rows.step)
        parts.append(_fit(own, tasks.take(at), grid, rows.values[:0], *limits))
    return _join(parts, features)


def _fit(rows: Rows, tasks: Tasks, grid: torch.Tensor, like: Any, tolerance: float, max_iterations: int, memory_bytes: int) -> LogisticPath:
    """Fit all tasks together."""
    problem, order = _pose(rows, tasks, grid, memory_bytes)
    end, relative_to = _solve(problem, grid[order], tolerance, max_iterations, memory_bytes)
    return _finish(problem, end, relative_to, tasks, grid, order, like)


def _join(parts: list[LogisticPath], like: Any) -> LogisticPath:
    """Join the paths of several tasks each."""
    joined = {
        field.name: as_kind(torch.cat([as_tensor(getattr(part, field.name)) for part in parts]), like)
        for field in fields(LogisticPath)
        if field.name != "inverse_penalties"
    }
    return LogisticPath(inverse_penalties=parts[0].inverse_penalties, **joined)


def _held_bytes(rows: Rows, sets: int) -> int:
    """Return what the rotated features of some sets take."""
    _, count, dimensions = rows.shape
    return sets * count * (min(count, dimensions) + 1) * (8 if rows.dtype == torch.float64 else 4)


def one_vs_rest_path(
    features: Any,
    targets: Any,
    inverse_penalties: Any,
    *,
    tolerance: float = 1e-4,
    max_iterations: int = 2000,
    sample_weight: Any | None = None,
    memory_bytes: int = 2**30,
) -> LogisticPath:
    """Fit one logistic regression a label and penalty, each label against its absence, all at once.

    Args:
        features: (N, D) as for :func:`logistic_path`.
        targets: (N, L) bool; a label that all rows or none carry gets weight 0 and bias ±1e4.
        inverse_penalties: (P,) positive.
        tolerance: as for :func:`logistic_path`, of each label's own gradient.
        max_iterations: the most L-BFGS steps of a fit.
        sample_weight: (N,), not negative; None for ones.
        memory_bytes: as for :func:`logistic_path`.

    Returns:
        The fits with ``weights`` (P, D, L) and ``bias`` (P, L) of the log odds, ``converged``, ``gradient``, ``objective`` and ``iterations`` (P, L), ``gradient_at_zero`` (L,);
        ``predict`` does not apply.

    Raises:
        VectorsError: the features have a wrong shape or are not finite.
        DataError: no label is carried by some rows and not by others.
        UsageError: an argument has a wrong value or shape.

    Source:
        METRICS.md 1.3.
    """
    rows = check_features(features)
    held = as_tensor(targets, rows.device)
    if held.ndim != 2 or len(held) != rows.shape[1] or held.dtype != torch.bool:
        raise UsageError(f"`targets` must be ({rows.shape[1]}, L) bool, got shape {tuple(held.shape)} of {held.dtype}")
    rows_that_count = slice(None) if sample_weight is None else as_tensor(sample_weight, rows.device).flatten() > 0
    counted = held[rows_that_count]
    counts = counted.sum(0)
    varies = ((counts > 0) & (counts < len(counted))).nonzero().flatten()
    if not len(varies):
        raise DataError(
            f"`targets` has {held.shape[1]} labels, none of which some rows carry and others do not: a probe needs one that does"
        )
    path = logistic_path(
        features if not isinstance(features, torch.Tensor) else rows.values,
        held.T[varies].to(torch.int64),
        inverse_penalties,
        tolerance=tolerance,
        max_iterations=max_iterations,
        sample_weight=sample_weight,
        num_classes=2,
        memory_bytes=memory_bytes,
    )
    return _spread_labels(path, varies, counts > 0, features)


def _spread_labels(path: LogisticPath, varies: torch.Tensor, carried: torch.Tensor, like: Any) -> LogisticPath:
    """Return log odds of all labels (P, D, L), of fits of those that vary (V, P, D, 2)."""

    def spread(values: Any, fill: Any) -> torch.Tensor:
        part = as_tensor(values).movedim(0, -1)
        whole = torch.as_tensor(fill, device=part.device).to(part.dtype).expand(*part.shape[:-1], len(carried)).clone()
        whole[..., varies] = part
        return whole

    weights, bias = as_tensor(path.weights), as_tensor(path.bias)
    constant = torch.where(carried, -ABSENT_BIAS, ABSENT_BIAS)
    return LogisticPath(
        inverse_penalties=path.inverse_penalties,
        weights=as_kind(spread(weights[..., 1] - weights[..., 0], 0.0), like),
        bias=as_kind(spread(bias[..., 1] - bias[..., 0], constant), like),
        converged=as_kind(spread(path.converged, True), like),
        gradient=as_kind(spread(path.gradient, 0.0), like),
        gradient_at_zero=as_kind(spread(path.gradient_at_zero, 0.0), like),
        objective=as_kind(spread(path.objective, 0.0), like),
        iterations=as_kind(spread(path.iterations, 0), like),
    )


def _pose(rows: Rows, tasks: Tasks, grid: torch.Tensor, memory_bytes: int) -> tuple[LogisticProblem, torch.Tensor]:
    """Return the fits, penalties from strong to weak, and the position in the grid of each (P,)."""
    order = grid.argsort(stable=True)
    share = None if tasks.weight is None else tasks.weight / tasks.totals[:, None]
    penalties = 1 / (grid[order].to(rows.device) * tasks.totals[:, None])
    counts = tasks.present.sum(1)
    two = len(tasks.classes) == 2
    if not two:
        # Two classes of several have two columns of opposite sign, whose squares sum to half of those of the one that sets them apart.
        penalties = penalties * torch.where(counts == 2, 2.0, 1.0)[:, None]
    sets = rows.shape[0]
    held_bytes = _held_bytes(rows, sets)
    design = make_design(
        rows,
        share if share is None or sets > 1 else share.mean(0, keepdim=True),
        small=_ROTATION_GAIN * float(penalties.min()) * (4 if two else int(counts.min())),
        hold=held_bytes <= memory_bytes // 4 or sets > 1,
        turn=len(tasks.classes) < FEW_COLUMNS and held_bytes <= memory_bytes // 8 and rows.device.type == "cpu",
    )
    curvature = torch.where(counts == 2, 0.25 if two else 0.5, 1 / counts)
    squares = torch.cat([design.variances, design.variances.new_ones((sets, 1))], 1)
    ridge = penalties[..., None] * torch.cat([torch.ones_like(design.variances[:1]), design.variances.new_zeros((1, 1))], 1)
    scaling = ((squares * curvature[:, None])[:, None] + ridge).sqrt().flatten(0, 1)
    wide = _CUDA_BLOCK_BYTES if rows.device.type == "cuda" else _BLOCK_BYTES
    problem = LogisticProblem(
        design=design,
        codes=tasks.codes,
        share=share,
        absent=None if bool(tasks.present.all()) else ~tasks.present,
        num_classes=len(tasks.classes),
        penalties=penalties.flatten(),
        scaling=scaling,
        block_bytes=max(1, min(wide, memory_bytes // 16)),
    )
    return problem, order


@dataclass(slots=True)
class _Solver:
    """Solve fits in turns whose history fits, first in the precision of the features, then in float64 where that no longer descends."""

    problem: LogisticProblem
    reference: torch.Tensor
    tolerance: float
    max_iterations: int
    together: int
    end: Minimum
    at_zero: tuple[torch.Tensor, torch.Tensor]

    def solve(self, fits: torch.Tensor, start: torch.Tensor | None) -> torch.Tensor:
        """Bring fits (A,) to their end from weights (A, columns, r + 1), or those of ``at_zero`` from zero; return their weights there."""
        problem = self.problem
        for first in range(0, len(fits), self.together):
            at = slice(first, first + self.together)
            if start is None:
                values, gradients = (part[at] for part in self.at_zero)
                found = self._run(fits[at], torch.zeros_like(gradients), 0, self.max_iterations, (values, gradients))
            else:
                found = self._run(fits[at], problem.scale(start[at], fits[at]), _LEAST_STEPS, self.max_iterations)
            self._write(fits[at], found)
        stalled = fits[~self.end.converged[fits] & (self.end.iterations[fits] < self.max_iterations)]
        if problem.design.mean.dtype == torch.float32 and len(stalled):
            for chosen in torch.split(stalled, max(1, self.together // 2)):
                done = self.end.iterations[chosen]
                finer = self._run(chosen, self.end.points[chosen].double(), 0, self.max_iterations - int(done.max()))
                finer.iterations += done
                self._write(chosen, finer)
        return problem.unscale(self.end.points[fits], fits)

    def _write(self, fits: torch.Tensor, found: Minimum) -> None:
        for name in Minimum.__slots__:
            whole = getattr(self.end, name)
            whole[fits] = getattr(found, name).to(whole.dtype)

    @property
    def error(self) -> float:
        """Return the largest relative error of the objective."""
        return max(MAX_OBJECTIVE_ERROR, _ERROR_BY_TOLERANCE * self.tolerance)

    def _run(
        self, fits: torch.Tensor, start: torch.Tensor, least: int, most: int, known: tuple[torch.Tensor, torch.Tensor] | None = None
    ) -> Minimum:
        def finished(inner: torch.Tensor, values: torch.Tensor, gradients: torch.Tensor, directions: torch.Tensor) -> torch.Tensor:
            by_scale = dot(gradients, gradients).to(torch.float64) / 2
            by_model = -dot(gradients, directions).to(torch.float64) / 2
            done = torch.maximum(by_scale, by_model) <= self.error / _ESTIMATE_SAFETY * values.abs()
            at = done.nonzero().flatten()
            if len(at):
                chosen = fits[inner[at]]
                limit = self.tolerance * self.reference[self.problem.tasks_of(chosen)]
                done[at] = self.problem.largest_slopes(gradients[at], chosen) <= limit
            return done

        made_for, chosen = fits[:0], self.problem.choose(fits, start.dtype)

        def evaluate(points: torch.Tensor, inner: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            nonlocal made_for, chosen
            if inner is not made_for:  # as long as none has ended it is the same tensor
                made_for, chosen = inner, self.problem.choose(fits[inner], points.dtype)
            return chosen.evaluate(points)

        return minimise(start, evaluate, finished, max_iterations=most, least=least, memory=_HISTORY, known=known)


def _solve(
    problem: LogisticProblem, grid: torch.Tensor, tolerance: float, max_iterations: int, memory_bytes: int
) -> tuple[Minimum, torch.Tensor]:
    """Follow the path of all tasks, and return the ends with each task's largest slope at zero (T,)."""
    count, num_penalties = len(problem.penalties), len(grid)
    first = torch.arange(0, count, num_penalties, device=problem.penalties.device)
    points = problem.design.mean.new_zeros((len(first), problem.size))
    at_zero = problem.choose(first, points.dtype).evaluate(points)
    reference = problem.largest_slopes(at_zero[1], first)
    bytes_a_fit = _VECTORS * problem.size * points.element_size()
    end = Minimum(
        points=points.new_zeros((count, problem.size)),
        values=torch.zeros(count, dtype=torch.float64, device=points.device),
        gradients=points.new_zeros((count, problem.size)),
        converged=torch.zeros(count, dtype=torch.bool, device=points.device),
        iterations=torch.zeros(count, dtype=torch.int64, device=points.device),
    )
    solver = _Solver(problem, reference, tolerance, max_iterations, max(1, memory_bytes // 2 // bytes_a_fit), end, at_zero)

    def solve(group: list[int], start: torch.Tensor | None) -> torch.Tensor:
        fits = (first[:, None] + torch.tensor(group, device=first.device)).flatten()
        found = solver.solve(fits, None if start is None else start.flatten(0, 1))
        return found.view(len(first), len(group), *found.shape[1:])

    follow_path(torch.log(grid).tolist(), solve)
    return end, reference


def _finish(
    problem: LogisticProblem,
    end: Minimum,
    reference: torch.Tensor,
    tasks: Tasks,
    grid: torch.Tensor,
    order: torch.Tensor,
    like: Any,
) -> LogisticPath:
    """Rotate the fits back, spread them over all classes, and word them as the caller's kind and order."""
    count = len(tasks.codes)
    fits = torch.arange(len(end.values), device=end.values.device)
    largest = problem.largest_slopes(end.gradients, fits)
    back = order.argsort().to(fits.device)

    def arrange(values: torch.Tensor) -> Any:
        ordered = values.view(count, len(grid), *values.shape[1:])[:, back]
        return as_kind(ordered if tasks.several else ordered[0], like)

    weights, bias = _spread_classes(problem, end.points, fits, tasks)
    totals = tasks.totals.repeat_interleave(len(grid)) * grid[order].to(fits.device).repeat(count)
    return LogisticPath(
        inverse_penalties=tuple(grid.tolist()),
        weights=arrange(weights),
        bias=arrange(bias),
        converged=arrange(end.converged),
        gradient=arrange(largest),
        gradient_at_zero=as_kind(reference, like) if tasks.several else float(reference[0]),
        objective=arrange(end.values * totals),
        iterations=arrange(end.iterations),
    )


def _spread_classes(problem: LogisticProblem, points: torch.Tensor, fits: torch.Tensor, tasks: Tasks) -> tuple[torch.Tensor, torch.Tensor]:
    """Return weights (F, D, C) and bias (F, C) over all classes, in the precision of the features, a few fits at a time."""
    dimensions, dtype = problem.design.mean.shape[1], points.dtype
    weights = points.new_zeros((len(fits), dimensions, tasks.size))
    bias = points.new_full((len(fits), tasks.size), ABSENT_BIAS)
    for chosen in torch.split(fits, max(1, 2**26 // (8 * dimensions * tasks.size))):
        scaled = problem.unscale(points[chosen].double(), chosen)
        fitted, shift = problem.design.restore(scaled[..., :-1], scaled[..., -1], problem.sets_of(chosen))
        if problem.columns == 1:
            fitted, shift = torch.cat([-fitted, fitted], 1) / 2, torch.cat([-shift, shift], 1) / 2
        if problem.absent is not None:
            absent = problem.absent[problem.tasks_of(chosen)]
            shift, fitted = shift.masked_fill(absent, ABSENT_BIAS), fitted.masked_fill(absent[..., None], 0.0)
        weights[chosen[:, None], :, tasks.classes] = fitted.to(dtype)
        bias[chosen[:, None], tasks.classes] = shift.to(dtype)
    return weights, bias
