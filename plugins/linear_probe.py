"""Linear classification probe: multinomial logistic regression, its penalty chosen on validation rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from evalharness import EvaluatorSpec, MetricInfo, Outcome, Side, Table, hookimpl
from evalharness.errors import DataError, UsageError
from evalharness.types import Status

if TYPE_CHECKING:
    import torch

FLOOR = 1e-12
LARGEST_LOSS = 27.631021115928547  # -ln 1e-12
BLOCKS = 5
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
    search_iterations: int = 100,
    max_iterations: int = 2000,
) -> Probe:
    """Learn one probe a penalty, keep the one that is most accurate on validation rows, and refit on both where those were carved out of the fit.

    The grid is walked from strong to weak penalties and left only when its weak end is clearly worse than its best;
    fits of the walk may stop after ``search_iterations``, but the chosen one is judged when it has converged, within ``max_iterations``.
    Ties in accuracy go to the lower log loss, then to the stronger penalty.

    Raises:
        DataError: the training rows hold a single class.
    """
    del generator
    if scale not in ("standard", "raw"):
        raise UsageError(f"expected `scale` to be `standard` or `raw`, got `{scale}`")
    penalties = find_grid(grid)
    features, labels = _arrays(train)
    search = _Search(features, labels, scale, tolerance, search_iterations)
    judged = validation is not None and len(validation) > 0 and len(penalties) > 1
    if judged and validation is not None:
        search.walk(penalties, validation)
        search.settle(validation, max_iterations)
    chosen = search.best() if judged else penalties[0]
    refit = validation is not None and validation.carved and len(validation) > 0
    if refit and validation is not None:
        features, labels = _join(features, labels, validation)
    final = None if refit else search.converged_fit(chosen)
    if final is None:
        final = _fit_one(features, labels, scale, chosen, tolerance, max_iterations)
    final.details |= {
        "solver": "L-BFGS in the eigenbasis",
        "penalty": "l2",
        "inverse_penalty": chosen,
        "grid_edge": judged and chosen in (penalties[0], penalties[-1]),
        "trials": max(1, len(search.scores)),
        "not_converged": search.unsettled,
        "train_n": len(labels),
        "refit_on_validation": bool(refit),
        "validation_accuracy": search.scores[chosen][0] if judged else None,
        "num_classes": len(train.target.names) if train.target else 0,
    }
    return final


def _fit_one(features: torch.Tensor, labels: torch.Tensor, scale: str, penalty: float, tolerance: float, max_iterations: int) -> Probe:
    from evalharness.numerics import logistic_path

    centre, spread = _scaling(features, scale)
    path = logistic_path((features - centre) / spread, labels, [penalty], tolerance=tolerance, max_iterations=max_iterations)
    return _probe(path, 0, centre, spread, labels)


def _probe(path: Any, at: int, centre: torch.Tensor, spread: torch.Tensor, labels: torch.Tensor) -> Probe:
    facts = {"converged": bool(path.converged[at]), "gradient": float(path.gradient[at]), "iterations": int(path.iterations[at])}
    majority = int(labels.bincount().argmax())
    return Probe(mean=centre, scale=spread, weights=path.weights[at], bias=path.bias[at], majority=majority, details=facts)


class _Search:
    """Walk the grid of penalties in a few blocks, each solved at once."""

    def __init__(self, features: torch.Tensor, labels: torch.Tensor, scale: str, tolerance: float, iterations: int) -> None:
        self._centre, self._spread = _scaling(features, scale)
        self._features = (features - self._centre) / self._spread
        self._labels = labels
        self._tolerance, self._iterations = tolerance, iterations
        self._fits: dict[float, tuple[Any, int]] = {}
        self.unsettled: list[float] = []  # inverse penalties that do not converge at all
        self.scores: dict[float, tuple[float, float]] = {}  # inverse penalty -> validation accuracy, -log loss

    def walk(self, penalties: Sequence[float], validation: Table) -> None:
        """Solve blocks of the grid until its weak end has fallen behind."""
        from evalharness.numerics import logistic_path

        held, codes = (validation.vectors.dense().float() - self._centre) / self._spread, _codes(validation)
        step = -(-len(penalties) // BLOCKS)
        for start in range(0, len(penalties), step):
            block = penalties[start : start + step]
            path = logistic_path(self._features, self._labels, block, tolerance=self._tolerance, max_iterations=self._iterations)
            self._fits |= {penalty: (path, at) for at, penalty in enumerate(block)}
            self.scores |= dict(zip(block, _validate(path, held, codes), strict=True))
            if self._fell_behind(block[-1], self.best(), len(codes)):
                return

    def settle(self, validation: Table, max_iterations: int) -> None:
        """Take the best fit to its end and judge it again, until the best is one that converged; those that never do are out."""
        from evalharness.numerics import logistic_path

        held, codes = (validation.vectors.dense().float() - self._centre) / self._spread, _codes(validation)
        while len(self.scores) > len(self.unsettled) and self.converged_fit(self.best()) is None:
            penalty = self.best()
            path = logistic_path(self._features, self._labels, [penalty], tolerance=self._tolerance, max_iterations=max_iterations)
            self._fits[penalty] = path, 0
            (self.scores[penalty],) = _validate(path, held, codes)
            if not bool(path.converged[0]):
                self.unsettled.append(penalty)

    def _fell_behind(self, last: float, best: float, rows: int) -> bool:
        """Say whether the weakest penalty so far is clearly worse than the best: by three standard errors, in log loss too, two decades on."""
        margin = 3 * (2 * 0.25 / rows) ** 0.5
        (accuracy, loss), (top, least) = self.scores[last], self.scores[best]
        return last >= 100 * best and accuracy < top - margin and loss < least

    def best(self) -> float:
        """Return the inverse penalty of the best fit so far."""
        settled = [penalty for penalty in self.scores if penalty not in self.unsettled] or list(self.scores)
        return max(settled, key=lambda penalty: (*self.scores[penalty], -penalty))

    def converged_fit(self, penalty: float) -> Probe | None:
        """Return the walk's own fit at a penalty, if it converged."""
        if penalty not in self._fits:
            return None
        path, at = self._fits[penalty]
        return _probe(path, at, self._centre, self._spread, self._labels) if bool(path.converged[at]) else None


def _codes(table: Table) -> torch.Tensor:
    import torch

    assert table.target is not None
    return torch.from_numpy(np.ascontiguousarray(table.target.values)).to(table.vectors.dense().device)


def _arrays(train: Table) -> tuple[torch.Tensor, torch.Tensor]:
    if train.target is not None and len(np.unique(train.target.values)) < 2:
        raise DataError(
            f"a probe needs two classes in its training rows, got only `{train.target.names[0] if train.target.names else '?'}`"
        )
    return train.vectors.dense().float(), _codes(train)


def _scaling(features: torch.Tensor, scale: str) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    if scale == "raw":
        return torch.zeros_like(features[0]), torch.ones_like(features[0])
    spread, centre = torch.std_mean(features.double(), dim=0, correction=0)
    # A column whose spread is rounding noise is constant: dividing by it would blow noise up.
    constant = spread <= 1e-6 * centre.abs()
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
    status: Status = "measured" if converged else "not_converged"
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
        params={"grid": "quick", "scale": "standard", "tolerance": 1e-4, "search_iterations": 100, "max_iterations": 2000},
        target_kinds=("class",),
        metrics=METRICS,
        main="accuracy",
        needs=frozenset({"train", "validation"}),
        fit=fit,
        score=score,
        head=head,
    )
