"""Neighbours vote as METRICS 2.1 says, and as scikit-learn does."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor

from evalharness import Column
from evalharness.errors import DataError, UsageError, VectorsError
from evalharness.numerics import best_threshold
from evalharness.plugins import knn
from evalharness.testing import check_evaluator, metric_values, sample_tables
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
    near = knn.Neighbours(similarity, labels)
    weighted = knn.vote(near, 2, knn.Voting("temperature", 0.07))
    majority = knn.vote(near, 2, knn.Voting("majority", 0.07))

    assert float(weighted[0, 0] / weighted.sum()) == pytest.approx(0.736936, abs=1e-6)
    assert majority.argmax().item() == 1
    # Ours are divided by the largest, so that nothing overflows.
    weights = knn.Voting("temperature", 0.07).weigh(similarity)[0] * 383518.39
    assert weights.tolist() == pytest.approx([383518.39, 91910.58, 44994.06], rel=1e-6)


def test_a_small_temperature_does_not_overflow():
    near = knn.Neighbours(torch.ones(1, 2, dtype=torch.float64), torch.tensor([[1, 1]]))
    votes = knn.vote(near, 2, knn.Voting("temperature", 1e-4))

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
    near = knn.Neighbours(torch.tensor([similarity], dtype=torch.float64), torch.tensor([labels]))
    votes = knn.vote(near, 2, knn.Voting("majority", 1))

    assert votes.argmax().item() == winner


def by_temperature(distance):
    return np.exp(-distance / 0.07)


def peers(kind, tables, k, **params):
    train, test = tables
    model = kind(k, metric="cosine", algorithm="brute", weights=by_temperature, **params)
    model.fit(train.vectors.dense().double().numpy(), train.target.values)
    return model, test.vectors.dense().double().numpy()


def with_targets(tables, kind, make, names=()):
    for at, table in enumerate(tables):
        values = make(table.vectors.dense().numpy(), np.random.default_rng(at))
        table.target = Column(kind=kind, values=values, names=names)
    return tables


def make_numbers(vectors, generator):
    return (vectors[:, 0] + 0.3 * generator.standard_normal(len(vectors))).astype(np.float64)


def make_labels(vectors, generator):
    held = vectors[:, :4] + 0.5 * generator.standard_normal((len(vectors), 4)) > 0.5
    held[:, 3] = False
    return held


@pytest.mark.parametrize("k", [1, 5, 20])
def test_temperature_votes_and_their_log_loss_agree_with_scikit_learn(tables, k):
    (outcome,) = run(*tables, k=k)
    model, vectors = peers(KNeighborsClassifier, tables, k)
    share = model.predict_proba(vectors)
    truth = tables[1].target.values

    assert (outcome.columns["prediction"].numpy() == share.argmax(axis=1)).all()
    own = share[np.arange(len(truth)), truth].clip(min=1e-12)
    np.testing.assert_allclose(outcome.columns["log_loss"], -np.log(own), atol=1e-4)
    assert outcome.columns["log_loss"].max() <= knn.LARGEST_LOSS


def test_log_loss_of_the_reference(tables):
    similarity = torch.tensor([[0.9, 0.8, 0.75]], dtype=torch.float64)
    votes = knn.vote(knn.Neighbours(similarity, torch.tensor([[0, 1, 1]])), 2, knn.Voting("temperature", 0.07))
    for code, expected in ((0, 0.305254), (1, 1.335358), (2, 27.631021)):  # the last class is not in the bank
        table = tables[1].take(np.array([0]))
        table.target.values[:] = code
        columns, details = knn.class_columns(votes, table, probabilities=True, top5=False)
        assert float(columns["log_loss"]) == pytest.approx(expected, abs=1e-5)
    assert details == {"test_items_of_unseen_classes": 1}


def test_majority_votes_have_no_log_loss(tables):
    assert "log_loss" not in run(*tables, k=5, weights="majority")[0].columns


@pytest.mark.parametrize("weights", ["temperature", "majority"])
def test_numbers_are_the_weighted_mean_of_neighbours(tables, registry, weights):
    tables = with_targets(tables, "number", make_numbers)
    (outcome,) = run(*tables, k=5, weights=weights)
    model, vectors = peers(KNeighborsRegressor, tables, 5)
    model.set_params(weights=by_temperature if weights == "temperature" else "uniform")

    np.testing.assert_allclose(outcome.columns["predicted_number"], model.predict(vectors), atol=1e-4)
    values = {metric.name: value for metric, value in metric_values(registry.get("evaluator", "knn"), outcome)}
    assert set(values) == {"r2", "spearman"}
    assert values["r2"] == pytest.approx(model.score(vectors, tables[1].target.values), abs=1e-4)


def test_a_constant_number_is_refused(tables):
    train, test = with_targets(tables, "number", make_numbers)
    test.target.values[:] = 3
    with pytest.raises(DataError, match="the number target has the one value 3 in all 240 test rows: R2 and correlation are undefined"):
        run(train, test, k=1)


def test_labels_score_the_weighted_share_of_neighbours(tables, registry):
    tables = with_targets(tables, "multilabel", make_labels, names=("a", "b", "c", "d"))
    (outcome,) = run(*tables, k=5)
    model, vectors = peers(KNeighborsRegressor, tables, 5)
    share, truth = model.fit(model._fit_X, tables[0].target.values.astype(float)).predict(vectors), tables[1].target.values

    np.testing.assert_allclose(outcome.columns["label_score"], share, atol=1e-4)
    threshold = outcome.details["threshold"]
    np.testing.assert_array_equal(outcome.columns["agreed"], 2 * ((share > threshold) & truth).sum(axis=1))
    np.testing.assert_array_equal(outcome.columns["named"], (share > threshold).sum(axis=1) + truth.sum(axis=1))
    assert outcome.details["labels_without_positives"] == ["d"]
    assert {metric.name for metric, _ in metric_values(registry.get("evaluator", "knn"), outcome)} == {"mean_average_precision", "micro_f1"}


@pytest.mark.parametrize("weights", ["majority", "temperature"])
def test_labels_are_named_above_the_threshold_of_the_best_micro_f1_among_training_rows_scored_by_the_others(tables, weights):
    train, test = with_targets(tables, "multilabel", make_labels, names=("a", "b", "c", "d"))
    (outcome,) = run(train, test, k=5, weights=weights)
    (own,) = run(train, train, k=5, weights=weights, leave_one_out=True)
    scores, truth = np.asarray(own.columns["label_score"]), train.target.values

    def micro_f1(threshold):
        named = scores > threshold
        return 2 * (named & truth).sum() / (named.sum() + truth.sum())

    threshold = outcome.details["threshold"]
    assert micro_f1(threshold) == max(micro_f1(each) for each in np.unique(scores) - 1e-12)
    assert outcome.details["threshold_from"] == f"leave-one-out over {len(train)} training rows"


def test_rows_that_are_scored_by_the_others_do_not_choose_their_own_threshold(tables):
    train, _ = with_targets(tables, "multilabel", make_labels, names=("a", "b", "c", "d"))
    (found,) = run(train, train, k=5, leave_one_out=True)
    scores, truth, agreed = np.asarray(found.columns["label_score"]), train.target.values, np.asarray(found.columns["agreed"])
    first = np.zeros(len(train), dtype=bool)
    first[torch.randperm(len(train), generator=torch.Generator().manual_seed(3)).numpy()[: len(train) // 2]] = True
    cuts = np.where(first, best_threshold(scores[~first], truth[~first]), best_threshold(scores[first], truth[first]))

    bank = knn.fit(train, None, generator=GENERATOR)
    (again,) = knn.score(bank, Side(parts={"items": train}), generator=torch.Generator().manual_seed(3), k=5, leave_one_out=True)
    np.testing.assert_array_equal(again.columns["agreed"], 2 * ((scores > cuts[:, None]) & truth).sum(axis=1))
    assert sorted(np.atleast_1d(again.details["threshold"])) == sorted(set(cuts))
    assert again.details["threshold_from"] == "the other half of the rows, each scored by the others"
    assert agreed.sum() > 0


def test_a_bank_of_one_row_names_labels_above_one_half(tables):
    train, test = with_targets(tables, "multilabel", make_labels, names=("a", "b", "c", "d"))
    (outcome,) = run(train.take(np.array([0])), test, k=1)

    assert outcome.details["threshold"] == 0.5
    assert outcome.details["threshold_from"] == "one half, since there is no other row to choose it on"


@pytest.mark.parametrize(("side", "what"), [(0, "gallery"), (1, "queries")])
def test_vectors_without_direction_are_named_by_id(tables, side, what):
    vectors = tables[side].vectors.dense().clone()
    vectors[3] = 0
    tables[side].vectors = CodedVectors(vectors, ids=tables[side].ids)

    with pytest.raises(VectorsError, match=f"`{what}` cannot be normalised, got norm 0 in id {tables[side].ids[3]}"):
        run(*tables, k=1)


def test_top5_is_for_classes(tables):
    with pytest.raises(UsageError, match="`top5` needs a class target, got a number column"):
        run(*with_targets(tables, "number", make_numbers), k=1, top5=True)


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


@pytest.mark.real
@pytest.mark.parametrize("metric", ["cosine", "l2"])
def test_leave_one_out_equals_precision_at_1_of_pytorch_metric_learning(tables, metric):
    calculators = pytest.importorskip("pytorch_metric_learning.utils.accuracy_calculator")
    inference = pytest.importorskip("pytorch_metric_learning.utils.inference")
    distances = pytest.importorskip("pytorch_metric_learning.distances")
    distance = distances.CosineSimilarity() if metric == "cosine" else distances.LpDistance(normalize_embeddings=False)
    calculator = calculators.AccuracyCalculator(include=("precision_at_1",), knn_func=inference.CustomKNN(distance))
    test = tables[1]
    vectors, labels = test.vectors.dense(), torch.from_numpy(test.target.values)

    theirs = calculator.get_accuracy(vectors, labels)["precision_at_1"]
    (ours,) = run(test, test, k=1, metric=metric, leave_one_out=True)

    assert ours.columns["hit"].float().mean().item() == pytest.approx(theirs, abs=1e-6)
