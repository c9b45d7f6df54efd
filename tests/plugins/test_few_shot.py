import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestCentroid

from evalharness import Column, Side, Table
from evalharness.errors import DataError, UsageError, VectorsError
from evalharness.plugins import few_shot
from evalharness.testing import check_evaluator
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
    vectors, codes = test.items.vectors.dense().numpy(), test.items.target.values
    generator = torch.Generator().manual_seed(0)
    drawn = few_shot._draw(test.items, [3], [2], generator, None, query=5, episodes=40)[3, 2]
    expected = [
        (NearestCentroid().fit(vectors[s], codes[s]).predict(vectors[q]) == codes[q]).mean()
        for s, q in zip(drawn.support.flatten(1).numpy(), drawn.query.flatten(1).numpy(), strict=True)
    ]
    np.testing.assert_allclose(outcome.columns["accuracy"], expected, atol=1e-12)
    np.testing.assert_array_equal(outcome.clusters, drawn.classes)
    assert outcome.variant == {"shot": 2}


def test_the_spec_passes_the_checks_of_evaluators():
    (spec,) = few_shot.evalharness_evaluators()
    check_evaluator(spec, way=2, shot=[1, 2], query=3, episodes=20, head=list(few_shot.HEADS))


def test_heads_of_the_plugin_are_those_of_the_kernel():
    from evalharness.numerics import _episode_heads

    assert set(few_shot.HEADS) == set(_episode_heads.HEADS)
    assert few_shot.METRICS == _episode_heads.METRICS


def test_ways_shots_and_heads_are_crossed_on_the_same_episodes():
    outcomes = run(side(), way=[2, 4], shot=[1, 5], head=["ridge", "nearest-centroid"])
    found = [tuple(outcome.variant.values()) for outcome in outcomes]
    assert outcomes[0].variant == {"way": 2, "shot": 5, "head": "ridge"}
    assert found == [(way, shot, head) for way in (2, 4) for shot in (5, 1) for head in ("ridge", "nearest-centroid")]
    for one, two in zip(outcomes[::2], outcomes[1::2], strict=True):
        np.testing.assert_array_equal(one.clusters, two.clusters)
    assert outcomes[0].clusters.shape == (40, 2)
    assert outcomes[-1].clusters.shape == (40, 4)


def test_asking_for_more_changes_no_episode():
    (alone,) = run(side(), shot=2)
    among = run(side(), way=[2, 3], shot=[1, 2, 7], head=["nearest-centroid", "ridge"])
    (same,) = [outcome for outcome in among if outcome.variant == {"way": 3, "shot": 2, "head": "nearest-centroid"}]
    assert torch.equal(alone.columns["accuracy"], same.columns["accuracy"])


def test_lists_of_one_are_named_like_single_values():
    assert run(side(), way=[3], shot=[2], head=["ridge"])[0].variant == {"shot": 2}


def base(dim=6, value=0.5, ids=None, rows=30):
    vectors = torch.randn(rows, dim, generator=torch.Generator().manual_seed(5)) + value
    ids = np.array([f"train/{at}" for at in range(rows)]) if ids is None else ids
    return Table(vectors=code_vectors(vectors, None, "cosine"), ids=ids, rows=np.arange(rows))


def test_cl2n_subtracts_the_mean_of_training_rows():
    test, train = side(gap=1.0), base()
    (found,) = run(test, head="simpleshot-cl2n", base=train)
    moved = side(gap=1.0)
    moved.items.vectors.codes -= train.vectors.dense().mean(0)
    (same,) = run(moved, head="simpleshot-l2n")
    np.testing.assert_allclose(found.columns["accuracy"], same.columns["accuracy"], atol=1e-12)


def test_cl2n_alone_needs_training_rows():
    assert len(run(side(), head=[head for head in few_shot.HEADS if head != "simpleshot-cl2n"])) == 5
    with pytest.raises(DataError, match="the task has none: name a `train` split"):
        run(side(), head=["ridge", "simpleshot-cl2n"])
    with pytest.raises(DataError, match=r"but 30 of them are test rows \(0\)"):
        run(side(), head="simpleshot-cl2n", base=base(ids=np.arange(30).astype(str)))
    with pytest.raises(VectorsError, match="`base vectors` must be finite, got NaN or infinity in ids train/0, train/1"):
        run(side(), head="simpleshot-cl2n", base=base(value=float("nan")))


def families(test, of=lambda code: code // 3):
    values = np.array([of(code) for code in test.items.target.values])
    names = tuple(f"f{code}" for code in range(values.max() + 1))
    test.items.columns = {
        "family": Column(kind="class", values=values, names=names),
        "size": Column(kind="number", values=np.ones(len(values))),
    }
    return test


def test_within_a_superclass_column():
    test = families(side(classes=8))  # families of three, three and two
    (outcome,) = run(test, within="family")
    assert outcome.details == {"num_classes": 2, "smallest_class": 20, "items": 120, "classes_within": 6}
    assert outcome.clusters.shape == (40, 1)
    assert set(outcome.clusters.flatten().tolist()) == {0, 1}
    assert run(test, within="family", way=2)[0].details["num_classes"] == 3


def test_within_is_checked():
    with pytest.raises(UsageError, match="`within` of `few-shot`: unknown column `familly`; did you mean `family`"):
        run(families(side()), within="familly")
    with pytest.raises(UsageError, match="got the number column `size`"):
        run(families(side()), within="size")
    with pytest.raises(DataError, match=r"no superclass has `way` = 4 classes that have items: the largest, 0 \(f0\), has 3"):
        run(families(side()), within="family", way=4)
    torn = families(side())
    torn.items.columns["family"].values[0] = 1
    with pytest.raises(DataError, match=r"class 0 \(c0\) must belong to exactly one superclass, got 0 \(f0\) and 1 \(f1\)"):
        run(torn, within="family")


def test_a_head_that_does_not_converge_is_not_measured(monkeypatch):
    from evalharness.numerics import _episode_heads

    solve = _episode_heads.logistic_path
    monkeypatch.setattr(_episode_heads, "logistic_path", lambda *given: solve(*given, max_iterations=1))
    (outcome,) = run(side(), head="logistic", penalty=1e-6)
    assert outcome.status == "not_converged"
    assert outcome.reason == "the head `logistic` did not converge in 40 of 40 episodes"


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
    with pytest.raises(UsageError, match="`head` of `few-shot`: unknown head `simpleshot`; did you mean `simpleshot-un`"):
        run(side(), head="simpleshot")
    with pytest.raises(UsageError, match="got an empty list"):
        run(side(), head=[])
    with pytest.raises(UsageError, match="`metric` of `few-shot` is about the head `nearest-centroid`"):
        run(side(), head="ridge", metric="cosine")
    with pytest.raises(UsageError, match="`penalty` of `few-shot` to be positive, got 0"):
        run(side(), penalty=0)
    with pytest.raises(UsageError, match="`way` of `few-shot` to be positive, a whole number or a list of them, got 2.5"):
        run(side(), way=2.5)
    with pytest.raises(UsageError, match="`metric` of `few-shot` to be `l2` or `cosine`, got `dot`"):
        run(side(), metric="dot")
    with pytest.raises(UsageError, match="`shot` of `few-shot` to be positive"):
        run(side(), shot=[])
    with pytest.raises(UsageError, match="`main_shot` to be one of"):
        run(side(), main_shot=7)


# --- calibration ----------------------------------------------------------------------------------------------------


def called_different(within, simulations=1000):
    """Return how often two encoders, equal in expectation over classes, differ by the class-level interval and by that over episodes."""
    from evalharness import stats

    found = []
    for at in range(simulations):
        rng = np.random.default_rng(at)
        ease = np.repeat(rng.uniform(0.3, 1.2, 10), 4) if within else np.full(40, 0.7)
        outcomes = []
        for _ in range(2):
            own = np.repeat(rng.uniform(0.3, 1.2, 10), 4) if within else ease
            test = families(side(classes=40, dim=8), of=lambda code: code // 4)
            centres = own[:, None] * rng.standard_normal((40, 8))
            vectors = centres[test.items.target.values] + rng.standard_normal((800, 8))
            test.items.vectors.codes[:] = torch.as_tensor(vectors, dtype=torch.float32)
            outcomes += run(test, seed=at, query=15, episodes=600, within="family" if within else None)
        one, two = outcomes
        np.testing.assert_array_equal(one.clusters, two.clusters)
        difference = (one.columns["accuracy"] - two.columns["accuracy"]).numpy()
        by_class = stats.episode_jackknife(difference, one.clusters, one.details["num_classes"]).interval
        by_episode = stats.episode_interval(difference)
        found.append([not each.low <= 0 <= each.high for each in (by_class, by_episode)])
    return np.mean(found, axis=0)


@pytest.mark.slow
@pytest.mark.parametrize("within", [False, True])
def test_encoders_equal_in_expectation_are_called_different_in_five_per_cent(within):
    by_class, by_episode = called_different(within)
    assert 0.02 <= by_class <= 0.085
    assert by_episode > 0.4
