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
JUDGED = 2000  # training rows whose labels say where to cut the scores of labels
ONE_ROW = "one half, since there is no other row to choose it on"
LARGEST_LOSS = 27.631021115928547  # -ln 1e-12


@dataclass(slots=True, kw_only=True)
class Bank:
    """Hold the labelled vectors that neighbours are looked up in; ``labels`` are (N,) codes or numbers, or (N, L) bool."""

    table: Table
    kind: str
    labels: torch.Tensor
    num_classes: int


@dataclass(frozen=True, slots=True)
class Voting:
    """Say how neighbours vote: one voice each, or ``temperature`` weights."""

    weights: str
    temperature: float

    def weigh(self, similarity: torch.Tensor) -> torch.Tensor:
        """Return the weights (Q, K) of neighbours, nearest first: ones, or exp((s - max) / temperature), so that nothing overflows.

        Source: Wu et al. 2018, equation 10.
        """
        import torch

        if self.weights == "majority":
            return torch.ones_like(similarity)
        return ((similarity - similarity[:, :1]) / self.temperature).exp()


@dataclass(slots=True)
class Neighbours:
    """Hold the neighbours of Q queries, nearest first: ``similarity`` (Q, K) float64, and their ``labels`` (Q, K) or (Q, K, L)."""

    similarity: torch.Tensor
    labels: torch.Tensor

    def first(self, k: int) -> Neighbours:
        """Return the k nearest."""
        return Neighbours(self.similarity[:, :k], self.labels[:, :k])


@dataclass(frozen=True, slots=True)
class Cut:
    """Hold a threshold on label scores, one for all or (Q, 1), and what it was chosen on."""

    threshold: Any
    source: str


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

    Classes are voted for, with the log loss of temperature weights in nats; a number is the weighted mean of the neighbours'.
    The score of a label is the weighted share of the neighbours that carry it; it is named above the threshold of the highest micro-F1 among up to 2,000 training rows, each scored by the others.
    With ``leave_one_out``, where the scored rows are training rows, each half of them takes the threshold of the other half.
    Neighbour ties go to the lower index, vote ties to the larger summed similarity, then to the smaller label.

    Raises:
        DataError: a k exceeds the bank, test ids stand in the bank without ``leave_one_out``, ``top5`` with fewer than five classes, or a number target is constant in the test rows.
        UsageError: ``weights``, ``temperature``, ``main_k`` or ``top5`` make no sense.
        VectorsError: a vector is not finite, or has norm 0 under cosine.
    """
    del clean, exact, base
    ks = _order_ks([k] if isinstance(k, int) else list(k), main_k)
    _check(fitted, weights, temperature, top5=top5)
    table = test.items
    exclude = _exclusions(fitted.table, table, leave_one_out=leave_one_out)
    size = len(fitted.table) - (1 if leave_one_out else 0)
    if max(ks) > size:
        raise DataError(f"k = {max(ks)} exceeds the {size} rows of the bank; the largest possible k is {size}")
    voting = Voting(weights=weights, temperature=temperature)
    near = find_neighbours(fitted, table, max(ks), metric=metric, queries=queries, exclude=exclude)
    cuts: dict[int, Cut] = {}
    if fitted.kind == "multilabel" and leave_one_out:
        cuts = cross_cuts(near, _target(table), ks, voting, generator)
    elif fitted.kind == "multilabel":
        cuts = choose_cuts(fitted, ks, voting, generator, metric=metric, queries=queries)
    return [_outcome(fitted, table, near.first(each), {"k": each}, voting, top5=top5, cut=cuts.get(each)) for each in ks]


def find_neighbours(bank: Bank, asked: Table, k: int, *, metric: str, queries: str, exclude: torch.Tensor | None) -> Neighbours:
    """Return the k nearest rows of the bank for every row of a table; ``exclude`` as for ``Table.search``."""
    found, indices = bank.table.search(asked, k, metric=metric, mode=queries, exclude=exclude)
    similarity = (1 - found.square() / 2 if metric == "l2" else found).cpu().double()
    return Neighbours(similarity, bank.labels[indices.cpu()])


def choose_cuts(bank: Bank, ks: Sequence[int], voting: Voting, generator: torch.Generator, *, metric: str, queries: str) -> dict[int, Cut]:
    """Return for every k the threshold on label scores of the highest micro-F1 among training rows, each scored by the others."""
    import torch

    from evalharness.numerics import best_threshold

    size = len(bank.table)
    if size == 1:
        return dict.fromkeys(ks, Cut(0.5, ONE_ROW))
    at = torch.randperm(size, generator=generator)[:JUDGED].sort().values
    near = find_neighbours(bank, bank.table.take(at.numpy()), min(max(ks), size - 1), metric=metric, queries=queries, exclude=at[:, None])
    truth, source = bank.labels[at], f"leave-one-out over {len(at)} training rows"
    return {k: Cut(best_threshold(score_labels(near.first(k), voting), truth), source) for k in ks}


def cross_cuts(near: Neighbours, truth: torch.Tensor, ks: Sequence[int], voting: Voting, generator: torch.Generator) -> dict[int, Cut]:
    """Return for every k the thresholds (Q, 1) of scored rows that are training rows too: those of one random half are chosen on the other, so that none is on its own row."""
    import torch

    from evalharness.numerics import best_threshold

    size = len(truth)
    if size == 1:
        return dict.fromkeys(ks, Cut(0.5, ONE_ROW))
    first = torch.zeros(size, dtype=torch.bool)
    first[torch.randperm(size, generator=generator)[: size // 2]] = True
    found = {}
    for k in ks:
        scores, cut = score_labels(near.first(k), voting), torch.empty(size, 1, dtype=torch.float64)
        for half in (first, ~first):
            cut[half] = best_threshold(scores[~half], truth[~half])
        found[k] = Cut(cut, "the other half of the rows, each scored by the others")
    return found


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


def vote(near: Neighbours, num_classes: int, voting: Voting) -> torch.Tensor:
    """Return class scores (Q, C).

    Ties in votes are broken by summed similarity, then by the smaller label.
    """
    import torch

    similarity, labels = near.similarity, near.labels
    one = torch.zeros(len(labels), num_classes, dtype=torch.float64)
    votes = one.scatter_add(1, labels, voting.weigh(similarity))
    summed = one.scatter_add(1, labels, similarity - similarity.amin(dim=1, keepdim=True) + 1)
    best = votes.amax(dim=1, keepdim=True)
    tied = votes >= best * (1 - TIE)
    # Among equal votes the larger summed similarity wins; argmax takes the first, the smaller label.
    order = torch.where(tied, summed, -torch.inf).argmax(dim=1)
    votes[torch.arange(len(votes)), order] = best[:, 0] * (1 + 2 * TIE)
    return votes


def _outcome(
    fitted: Bank, table: Table, near: Neighbours, variant: dict[str, Any], voting: Voting, *, top5: bool, cut: Cut | None
) -> Outcome:
    if fitted.kind == "class":
        votes = vote(near, fitted.num_classes, voting)
        columns, details = class_columns(votes, table, probabilities=voting.weights == "temperature", top5=top5)
    elif cut is not None:
        columns, details = _label_columns(score_labels(near, voting), table, cut)
    else:
        columns, details = number_columns(near, table, voting), {}
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


def _shares(near: Neighbours, voting: Voting) -> torch.Tensor:
    weights = voting.weigh(near.similarity)
    return weights / weights.sum(dim=1, keepdim=True)


def score_labels(near: Neighbours, voting: Voting) -> torch.Tensor:
    """Return the weighted share (Q, L) of the neighbours that carry each label."""
    import torch

    shares = _shares(near, voting)
    scores = torch.zeros(len(shares), near.labels.shape[2], dtype=torch.float64)
    for at in range(shares.shape[1]):  # a neighbour at a time, since (Q, K, L) numbers are many
        scores += shares[:, at, None] * near.labels[:, at]
    return scores


def _label_columns(scores: torch.Tensor, table: Table, cut: Cut) -> tuple[dict[str, Any], dict[str, Any]]:
    from evalharness.numerics import label_columns

    truth = _target(table)
    chosen = np.unique(cut.threshold).tolist()
    details: dict[str, Any] = {"threshold": chosen[0] if len(chosen) == 1 else chosen, "threshold_from": cut.source}
    assert table.target is not None
    missing = [table.target.names[at] for at in (~truth.any(dim=0)).nonzero().flatten().tolist()]
    return label_columns(scores, truth, cut.threshold), details | ({"labels_without_positives": missing} if missing else {})


def number_columns(near: Neighbours, table: Table, voting: Voting) -> dict[str, Any]:
    """Return the true numbers and the weighted means of the neighbours'.

    Raises:
        DataError: the target is the same in all rows.
    """
    truth = _target(table)
    if truth.min() == truth.max():
        raise DataError(f"the number target has the one value {truth[0]:g} in all {len(truth)} test rows: R2 and correlation are undefined")
    return {"number": truth, "predicted_number": (_shares(near, voting) * near.labels.double()).sum(dim=1)}


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
        protocol=2,
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
