"""Probes of class targets: multinomial logistic regression, its penalty chosen on validation rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from evalharness import Outcome, Table
from evalharness.errors import DataError
from evalharness.types import Status

from .settings import Scaling, check_validation, make_scaling, report_path, target_of, target_tensor

if TYPE_CHECKING:
    import torch

LARGEST_LOSS = 27.631021115928547  # -ln 1e-12
BLOCK_ROWS = 4096


@dataclass(slots=True, kw_only=True)
class ClassProbe:
    """Hold a fitted probe: logits are ``scaling(vectors) @ weights + bias``; ``majority`` is the commonest class of its training rows."""

    scaling: Scaling
    weights: torch.Tensor
    bias: torch.Tensor
    majority: int
    details: dict[str, Any]

    def logits(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return (B, C) logits of vectors (B, D)."""
        return self.scaling(vectors) @ self.weights + self.bias

    def score(self, table: Table) -> Outcome:
        """Return what was seen of every row; a fit that did not converge says so."""
        converged = self.details["converged"]
        reason = None if converged else f"relative gradient {self.details['relative_gradient']:.2g} after the last iteration"
        return class_outcome(self.logits(table.vectors.dense()), table, self.majority, self.details, reason)


def fit_classes(
    train: Table, validation: Table | None, penalties: Sequence[float], *, scale: str, class_weight: str | None, **limits: Any
) -> ClassProbe:
    """Learn one probe a penalty, keep the one most accurate on validation rows, and refit on both where those were carved out of the fit.

    Fits that did not converge are chosen only where none did. Ties in accuracy go to the lower log loss, then to the stronger penalty.

    Raises:
        DataError: the training rows hold a single class.
    """
    check_two_classes(train)
    judged = check_validation(penalties, validation)
    chosen, accuracy, unconverged = penalties[0], None, 0
    probe: ClassProbe | None = None
    if judged and validation is not None:
        path, scaling = _follow(train, penalties, scale, class_weight, limits)
        converged = np.asarray(path.converged.cpu())
        at, accuracy = _choose(path, scaling, validation, converged)
        chosen, unconverged = penalties[at], int((~converged).sum())
        probe = _probe(path, at, scaling, train, penalties, chosen)
    learned = train
    if validation is not None and validation.carved and len(validation):
        learned, probe = join_tables(train, validation), None
    if probe is None:
        path, scaling = _follow(learned, [chosen], scale, class_weight, limits)
        probe = _probe(path, 0, scaling, learned, penalties, chosen)
    probe.details |= {
        "not_converged": unconverged,
        "refit_on_validation": learned is not train,
        "validation_accuracy": accuracy,
        **describe_rows(learned, validation),
    }
    return probe


def check_two_classes(train: Table) -> None:
    """Refuse training rows of one class.

    Raises:
        DataError: they are.
    """
    target = target_of(train)
    if len(np.unique(target.values)) < 2:
        raise DataError(f"a probe needs two classes in its training rows, got only `{target.names[0] if target.names else '?'}`")


def describe_rows(train: Table, validation: Table | None) -> dict[str, Any]:
    """Return the data budget: rows learned from and validated on, classes, and the rows of the rarest."""
    counts = np.unique(target_of(train).values, return_counts=True)[1]
    return {
        "train_n": len(train),
        "validation_n": 0 if validation is None else len(validation),
        "num_classes": len(target_of(train).names),
        "rows_of_the_rarest_class": int(counts.min()),
    }


def join_tables(train: Table, validation: Table) -> Table:
    """Return both tables' rows as one, less validation rows of classes that the fit does not know."""
    import torch

    from evalharness import Column

    own, held = target_of(train), target_of(validation)
    known = held.values < len(own.names) if own.kind == "class" else np.ones(len(validation), dtype=bool)
    at = np.flatnonzero(known)
    vectors = _Joined(torch.cat([train.vectors.dense().float(), validation.vectors.dense()[torch.from_numpy(at)].float()]))
    return Table(
        vectors=vectors,  # type: ignore[arg-type]
        ids=np.concatenate([train.ids, validation.ids[at]]),
        rows=np.concatenate([train.rows, validation.rows[at]]),
        target=Column(kind=own.kind, values=np.concatenate([own.values, held.values[at]]), names=own.names),
    )


@dataclass(slots=True)
class _Joined:
    """Give dense vectors of two tables."""

    values: torch.Tensor

    def __len__(self) -> int:
        return len(self.values)

    def dense(self) -> torch.Tensor:
        return self.values


def _follow(table: Table, penalties: Sequence[float], scale: str, class_weight: str | None, limits: dict[str, Any]) -> tuple[Any, Scaling]:
    from evalharness.numerics import logistic_path

    vectors = table.vectors.dense().float()
    scaling = make_scaling(vectors, scale)
    return logistic_path(scaling(vectors), target_tensor(table), penalties, class_weight=class_weight, **limits), scaling


def _probe(path: Any, at: int, scaling: Scaling, table: Table, penalties: Sequence[float], chosen: float) -> ClassProbe:
    majority = int(np.bincount(target_of(table).values).argmax())
    details = report_path(path, (at,), penalties, chosen)
    return ClassProbe(scaling=scaling, weights=path.weights[at], bias=path.bias[at], majority=majority, details=details)


def _choose(path: Any, scaling: Scaling, validation: Table, converged: Any) -> tuple[int, float]:
    """Return the position of the best fit on validation rows, and its accuracy; a class unseen in training is a miss."""
    import torch

    vectors, codes = validation.vectors.dense(), target_tensor(validation)
    hits = torch.zeros(len(converged), dtype=torch.float64, device=codes.device)
    losses = torch.zeros_like(hits)
    for start in range(0, len(codes), BLOCK_ROWS):
        own = codes[start : start + BLOCK_ROWS]
        logits = path.logits(scaling(vectors[start : start + BLOCK_ROWS]))
        hits += (logits.argmax(dim=-1) == own).sum(dim=-1)
        known = (own < logits.shape[-1]).nonzero().flatten()
        losses -= logits.log_softmax(dim=-1)[:, known, own[known]].clamp_min(-LARGEST_LOSS).sum(dim=-1, dtype=torch.float64)
    accuracy = (hits / len(codes)).tolist()
    worst = losses.tolist()
    order = sorted(range(len(accuracy)), key=lambda at: (bool(converged.any()) and not converged[at], -accuracy[at], worst[at], at))
    return order[0], accuracy[order[0]]


def class_outcome(logits: torch.Tensor, table: Table, majority: int, details: dict[str, Any], reason: str | None = None) -> Outcome:
    """Return truth, prediction, hit, log loss (nats), confidence, Brier score and the majority baseline of every row; ``reason`` says why it did not converge."""
    import torch

    truth = target_tensor(table, logits.device)
    log_p = logits.double().log_softmax(dim=1)
    num_classes = log_p.shape[1]
    prediction = log_p.argmax(dim=1)
    known = truth < num_classes
    own = torch.full_like(truth, -LARGEST_LOSS, dtype=torch.float64)
    own[known] = log_p[known].gather(1, truth[known, None])[:, 0].clamp_min(-LARGEST_LOSS)
    p = log_p.exp()
    hit, easy = prediction == truth, truth == majority
    columns: dict[str, Any] = {
        "truth": truth.cpu(),
        "prediction": prediction.cpu(),
        "hit": hit.cpu(),
        "log_loss": -own.cpu(),
        "confidence": p.amax(dim=1).cpu(),
        "brier": (p.square().sum(dim=1) + 1 - 2 * torch.where(known, own.exp(), 0.0)).cpu(),
        "majority_hit": easy.cpu(),
    }
    if num_classes > 5:
        columns["top5_hit"] = (log_p.topk(5, dim=1).indices == truth[:, None]).any(dim=1).cpu()
    unseen = int((~known).sum())
    facts = {**details, "test_items_of_unseen_classes": unseen}
    if unseen:
        facts["unseen_classes"] = [target_of(table).names[code] for code in np.unique(target_of(table).values) if code >= num_classes][:20]
    status: Status = "measured" if reason is None else "not_converged"
    return Outcome(item="sample", part="items", rows=table.rows, columns=columns, details=facts, status=status, reason=reason)
