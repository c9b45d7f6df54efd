"""Probes of multilabel targets: one logistic regression a label against its absence, with one penalty for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from evalharness import Outcome, Table
from evalharness.types import Status

from .classes import SOLVER
from .settings import LinearMap, Rows, choose_penalty, rows_of, target_of

if TYPE_CHECKING:
    import torch

NEVER = -1e4  # the log odds of a label that no training row carries


@dataclass(slots=True, kw_only=True)
class LabelProbe(LinearMap):
    """Hold a fitted probe, whose outputs are log odds; labels are named where they exceed ``threshold``."""

    threshold: float

    def score(self, table: Table) -> Outcome:
        """Return the labels and their log odds of every row, and its counts for micro-F1."""
        stuck = self.details["labels_not_converged"]
        status: Status = "not_converged" if stuck else "measured"
        reason = f"{stuck} labels had not converged after the last iteration" if stuck else None
        return replace(
            label_outcome(self.outputs(table.vectors.dense()), table, self.threshold, self.details), status=status, reason=reason
        )


def label_outcome(scores: torch.Tensor, table: Table, threshold: float, details: dict[str, Any]) -> Outcome:
    """Return the outcome of scores (N, L), with the labels that no row carries among its details."""
    from evalharness.numerics import label_columns

    truth = rows_of(table).targets.cpu()
    missing = [target_of(table).names[at] for at in (~truth.any(dim=0)).nonzero().flatten().tolist()]
    facts = {**details, "labels_without_positives": missing} if missing else details
    return Outcome(item="sample", part="items", rows=table.rows, columns=label_columns(scores.cpu(), truth, threshold), details=facts)


def fit_labels(rows: tuple[Rows, Rows | None, Rows | None], penalties: Sequence[float], *, scale: str, **limits: Any) -> LabelProbe:
    """Learn all labels at every penalty, keep the penalty of the highest macro average precision on validation rows, and the threshold of the highest micro-F1 there.

    Without validation rows the threshold is even odds.

    Raises:
        DataError: no label varies in the training rows, or there are several penalties and no validation rows.
    """
    from evalharness.numerics import one_vs_rest_path

    def solve(vectors: torch.Tensor, targets: torch.Tensor, grid: Sequence[float]) -> Any:
        return one_vs_rest_path(vectors, targets, grid, **limits)

    found = choose_penalty(rows, penalties, scale, solve, _judge, always=True)
    precision, threshold = found.verdict or (None, 0.0)
    path, at = found.path, found.place
    stuck = int((~path.converged[at]).sum())
    found.details |= {
        "solver": SOLVER,
        "converged": stuck == 0,
        "labels_not_converged": stuck,
        "relative_gradient": float((path.gradient[at] / path.gradient_at_zero.clamp_min(1e-300)).max()),
        "threshold": threshold,
        "threshold_from": "even odds" if found.verdict is None else "validation",
        "validation_average_precision": precision,
        "num_labels": path.bias.shape[1],
        "labels_without_training_rows": int((path.bias[at] <= NEVER).sum()),
    }
    return LabelProbe(**found.map, threshold=threshold)


def _judge(path: Any, vectors: torch.Tensor, truth: torch.Tensor) -> tuple[int, tuple[float, float]]:
    """Return the position of the highest macro average precision, its value, and the best threshold there; the stronger penalty wins a tie."""
    from evalharness import stats
    from evalharness.numerics import best_threshold

    odds, carried = path.logits(vectors).cpu(), truth.cpu()
    weights = np.ones((1, len(carried)))
    values = [float(stats.macro_average_precision(carried.numpy(), each.numpy(), weights)[0]) for each in odds]
    best = int(np.nanargmax(values)) if np.isfinite(values).any() else 0
    return best, (values[best], best_threshold(odds[best], carried))
