"""Ranked retrieval: queries of one part search another, judged by the links between them; ties take their expected value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from evalharness import EvaluatorSpec, Links, MetricInfo, Outcome, Side, Table, hookimpl
from evalharness.errors import DataError, UsageError

if TYPE_CHECKING:
    import torch

    from evalharness.types import Array, Vectors

CUTOFFS = (1, 3, 5, 10, 20, 50, 100, 1000)
EXPANDED_ENTRIES = 2**23


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
    """Hold what Q queries found, best first, as groups of equal score.

    ``found`` (Q, K) int64 documents; ``groups`` (Q, K) int64 numbers of their groups.
    ``rest_queries`` and ``rest_documents`` (X,) are the members of the last group that lie beyond K, where it crosses the cutoff.
    """

    found: Array
    groups: Array
    rest_queries: Array
    rest_documents: Array

    def totals(self, values: Array, rest: Array) -> Array:
        """Return for each place (Q, K) the sum over its group of values (Q, K) and ``rest`` (X,)."""
        num_queries, width = self.groups.shape
        flat = self.groups + np.arange(num_queries)[:, None] * width
        last = flat[self.rest_queries, -1]
        sums = np.bincount(flat.ravel(), weights=values.ravel(), minlength=flat.size) + np.bincount(last, weights=rest, minlength=flat.size)
        return sums[flat]

    def places(self) -> Array:
        """Return for each place (Q, K) how many places of its group come before it."""
        at = np.arange(self.groups.shape[1])
        new = np.ones(self.groups.shape, dtype=bool)
        new[:, 1:] = self.groups[:, 1:] != self.groups[:, :-1]
        return at - np.maximum.accumulate(np.where(new, at, 0), axis=1)

    def crossings(self, k: int) -> int:
        """Return for how many queries the k-th place is tied with the next."""
        return int((self.groups[:, k - 1] == self.groups[:, k]).sum()) if self.groups.shape[1] > k else 0


def search(vectors: Vectors, queries: torch.Tensor, k: int, *, metric: str, exclude: Array | None) -> Ranking:
    """Search for one place more than k, and where that ties with the k-th, for all that tie with it.

    Args:
        vectors: the documents.
        queries: (Q, D).
        k: the cutoff, at most the candidates of every query.
        metric: as for ``Vectors.search``.
        exclude: (Q,) int64 document to leave out for each query, -1 for none; None leaves out nothing.
    """
    barred = np.full(len(queries), -1, dtype=np.int64) if exclude is None else exclude
    limits = len(vectors) - (barred >= 0)
    values, found = _find(vectors, queries, min(k + 1, int(limits.min())), metric, barred)
    width = values.shape[1]
    unknown = values[:, k - 1] == values[:, k] if width > k else np.ones(len(values), dtype=bool)
    rest = [
        _follow(
            vectors,
            queries,
            np.flatnonzero(unknown & (limits > width) & (limits == limit)),
            int(limit),
            values[:, k - 1],
            found,
            metric,
            barred,
        )
        for limit in np.unique(limits)
    ]
    changes = np.cumsum(values[:, 1:] != values[:, :-1], axis=1)
    groups = np.concatenate([np.zeros((len(values), 1), dtype=np.int64), changes], axis=1)
    pairs = np.concatenate(rest)
    return Ranking(found=found, groups=groups, rest_queries=pairs[:, 0], rest_documents=pairs[:, 1])


def _find(vectors: Vectors, queries: torch.Tensor, k: int, metric: str, barred: Array) -> tuple[Array, Array]:
    exclude = _as_tensor(barred[:, None], queries) if (barred >= 0).any() else None
    values, found = vectors.search(queries, k, metric=metric, exclude=exclude)
    return values.cpu().numpy(), found.cpu().numpy()


def _follow(
    vectors: Vectors, queries: torch.Tensor, open_: Array, limit: int, edge: Array, found: Array, metric: str, barred: Array
) -> Array:
    """Return pairs (X, 2) of query and document that tie with the score ``edge`` (Q,) of the last place, beyond those found.

    Only the ``open_`` queries are searched again, twice as deep each time, until another score or the last of ``limit`` candidates is reached.
    """
    pairs = [np.empty((0, 2), dtype=np.int64)]
    depth = found.shape[1]
    while len(open_):
        depth = min(2 * depth, limit)
        still = []
        for at in np.array_split(open_, -(-len(open_) * depth // EXPANDED_ENTRIES)):
            values, where = _find(vectors, queries[_as_tensor(at, queries)], depth, metric, barred[at])
            tied = values == edge[at, None]
            ends = ~tied[:, -1] | (depth == limit)
            still.append(at[~ends])
            row, column = np.nonzero(tied & ends[:, None] & ~_held(where, found[at]))
            pairs.append(np.stack([at[row], where[row, column]], axis=1))
        open_ = np.concatenate(still)
    return np.concatenate(pairs)


def _held(where: Array, found: Array) -> Array:
    """Return whether documents (n, W) are among those found (n, K), row by row."""
    size = int(max(where.max(), found.max())) + 1
    own = np.arange(len(where))[:, None] * size
    known, keys = np.sort((own + found).ravel()), own + where
    return np.asarray(known[np.searchsorted(known, keys).clip(max=len(known) - 1)] == keys)


def _as_tensor(values: Array, like: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.from_numpy(np.ascontiguousarray(values)).to(like.device)


def expected_metrics(ranking: Ranking, judged: Judged, k: int) -> dict[str, Array]:
    """Return nDCG, recall, precision and reciprocal rank at k of each query, (Q,) float64, expected over the orders of ties.

    Source:
        METRICS.md 9; linear gain, ideal from all judged documents; for ties McSherry & Najork 2008.
    """
    own = np.arange(len(ranking.found))[:, None]
    gains, rest = judged.gains_of(own, ranking.found), judged.gains_of(ranking.rest_queries, ranking.rest_documents)
    sizes = ranking.totals(np.ones(gains.shape), np.ones(rest.shape))
    relevant = ranking.totals(gains > 0, rest > 0)
    discounts = 1 / np.log2(np.arange(k) + 2)
    gained = ((ranking.totals(gains, rest) / sizes)[:, :k] * discounts).sum(axis=1)
    hits = (relevant / sizes)[:, :k].sum(axis=1)
    # The chance that a place is the first relevant one: none before it in its group, and no group before with any.
    hazard = np.minimum(relevant / np.maximum(sizes - ranking.places(), 1), 1.0)[:, :k]
    before = np.cumprod(np.concatenate([np.ones((len(hazard), 1)), 1 - hazard[:, :-1]], axis=1), axis=1)
    return {
        f"ndcg_at_{k}": gained / judged.ideal(k),
        f"recall_at_{k}": hits / judged.num_relevant(),
        f"precision_at_{k}": hits / k,
        f"mrr_at_{k}": (before * hazard / np.arange(1, k + 1)).sum(axis=1),
    }


def exact_recall(ranking: Ranking, exact: Ranking, size: int, k: int) -> Array:
    """Return the share of the k found documents that exact float32 search finds too, (Q,); documents tied with its k-th count as found."""
    own = np.broadcast_to(np.arange(len(exact.found))[:, None], exact.found.shape)
    inside = exact.groups <= exact.groups[:, k - 1, None]
    keys = np.concatenate([(own * size + exact.found)[inside], exact.rest_queries * size + exact.rest_documents])
    near = Judged(num_queries=len(own), size=size, keys=np.sort(keys), gains=np.ones(len(keys)))
    own = np.arange(len(ranking.found))[:, None]
    hits, rest = near.gains_of(own, ranking.found), near.gains_of(ranking.rest_queries, ranking.rest_documents)
    shares = ranking.totals(hits, rest) / ranking.totals(np.ones(hits.shape), np.ones(rest.shape))
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
    """
    del fitted, generator, clean, base
    links = _only_links(test)
    asked, corpus = test.parts[links.source], test.parts[links.target]
    own = find_self(asked, corpus)
    exclude = own if exclude_self else None
    judged, scored = _judge(links, len(corpus), exclude)
    cutoffs, dropped = _split_cutoffs(k, len(corpus) - (1 if exclude is not None and (exclude >= 0).any() else 0))
    details: dict[str, Any] = {
        "corpus": len(corpus),
        "queries_without_relevant": len(np.unique(links.rows[:, 0])) - len(scored),
        "queries_without_judgement": len(asked) - len(np.unique(links.rows[:, 0])),
        "ids_shared_with_corpus": int((own >= 0).sum()),
    }
    details |= {"cutoffs_above_corpus": dropped} if dropped else {}
    barred = None if exclude is None else exclude[scored]
    columns: dict[str, Array] = {}
    for ranking, near, ks in _rank(
        corpus.vectors, asked.vectors.take(scored).queries(queries), exact, links, scored, barred, cutoffs, metric
    ):
        for each in ks:
            columns |= expected_metrics(ranking, judged, each)
            columns[f"exact_recall_at_{each}"] = np.ones(len(scored)) if near is None else exact_recall(ranking, near, len(corpus), each)
            details[f"ties_across_{each}"] = ranking.crossings(each)
    return [Outcome(item="query", part=links.source, rows=asked.rows[scored], columns=columns, details=details)]


def _rank(
    vectors: Vectors,
    queries: torch.Tensor,
    exact: Side | None,
    links: Links,
    scored: Array,
    exclude: Array | None,
    cutoffs: list[int],
    metric: str,
) -> Iterable[tuple[Ranking, Ranking | None, list[int]]]:
    """Yield the ranking, the exact one where vectors are coded, and the cutoffs they serve.

    One search serves all cutoffs, unless the codec searches by itself: what that finds may depend on how much is asked for.
    A cutoff below the largest is served whole too, since all groups that cross it end within the ranking or were followed.
    """
    own_search = hasattr(vectors.codec, "search")
    for ks in [[each] for each in cutoffs] if own_search else [cutoffs]:
        ranking = search(vectors, queries, max(ks), metric=metric, exclude=exclude)
        near = None
        if vectors.codec is not None and exact is not None:
            floats = exact.parts[links.source].vectors.take(scored).queries()
            near = search(exact.parts[links.target].vectors, floats, max(ks), metric=metric, exclude=exclude)
        yield ranking, near, ks


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
