"""Linear classification probe: multinomial logistic regression, its penalty chosen on validation rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from evalharness import EvaluatorSpec, MetricInfo, Outcome, Side, Table, hookimpl
from evalharness.errors import DataError, UsageError

if TYPE_CHECKING:
    import torch

FLOOR = 1e-12
LARGEST_LOSS = 27.631021115928547  # -ln 1e-12
GRIDS = {
    "quick": tuple(10.0**power for power in np.linspace(-6, 6, 9)),
    "kornblith-45": tuple(10.0**power for power in np.linspace(-6, 5, 45)),
    "clip-96": tuple(10.0**power for power in np.linspace(-6, 6, 96)),
}


@dataclass(slots=True, kw_only=True)
class Probe:
    """Hold a fitted probe: logits are ``(vectors - mean) / scale @ weights + bias``."""

    mean: torch.Tensor
    scale: torch.Tensor
    weights: torch.Tensor
    bias: torch.Tensor
    majority: int
    details: dict[str, Any]

    def logits(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return (B, C) logits of vectors (B, D)."""
        return ((vectors - self.mean) / self.scale) @ self.weights + self.bias


def find_grid(grid: str | Sequence[float]) -> tuple[float, ...]:
    """Return the inverse penalties of a named or given grid.

    Raises:
        UsageError: the name is unknown, or a value is not positive.
    """
    if isinstance(grid, str):
        if grid not in GRIDS:
            raise UsageError(f"unknown grid `{grid}`; expected one of {', '.join(GRIDS)}, or a list of inverse penalties")
        return GRIDS[grid]
    values = tuple(sorted(float(value) for value in grid))
    if not values or values[0] <= 0:
        raise UsageError(f"expected positive inverse penalties in `grid`, got {list(grid)}")
    return values


def fit(
    train: Table,
    validation: Table | None,
    *,
    generator: torch.Generator,
    grid: str | Sequence[float] = "quick",
    scale: str = "standard",
    tolerance: float = 1e-4,
    max_iterations: int = 1000,
) -> Probe:
    """Learn one probe a penalty, keep the one that is most accurate on validation rows, and refit on both where those were carved out of the fit.

    Ties in accuracy go to the lower log loss, then to the stronger penalty.

    Raises:
        DataError: the training rows hold a single class.
    """
    del generator
    from evalharness.numerics import logistic_path

    if scale not in ("standard", "raw"):
        raise UsageError(f"expected `scale` to be `standard` or `raw`, got `{scale}`")
    penalties = find_grid(grid)
    features, labels = _arrays(train)
    options = {"tolerance": tolerance, "max_iterations": max_iterations}
    centre, spread = _scaling(features, scale)
    path = logistic_path((features - centre) / spread, labels, penalties, **options)
    chosen, scores = 0, []
    if validation is not None and len(validation) and len(penalties) > 1:
        scores = _validate(path, (validation.vectors.dense() - centre) / spread, _codes(validation))
        chosen = max(range(len(penalties)), key=lambda at: (*scores[at], -penalties[at]))
    converged, gradient = bool(path.converged[chosen]), float(path.gradient[chosen])
    weights, bias = path.weights[chosen], path.bias[chosen]
    refit = validation is not None and validation.carved and len(validation) > 0
    if refit and validation is not None:
        features, labels = _join(features, labels, validation)
        centre, spread = _scaling(features, scale)
        again = logistic_path((features - centre) / spread, labels, [penalties[chosen]], **options)
        weights, bias = again.weights[0], again.bias[0]
        converged, gradient = bool(again.converged[0]), float(again.gradient[0])
    details = {
        "solver": "L-BFGS in the eigenbasis",
        "penalty": "l2",
        "inverse_penalty": penalties[chosen],
        "grid_edge": len(penalties) > 1 and chosen in (0, len(penalties) - 1),
        "trials": len(penalties),
        "train_n": len(labels),
        "refit_on_validation": bool(refit),
        "converged": converged,
        "gradient": gradient,
        "validation_accuracy": scores[chosen][0] if scores else None,
        "num_classes": len(train.target.names) if train.target else 0,
    }
    majority = int(labels.bincount().argmax())
    return Probe(mean=centre, scale=spread, weights=weights, bias=bias, majority=majority, details=details)


def _codes(table: Table) -> torch.Tensor:
    import torch

    assert table.target is not None
    return torch.from_numpy(np.ascontiguousarray(table.target.values)).to(table.vectors.dense().device)


def _arrays(train: Table) -> tuple[torch.Tensor, torch.Tensor]:
    if train.target is not None and len(np.unique(train.target.values)) < 2:
        raise DataError(f"a probe needs two classes in its training rows, got only `{train.target.names[0] if train.target.names else '?'}`")
    return train.vectors.dense().float(), _codes(train)


def _scaling(features: torch.Tensor, scale: str) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    if scale == "raw":
        return torch.zeros_like(features[0]), torch.ones_like(features[0])
    spread, centre = torch.std_mean(features.double(), dim=0, correction=0)
    # A column whose spread is rounding noise is constant: dividing by it would blow noise up.
    constant = spread <= 1e-6 * centre.abs().clamp_min(1e-12)
    return centre.to(features), torch.where(constant, 1.0, spread).to(features)


def _join(features: torch.Tensor, labels: torch.Tensor, validation: Table) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    codes = _codes(validation)
    known = codes < int(labels.max()) + 1
    return torch.cat([features, validation.vectors.dense()[known].float()]), torch.cat([labels, codes[known]])


def _validate(path: Any, features: torch.Tensor, codes: torch.Tensor) -> list[tuple[float, float]]:
    """Return (accuracy, -log loss) a penalty; a class unseen in training is a miss."""
    logits = path.logits(features)
    log_p = logits.log_softmax(dim=-1)
    hit = (logits.argmax(dim=-1) == codes).float().mean(dim=-1)
    inside = (codes < logits.shape[-1]).nonzero().flatten()
    loss = -log_p[:, inside, codes[inside]].clamp_min(-LARGEST_LOSS).mean(dim=-1) if len(inside) else hit * 0
    return [(float(a), -float(b)) for a, b in zip(hit, loss, strict=True)]


def score(
    fitted: Probe,
    test: Side,
    *,
    generator: torch.Generator,
    clean: Side | None = None,
    exact: Side | None = None,
    base: Table | None = None,
    **params: Any,
) -> list[Outcome]:
    """Return truth, prediction, hit, log loss (nats), confidence, Brier score and the majority baseline's hit of every test item."""
    del generator, clean, exact, base, params
    import torch

    table = test.items
    truth = _codes(table)
    log_p = fitted.logits(table.vectors.dense().float()).double().log_softmax(dim=1)
    num_classes = log_p.shape[1]
    prediction = log_p.argmax(dim=1)
    known = truth < num_classes
    own = torch.full_like(truth, -LARGEST_LOSS, dtype=torch.float64)
    own[known] = log_p[known].gather(1, truth[known, None])[:, 0].clamp_min(-LARGEST_LOSS)
    p = log_p.exp()
    brier = p.square().sum(dim=1) + 1 - 2 * torch.where(known, own.exp(), 0.0)
    columns: dict[str, Any] = {
        "truth": truth.cpu(),
        "prediction": prediction.cpu(),
        "hit": (prediction == truth).cpu(),
        "log_loss": -own.cpu(),
        "confidence": p.amax(dim=1).cpu(),
        "brier": brier.cpu(),
        "majority_hit": (truth == fitted.majority).cpu(),
    }
    if num_classes > 5:
        columns["top5_hit"] = (log_p.topk(5, dim=1).indices == truth[:, None]).any(dim=1).cpu()
    unseen = int((~known).sum())
    details = {**fitted.details, "test_items_of_unseen_classes": unseen}
    if unseen and table.target is not None:
        details["unseen_classes"] = [table.target.names[code] for code in np.unique(table.target.values) if code >= num_classes][:20]
    converged = fitted.details["converged"]
    reason = None if converged else f"gradient {fitted.details['gradient']:.2g} after the last iteration"
    status = "measured" if converged else "not_converged"
    return [Outcome(item="sample", part="items", rows=table.rows, columns=columns, details=details, status=status, reason=reason)]


def head(fitted: Probe) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the differentiable map of vectors (B, D) to logits (B, C)."""
    return fitted.logits


METRICS = (
    MetricInfo(name="accuracy", columns=("hit",), interval="wilson"),
    MetricInfo(name="top5_accuracy", columns=("top5_hit",), interval="wilson"),
    MetricInfo(name="balanced_accuracy", columns=("truth", "prediction"), reduce="balanced_accuracy"),
    MetricInfo(name="macro_f1", columns=("truth", "prediction"), reduce="macro_f1"),
    MetricInfo(name="log_loss", columns=("log_loss",), high=LARGEST_LOSS, unit="nats", higher_is_better=False),
    MetricInfo(name="calibration_error", columns=("confidence", "hit"), reduce="calibration_error", higher_is_better=False),
    MetricInfo(name="brier", columns=("brier",), high=2.0, unit="score", higher_is_better=False),
    MetricInfo(name="majority_accuracy", columns=("majority_hit",), interval="wilson", higher_is_better=None),
)


@hookimpl
def evalharness_evaluators() -> Iterable[EvaluatorSpec]:
    """Register `linear-probe`."""
    yield EvaluatorSpec(
        name="linear-probe",
        summary="Multinomial logistic regression on frozen vectors, penalty chosen on validation rows",
        source="Alain & Bengio 2017; Kornblith et al. 2019",
        params={"grid": "quick", "scale": "standard", "tolerance": 1e-4, "max_iterations": 1000},
        target_kinds=("class",),
        metrics=METRICS,
        main="accuracy",
        needs=frozenset({"train", "validation"}),
        fit=fit,
        score=score,
        head=head,
    )
