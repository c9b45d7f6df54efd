"""Labels that items may carry several of: where to cut their scores, and the columns that their metrics are made from."""

from __future__ import annotations

from typing import Any

import torch

from evalharness.errors import UsageError
from evalharness.numerics._arrays import as_kind, as_tensor


def best_threshold(scores: Any, truth: Any) -> float:
    """Return the threshold on scores, one for all labels, of the highest micro-F1: half way from the last score above it to the next below.

    Args:
        scores: (N, L) tensor or array of any range, higher for labels that are likelier carried.
        truth: (N, L) bool, which labels each item carries.

    Raises:
        UsageError: the shapes differ, or there is no score.

    Source:
        METRICS.md 1.3.
    """
    flat, carried = as_tensor(scores).flatten().double(), as_tensor(truth).flatten()
    if flat.shape != carried.shape or not len(flat):
        raise UsageError(
            f"`scores` and `truth` must have one shape (N, L) and an entry, got {tuple(scores.shape)} and {tuple(truth.shape)}"
        )
    flat, order = flat.sort(descending=True)
    hits = carried[order].cumsum(0).double()
    named = torch.arange(1, len(flat) + 1, dtype=torch.float64, device=flat.device)
    ends = torch.cat([flat[1:] < flat[:-1], torch.ones_like(flat[:1], dtype=torch.bool)])
    best = int(torch.where(ends, 2 * hits / (named + carried.sum()), -1.0).argmax())
    least = flat[best]
    below = flat[best + 1] if best + 1 < len(flat) else least - least.abs().clamp_min(1.0)
    middle = (least + below) / 2
    # Half way between neighbouring numbers is one of them, and what is named must exceed it.
    return float(middle if middle < least else below)


def label_columns(scores: Any, truth: Any, threshold: Any) -> dict[str, Any]:
    """Return the columns of an outcome that metrics of labels are made from.

    Args:
        scores: (N, L) tensor or array.
        truth: (N, L) bool, of the same kind.
        threshold: labels are named where their score exceeds it; a number, or (N, 1), of the same kind.

    Returns:
        ``relevant`` and ``label_score`` (N, L) for ``macro_average_precision``; ``agreed`` and ``named`` (N,) for micro-F1 as a ``ratio``:
        twice the labels that are rightly named, and those that are named or carried.
    """
    found, carried = as_tensor(scores), as_tensor(truth)
    predicted = found > threshold
    agreed, named = 2 * (predicted & carried).sum(1), predicted.sum(1) + carried.sum(1)
    return {"relevant": truth, "label_score": scores, "agreed": as_kind(agreed, scores), "named": as_kind(named, scores)}
