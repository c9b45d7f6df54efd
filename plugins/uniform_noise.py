"""Random points of the attack's ball, the best of several kept: what an attack by gradient must beat."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evalharness import AttackModel, ShiftSpec, hookimpl
from evalharness.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import torch

NORMS = ("linf", "l2")
OBJECTIVES = ("displacement", "margin")


def perturb(
    inputs: torch.Tensor,
    severities: Sequence[float],
    keys: torch.Tensor,
    *,
    model: AttackModel | None = None,
    labels: torch.Tensor | None = None,
    norm: str = "linf",
    restarts: int = 3,
    objective: str = "displacement",
) -> list[torch.Tensor]:
    """Return for every budget the best point found so far, item by item.

    What was best under a smaller budget competes under every larger one, so the objective never falls.
    Items whose label the head does not know count as wrong already, and stay as they are under ``margin``.

    Args:
        inputs: (B, ...) float in the bounds of the model.
        severities: S radii, in the units of the data range; 0 gives the inputs.
        keys: (S, B) int64, the only randomness.
        model: what may be asked.
        labels: (B,) int64 for ``margin``; unknown classes are at or above the head's number of classes, or below 0.
        norm: ``linf`` (uniform in the cube) or ``l2`` (uniform in the ball).
        restarts: points a budget.
        objective: ``displacement``, the distance of embeddings, or ``margin``, by which a wrong class leads.

    Returns:
        S batches (B, ...) in the order of ``severities``.

    Raises:
        UsageError: a parameter makes no sense, or ``margin`` without a head.

    Source:
        METRICS.md 7: random noise in the ball is the control of an attack by gradient.
    """
    import torch

    _check(severities, norm, restarts)
    assert model is not None
    measure = _objective(model, labels, objective)
    batches: list[torch.Tensor] = [inputs] * len(severities)
    with torch.no_grad():
        best, scores = inputs, measure(inputs)
        for at in sorted(range(len(severities)), key=lambda at: severities[at]):
            for restart in range(restarts if severities[at] > 0 else 0):
                point = draw_point(inputs, keys[at] ^ restart, severities[at], norm).clamp(*model.bounds)
                found = measure(point)
                better = found > scores
                scores = torch.where(better, found, scores)
                best = torch.where(better.view(-1, *[1] * (inputs.ndim - 1)), point, best)
            batches[at] = best
    return batches


def _check(severities: Sequence[float], norm: str, restarts: int) -> None:
    if norm not in NORMS:
        raise UsageError(f"expected `norm` of `uniform-noise` to be `linf` or `l2`, got `{norm}`")
    if restarts < 1:
        raise UsageError(f"expected `restarts` of `uniform-noise` to be at least 1, got {restarts}")
    if min(severities) < 0:
        raise UsageError(f"expected budgets of `uniform-noise` to be 0 or more, got {min(severities):g}")


def _objective(model: AttackModel, labels: torch.Tensor | None, objective: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the map of a batch to scores (B,), higher is worse for the model."""
    import torch

    if objective not in OBJECTIVES:
        raise UsageError(f"expected `objective` of `uniform-noise` to be `displacement` or `margin`, got `{objective}`")
    if objective == "displacement":
        return lambda batch: (model.encode(batch) - model.clean).float().square().sum(dim=1)
    logits = model.logits
    if logits is None or labels is None:
        raise UsageError("objective `margin` of `uniform-noise` needs a head; name an evaluator that has one in `through`")

    def measure(batch: torch.Tensor) -> torch.Tensor:
        found = logits(batch).float()
        known = (labels >= 0) & (labels < found.shape[1])
        own = torch.where(known, labels, 0)[:, None]
        margin = found.scatter(1, own, -torch.inf).amax(dim=1) - found.gather(1, own)[:, 0]
        return torch.where(known, margin, torch.inf)

    return measure


def draw_point(inputs: torch.Tensor, keys: torch.Tensor, radius: float, norm: str) -> torch.Tensor:
    """Return a random point (B, ...) of the ball about each input; keys (B,) int64."""
    import torch

    from evalharness.numerics import keyed_normal, keyed_uniform

    keys = keys.to(inputs.device)
    if norm == "linf":
        cube: torch.Tensor = 2 * keyed_uniform(keys, inputs.shape[1:]) - 1
        return inputs + radius * cube
    steps: torch.Tensor = keyed_normal(keys, inputs.shape[1:]).flatten(1)
    lengths = keyed_uniform(~keys, (1,)) ** (1 / steps.shape[1])
    # A little inside, since rounding of the sum may not pass the radius.
    scaled: torch.Tensor = steps / torch.linalg.vector_norm(steps, dim=1, keepdim=True) * lengths * (radius * (1 - 1e-6))
    return inputs + scaled.view_as(inputs)


@hookimpl
def evalharness_shifts() -> Iterable[ShiftSpec]:
    """Register `uniform-noise`."""
    yield ShiftSpec(
        name="uniform-noise",
        summary="The best of a few random points within the budget; the control of attacks by gradient",
        source="METRICS.md 7",
        params={"norm": "linf", "restarts": 3, "objective": "displacement"},
        mechanism="attack",
        apply=perturb,
        kind="attack",
        shift_type="noise",
        modality="image",
        severities=(1 / 255, 2 / 255, 4 / 255, 8 / 255),
        access=("encode",),
    )
