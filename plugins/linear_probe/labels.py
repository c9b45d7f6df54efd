"""Probes of multilabel targets: one logistic regression a label against its absence, with one penalty for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from evalharness import Outcome, Table
from evalharness.types import Status

from .classes import join_tables
from .settings import Scaling, check_validation, make_scaling, place_in_grid, target_of, target_tensor

if TYPE_CHECKING:
    import torch

NEVER = -1e4  # the log odds of a label that no training row carries


@dataclass(slots=True, kw_only=True)
class LabelProbe:
    """Hold a fitted probe: log odds are ``scaling(vectors) @ weights + bias``, labels are predicted where they exceed ``threshold``."""

    scaling: Scaling
    weights: torch.Tensor
    bias: torch.Tensor
    threshold: float
    details: dict[str, Any]

    def logits(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return (B, L) log odds of vectors (B, D)."""
        return self.scaling(vectors) @ self.weights + self.bias

    def score(self, table: Table) -> Outcome:
        """Return the labels and their log odds of every row, and its counts for micro-F1."""
        odds = self.logits(table.vectors.dense()).cpu()
        truth = target_tensor(table, odds.device)
        columns, details = label_columns(odds, truth, self.threshold, target_of(table).names)
        status: Status = "measured" if self.details["converged"] else "not_converged"
        reason = (
            None
            if self.details["converged"]
            else f"{self.details['labels_not_converged']} labels had not converged after the last iteration"
        )
        return Outcome(
            item="sample", part="items", rows=table.rows, columns=columns, details={**self.details, **details}, status=status, reason=reason
        )


def label_columns(
    scores: torch.Tensor, truth: torch.Tensor, threshold: float, names: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the columns that the metrics of labels are made from, and the labels that no row carries."""
    predicted = scores > threshold
    missing = [names[at] for at in (~truth.any(dim=0)).nonzero().flatten().tolist()]
    columns = {
        "relevant": truth,
        "label_score": scores,
        "agreed": 2 * (predicted & truth).sum(dim=1),
        "named": predicted.sum(dim=1) + truth.sum(dim=1),
    }
    return columns, {"labels_without_positives": missing} if missing else {}


def fit_labels(train: Table, validation: Table | None, penalties: Sequence[float], *, scale: str, **limits: Any) -> LabelProbe:
    """Learn all labels at every penalty, keep the penalty of the highest macro average precision on validation rows, and the threshold of the highest micro-F1 there.

    The fit is repeated on all rows where the validation rows were carved out of it. Without validation rows the threshold is even odds.
    """
    check_validation(penalties, validation)
    judged = validation is not None and len(validation) > 0
    path, scaling = _follow(train, penalties, scale, limits)
    at, precision, threshold = 0, None, 0.0
    if judged and validation is not None:
        odds = path.logits(scaling(validation.vectors.dense())).cpu()
        truth = target_tensor(validation, odds.device)
        at, precision = _choose(odds, truth)
        threshold = best_threshold(odds[at], truth)
    learned = train
    if judged and validation is not None and validation.carved:
        learned = join_tables(train, validation)
        path, scaling = _follow(learned, [penalties[at]], scale, limits)
        place = 0
    else:
        place = at
    stuck = int((~path.converged[place]).sum())
    details = {
        "solver": "L-BFGS in the eigenbasis, along the path of penalties",
        "penalty": "l2",
        "inverse_penalty": penalties[at],
        **place_in_grid(penalties, penalties[at]),
        "converged": stuck == 0,
        "labels_not_converged": stuck,
        "relative_gradient": float((path.gradient[place] / path.gradient_at_zero.clamp_min(1e-300)).max()),
        "threshold": threshold,
        "threshold_from": "validation" if judged else "even odds",
        "validation_average_precision": precision,
        "train_n": len(learned),
        "validation_n": 0 if validation is None else len(validation),
        "refit_on_validation": learned is not train,
        "num_labels": path.bias.shape[1],
        "labels_without_training_rows": int((path.bias[place] <= NEVER).sum()),
    }
    return LabelProbe(scaling=scaling, weights=path.weights[place], bias=path.bias[place], threshold=threshold, details=details)


def _follow(table: Table, penalties: Sequence[float], scale: str, limits: dict[str, Any]) -> tuple[Any, Scaling]:
    from evalharness.numerics import one_vs_rest_path

    vectors = table.vectors.dense().float()
    scaling = make_scaling(vectors, scale)
    return one_vs_rest_path(scaling(vectors), target_tensor(table), penalties, **limits), scaling


def _choose(odds: torch.Tensor, truth: torch.Tensor) -> tuple[int, float]:
    """Return the position and the value of the highest macro average precision of odds (P, N, L); the stronger penalty wins a tie."""
    from evalharness import stats

    reduce = stats.get_reducer("macro_average_precision")
    weights = np.ones((1, len(truth)))
    values = [float(reduce(truth.numpy(), each.numpy(), weights)[0]) for each in odds]
    best = int(np.nanargmax(values)) if np.isfinite(values).any() else 0
    return best, values[best]


def best_threshold(scores: torch.Tensor, truth: torch.Tensor) -> float:
    """Return the threshold on scores (N, L), one for all labels, of the highest micro-F1; half way to the next lower score."""
    import torch

    flat, order = scores.flatten().double().sort(descending=True)
    hits = truth.flatten()[order].cumsum(0).double()
    f1 = 2 * hits / (torch.arange(1, len(flat) + 1, dtype=torch.float64) + truth.sum())
    ends = torch.cat([flat[1:] < flat[:-1], torch.tensor([True])])
    best = int(torch.where(ends, f1, -1.0).argmax())
    below = flat[best + 1] if best + 1 < len(flat) else flat[best] - 1
    return float((flat[best] + below) / 2)
