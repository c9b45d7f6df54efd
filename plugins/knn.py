"""k-nearest-neighbour classification: every k in one search, majority or temperature-weighted votes, leave-one-out by id."""

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


@dataclass(slots=True, kw_only=True)
class Bank:
    """Hold the labelled vectors that neighbours are looked up in."""

    table: Table
    labels: torch.Tensor
    num_classes: int


def fit(train: Table, validation: Table | None, *, generator: torch.Generator, **params: Any) -> Bank:
    """Keep the training rows."""
    del validation, generator, params
    import torch

    assert train.target is not None
    labels = torch.from_numpy(np.ascontiguousarray(train.target.values))
    return Bank(table=train, labels=labels, num_classes=len(train.target.names))


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
    """Return truth, prediction and hit of every test item for every k, the main k first.

    Neighbour ties go to the lower index, vote ties to the larger summed similarity, then to the smaller label.

    Raises:
        DataError: a k exceeds the bank, test ids stand in the bank without ``leave_one_out``, or ``top5`` with fewer than five classes.
        UsageError: ``weights``, ``temperature`` or ``main_k`` make no sense.
    """
    del generator, clean, exact, base
    ks = _order_ks([k] if isinstance(k, int) else list(k), main_k)
    if weights not in ("majority", "temperature"):
        raise UsageError(f"expected `weights` to be `majority` or `temperature`, got `{weights}`")
    if not temperature > 0:
        raise UsageError(f"expected a positive `temperature`, got {temperature:g}")
    if top5 and fitted.num_classes < 5:
        raise DataError(f"`top5` needs five classes, the fit has {fitted.num_classes}")
    table = test.items
    exclude = _exclusions(fitted.table, table, leave_one_out=leave_one_out)
    size = len(fitted.table) - (1 if leave_one_out else 0)
    if max(ks) > size:
        raise DataError(f"k = {max(ks)} exceeds the {size} rows of the bank; the largest possible k is {size}")
    found, indices = fitted.table.vectors.search(table.vectors.queries(queries), max(ks), metric=metric, exclude=exclude)
    similarity = (1 - found.square() / 2 if metric == "l2" else found).cpu().double()
    labels = fitted.labels[indices.cpu()]
    assert table.target is not None
    return [
        _outcome(table, fitted.num_classes, similarity[:, :each], labels[:, :each], each, weights, temperature, top5=top5) for each in ks
    ]


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


def vote(similarity: torch.Tensor, labels: torch.Tensor, num_classes: int, *, weights: str, temperature: float) -> torch.Tensor:
    """Return class scores (Q, C) of neighbours (Q, K).

    Weights are exp((s - max) / temperature), so that nothing overflows; ties in votes are broken by summed similarity, then by the smaller label.

    Source: Wu et al. 2018, equation 10.
    """
    import torch

    one = torch.zeros(len(labels), num_classes, dtype=torch.float64)
    if weights == "majority":
        votes = one.scatter_add(1, labels, torch.ones_like(similarity))
    else:
        votes = one.scatter_add(1, labels, ((similarity - similarity[:, :1]) / temperature).exp())
    summed = one.scatter_add(1, labels, similarity - similarity.amin(dim=1, keepdim=True) + 1)
    best = votes.amax(dim=1, keepdim=True)
    tied = votes >= best * (1 - TIE)
    # Among equal votes the larger summed similarity wins; argmax takes the first, the smaller label.
    order = torch.where(tied, summed, -torch.inf).argmax(dim=1)
    votes[torch.arange(len(votes)), order] = best[:, 0] * (1 + 2 * TIE)
    return votes


def _outcome(
    table: Table, num_classes: int, similarity: torch.Tensor, labels: torch.Tensor, k: int, weights: str, temperature: float, *, top5: bool
) -> Outcome:
    import torch

    assert table.target is not None
    truth = torch.from_numpy(np.ascontiguousarray(table.target.values))
    votes = vote(similarity, labels, num_classes, weights=weights, temperature=temperature)
    prediction = votes.argmax(dim=1)
    columns: dict[str, Any] = {"truth": truth, "prediction": prediction, "hit": prediction == truth}
    if top5:
        columns["top5_hit"] = _among_top(votes, truth, 5)
    unseen = int((truth >= num_classes).sum())
    return Outcome(
        item="sample",
        part="items",
        rows=table.rows,
        columns=columns,
        variant={"k": k},
        details={"test_items_of_unseen_classes": unseen} if unseen else {},
    )


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
)


@hookimpl
def evalharness_evaluators() -> Iterable[EvaluatorSpec]:
    """Register `knn`."""
    yield EvaluatorSpec(
        name="knn",
        summary="Nearest neighbours: votes of the k most similar training rows",
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
        target_kinds=("class",),
        metrics=METRICS,
        main="accuracy",
        needs=frozenset({"train"}),
        fit=fit,
        score=score,
    )
