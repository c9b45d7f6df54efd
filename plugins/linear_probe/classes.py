"""Probes of class targets: multinomial logistic regression, its penalty chosen on validation rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from evalharness import Outcome, Table
from evalharness.errors import DataError
from evalharness.types import Status

from .settings import LinearMap, Rows, choose_penalty, rows_of, target_of

if TYPE_CHECKING:
    import torch

SOLVER = "L-BFGS in the eigenbasis, along the path of penalties"
LARGEST_LOSS = 27.631021115928547  # -ln 1e-12
BLOCK_ROWS = 4096


@dataclass(slots=True, kw_only=True)
class ClassProbe(LinearMap):
    """Hold a fitted probe, whose outputs are logits; ``majority`` is the commonest class of its training rows."""

    majority: int

    def logits(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return (B, C) logits of vectors (B, D)."""
        return self.outputs(vectors)

    def score(self, table: Table) -> Outcome:
        """Return what was seen of every row; a fit that did not converge says so."""
        converged = self.details["converged"]
        reason = None if converged else f"relative gradient {self.details['relative_gradient']:.2g} after the last iteration"
        return class_outcome(self.logits(table.vectors.dense()), table, self.majority, self.details, reason)


def fit_classes(
    rows: tuple[Rows, Rows | None, Rows | None], penalties: Sequence[float], *, scale: str, class_weight: str | None, **limits: Any
) -> ClassProbe:
    """Learn one probe a penalty, and keep the one most accurate on validation rows.

    Fits that did not converge are chosen only where none did. Ties in accuracy go to the lower log loss, then to the stronger penalty.

    Raises:
        DataError: the training rows hold a single class, or there are several penalties and no validation rows.
    """
    from evalharness.numerics import logistic_path

    check_two_classes(rows[0])

    def solve(vectors: torch.Tensor, targets: torch.Tensor, grid: Sequence[float]) -> Any:
        return logistic_path(vectors, targets, grid, class_weight=class_weight, **limits)

    found = choose_penalty(rows, penalties, scale, solve, _judge)
    accuracy, unconverged = found.verdict or (None, 0)
    path, at = found.path, found.place
    found.details |= {
        "solver": SOLVER,
        "converged": bool(path.converged[at]),
        "relative_gradient": float(path.gradient[at]) / path.gradient_at_zero,
        "iterations": int(path.iterations[at]),
        "not_converged": unconverged,
        "validation_accuracy": accuracy,
        **describe_classes(found.rows),
    }
    return ClassProbe(**found.map, majority=majority_of(found.rows))


def check_two_classes(rows: Rows) -> None:
    """Refuse training rows of one class.

    Raises:
        DataError: they are.
    """
    import torch

    present = torch.unique(rows.targets)
    if len(present) < 2:
        raise DataError(f"a probe needs two classes in its training rows, got only `{rows.names[int(present[0])] if rows.names else '?'}`")


def describe_classes(rows: Rows) -> dict[str, Any]:
    """Return the number of classes, and the rows of the rarest."""
    counts = rows.targets.bincount()
    return {"num_classes": len(rows.names), "rows_of_the_rarest_class": int(counts[counts > 0].min())}


def majority_of(rows: Rows) -> int:
    """Return the commonest class, the first of several."""
    counts = rows.targets.bincount()
    return int((counts == counts.max()).nonzero()[0])


def _judge(path: Any, vectors: torch.Tensor, codes: torch.Tensor) -> tuple[int, tuple[float, int]]:
    """Return the position of the best fit on validation rows, its accuracy, and how many fits did not converge; a class unseen in training is a miss."""
    import torch

    converged = path.converged.tolist()
    hits = torch.zeros(len(converged), dtype=torch.float64, device=codes.device)
    losses = torch.zeros_like(hits)
    for start in range(0, len(codes), BLOCK_ROWS):
        own = codes[start : start + BLOCK_ROWS]
        logits = path.logits(vectors[start : start + BLOCK_ROWS])
        hits += (logits.argmax(dim=-1) == own).sum(dim=-1)
        known = (own < logits.shape[-1]).nonzero().flatten()
        losses -= logits.log_softmax(dim=-1)[:, known, own[known]].clamp_min(-LARGEST_LOSS).sum(dim=-1, dtype=torch.float64)
    accuracy, loss = (hits / len(codes)).tolist(), losses.tolist()
    best = min(range(len(accuracy)), key=lambda at: (any(converged) and not converged[at], -accuracy[at], loss[at], at))
    return best, (accuracy[best], converged.count(False))


def class_outcome(logits: torch.Tensor, table: Table, majority: int, details: dict[str, Any], reason: str | None = None) -> Outcome:
    """Return truth, prediction, hit, log loss (nats), confidence, Brier score and the majority baseline of every row; ``reason`` says why it did not converge."""
    import torch

    truth = rows_of(table).targets
    log_p = logits.double().log_softmax(dim=1)
    num_classes = log_p.shape[1]
    prediction = log_p.argmax(dim=1)
    known = truth < num_classes
    own = torch.full_like(truth, -LARGEST_LOSS, dtype=torch.float64)
    own[known] = log_p[known].gather(1, truth[known, None])[:, 0].clamp_min(-LARGEST_LOSS)
    p = log_p.exp()
    columns: dict[str, Any] = {
        "truth": truth.cpu(),
        "prediction": prediction.cpu(),
        "hit": (prediction == truth).cpu(),
        "log_loss": -own.cpu(),
        "confidence": p.amax(dim=1).cpu(),
        "brier": (p.square().sum(dim=1) + 1 - 2 * torch.where(known, own.exp(), 0.0)).cpu(),
        "majority_hit": (truth == majority).cpu(),
    }
    if num_classes > 5:
        columns["top5_hit"] = (log_p.topk(5, dim=1).indices == truth[:, None]).any(dim=1).cpu()
    unseen = int((~known).sum())
    facts = {**details, "test_items_of_unseen_classes": unseen}
    if unseen:
        facts["unseen_classes"] = [target_of(table).names[code] for code in np.unique(target_of(table).values) if code >= num_classes][:20]
    status: Status = "measured" if reason is None else "not_converged"
    return Outcome(item="sample", part="items", rows=table.rows, columns=columns, details=facts, status=status, reason=reason)
