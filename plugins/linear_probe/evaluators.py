"""The evaluators `linear-probe` and `mlp-probe`: parameters, metrics, and which probe a target asks for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from evalharness import EvaluatorSpec, MetricInfo, Outcome, Side, Table

from .classes import LARGEST_LOSS, ClassProbe, fit_classes
from .hidden import HiddenProbe, fit_hidden
from .labels import LabelProbe, fit_labels
from .numbers import NumberProbe, fit_numbers
from .settings import check_choice, find_grid, learn_rows, target_of

if TYPE_CHECKING:
    import torch

    Probe: TypeAlias = ClassProbe | LabelProbe | NumberProbe | HiddenProbe

LINEAR_PARAMS = {
    "grid": "quick",
    "scale": "standard",
    "class_weight": None,
    "control": "none",
    "tolerance": 1e-4,
    "max_iterations": 2000,
}
HIDDEN_PARAMS = {
    "hidden": 256,
    "weight_decays": (0.1, 1.0, 3.0, 10.0),
    "epochs": 200,
    "patience": 10,
    "scale": "standard",
    "control": "none",
}


def fit(
    train: Table,
    validation: Table | None,
    *,
    generator: torch.Generator,
    grid: str | float | Sequence[float] = "quick",
    scale: str = "standard",
    class_weight: str | None = None,
    control: str = "none",
    tolerance: float = 1e-4,
    max_iterations: int = 2000,
) -> Probe:
    """Learn a linear probe of the target's kind: logistic regression for classes, one a label for several, ridge regression for numbers.

    Raises:
        DataError: the training rows hold a single class, no label that varies, or a constant number.
        UsageError: a parameter makes no sense.
    """
    check_choice("scale", scale, ("standard", "raw"))
    check_choice("class_weight", class_weight, (None, "balanced"))
    check_choice("control", control, ("none", "shuffled"))
    penalties = find_grid(grid)
    rows = learn_rows(train, validation, generator, control)
    limits = {"tolerance": tolerance, "max_iterations": max_iterations}
    kind = target_of(train).kind
    probe: Probe
    if kind == "number":
        probe = fit_numbers(rows, penalties, scale=scale)
    elif kind == "multilabel":
        probe = fit_labels(rows, penalties, scale=scale, **limits)
    else:
        probe = fit_classes(rows, penalties, scale=scale, class_weight=class_weight, **limits)
    probe.details["control"] = control
    return probe


def fit_mlp(
    train: Table,
    validation: Table | None,
    *,
    generator: torch.Generator,
    hidden: int = 256,
    weight_decays: Sequence[float] = (0.1, 1.0, 3.0, 10.0),
    epochs: int = 200,
    patience: int = 10,
    scale: str = "standard",
    control: str = "none",
) -> Probe:
    """Learn a probe with one hidden layer, of classes or numbers.

    Raises:
        DataError: the training rows hold a single class or value, or there are no validation rows.
        UsageError: a parameter makes no sense.
    """
    check_choice("scale", scale, ("standard", "raw"))
    check_choice("control", control, ("none", "shuffled"))
    learned, judged, _ = learn_rows(train, validation, generator, control)
    probe = fit_hidden(
        learned, judged, generator, scale=scale, hidden=hidden, weight_decays=weight_decays, epochs=epochs, patience=patience
    )
    probe.details["control"] = control
    return probe


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
    """Return what the probe saw of every test item.

    Raises:
        DataError: a number target is constant in the test rows.
    """
    del generator, clean, exact, base, params
    return [fitted.score(test.items)]


def head(fitted: Probe) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """Return the differentiable map of vectors (B, D) to logits (B, C) of a probe of classes, else None."""
    return fitted.logits if isinstance(fitted, ClassProbe) or (isinstance(fitted, HiddenProbe) and fitted.majority is not None) else None


CLASS_METRICS = (
    MetricInfo(name="accuracy", columns=("hit",), interval="wilson"),
    MetricInfo(name="top5_accuracy", columns=("top5_hit",), interval="wilson"),
    MetricInfo(name="balanced_accuracy", columns=("truth", "prediction"), reduce="balanced_accuracy"),
    MetricInfo(name="macro_f1", columns=("truth", "prediction"), reduce="macro_f1"),
    MetricInfo(name="log_loss", columns=("log_loss",), high=LARGEST_LOSS, unit="nats", higher_is_better=False),
    MetricInfo(name="calibration_error", columns=("confidence", "hit"), reduce="calibration_error", higher_is_better=False),
    MetricInfo(name="brier", columns=("brier",), high=2.0, unit="score", higher_is_better=False),
    MetricInfo(name="majority_accuracy", columns=("majority_hit",), interval="wilson", higher_is_better=None),
    MetricInfo(name="accuracy_above_majority", columns=("hit", "majority_hit"), reduce="above_chance", low=-1e6),
)
NUMBER_METRICS = (
    MetricInfo(name="r2", columns=("number", "predicted_number"), reduce="r2", low=float("-inf"), unit="score"),
    MetricInfo(name="spearman", columns=("number", "predicted_number"), reduce="spearman", low=-1.0, unit="correlation"),
)
LABEL_METRICS = (
    MetricInfo(name="mean_average_precision", columns=("relevant", "label_score"), reduce="macro_average_precision"),
    MetricInfo(name="micro_f1", columns=("agreed", "named"), reduce="ratio"),
)

LINEAR = EvaluatorSpec(
    name="linear-probe",
    summary="Linear readout of frozen vectors: logistic regression for classes and labels, ridge for numbers",
    source="Alain & Bengio 2017; Kornblith et al. 2019",
    protocol=2,
    params=LINEAR_PARAMS,
    target_kinds=("class", "multilabel", "number"),
    metrics=(*CLASS_METRICS, *LABEL_METRICS, *NUMBER_METRICS),
    main="accuracy",
    mains={"multilabel": "mean_average_precision", "number": "r2"},
    needs=frozenset({"train", "validation"}),
    fit=fit,
    score=score,
    head=head,
)

HIDDEN = EvaluatorSpec(
    name="mlp-probe",
    summary="Readout of frozen vectors by one hidden layer, stopped on validation rows",
    source="Hewitt & Liang 2019",
    params=HIDDEN_PARAMS,
    target_kinds=("class", "number"),
    metrics=(*CLASS_METRICS, *NUMBER_METRICS),
    main="accuracy",
    mains={"number": "r2"},
    needs=frozenset({"train", "validation"}),
    fit=fit_mlp,
    score=score,
    head=head,
)
