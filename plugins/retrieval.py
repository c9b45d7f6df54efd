"""Ranked retrieval: queries of one part search another, judged by the links between them; ties take their expected value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from evalharness import EvaluatorSpec, Links, MetricInfo, Outcome, Side, Table, hookimpl
from evalharness.errors import DataError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import torch

    from evalharness.types import Array, Vectors

CUTOFFS = (1, 3, 5, 10, 20, 50, 100, 1000)
ENTRIES = 2**23  # of one block of scores


@dataclass(slots=True, kw_only=True)
class Judged:
    """Hold what is relevant to each of Q queries, among N documents.

    ``keys`` (J,) int64 are query · N + document, ascending; ``gains`` (J,) float64 are 0 or more, and positive gains count as relevant.
    """

    num_queries: int
    size: int
    keys: Array
    gains: Array

    def gains_of(self, queries: Array, documents: Array) -> Array:
        """Return the gains of pairs, 0 where a pair is not judged."""
        if not len(self.keys):
            return np.zeros(queries.shape)
        keys = queries * self.size + documents
        at = np.searchsorted(self.keys, keys).clip(max=len(self.keys) - 1)
        return np.where(self.keys[at] == keys, self.gains[at], 0.0)

    def num_relevant(self) -> Array:
        """Return the number of relevant documents of each query, (Q,)."""
        return np.bincount(self.keys[self.gains > 0] // self.size, minlength=self.num_queries)

    def ideal(self, k: int) -> Array:
        """Return the largest possible gain of the first k places, discounted, (Q,)."""
        queries = self.keys // self.size
        order = np.lexsort((-self.gains, queries))
        starts = np.searchsorted(queries, np.arange(self.num_queries))
        places = np.arange(len(queries)) - starts[queries]
        gains = np.where(places < k, self.gains[order] / np.log2(places + 2), 0.0)
        return np.bincount(queries, weights=gains, minlength=self.num_queries)


@dataclass(slots=True, kw_only=True)
class Ranking:
    """Hold what n queries found, best first, as groups of equal score.

    ``queries`` (n,) are their numbers; ``found`` (n, K) int64 documents; ``groups`` (n, K) int64 numbers of their groups.
    ``rest_rows`` (X,) in [0, n) and ``rest_documents`` (X,) are the members of the last group that lie beyond K, where it crosses the cutoff.
    """

    queries: Array
    found: Array
    groups: Array
    rest_rows: Array
    rest_documents: Array

    def totals(self, values: Array, rest: Array) -> Array:
        """Return for each place (n, K) the sum over its group of values (n, K) and ``rest`` (X,)."""
        num_queries, width = self.groups.shape
        flat = self.groups + np.arange(num_queries)[:, None] * width
        sums = np.bincount(flat.ravel(), weights=values.ravel(), minlength=flat.size)
        sums += np.bincount(flat[self.rest_rows, -1], weights=rest, minlength=flat.size)
        return np.asarray(sums[flat])

    def sizes(self) -> Array:
        """Return for each place (n, K) the size of its group."""
        return self.totals(np.ones(self.groups.shape), np.ones(len(self.rest_rows)))

    def places(self) -> Array:
        """Return for each place (n, K) how many places of its group come before it."""
        at = np.arange(self.groups.shape[1])
        new = np.ones(self.groups.shape, dtype=bool)
        new[:, 1:] = self.groups[:, 1:] != self.groups[:, :-1]
        return at - np.maximum.accumulate(np.where(new, at, 0), axis=1)

    def gains(self, judged: Judged) -> tuple[Array, Array]:
        """Return the gains of what was found (n, K), and of the rest (X,)."""
        own = self.queries[:, None]
        return judged.gains_of(own, self.found), judged.gains_of(self.queries[self.rest_rows], self.rest_documents)


@dataclass(slots=True, kw_only=True)
class Search:
    """Hold what a search for one place more than k found, and what is needed to follow ties beyond it.

    ``queries`` (Q, D); ``barred`` (Q,) int64 document that a query must not find, -1 for none; ``values`` and ``found`` (Q, K).
    """

    vectors: Vectors
    queries: torch.Tensor
    k: int
    metric: str
    barred: Array
    values: Array
    found: Array

    def limits(self) -> Array:
        """Return the number of candidates of each query, (Q,)."""
        return len(self.vectors) - (self.barred >= 0)

    def is_tied(self, k: int) -> Array:
        """Return for which queries the k-th place may tie with the next, (Q,)."""
        width = self.values.shape[1]
        return np.asarray(self.values[:, k - 1] == self.values[:, k] if width > k else self.limits() > width)

    def rank(self, at: Array) -> Ranking:
        """Return the ranking of some queries, whole where ties cross the cutoff."""
        open_ = np.flatnonzero((self.is_tied(self.k) & (self.limits() > self.values.shape[1]))[at])
        follow = follow_by_search if hasattr(self.vectors.codec, "search") else follow_by_score
        rows, documents = follow(self, at[open_])
        changes = np.cumsum(self.values[at, 1:] != self.values[at, :-1], axis=1)
        groups = np.concatenate([np.zeros((len(at), 1), dtype=np.int64), changes], axis=1)
        return Ranking(queries=at, found=self.found[at], groups=groups, rest_rows=open_[rows], rest_documents=documents)


def search(corpus: Table, asked: Table, k: int, *, metric: str, mode: str = "float32", exclude: Array | None = None) -> Search:
    """Search for one place more than k, where there are so many.

    Args:
        corpus: the documents.
        asked: the Q queries.
        k: the cutoff, at most the candidates of every query.
        metric: as for ``Vectors.search``.
        mode: as for ``Vectors.queries``.
        exclude: (Q,) int64 document to leave out for each query, -1 for none; None leaves out nothing.

    Raises:
        VectorsError: a vector cannot be searched with, or for.
    """
    barred = np.full(len(asked), -1, dtype=np.int64) if exclude is None else exclude
    queries = asked.vectors.queries(mode)
    width = min(k + 1, len(corpus) - int((barred >= 0).any()))
    values, found = corpus.search(asked, width, metric=metric, mode=mode, exclude=_bar(barred, queries))
    return Search(
        vectors=corpus.vectors,
        queries=queries,
        k=k,
        metric=metric,
        barred=barred,
        values=values.cpu().numpy(),
        found=found.cpu().numpy(),
    )


def _bar(barred: Array, queries: torch.Tensor) -> torch.Tensor | None:
    """Return documents (Q,) to leave out, one a query, as a search takes them."""
    return _as_tensor(barred[:, None], queries) if (barred >= 0).any() else None


def _find(vectors: Vectors, queries: torch.Tensor, k: int, metric: str, barred: Array) -> tuple[Array, Array]:
    values, found = vectors.search(queries, k, metric=metric, exclude=_bar(barred, queries))
    return values.cpu().numpy(), found.cpu().numpy()


def follow_by_search(search: Search, at: Array) -> tuple[Array, Array]:
    """Return rows of ``at`` and documents (X,) beyond those found that tie with the k-th place, by searching twice as deep each time.

    Only a codec knows how its own search scores; so it is asked until another score or the last candidate is reached.
    """
    pairs = [np.empty((0, 2), dtype=np.int64)]
    limits = search.limits()[at]
    for limit in np.unique(limits).tolist():
        open_, depth = np.flatnonzero(limits == limit), search.found.shape[1]
        while len(open_):
            depth, own = min(2 * depth, limit), at[open_]
            values, where = _find(search.vectors, search.queries[_as_tensor(own, search.queries)], depth, search.metric, search.barred[own])
            tied = values == search.values[own, search.k - 1, None]
            ends = ~tied[:, -1] | (depth == limit)
            row, column = np.nonzero(tied & ends[:, None] & ~_held(where, search.found[own]))
            pairs.append(np.stack([open_[row], where[row, column]], axis=1))
            open_ = open_[~ends]
    joined = np.concatenate(pairs)
    return joined[:, 0], joined[:, 1]


def _held(where: Array, found: Array) -> Array:
    """Return whether documents (n, W) are among those found (n, K), row by row."""
    size = int(max(where.max(), found.max())) + 1
    own = np.arange(len(where))[:, None] * size
    known, keys = np.sort((own + found).ravel()), own + where
    return np.asarray(known[np.searchsorted(known, keys).clip(max=len(known) - 1)] == keys)


def follow_by_score(search: Search, at: Array) -> tuple[Array, Array]:
    """Return rows of ``at`` and documents (X,) beyond those found that tie with the k-th place, from one row of scores a query.

    Scores are float64 products, and a tie is what rounds to the k-th value in float32, give or take the rounding of the product itself.
    """
    pairs = [np.empty((0, 2), dtype=np.int64)]
    queries = search.queries[_as_tensor(at, search.queries)].double()
    barred = np.concatenate([search.found[at], search.barred[at, None]], axis=1)
    low, high = _rounding_interval(search.values[at, search.k - 1])
    step = max(1, ENTRIES // max(1, len(at) + queries.shape[1]))
    for start in range(0, len(search.vectors) if len(at) else 0, step):
        block = np.arange(start, min(start + step, len(search.vectors)))
        documents = search.vectors.take(block).dense().double()
        tied = _ties(queries, documents, search.metric, _as_tensor(low, queries), _as_tensor(high, queries)).cpu().numpy()
        row, column = np.nonzero((barred >= start) & (barred < start + len(block)))
        tied[row, barred[row, column] - start] = False
        row, column = np.nonzero(tied)
        pairs.append(np.stack([row, column + start], axis=1))
    joined = np.concatenate(pairs)
    return joined[:, 0], joined[:, 1]


def _rounding_interval(values: Array) -> tuple[Array, Array]:
    """Return the ends (n, 1) float64 of what rounds to float32 values (n,)."""
    single = values.astype(np.float32)
    ends = [(single.astype(np.float64) + np.nextafter(single, np.float32(way)).astype(np.float64)) / 2 for way in (-np.inf, np.inf)]
    return ends[0][:, None], ends[1][:, None]


def _ties(queries: torch.Tensor, documents: torch.Tensor, metric: str, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """Return which documents (W, D) score between ``low`` and ``high`` (n, 1) for queries (n, D), (n, W) bool."""
    slack = 2.0**-50 * (queries.shape[1] ** 0.5 + 8)
    own, others = queries.norm(dim=1, keepdim=True), documents.norm(dim=1)
    products = queries @ documents.T
    if metric == "l2":
        squares = own.square() + others.square()
        scores, low, high = squares - 2 * products, low.clamp_min(0).square(), high.square()
        slack = slack * squares
    elif metric == "cosine":
        scores = products / (own * others)
    else:
        scores, slack = products, slack * own * others
    inside: torch.Tensor = (scores >= low - slack) & (scores <= high + slack)
    return inside


def _as_tensor(values: Array, like: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.from_numpy(np.ascontiguousarray(values)).to(like.device)


def expected_metrics(ranking: Ranking, judged: Judged, k: int) -> dict[str, Array]:
    """Return nDCG, recall, precision and reciprocal rank at k of n queries, (n,) float64, expected over the orders of ties.

    Source:
        METRICS.md 9; linear gain, ideal from all judged documents; for ties McSherry & Najork 2008.
    """
    gains, rest = ranking.gains(judged)
    sizes, relevant = ranking.sizes(), ranking.totals(gains > 0, rest > 0)
    discounts = 1 / np.log2(np.arange(k) + 2)
    gained = ((ranking.totals(gains, rest) / sizes)[:, :k] * discounts).sum(axis=1)
    hits = (relevant / sizes)[:, :k].sum(axis=1)
    # The chance that a place is the first relevant one: none before it in its group, and no group before with any.
    hazard = np.minimum(relevant / np.maximum(sizes - ranking.places(), 1), 1.0)[:, :k]
    before = np.cumprod(np.concatenate([np.ones((len(hazard), 1)), 1 - hazard[:, :-1]], axis=1), axis=1)
    return {
        f"ndcg_at_{k}": gained / judged.ideal(k)[ranking.queries],
        f"recall_at_{k}": hits / judged.num_relevant()[ranking.queries],
        f"precision_at_{k}": hits / k,
        f"mrr_at_{k}": (before * hazard / np.arange(1, k + 1)).sum(axis=1),
    }


def exact_recall(ranking: Ranking, exact: Ranking, size: int, k: int) -> Array:
    """Return the share of the k found documents that exact float32 search finds too, (n,); documents tied with its k-th count as found.

    Both rankings are of the same n queries, among ``size`` documents.
    """
    own = np.broadcast_to(exact.queries[:, None], exact.found.shape)
    edge = exact.groups[:, k - 1, None]
    inside = exact.groups <= edge
    rest = (exact.groups[:, -1:] == edge)[exact.rest_rows, 0]
    rest_keys = exact.queries[exact.rest_rows] * size + exact.rest_documents
    keys = np.sort(np.concatenate([(own * size + exact.found)[inside], rest_keys[rest]]))
    near = Judged(num_queries=len(own), size=size, keys=keys, gains=np.ones(len(keys)))
    shares = ranking.totals(*ranking.gains(near)) / ranking.sizes()
    return np.asarray(shares[:, :k].sum(axis=1) / k)


def score(
    fitted: None,
    test: Side,
    *,
    generator: torch.Generator,
    clean: Side | None = None,
    exact: Side | None = None,
    base: Table | None = None,
    metric: str = "cosine",
    k: int | Sequence[int] = (10, 100),
    queries: str = "float32",
    exclude_self: bool = False,
) -> list[Outcome]:
    """Return the metrics of every query that has a relevant document, at each cutoff.

    ``exclude_self`` leaves out, before the search, the document that has the query's own id, and its judgement.
    A cutoff above the number of candidates is left out and named in the details.

    Raises:
        DataError: there is not one set of links, a pair is judged twice, no query has a relevant document, or no cutoff fits the corpus.
        UsageError: a cutoff or ``metric`` is unknown.
        VectorsError: a vector is not finite, or has norm 0 under cosine.
    """
    del fitted, generator, clean, base
    links = _only_links(test)
    asked, corpus = test.parts[links.source], test.parts[links.target]
    own = find_self(asked, corpus)
    judged, scored = _judge(links, len(corpus), own if exclude_self else None)
    barred = own[scored] if exclude_self else np.full(len(scored), -1, dtype=np.int64)
    cutoffs, dropped = _split_cutoffs(k, len(corpus) - int((barred >= 0).any()))
    num_judged = len(np.unique(links.rows[:, 0]))
    details: dict[str, Any] = {
        "corpus": len(corpus),
        "queries_without_relevant": num_judged - len(scored),
        "queries_without_judgement": len(asked) - num_judged,
        "ids_shared_with_corpus": int((own >= 0).sum()),
    }
    details |= {"cutoffs_above_corpus": dropped} if dropped else {}
    near = None
    if corpus.vectors.codec is not None and exact is not None:
        near = search(exact.parts[links.target], exact.parts[links.source].take(scored), cutoffs[-1], metric=metric, exclude=barred)
    columns: dict[str, Array] = {}
    # One search serves all cutoffs, unless the codec searches by itself: what that finds may depend on how much is asked for.
    for ks in [[each] for each in cutoffs] if hasattr(corpus.vectors.codec, "search") else [cutoffs]:
        found = search(corpus, asked.take(scored), ks[-1], metric=metric, mode=queries, exclude=barred)
        columns |= _score_search(found, near, judged, ks)
        details |= {f"ties_across_{each}": int(found.is_tied(each).sum()) for each in ks}
    return [Outcome(item="query", part=links.source, rows=asked.rows[scored], columns=columns, details=details)]


def _score_search(found: Search, near: Search | None, judged: Judged, cutoffs: list[int]) -> dict[str, Array]:
    """Return the columns (Q,) of each cutoff; queries with ties to follow come in blocks, since a tie can span the corpus."""
    tied = found.is_tied(found.k) if near is None else found.is_tied(found.k) | near.is_tied(near.k)
    followed = np.flatnonzero(tied)
    blocks = [np.flatnonzero(~tied), *np.array_split(followed, -(-len(followed) * judged.size // ENTRIES) or 1)]
    columns: dict[str, Array] = {}
    for at in blocks:
        if not len(at):
            continue
        ranking, exact = found.rank(at), None if near is None else near.rank(at)
        for k in cutoffs:
            values = expected_metrics(ranking, judged, k)
            values[f"exact_recall_at_{k}"] = np.ones(len(at)) if exact is None else exact_recall(ranking, exact, judged.size, k)
            for name, column in values.items():
                columns.setdefault(name, np.empty(judged.num_queries))[at] = column
    return columns


def _only_links(test: Side) -> Links:
    if len(test.links) != 1:
        raise DataError(f"`retrieval` needs one set of links between two parts, got {', '.join(test.links) or 'none'}")
    return next(iter(test.links.values()))


def find_self(queries: Table, corpus: Table) -> Array:
    """Return the row of the document with each query's own id, (Q,) int64, -1 for none."""
    if not len(corpus):
        return np.full(len(queries), -1, dtype=np.int64)
    order = np.argsort(corpus.ids)
    at = order[np.searchsorted(corpus.ids, queries.ids, sorter=order).clip(max=len(order) - 1)]
    return np.where(corpus.ids[at] == queries.ids, at, -1)


def _judge(links: Links, size: int, exclude: Array | None) -> tuple[Judged, Array]:
    """Return the judgements of the queries that have a relevant document, renumbered, and the rows of those queries."""
    query, document, gains = links.rows[:, 0], links.rows[:, 1], np.maximum(links.grades, 0.0)
    if np.isnan(gains).any():
        raise DataError(f"{int(np.isnan(gains).sum())} judgements have no grade")
    if exclude is not None:
        kept = exclude[query] != document
        query, document, gains = query[kept], document[kept], gains[kept]
    scored, number = np.unique(query[gains > 0], return_inverse=True)
    if not len(scored):
        raise DataError("no query has a relevant document: every judgement has a grade of 0 or less")
    inside = np.isin(query, scored)
    number = np.searchsorted(scored, query[inside])
    keys = number * size + document[inside]
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    if (keys[1:] == keys[:-1]).any():
        raise DataError(f"{int((keys[1:] == keys[:-1]).sum())} pairs of query and document are judged twice; keep one judgement of each")
    return Judged(num_queries=len(scored), size=size, keys=keys, gains=gains[inside][order]), scored


def _split_cutoffs(k: int | Sequence[int], candidates: int) -> tuple[list[int], list[int]]:
    """Return the cutoffs that fit, ascending, and those that do not."""
    ks = sorted({k} if isinstance(k, int) else set(k))
    if not ks or not set(ks) <= set(CUTOFFS):
        raise UsageError(f"expected `k` of `retrieval` to be among {', '.join(map(str, CUTOFFS))}, got {ks}")
    fitting = [each for each in ks if each <= candidates]
    if not fitting:
        raise DataError(f"every cutoff exceeds the {candidates} candidates of the corpus; ask for a smaller `k` than {ks[0]}")
    return fitting, ks[len(fitting) :]


def make_metrics() -> tuple[MetricInfo, ...]:
    """Return the metrics of every cutoff, the main one first."""
    ordered = (10, *[each for each in CUTOFFS if each != 10])
    names = ("ndcg", "recall", "mrr", "precision", "exact_recall")
    return tuple(MetricInfo(name=f"{name}_at_{each}", columns=(f"{name}_at_{each}",)) for each in ordered for name in names)


PARAMS: Mapping[str, Any] = {"metric": "cosine", "k": (10, 100), "queries": "float32", "exclude_self": False}


@hookimpl
def evalharness_evaluators() -> Iterable[EvaluatorSpec]:
    """Register `retrieval`."""
    yield EvaluatorSpec(
        name="retrieval",
        summary="Ranked retrieval from judgements: nDCG, recall, reciprocal rank, and recall against exact search",
        source="Järvelin & Kekäläinen 2002 as in trec_eval; expected over ties after McSherry & Najork 2008",
        params=PARAMS,
        target_kinds=(),
        metrics=make_metrics(),
        main="ndcg_at_10",
        needs=frozenset({"exact"}),
        score=score,
    )
