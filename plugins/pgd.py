"""Projected gradient descent on inputs, against an encoder's vectors or a head on top of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from evalharness import AttackModel, ShiftSpec, hookimpl
from evalharness.errors import DataError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch

NORMS = ("linf", "l2")
OBJECTIVES = ("auto", "displacement", "margin", "cross-entropy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """Say what an attack makes large.

    ``labels`` (B,) int64 belong to the head's classes, or lie outside them where the class is unknown.
    """

    model: AttackModel
    objective: str
    labels: torch.Tensor | None

    def measure(self, batch: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        """Return scores (b,) of inputs (b, ...) that belong to ``items`` (b,) int64; infinite where the label is unknown."""
        import torch

        if self.objective == "displacement":
            return (self.model.encode(batch) - self.model.clean[items]).float().square().sum(dim=1)
        assert self.model.logits is not None
        assert self.labels is not None
        logits = self.model.logits(batch).float()
        labels = self.labels[items]
        known = (labels >= 0) & (labels < logits.shape[1])
        own = torch.where(known, labels, 0)
        if self.objective == "cross-entropy":
            return torch.where(known, torch.nn.functional.cross_entropy(logits, own, reduction="none"), torch.inf)
        rival = logits.scatter(1, own[:, None], -torch.inf).amax(dim=1)
        return torch.where(known, rival - logits.gather(1, own[:, None])[:, 0], torch.inf)

    def is_open(self, scores: torch.Tensor) -> torch.Tensor:
        """Return whether an item of this score is worth more work: under ``margin`` until another class leads."""
        return scores <= 0 if self.objective == "margin" else scores.isfinite()


@dataclass(slots=True, kw_only=True)
class Best:
    """Hold the best point of each item so far: ``points`` (B, ...) and ``scores`` (B,)."""

    points: torch.Tensor
    scores: torch.Tensor

    def update(self, items: torch.Tensor, points: torch.Tensor, scores: torch.Tensor) -> None:
        """Take the points that score higher."""
        better = scores > self.scores[items]
        self.points[items[better]] = points[better]
        self.scores[items[better]] = scores[better]

    def go_on(self, inputs: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        """Return the best points (B, ...) where they differ from the inputs, else the start."""
        import torch

        moved = (self.points != inputs).flatten(1).any(dim=1).view(-1, *[1] * (inputs.ndim - 1))
        return torch.where(moved, self.points, start)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ball:
    """Hold one budget: the norm, the radius and the length of a step."""

    norm: str
    radius: float
    step: float
    bounds: tuple[float, float]

    def draw(self, inputs: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Return a random point (B, ...) of the ball about each input; keys (B,) int64."""
        import torch

        from evalharness.numerics import keyed_normal, keyed_uniform

        keys = keys.to(inputs.device)
        if self.norm == "linf":
            return self.project(inputs + self.radius * (2 * keyed_uniform(keys, inputs.shape[1:]) - 1), inputs)
        steps = keyed_normal(keys, inputs.shape[1:]).flatten(1)
        lengths = keyed_uniform(~keys, (1,)) ** (1 / steps.shape[1]) * self.radius
        scaled = steps / torch.linalg.vector_norm(steps, dim=1, keepdim=True) * lengths
        return self.project(inputs + scaled.view_as(inputs), inputs)

    def ascend(self, points: torch.Tensor, gradient: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        """Step up a gradient (b, ...) and come back into the ball."""
        if self.norm == "linf":
            return self.project(points + self.step * gradient.sign(), inputs)
        return self.project(points + self.step * gradient / _norms(gradient).clamp_min(1e-30), inputs)

    def project(self, points: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        """Return the points (b, ...) in the ball about the inputs and in the data range."""
        delta = points - inputs
        if self.norm == "linf":
            delta = delta.clamp(-self.radius, self.radius)
        else:
            # A little inside, since rounding of the sum may not pass the radius.
            delta = delta * (self.radius * (1 - 1e-6) / _norms(delta).clamp_min(1e-30)).clamp_max(1)
        return (inputs + delta).clamp(*self.bounds)


def _norms(values: torch.Tensor) -> torch.Tensor:
    """Return Euclidean norms of items (b, ...), with axes of length 1."""
    import torch

    norms: torch.Tensor = torch.linalg.vector_norm(values.flatten(1), dim=1)
    return norms.view(-1, *[1] * (values.ndim - 1))


def attack(
    inputs: torch.Tensor,
    severities: Sequence[float],
    keys: torch.Tensor,
    *,
    model: AttackModel | None = None,
    labels: torch.Tensor | None = None,
    norm: str = "linf",
    steps: int = 40,
    restarts: int = 1,
    step_size: float | None = None,
    objective: str = "auto",
) -> list[torch.Tensor]:
    """Return for every budget the best point found so far, item by item.

    The first run of a larger budget goes on from the best point of the one before; all other runs start at random, since at the clean input every distance has gradient zero.
    The best point of all steps is kept and competes under every larger budget, so the objective never falls.
    Under ``margin`` an item is left alone once another class leads; items that are wrong already, or whose label the head does not know, stay as they are.

    Args:
        inputs: (B, ...) float in the bounds of the model.
        severities: S radii, in the units of the data range; 0 gives the inputs.
        keys: (S, B) int64, the only randomness.
        model: what may be asked; gradients of ``encode`` or ``logits`` are taken to the inputs alone.
        labels: (B,) int64, needed with a head.
        norm: ``linf`` or ``l2``.
        steps: steps a run.
        restarts: runs a budget.
        step_size: the length of a step; 2.5 · radius / steps by default.
        objective: ``displacement`` of vectors (squared Euclidean distance), ``margin`` by which a wrong class leads, ``cross-entropy``, or ``auto``: margin where there is a head, else displacement.

    Returns:
        S batches (B, ...) in the order of ``severities``.

    Raises:
        DataError: a gradient is not finite.
        UsageError: a parameter makes no sense, a head is needed and missing, or there are no gradients.

    Source:
        Madry et al. 2018; METRICS.md 7.
    """
    import torch

    assert model is not None
    _check(severities, norm, steps, restarts, step_size)
    goal = make_goal(model, labels, objective)
    everyone = torch.arange(len(inputs), device=inputs.device)
    with torch.no_grad():
        best = Best(points=inputs.clone(), scores=goal.measure(inputs, everyone))
    batches: list[torch.Tensor] = [inputs] * len(severities)
    for at in sorted(range(len(severities)), key=lambda at: severities[at]):
        radius = severities[at]
        ball = Ball(norm=norm, radius=radius, step=step_size or 2.5 * radius / steps, bounds=model.bounds)
        for restart in range(restarts if radius > 0 else 0):
            start = ball.draw(inputs, keys[at] ^ restart)
            _run(goal, ball, start if restart else best.go_on(inputs, start), inputs, best, steps)
        batches[at] = best.points.clone()
    return batches


def _check(severities: Sequence[float], norm: str, steps: int, restarts: int, step_size: float | None) -> None:
    if norm not in NORMS:
        raise UsageError(f"expected `norm` of `pgd` to be `linf` or `l2`, got `{norm}`")
    for name, value in (("steps", steps), ("restarts", restarts)):
        if value < 1:
            raise UsageError(f"expected `{name}` of `pgd` to be at least 1, got {value}")
    if step_size is not None and not step_size > 0:
        raise UsageError(f"expected a positive `step_size` of `pgd`, got {step_size:g}")
    if min(severities) < 0:
        raise UsageError(f"expected budgets of `pgd` to be 0 or more, got {min(severities):g}")


def make_goal(model: AttackModel, labels: torch.Tensor | None, objective: str) -> Goal:
    """Return what an objective's name means for a model.

    Raises:
        UsageError: the name is unknown, or needs a head that is not there.
    """
    if objective not in OBJECTIVES:
        raise UsageError(f"expected `objective` of `pgd` to be one of {', '.join(OBJECTIVES)}, got `{objective}`")
    if objective == "auto":
        objective = "displacement" if model.logits is None else "margin"
    if objective != "displacement" and (model.logits is None or labels is None):
        raise UsageError(f"objective `{objective}` of `pgd` needs a head; name an evaluator that has one in `through`")
    return Goal(model=model, objective=objective, labels=labels)


def _run(goal: Goal, ball: Ball, start: torch.Tensor, inputs: torch.Tensor, best: Best, steps: int) -> None:
    """Climb from a start (B, ...) with the items that are still open, and keep what is best."""
    import torch

    items = goal.is_open(best.scores).nonzero().flatten()
    points = start[items]
    for _ in range(steps):
        if not len(items):
            return
        points.requires_grad_()
        scores = goal.measure(points, items)
        gradient = _gradient(scores, points)
        points, scores = points.detach(), scores.detach()
        best.update(items, points, scores)
        is_open = goal.is_open(scores)
        items, points, gradient = items[is_open], points[is_open], gradient[is_open]
        points = ball.ascend(points, gradient, inputs[items])
    if len(items):
        with torch.no_grad():
            best.update(items, points, goal.measure(points, items))


def _gradient(scores: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    """Return the gradient (b, ...) of scores (b,) with respect to the points alone: parameters get none."""
    import torch

    if not scores.requires_grad:
        raise UsageError("`pgd` needs gradients, and the encoder's vectors have none; an encoder must not detach, nor work under `no_grad`")
    (gradient,) = torch.autograd.grad(scores.sum(), points)
    if not bool(gradient.isfinite().all()):
        raise DataError("`pgd` met a gradient that is NaN or infinite; look for a square root or a division at 0 in the encoder")
    return gradient


@hookimpl
def evalharness_shifts() -> Iterable[ShiftSpec]:
    """Register `pgd`."""
    yield ShiftSpec(
        name="pgd",
        summary="Projected gradient ascent on displacement, margin or cross-entropy, within an L-infinity or L2 ball",
        source="Madry et al. 2018",
        params={"norm": "linf", "steps": 40, "restarts": 1, "step_size": None, "objective": "auto"},
        mechanism="attack",
        apply=attack,
        kind="attack",
        shift_type="adversarial",
        modality="image",
        severities=(1 / 255, 2 / 255, 4 / 255, 8 / 255),
        access=("encode", "gradient"),
    )
