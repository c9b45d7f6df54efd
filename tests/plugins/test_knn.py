"""Neighbours vote as METRICS 2.1 says, and as scikit-learn does."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

from evalharness.errors import DataError, UsageError
from evalharness.plugins import knn
from evalharness.testing import check_evaluator, sample_tables
from evalharness.types import Side
from evalharness.vectors import CodedVectors

GENERATOR = torch.Generator()


@pytest.fixture
def tables():
    return sample_tables()


def run(train, test, **params):
    bank = knn.fit(train, None, generator=GENERATOR)
    return knn.score(bank, Side(parts={"items": test}), generator=GENERATOR, **params)


def test_it_passes_the_checks(registry):
    check_evaluator(registry.get("evaluator", "knn"))


def test_temperature_weights_of_the_reference():
    """METRICS 2.1: similarities .9, .8, .75 with labels 0, 1, 1 at T = .07 give class 0 a share of .736936; the majority says 1."""
    similarity = torch.tensor([[0.9, 0.8, 0.75]], dtype=torch.float64)
    labels = torch.tensor([[0, 1, 1]])
    weighted = knn.vote(similarity, labels, 2, weights="temperature", temperature=0.07)
    majority = knn.vote(similarity, labels, 2, weights="majority", temperature=0.07)

    assert float(weighted[0, 0] / weighted.sum()) == pytest.approx(0.736936, abs=1e-6)
    assert majority.argmax().item() == 1
    assert np.exp(np.array([0.9, 0.8, 0.75]) / 0.07) == pytest.approx([383518.39, 91910.58, 44994.06], rel=1e-6)


def test_a_small_temperature_does_not_overflow():
    votes = knn.vote(torch.ones(1, 2, dtype=torch.float64), torch.tensor([[1, 1]]), 2, weights="temperature", temperature=1e-4)

    assert torch.isfinite(votes).all()


@pytest.mark.parametrize(
    ("similarity", "labels", "winner"),
    [
        ([0.9, 0.8, 0.7, 0.6], [1, 0, 0, 1], 0),  # 1.5 against 1.5: the smaller label
        ([0.9, 0.8, 0.7, 0.5], [1, 0, 0, 1], 0),
        ([0.9, 0.8, 0.7, 0.65], [1, 0, 0, 1], 1),  # the larger summed similarity
    ],
)
def test_vote_ties_go_to_summed_similarity_then_the_smaller_label(similarity, labels, winner):
    votes = knn.vote(torch.tensor([similarity], dtype=torch.float64), torch.tensor([labels]), 2, weights="majority", temperature=1)

    assert votes.argmax().item() == winner


@pytest.mark.parametrize("metric", ["cosine", "l2"])
def test_majority_votes_agree_with_scikit_learn(tables, metric):
    train, test = tables
    outcomes = run(train, test, k=[1, 5], weights="majority", metric=metric)
    for outcome in outcomes:
        peer = KNeighborsClassifier(outcome.variant["k"], metric={"l2": "euclidean"}.get(metric, metric), algorithm="brute")
        predicted = peer.fit(train.vectors.dense().numpy(), train.target.values).predict(test.vectors.dense().numpy())
        assert (outcome.columns["prediction"].numpy() == predicted).mean() > 0.98  # vote ties are broken otherwise there


def test_cosine_and_l2_agree_on_unit_vectors(tables):
    for table in tables:
        table.vectors = CodedVectors(torch.nn.functional.normalize(table.vectors.dense(), dim=1))
    cosine, l2 = (run(*tables, k=5, metric=metric)[0] for metric in ("cosine", "l2"))

    assert (cosine.columns["prediction"] == l2.columns["prediction"]).all()


def test_several_k_in_one_pass_equal_single_ones(tables):
    together = run(*tables, k=[1, 5, 20])
    for outcome in together:
        (alone,) = run(*tables, k=outcome.variant["k"])
        assert (outcome.columns["prediction"] == alone.columns["prediction"]).all()
    assert [outcome.variant["k"] for outcome in together] == [20, 1, 5]


def test_leave_one_out_drops_by_id_not_by_rank(tables):
    train, _ = tables
    shuffled = train.take(np.random.default_rng(0).permutation(len(train)))
    (outcome,) = run(train, shuffled, k=1, leave_one_out=True)
    peer = train.vectors.dense().numpy()
    peer = peer / np.linalg.norm(peer, axis=1, keepdims=True)
    similarity = peer @ peer.T
    np.fill_diagonal(similarity, -2)
    expected = train.target.values[similarity.argmax(axis=1)]

    assert (outcome.columns["prediction"].numpy() == expected[shuffled.rows]).all()


def test_a_duplicate_under_another_id_stays_a_neighbour(tables):
    train, _ = tables
    train.vectors.codes[1] = train.vectors.codes[0]
    (outcome,) = run(train, train, k=1, leave_one_out=True)

    assert outcome.columns["prediction"][0] == train.target.values[1]


def test_neighbour_ties_go_to_the_lower_row(tables):
    train, test = tables
    train.vectors.codes[:] = 1.0
    (outcome,) = run(train, test, k=1)

    assert (outcome.columns["prediction"] == train.target.values[0]).all()


def test_shared_ids_without_leave_one_out_are_refused(tables):
    train, _ = tables
    with pytest.raises(DataError, match="240 test ids stand in the bank, `row/0` first; set `leave_one_out: true`"):
        run(train, train, k=1)


@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        ({"k": 241}, DataError, "k = 241 exceeds the 240 rows of the bank; the largest possible k is 240"),
        ({"k": 0}, UsageError, "expected `k` to be positive"),
        ({"k": [1, 5], "main_k": 7}, UsageError, r"expected `main_k` to be one of `k` = \[1, 5\], got 7"),
        ({"k": 1, "weights": "all"}, UsageError, "expected `weights` to be `majority` or `temperature`, got `all`"),
        ({"k": 1, "temperature": 0}, UsageError, "expected a positive `temperature`, got 0"),
        ({"k": 1, "top5": True}, DataError, "`top5` needs five classes, the fit has 4"),
        ({"k": 1, "metric": "manhattan"}, UsageError, "manhattan"),
    ],
)
def test_bad_parameters_are_named(tables, params, error, message):
    with pytest.raises(error, match=message):
        run(*tables, **params)


def test_the_largest_k_of_leave_one_out_is_one_less(tables):
    train, _ = tables
    with pytest.raises(DataError, match="the largest possible k is 239"):
        run(train, train, k=240, leave_one_out=True)
