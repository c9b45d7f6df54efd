import numpy as np
import pytest
import torch

from evalharness import Links, Side, Table
from evalharness.errors import DataError, UsageError
from evalharness.plugins import binary, int8, retrieval
from evalharness.plugins.retrieval import Judged, Ranking, expected_metrics
from evalharness.vectors import code_vectors


def table(vectors, codec=None, prefix="d"):
    size = len(vectors)
    coded = code_vectors(torch.as_tensor(np.asarray(vectors), dtype=torch.float32), codec, "cosine")
    return Table(vectors=coded, ids=np.array([f"{prefix}{at}" for at in range(size)]), rows=np.arange(size))


def side(queries, corpus, judged, codec=None, prefixes=("q", "d")):
    rows = np.array([[q, d] for q, d, _ in judged], dtype=np.int64).reshape(-1, 2)
    grades = np.array([grade for *_, grade in judged], dtype=np.float64)
    links = Links(source="queries", target="corpus", rows=rows, grades=grades, ids=np.arange(len(rows)).astype(str))
    parts = {"queries": table(queries, codec, prefixes[0]), "corpus": table(corpus, codec, prefixes[1])}
    return Side(parts=parts, links={"qrels": links})


def run(test, exact=None, **params):
    params.setdefault("k", 1)
    (outcome,) = retrieval.score(None, test, exact=exact, generator=torch.Generator(), **params)
    return outcome


def scored(scores, judged, **params):
    """Score one query against documents whose dot products are given."""
    return run(side([[1.0]], [[score] for score in scores], [(0, at, grade) for at, grade in judged], None), metric="dot", **params)


def value(outcome, name):
    return float(outcome.columns[name][0])


FILLER = [(-float(at + 1)) for at in range(20)]


def test_worked_ranking():
    # relevances 3, 0, 2, 0, 1, 0, and one more of 2 that lies below ten others
    scores = [9, 8, 7, 6, 5, 4, *FILLER]
    judged = [(0, 3), (1, 0), (2, 2), (4, 1), (25, 2)]
    outcome = scored(scores, judged, k=(3, 10))
    assert value(outcome, "ndcg_at_10") == pytest.approx(0.770632, abs=1e-6)
    assert value(outcome, "ndcg_at_3") == pytest.approx(0.760188, abs=1e-6)
    assert value(outcome, "mrr_at_10") == 1
    assert value(outcome, "recall_at_3") == 0.5
    assert value(outcome, "precision_at_3") == pytest.approx(2 / 3)


@pytest.mark.parametrize("relevant", [0, 1, 2])
def test_ties_take_their_expected_value_wherever_the_relevant_one_stands(relevant):
    outcome = scored([1.0, 1.0, 1.0, *FILLER], [(relevant, 1)], k=(3, 10))
    for k in (3, 10):
        assert value(outcome, f"mrr_at_{k}") == pytest.approx(0.611111, abs=1e-6)
        assert value(outcome, f"ndcg_at_{k}") == pytest.approx(0.710310, abs=1e-6)


@pytest.mark.parametrize("relevant", range(4))
def test_ties_across_the_cutoff_share_it(relevant):
    outcome = scored([5.0, 1.0, 1.0, 1.0, 1.0, *FILLER], [(1 + relevant, 1)], k=3)
    assert value(outcome, "recall_at_3") == pytest.approx(0.5)
    assert value(outcome, "precision_at_3") == pytest.approx(0.5 / 3)
    assert value(outcome, "mrr_at_3") == pytest.approx((1 / 2 + 1 / 3) / 4)
    assert outcome.details["ties_across_3"] == 1


def test_all_vectors_equal_give_chance():
    rng = np.random.default_rng(0)
    judged = [(0, int(at), 1.0) for at in rng.permutation(40)[:4]]
    outcome = run(side(np.ones((1, 3)), np.ones((40, 3)), judged), k=10)
    assert value(outcome, "recall_at_10") == pytest.approx(10 / 40)
    assert value(outcome, "precision_at_10") == pytest.approx(4 / 40)
    assert value(outcome, "exact_recall_at_10") == 1


def simulate(scores, gains, k, rng, orders=4000):
    """Average ten-line metrics over random orders of ties."""
    found = []
    for _ in range(orders):
        order = np.lexsort((rng.random(len(scores)), -scores))
        rel = gains[order][:k]
        dcg, ideal = (rel / np.log2(np.arange(len(rel)) + 2)).sum(), np.sort(gains)[::-1][:k]
        first = np.flatnonzero(rel > 0)
        found.append(
            [
                dcg / (ideal / np.log2(np.arange(len(ideal)) + 2)).sum(),
                (rel > 0).sum() / (gains > 0).sum(),
                (rel > 0).sum() / k,
                1 / (first[0] + 1) if len(first) else 0.0,
            ]
        )
    return np.array(found)


@pytest.mark.parametrize("seed", range(6))
def test_expected_values_equal_the_mean_over_random_orders(seed):
    rng = np.random.default_rng(seed)
    scores, gains = rng.integers(0, 4, 30).astype(float), rng.integers(0, 3, 30) * (rng.random(30) < 0.3)
    gains[0] = 1
    outcome = scored(scores, [(at, float(gain)) for at, gain in enumerate(gains)], k=(3, 10))
    for k in (3, 10):
        samples = simulate(scores, gains, k, rng)
        names = [f"{name}_at_{k}" for name in ("ndcg", "recall", "precision", "mrr")]
        error = samples.std(0) / len(samples) ** 0.5
        assert (np.abs(samples.mean(0) - [value(outcome, name) for name in names]) <= 5 * error + 1e-9).all()


def test_without_ties_equals_numpy():
    rng = np.random.default_rng(1)
    queries, corpus = rng.standard_normal((30, 8)), rng.standard_normal((200, 8))
    grades = rng.integers(0, 3, (30, 200)) * (rng.random((30, 200)) < 0.05)
    judged = [(q, d, float(grades[q, d])) for q, d in zip(*np.nonzero(grades), strict=True)]
    outcome = run(side(queries, corpus, judged), k=(5, 10, 100))
    scores = (queries / np.linalg.norm(queries, axis=1)[:, None]) @ (corpus / np.linalg.norm(corpus, axis=1)[:, None]).T
    for row, query in enumerate(outcome.rows):
        for k in (5, 10, 100):
            expected = simulate(scores[query], grades[query], k, rng, orders=1)[0]
            found = [outcome.columns[f"{name}_at_{k}"][row] for name in ("ndcg", "recall", "precision", "mrr")]
            np.testing.assert_allclose(found, expected, atol=1e-6)


def test_order_of_documents_changes_nothing():
    rng = np.random.default_rng(2)
    queries, corpus = rng.integers(-1, 2, (20, 4)) + 0.5, rng.integers(-1, 2, (60, 4)) + 0.5
    grades = rng.random((20, 60)) < 0.1
    judged = [(q, d, 1.0) for q, d in zip(*np.nonzero(grades), strict=True)]
    order = rng.permutation(60)
    back = np.argsort(order)
    codec = int8.fit(torch.as_tensor(corpus, dtype=torch.float32))
    one = run(side(queries, corpus, judged, codec), side(queries, corpus, judged), k=(5, 10))
    moved = [(q, int(back[d]), grade) for q, d, grade in judged]
    two = run(side(queries, corpus[order], moved, codec), side(queries, corpus[order], moved), k=(5, 10))
    for name, values in one.columns.items():
        np.testing.assert_allclose(values, two.columns[name], atol=1e-12, err_msg=name)


def test_float32_finds_all_that_exact_search_finds_even_with_duplicates():
    corpus = np.repeat(np.eye(4), 5, axis=0)
    test = side(np.eye(4), corpus, [(q, 5 * q, 1.0) for q in range(4)], int8.fit(torch.eye(4)))
    exact = side(np.eye(4), corpus, [(q, 5 * q, 1.0) for q in range(4)])
    assert (run(test, exact, k=3).columns["exact_recall_at_3"] == 1).all()
    assert (run(exact, exact, k=3).columns["exact_recall_at_3"] == 1).all()


def test_exact_recall_counts_shared_documents():
    found = [
        Ranking(
            queries=np.zeros(1, int),
            found=np.array([row]),
            groups=np.arange(4)[None],
            rest_rows=np.empty(0, int),
            rest_documents=np.empty(0, int),
        )
        for row in ([2, 1, 9, 3], [1, 2, 3, 4])
    ]
    assert retrieval.exact_recall(*found, 10, 4).tolist() == [0.75]


def test_binary_search_is_measured_against_exact_search():
    rng = np.random.default_rng(3)
    corpus = rng.standard_normal((300, 32))
    queries = corpus[:40] + 0.1 * rng.standard_normal((40, 32))
    judged = [(q, q, 1.0) for q in range(40)]
    recalls = []
    for rescore in (0, 4):
        codec = binary.fit(torch.as_tensor(corpus, dtype=torch.float32), rescore=rescore)
        outcome = run(side(queries, corpus, judged, codec), side(queries, corpus, judged), k=(10, 100))
        recalls.append(outcome.columns["exact_recall_at_10"].mean())
        assert outcome.columns["recall_at_10"].mean() > 0.95
        assert outcome.columns["exact_recall_at_100"].mean() > recalls[-1]
    assert 0.25 < recalls[0] < recalls[1] < 1


def test_queries_without_relevant_documents_are_left_out_and_counted():
    outcome = run(side(np.eye(4), np.eye(4), [(2, 2, 1.0), (1, 1, 0.0), (3, 0, -1.0), (3, 3, 2.0)]))
    assert outcome.rows.tolist() == [2, 3]
    assert outcome.details["queries_without_relevant"] == 1
    assert outcome.details["queries_without_judgement"] == 1
    assert outcome.columns["ndcg_at_1"].tolist() == [1, 1]


def test_self_is_left_out_by_id_before_the_cutoff():
    rng = np.random.default_rng(4)
    corpus = rng.standard_normal((30, 6))
    judged = [(q, (q + 1) % 30, 1.0) for q in range(10)] + [(q, q, 5.0) for q in range(10)]
    kept = run(side(corpus[:10], corpus, judged, prefixes=("x", "x")), k=10)
    left = run(side(corpus[:10], corpus, judged, prefixes=("x", "x")), k=10, exclude_self=True)
    assert kept.details["ids_shared_with_corpus"] == 10
    assert (kept.columns["mrr_at_10"] == 1).all()
    assert (left.columns["mrr_at_10"] < 1).all()
    scores = (corpus[0] / np.linalg.norm(corpus[0])) @ (corpus / np.linalg.norm(corpus, axis=1)[:, None]).T
    scores[0] = -np.inf
    rank = 1 + (scores > scores[1]).sum()
    assert left.columns["mrr_at_10"][0] == pytest.approx(1 / rank if rank <= 10 else 0)


def test_ties_are_followed_to_the_last_candidate_of_each_query():
    # the first query has its own id in the corpus and so one candidate fewer than the second
    test = side(np.ones((2, 2)), np.ones((12, 2)), [(0, 11, 1.0), (1, 11, 1.0)])
    test.parts["queries"].ids[0] = "d0"
    outcome = run(test, k=10, exclude_self=True)
    assert outcome.columns["recall_at_10"].tolist() == pytest.approx([10 / 11, 10 / 12])


def test_a_corpus_as_small_as_the_cutoff_works_and_larger_cutoffs_are_named():
    outcome = run(side(np.eye(10), np.eye(10), [(0, 3, 1.0)]), k=(5, 10, 100))
    assert outcome.columns["recall_at_10"].tolist() == [1]
    assert "recall_at_100" not in outcome.columns
    assert outcome.details["cutoffs_above_corpus"] == [100]


def test_any_two_parts_and_the_l2_metric():
    test = side(np.eye(3), np.eye(3), [(0, 0, 1.0)])
    links = test.links["qrels"]
    renamed = Links(source="images", target="texts", rows=links.rows, grades=links.grades, ids=links.ids)
    other = Side(parts={"images": test.parts["queries"], "texts": test.parts["corpus"]}, links={"captions": renamed})
    outcome = run(other, metric="l2")
    assert outcome.part == "images"
    assert outcome.columns["ndcg_at_1"].tolist() == [1]


def test_expected_reciprocal_rank_of_a_group_with_two_relevant():
    ranking = Ranking(
        queries=np.zeros(1, int),
        found=np.array([[0, 1, 2]]),
        groups=np.zeros((1, 3), int),
        rest_rows=np.empty(0, int),
        rest_documents=np.empty(0, int),
    )
    judged = Judged(num_queries=1, size=3, keys=np.array([0, 2]), gains=np.ones(2))
    # the first relevant one of two among three stands first in 2 of 3 orders, else second
    assert expected_metrics(ranking, judged, 3)["mrr_at_3"][0] == pytest.approx(2 / 3 + 1 / 3 / 2)


@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
@pytest.mark.parametrize("entries", [2**23, 100])
def test_ties_followed_by_score_are_those_found_by_search(monkeypatch, metric, entries):
    monkeypatch.setattr(retrieval, "ENTRIES", entries)
    rng = np.random.default_rng(5)
    corpus = torch.as_tensor(rng.integers(-1, 2, (150, 3)) * 0.3 + 0.1, dtype=torch.float32)
    own = rng.integers(-1, 150, 12)
    documents = Table(vectors=code_vectors(corpus, None, "cosine"), ids=np.arange(150).astype(str), rows=np.arange(150))
    found = retrieval.search(documents, documents.take(np.arange(12)), 10, metric=metric, exclude=own)
    at = np.flatnonzero(found.is_tied(10))
    assert len(at) > 3
    by_score, by_search = (
        sorted(zip(*follow(found, at), strict=True)) for follow in (retrieval.follow_by_score, retrieval.follow_by_search)
    )
    assert len(by_score) > 20
    assert by_score == by_search


def test_blocks_of_tied_queries_change_nothing(monkeypatch):
    rng = np.random.default_rng(6)
    queries, corpus = rng.integers(-1, 2, (20, 3)) + 0.5, rng.integers(-1, 2, (60, 3)) + 0.5
    judged = [(q, d, 1.0) for q, d in zip(*np.nonzero(rng.random((20, 60)) < 0.1), strict=True)]
    codec = int8.fit(torch.as_tensor(corpus, dtype=torch.float32))
    whole = run(side(queries, corpus, judged, codec), side(queries, corpus, judged), k=(5, 10))
    monkeypatch.setattr(retrieval, "ENTRIES", 200)
    cut = run(side(queries, corpus, judged, codec), side(queries, corpus, judged), k=(5, 10))
    assert whole.details["ties_across_10"] > 3
    for name, values in whole.columns.items():
        np.testing.assert_allclose(cut.columns[name], values, atol=1e-12)


def test_equal_vectors_lose_nothing_by_coding():
    corpus, judged = np.ones((30, 8)), [(0, 3, 1.0)]
    for codec in (int8.fit(torch.ones(2, 8)), binary.fit(torch.ones(2, 8))):
        outcome = run(side(np.ones((1, 8)), corpus, judged, codec), side(np.ones((1, 8)), corpus, judged), k=10)
        assert value(outcome, "exact_recall_at_10") == pytest.approx(1)
        assert value(outcome, "recall_at_10") == pytest.approx(1 / 3)


def test_wrong_input_is_refused():
    with pytest.raises(DataError, match="no query has a relevant document"):
        run(side(np.eye(2), np.eye(2), [(0, 0, 0.0)]))
    with pytest.raises(DataError, match="1 pairs of query and document are judged twice"):
        run(side(np.eye(2), np.eye(2), [(0, 0, 1.0), (0, 0, 2.0)]))
    with pytest.raises(DataError, match="every cutoff exceeds the 2 candidates"):
        run(side(np.eye(2), np.eye(2), [(0, 0, 1.0)]), k=10)
    with pytest.raises(DataError, match="needs one set of links between two parts, got none"):
        run(Side(parts=side(np.eye(2), np.eye(2), [(0, 0, 1.0)]).parts))
    with pytest.raises(DataError, match="1 judgements have no grade"):
        run(side(np.eye(2), np.eye(2), [(0, 0, 1.0), (0, 1, np.nan)]))
    with pytest.raises(UsageError, match=r"`k` of `retrieval` to be among 1, 3, 5, 10, 20, 50, 100, 1000, got \[7\]"):
        run(side(np.eye(2), np.eye(2), [(0, 0, 1.0)]), k=7)


def test_registers_metrics_of_every_cutoff():
    (spec,) = retrieval.evalharness_evaluators()
    assert spec.main == spec.metrics[0].name == "ndcg_at_10"
    assert {"recall_at_100", "mrr_at_10", "exact_recall_at_10", "precision_at_1000"} <= {metric.name for metric in spec.metrics}
