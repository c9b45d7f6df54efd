"""Nearest neighbours predict classes, labels or numbers: every k in one search, majority or temperature weights, leave-one-out by id."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from evalharness import EvaluatorSpec, MetricInfo, Outcome, Side, Table, hookimpl
from evalharness.errors import DataError, UsageError

if TYPE_CHECKING:
    import torch

TIE = 1e-9
LARGEST_LOSS = 27.631021115928547  # -ln 1e-12


@dataclass(slots=True, kw_only=True)
class Bank:
    """Hold the labelled vectors that neighbours are looked up in; ``labels`` are (N,) codes or numbers, or (N, L) bool."""

    table: Table
    kind: str
    labels: torch.Tensor
    num_classes: int


def fit(train: Table, validation: Table | None, *, generator: torch.Generator, **params: Any) -> Bank:
    """Keep the training rows."""
    del validation, generator, params
    import torch

    assert train.target is not None
    labels = torch.from_numpy(np.ascontiguousarray(train.target.values))
    return Bank(table=train, kind=train.target.kind, labels=labels, num_classes=len(train.target.names))


def score(
    fitted: Bank,
    test: Side,
    *,
    generator: torch.Generator,
    clean: Side | None = None,
    exact: Side | None = None,
    base: Table | None = None,
    k: int | Sequence[int] = (1, 5, 20),
    main_k: int | None = None,
    metric: str = "cosine",
    weights: str = "temperature",
    temperature: float = 0.07,
    leave_one_out: bool = False,
    queries: str = "float32",
    top5: bool = False,
) -> list[Outcome]:
    """Return what the neighbours of every test item predict for every k, the main k first.

    Classes are voted for, with the log loss of temperature weights in nats; the score of a label is the weighted share of the neighbours that carry it, and it is named above one half; a number is their weighted mean.
    Neighbour ties go to the lower index, vote ties to the larger summed similarity, then to the smaller label.

    Raises:
        DataError: a k exceeds the bank, test ids stand in the bank without ``leave_one_out``, ``top5`` with fewer than five classes, or a number target is constant in the test rows.
        UsageError: ``weights``, ``temperature``, ``main_k`` or ``top5`` make no sense.
    """
    del generator, clean, exact, base
    ks = _order_ks([k] if isinstance(k, int) else list(k), main_k)
    _check(fitted, weights, temperature, top5=top5)
    table = test.items
    exclude = _exclusions(fitted.table, table, leave_one_out=leave_one_out)
    size = len(fitted.table) - (1 if leave_one_out else 0)
    if max(ks) > size:
        raise DataError(f"k = {max(ks)} exceeds the {size} rows of the bank; the largest possible k is {size}")
    found, indices = fitted.table.vectors.search(table.vectors.queries(queries), max(ks), metric=metric, exclude=exclude)
    similarity = (1 - found.square() / 2 if metric == "l2" else found).cpu().double()
    labels = fitted.labels[indices.cpu()]
    return [
        _outcome(fitted, table, similarity[:, :each], labels[:, :each], {"k": each}, weights=weights, temperature=temperature, top5=top5)
        for each in ks
    ]


def _check(fitted: Bank, weights: str, temperature: float, *, top5: bool) -> None:
    if weights not in ("majority", "temperature"):
        raise UsageError(f"expected `weights` to be `majority` or `temperature`, got `{weights}`")
    if not temperature > 0:
        raise UsageError(f"expected a positive `temperature`, got {temperature:g}")
    if top5 and fitted.kind != "class":
        raise UsageError(f"`top5` needs a class target, got a {fitted.kind} column")
    if top5 and fitted.num_classes < 5:
        raise DataError(f"`top5` needs five classes, the fit has {fitted.num_classes}")


def _order_ks(ks: list[int], main_k: int | None) -> list[int]:
    if not ks or min(ks) < 1:
        raise UsageError(f"expected `k` to be positive, got {ks}")
    if main_k is not None and main_k not in ks:
        raise UsageError(f"expected `main_k` to be one of `k` = {ks}, got {main_k}")
    main = main_k if main_k is not None else 20 if 20 in ks else ks[-1]
    return [main, *sorted(set(ks) - {main})]


def _exclusions(bank: Table, table: Table, *, leave_one_out: bool) -> torch.Tensor | None:
    """Return each query's own row in the bank, (Q, 1), -1 where it has none; found by id, never by rank."""
    import torch

    order = np.argsort(bank.ids)
    at = np.searchsorted(bank.ids, table.ids, sorter=order).clip(max=len(order) - 1)
    own = order[at]
    same = bank.ids[own] == table.ids
    if same.any() and not leave_one_out:
        raise DataError(
            f"{int(same.sum())} test ids stand in the bank, `{table.ids[same][0]}` first; set `leave_one_out: true`, or split train and test"
        )
    return torch.from_numpy(np.where(same, own, -1))[:, None] if leave_one_out else None


def weigh(similarity: torch.Tensor, weights: str, temperature: float) -> torch.Tensor:
    """Return the weights (Q, K) of neighbours, nearest first: ones, or exp((s - max) / temperature), so that nothing overflows.

    Source: Wu et al. 2018, equation 10.
    """
    import torch

    return torch.ones_like(similarity) if weights == "majority" else ((similarity - similarity[:, :1]) / temperature).exp()


def vote(similarity: torch.Tensor, labels: torch.Tensor, num_classes: int, *, weights: str, temperature: float) -> torch.Tensor:
    """Return class scores (Q, C) of neighbours (Q, K), nearest first.

    Ties in votes are broken by summed similarity, then by the smaller label.
    """
    import torch

    one = torch.zeros(len(labels), num_classes, dtype=torch.float64)
    votes = one.scatter_add(1, labels, weigh(similarity, weights, temperature))
    summed = one.scatter_add(1, labels, similarity - similarity.amin(dim=1, keepdim=True) + 1)
    best = votes.amax(dim=1, keepdim=True)
    tied = votes >= best * (1 - TIE)
    # Among equal votes the larger summed similarity wins; argmax takes the first, the smaller label.
    order = torch.where(tied, summed, -torch.inf).argmax(dim=1)
    votes[torch.arange(len(votes)), order] = best[:, 0] * (1 + 2 * TIE)
    return votes


def _outcome(
    fitted: Bank,
    table: Table,
    similarity: torch.Tensor,
    labels: torch.Tensor,
    variant: dict[str, Any],
    *,
    weights: str,
    temperature: float,
    top5: bool,
) -> Outcome:
    if fitted.kind == "class":
        votes = vote(similarity, labels, fitted.num_classes, weights=weights, temperature=temperature)
        columns, details = class_columns(votes, table, probabilities=weights == "temperature", top5=top5)
    else:
        shares = weigh(similarity, weights, temperature)
        shares /= shares.sum(dim=1, keepdim=True)
        columns, details = (label_columns if fitted.kind == "multilabel" else number_columns)(shares, labels, table)
    return Outcome(item="sample", part="items", rows=table.rows, columns=columns, variant=variant, details=details)


def class_columns(votes: torch.Tensor, table: Table, *, probabilities: bool, top5: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the columns of votes (Q, C), and how many items are of classes that the bank lacks; ``probabilities`` adds the log loss (nats)."""
    truth = _target(table)
    prediction = votes.argmax(dim=1)
    columns: dict[str, Any] = {"truth": truth, "prediction": prediction, "hit": prediction == truth}
    known = truth < votes.shape[1]
    if top5:
        columns["top5_hit"] = _among_top(votes, truth, 5)
    if probabilities:
        own = votes.gather(1, truth.clamp(max=votes.shape[1] - 1)[:, None])[:, 0] / votes.sum(dim=1)
        columns["log_loss"] = -(own * known).log().clamp_min(-LARGEST_LOSS)
    unseen = int((~known).sum())
    return columns, {"test_items_of_unseen_classes": unseen} if unseen else {}


def label_columns(shares: torch.Tensor, labels: torch.Tensor, table: Table) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the columns of neighbours with shares (Q, K) and labels (Q, K, L), and the labels that no item carries."""
    import torch

    truth = _target(table)
    scores = torch.zeros(labels.shape[0], labels.shape[2], dtype=torch.float64)
    for at in range(labels.shape[1]):  # a neighbour at a time, since (Q, K, L) numbers are many
        scores += shares[:, at, None] * labels[:, at]
    predicted = scores > 0.5 * (1 + TIE)  # half of all votes is no majority, however it was rounded
    columns = {
        "relevant": truth,
        "label_score": scores,
        "agreed": 2 * (predicted & truth).sum(dim=1),
        "named": predicted.sum(dim=1) + truth.sum(dim=1),
    }
    assert table.target is not None
    missing = [table.target.names[at] for at in (~truth.any(dim=0)).nonzero().flatten().tolist()]
    return columns, {"labels_without_positives": missing} if missing else {}


def number_columns(shares: torch.Tensor, labels: torch.Tensor, table: Table) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the true numbers and the means of those of neighbours (Q, K) with these shares.

    Raises:
        DataError: the target is the same in all rows.
    """
    truth = _target(table)
    if truth.min() == truth.max():
        raise DataError(f"the number target has the one value {truth[0]:g} in all {len(truth)} test rows: R2 and correlation are undefined")
    return {"number": truth, "predicted_number": (shares * labels.double()).sum(dim=1)}, {}


def _target(table: Table) -> torch.Tensor:
    import torch

    assert table.target is not None
    return torch.from_numpy(np.ascontiguousarray(table.target.values))


def _among_top(votes: torch.Tensor, truth: torch.Tensor, count: int) -> torch.Tensor:
    """Say of each item whether its class has votes and fewer than ``count`` classes come before it; equal votes go to the smaller label."""
    import torch

    known = truth < votes.shape[1]
    at = truth.clamp(max=votes.shape[1] - 1)[:, None]
    own = votes.gather(1, at)
    ahead = (votes > own) | ((votes == own) & (torch.arange(votes.shape[1])[None] < at))
    return known & (own[:, 0] > 0) & (ahead.sum(dim=1) < count)


METRICS = (
    MetricInfo(name="accuracy", columns=("hit",), interval="wilson"),
    MetricInfo(name="top5_accuracy", columns=("top5_hit",), interval="wilson"),
    MetricInfo(name="balanced_accuracy", columns=("truth", "prediction"), reduce="balanced_accuracy"),
    MetricInfo(name="macro_f1", columns=("truth", "prediction"), reduce="macro_f1"),
    MetricInfo(name="log_loss", columns=("log_loss",), high=LARGEST_LOSS, unit="nats", higher_is_better=False),
    MetricInfo(name="mean_average_precision", columns=("relevant", "label_score"), reduce="macro_average_precision"),
    MetricInfo(name="micro_f1", columns=("agreed", "named"), reduce="ratio"),
    MetricInfo(name="r2", columns=("number", "predicted_number"), reduce="r2", low=float("-inf"), unit="score"),
    MetricInfo(name="spearman", columns=("number", "predicted_number"), reduce="spearman", low=-1.0, unit="correlation"),
)


@hookimpl
def evalharness_evaluators() -> Iterable[EvaluatorSpec]:
    """Register `knn`."""
    yield EvaluatorSpec(
        name="knn",
        summary="Nearest neighbours: votes or means of the k most similar training rows",
        source="Wu et al. 2018 (temperature weights); Caron et al. 2021 (k and temperature)",
        params={
            "k": (1, 5, 20),
            "main_k": None,
            "metric": "cosine",
            "weights": "temperature",
            "temperature": 0.07,
            "leave_one_out": False,
            "queries": "float32",
            "top5": False,
        },
        target_kinds=("class", "multilabel", "number"),
        metrics=METRICS,
        main="accuracy",
        mains={"multilabel": "mean_average_precision", "number": "r2"},
        needs=frozenset({"train"}),
        fit=fit,
        score=score,
    )
