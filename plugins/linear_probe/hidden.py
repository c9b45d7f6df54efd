"""Probes with one hidden layer, for classes and numbers: several weight decays trained at once, the best epoch of the best kept by validation loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evalharness import Outcome, Table
from evalharness.errors import DataError, UsageError

from .classes import check_two_classes, class_outcome, describe_classes, majority_of
from .numbers import check_varies, number_outcome
from .settings import Rows, Scaling, make_scaling, place_in_grid

if TYPE_CHECKING:
    import torch

BATCH_ROWS = 256
STEPS_AN_EPOCH = 10  # at least, by smaller batches of small data
LEARNING_RATE = 2e-3
GAIN = 0.01  # of the validation loss, relative: the least that counts as progress


@dataclass(slots=True, kw_only=True)
class HiddenProbe:
    """Hold a fitted network: two layers of weights and biases, and for numbers the mean and spread of the target."""

    scaling: Scaling
    layers: tuple[torch.Tensor, ...]
    majority: int | None
    centre: float
    spread: float
    details: dict[str, Any]

    def logits(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return (B, C) logits of vectors (B, D)."""
        return apply(self.layers, self.scaling(vectors))

    def score(self, table: Table) -> Outcome:
        """Return what was seen of every row."""
        found = self.logits(table.vectors.dense())
        if self.majority is None:
            return number_outcome(found[:, 0].double() * self.spread + self.centre, table, self.details)
        return class_outcome(found, table, self.majority, self.details)


def apply(layers: Sequence[torch.Tensor], rows: torch.Tensor) -> torch.Tensor:
    """Return the output (..., B, C) of one network, or of M of them, for rows (B, D)."""
    first, first_bias, second, second_bias = layers
    return (rows @ first + first_bias).relu() @ second + second_bias


def fit_hidden(
    learned: Rows,
    judged: Rows | None,
    generator: torch.Generator,
    *,
    scale: str,
    hidden: int,
    weight_decays: Sequence[float],
    epochs: int,
    patience: int,
) -> HiddenProbe:
    """Train one network a weight decay by AdamW, all at once on the same batches, each until ``patience`` epochs have not lowered its validation loss by 1 %.

    Validation rows choose epoch and decay, so there is no refit on them.

    Raises:
        DataError: the training rows hold one class or one value, or there are no validation rows.
        UsageError: a size is not positive.
    """
    if judged is None:
        raise DataError("`mlp-probe` needs validation rows: they say when to stop")
    decays = sorted({float(each) for each in weight_decays})
    if min(hidden, epochs, patience) < 1 or not decays or decays[0] < 0:
        raise UsageError(
            "expected `hidden`, `epochs` and `patience` of at least 1 and `weight_decays` not negative, "
            f"got {hidden}, {epochs}, {patience} and {list(weight_decays)}"
        )
    is_class = not learned.targets.is_floating_point()
    if is_class:
        check_two_classes(learned)
    else:
        check_varies(learned.targets, "training")
    task = _pose(learned, judged, scale, is_class=is_class)
    layers, at, losses, ran = _train(task, generator, hidden, decays, epochs, patience)
    details = {
        "solver": "AdamW",
        "hidden": hidden,
        "weight_decay": decays[at],
        **place_in_grid(decays, decays[at]),
        "epochs": ran[at],
        "stopped_by": "epochs" if ran[at] == epochs else "patience",
        "validation_loss": losses[at],
        "scale": scale,
        "train_n": len(learned),
        "validation_n": len(judged),
        "refit_on_validation": False,
        **(describe_classes(learned) if is_class else {}),
    }
    majority = majority_of(learned) if is_class else None
    return HiddenProbe(scaling=task.scaling, layers=layers, majority=majority, centre=task.centre, spread=task.spread, details=details)


@dataclass(slots=True, kw_only=True)
class _Task:
    """Hold scaled rows and targets to learn from and to judge by; ``outputs`` is C, or 1 for numbers."""

    scaling: Scaling
    rows: torch.Tensor
    targets: torch.Tensor
    held: torch.Tensor
    held_targets: torch.Tensor
    outputs: int
    centre: float
    spread: float

    def losses(self, found: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return mean losses (M,) of outputs (M, B, C)."""
        import torch

        if targets.is_floating_point():
            return (found[..., 0] - targets).square().mean(dim=1)
        picked = found.log_softmax(dim=-1)[:, torch.arange(len(targets), device=targets.device), targets]
        return -picked.mean(dim=1)


def _pose(learned: Rows, judged: Rows, scale: str, *, is_class: bool) -> _Task:
    scaling = make_scaling(learned.vectors, scale)
    held, targets, held_targets = scaling(judged.vectors), learned.targets, judged.targets
    outputs, centre, spread = 1, 0.0, 1.0
    if is_class:
        outputs = len(learned.names)
        known = held_targets < outputs
        held, held_targets = held[known], held_targets[known]
    else:
        centre, spread = float(targets.mean()), float(targets.std(correction=0))
        targets, held_targets = (((each - centre) / spread).float() for each in (targets, held_targets))
    return _Task(
        scaling=scaling,
        rows=scaling(learned.vectors),
        targets=targets,
        held=held,
        held_targets=held_targets,
        outputs=outputs,
        centre=centre,
        spread=spread,
    )


def _train(
    task: _Task, generator: torch.Generator, hidden: int, decays: Sequence[float], epochs: int, patience: int
) -> tuple[tuple[torch.Tensor, ...], int, list[float], list[int]]:
    """Return the best layers, which decay they belong to, and the least validation loss and the epochs of each network."""
    import torch

    count, dimensions, device = len(decays), task.rows.shape[1], task.rows.device
    first = torch.randn(dimensions, hidden, generator=generator) * (2 / dimensions) ** 0.5
    second = torch.randn(hidden, task.outputs, generator=generator) / hidden**0.5
    shapes = (first, torch.zeros(1, hidden), second, torch.zeros(1, task.outputs))
    trained = _Networks([each.to(task.rows).expand(count, *each.shape).clone() for each in shapes], decays)
    kept = [each.detach().clone() for each in trained.layers]
    best = torch.full((count,), torch.inf, device=device)
    ran = torch.zeros(count, dtype=torch.int64, device=device)
    progress, progressed = best.clone(), torch.zeros_like(ran)  # the loss at the last progress, and its epoch
    running = torch.arange(count, device=device)
    size = max(16, min(BATCH_ROWS, len(task.rows) // STEPS_AN_EPOCH))
    for epoch in range(1, epochs + 1):
        for at in torch.split(torch.randperm(len(task.rows), generator=generator).to(device), size):
            trained.step(task, at)
        with torch.no_grad():
            losses = task.losses(apply(trained.layers, task.held), task.held_targets)
        better = losses < best[running]
        best[running[better]] = losses[better]
        ran[running] = epoch
        for new, old in zip(trained.layers, kept, strict=True):
            old[running[better]] = new.detach()[better]
        far = running[losses < progress[running] * (1 - GAIN)]
        progress[far], progressed[far] = best[far], epoch
        on = epoch - progressed[running] < patience
        if not bool(on.all()):
            trained.keep(on)
            running = running[on]
        if not len(running):
            break
    chosen = int(best.argmin())
    first_bias, second_bias = kept[1][chosen, 0], kept[3][chosen, 0]
    return (kept[0][chosen], first_bias, kept[2][chosen], second_bias), chosen, best.tolist(), ran.tolist()


class _Networks:
    """Take AdamW steps of M networks at once: ``layers`` are weights (M, D, H), biases (M, 1, H), weights (M, H, C) and biases (M, 1, C)."""

    def __init__(self, layers: Sequence[torch.Tensor], decays: Sequence[float]) -> None:
        import torch

        self._shrink = 1 - LEARNING_RATE * torch.tensor(decays, device=layers[0].device)[:, None, None]
        self._set(layers)

    def _set(self, layers: Sequence[torch.Tensor]) -> None:
        import torch

        self.layers = [each.requires_grad_() for each in layers]
        self._optimiser = torch.optim.Adam(self.layers, lr=LEARNING_RATE, fused=True)

    def step(self, task: _Task, at: torch.Tensor) -> None:
        """Learn from the rows (B,) of a task."""
        import torch

        self._optimiser.zero_grad()
        total = task.losses(apply(self.layers, task.rows[at]), task.targets[at]).sum()
        torch.autograd.backward(total)
        with torch.no_grad():
            for layer in (self.layers[0], self.layers[2]):
                layer.mul_(self._shrink)
        self._optimiser.step()

    def keep(self, on: torch.Tensor) -> None:
        """Go on with the networks that are marked (M,)."""
        states = [self._optimiser.state[layer] for layer in self.layers]
        self._shrink = self._shrink[on]
        self._set([layer.detach()[on] for layer in self.layers])
        for layer, state in zip(self.layers, states, strict=True):
            self._optimiser.state[layer] = {name: value if name == "step" else value[on] for name, value in state.items()}
