import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestCentroid

from evalharness import Column, Side, Table
from evalharness.errors import DataError, UsageError
from evalharness.numerics import Episodes, sample_episodes
from evalharness.plugins import few_shot
from evalharness.vectors import code_vectors


def side(classes=8, each=20, dim=6, gap=2.0, seed=0, codes=None, names=None):
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), each)
    vectors = rng.standard_normal((len(labels), dim)) + gap * rng.standard_normal((classes, dim))[labels]
    values = labels if codes is None else codes(labels)
    target = Column(kind="class", values=values.astype(np.int64), names=names or tuple(f"c{code}" for code in range(values.max() + 1)))
    coded = code_vectors(torch.as_tensor(vectors, dtype=torch.float32), None, "cosine")
    return Side(parts={"items": Table(vectors=coded, ids=np.arange(len(labels)).astype(str), rows=np.arange(len(labels)), target=target)})


def run(test, seed=0, **params):
    given = {"way": 3, "shot": 2, "query": 5, "episodes": 40, **params}
    return few_shot.score(None, test, generator=torch.Generator().manual_seed(seed), **given)


def test_equals_nearest_centroid_of_scikit_learn():
    test = side()
    (outcome,) = run(test)
    labels = torch.from_numpy(test.items.target.values)
    drawn = sample_episodes(labels, way=3, shot=2, query=5, episodes=40, generator=torch.Generator().manual_seed(0))
    vectors, codes = test.items.vectors.dense().numpy(), labels.numpy()
    expected = [
        (NearestCentroid().fit(vectors[s], codes[s]).predict(vectors[q]) == codes[q]).mean()
        for s, q in zip(drawn.support.flatten(1).numpy(), drawn.query.flatten(1).numpy(), strict=True)
    ]
    np.testing.assert_allclose(outcome.columns["accuracy"], expected, atol=1e-12)
    np.testing.assert_array_equal(outcome.clusters, drawn.classes)


@pytest.mark.parametrize("metric", ["l2", "cosine"])
def test_a_case_by_hand(metric):
    vectors = torch.tensor([[2.0, 0.0], [4.0, 0.0], [0.0, 3.0], [0.0, 1.0], [2.0, 1.5], [0.0, 2.0]])
    episode = Episodes(support=torch.tensor([[[0, 1], [2, 3]]]), query=torch.tensor([[[4], [5]]]), classes=torch.tensor([[0, 1]]))
    # l2: centroids (3, 0) and (0, 2); query 4 is sqrt(3.25) from the first and sqrt(4.25) from the second
    assert few_shot.score_episodes(vectors, episode, metric).tolist() == [1.0]


def test_cosine_ignores_lengths_and_l2_does_not():
    test = side(gap=1.0)
    plain = {metric: run(test, metric=metric)[0].columns["accuracy"] for metric in ("l2", "cosine")}
    test.items.vectors.codes *= torch.linspace(0.1, 10, len(test.items))[:, None]
    scaled = {metric: run(test, metric=metric)[0].columns["accuracy"] for metric in ("l2", "cosine")}
    assert torch.equal(plain["cosine"], scaled["cosine"])
    assert not torch.equal(plain["l2"], scaled["l2"])


def test_separate_classes_are_always_right_and_equal_vectors_are_chance():
    assert (run(side(gap=100.0))[0].columns["accuracy"] == 1).all()
    test = side()
    test.items.vectors.codes[:] = 1.0
    assert run(test)[0].columns["accuracy"].tolist() == pytest.approx([1 / 3] * 40)


def test_blocks_change_nothing(monkeypatch):
    whole = run(side())[0].columns["accuracy"]
    monkeypatch.setattr(few_shot, "BLOCK_BYTES", 2000)
    assert torch.equal(run(side())[0].columns["accuracy"], whole)


def test_every_encoder_gets_the_same_episodes():
    one, two = run(side(seed=0))[0], run(side(seed=1, dim=3))[0]
    np.testing.assert_array_equal(one.clusters, two.clusters)


def test_one_outcome_a_shot_the_main_one_first():
    outcomes = run(side(), shot=[1, 5, 2])
    assert [outcome.variant["shot"] for outcome in outcomes] == [5, 1, 2]
    assert [outcome.variant["shot"] for outcome in run(side(), shot=[1, 2])] == [2, 1]
    assert run(side(), shot=[1, 5], main_shot=1)[0].variant == {"shot": 1}


def test_more_shots_help():
    one, five = (float(run(side(gap=0.7), shot=shot, episodes=200)[0].columns["accuracy"].mean()) for shot in (1, 10))
    assert one < five


def test_gaps_in_codes_and_missing_labels_are_counted_out():
    test = side(codes=lambda labels: np.where(labels == 3, -1, labels * 2))
    (outcome,) = run(test)
    assert outcome.details["num_classes"] == 7
    assert outcome.clusters.min() == 0
    assert outcome.clusters.max() == 6
    assert outcome.rows.tolist() == list(range(40))


def test_the_class_level_interval_can_be_made():
    from evalharness import stats

    (outcome,) = run(side(classes=12), episodes=100)
    found = stats.episode_jackknife(outcome.columns["accuracy"].numpy(), outcome.clusters, outcome.details["num_classes"])
    assert found.reason is None
    assert found.interval.low < float(outcome.columns["accuracy"].mean()) < found.interval.high


def test_wrong_input_is_refused():
    with pytest.raises(DataError, match=r"\(c0\) has 20 items"):
        run(side(), query=19)
    with pytest.raises(DataError, match="more than the 8 classes"):
        run(side(), way=9)
    with pytest.raises(UsageError, match="`head` of `few-shot` to be `nearest-centroid`, got `svm`"):
        run(side(), head="svm")
    with pytest.raises(UsageError, match="`metric` of `few-shot` to be `l2` or `cosine`, got `dot`"):
        run(side(), metric="dot")
    with pytest.raises(UsageError, match="`shot` to be positive"):
        run(side(), shot=[])
    with pytest.raises(UsageError, match="`main_shot` to be one of"):
        run(side(), main_shot=7)
