"""Heads of few-shot episodes: against scikit-learn and worked cases, at any scale, and in ties."""

import importlib.util
import random
import sys
import types

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neighbors import NearestCentroid

from evalharness.errors import UsageError, VectorsError
from evalharness.numerics import Episodes, sample_episodes, score_episodes
from evalharness.numerics._episode_heads import HEADS

ALL = [*((head, "l2") for head in HEADS), ("nearest-centroid", "cosine")]


def drawn(classes=8, each=20, dim=12, gap=0.7, seed=0, dtype=np.float64, **sizes):
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), each)
    vectors = (rng.standard_normal((len(labels), dim)) + gap * rng.standard_normal((classes, dim))[labels] + 0.3).astype(dtype)
    asked = {"way": 3, "shot": 4, "query": 5, "episodes": 40, **sizes}
    return vectors, labels, sample_episodes(labels, generator=torch.Generator().manual_seed(seed), **asked)


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def accuracies(vectors, labels, episodes, predict):
    pairs = zip(episodes.support, episodes.query, strict=True)
    return [(predict(vectors[s.ravel()], labels[s.ravel()], vectors[q.ravel()]).reshape(q.shape) == labels[q]).mean() for s, q in pairs]


def ridge(support, codes, queries, penalty):
    classes = np.unique(codes)
    fitted = Ridge(alpha=penalty).fit(support, (codes[:, None] == classes).astype(float))
    return classes[fitted.predict(queries).argmax(1)]


@pytest.mark.parametrize("penalty", [0.01, 1.0, 30.0])
@pytest.mark.parametrize("dim", [4, 40])
def test_ridge_equals_scikit_learn(penalty, dim):
    vectors, labels, episodes = drawn(dim=dim)
    expected = accuracies(unit(vectors), labels, episodes, lambda s, y, q: ridge(s, y, q, penalty))
    np.testing.assert_allclose(score_episodes(vectors, episodes, head="ridge", penalty=penalty).accuracy, expected, atol=1e-12)


@pytest.mark.parametrize("penalty", [0.01, 1.0])
@pytest.mark.parametrize("dim", [4, 40])
def test_logistic_equals_scikit_learn(penalty, dim):
    vectors, labels, episodes = drawn(dim=dim)
    model = LogisticRegression(C=1 / penalty, tol=1e-10, max_iter=10000)
    expected = accuracies(unit(vectors), labels, episodes, lambda s, y, q: model.fit(s, y).predict(q))
    found = score_episodes(vectors, episodes, head="logistic", penalty=penalty)
    assert found.converged.all()
    # The solver stops at a relative error of the objective of 1e-6: a query within that of a border may fall either way.
    assert np.count_nonzero(np.abs(found.accuracy - expected) > 1e-12) <= 1
    np.testing.assert_allclose(found.accuracy, expected, atol=1.01 / 15)


@pytest.mark.parametrize(
    ("head", "make"),
    [
        ("nearest-centroid", lambda v: v),
        ("simpleshot-un", lambda v: v),
        ("simpleshot-l2n", unit),
        ("simpleshot-cl2n", lambda v: unit(v - 0.2)),
    ],
)
def test_centroid_heads_equal_scikit_learn(head, make):
    vectors, labels, episodes = drawn()
    expected = accuracies(make(vectors), labels, episodes, lambda s, y, q: NearestCentroid().fit(s, y).predict(q))
    found = score_episodes(vectors, episodes, head=head, base_mean=np.full(12, 0.2))
    assert isinstance(found.accuracy, np.ndarray)
    np.testing.assert_allclose(found.accuracy, expected, atol=1e-12)
    assert found.converged.all()


def worked(query):
    """METRICS 3: support (2,0),(4,0) | (0,3),(0,1), base mean (1,1)."""
    vectors = np.array([[2.0, 0.0], [4.0, 0.0], [0.0, 3.0], [0.0, 1.0], query])
    return vectors, Episodes(support=np.array([[[0, 1], [2, 3]]]), query=np.array([[[4], [4]]]), classes=np.array([[0, 1]]))


def distances(vectors, episodes, head, base_mean=None):
    prepared = HEADS[head].prepare(torch.as_tensor(vectors), None if base_mean is None else torch.as_tensor(base_mean), None)
    line = HEADS[head].fit(prepared, torch.as_tensor(episodes.support), 1.0)
    query = prepared[-1]
    return torch.sqrt(query.square().sum() - 2 * (line.weights[0] @ query + line.bias[0]))


def test_the_worked_case_of_metrics_3():
    vectors, episode = worked([2.0, 1.5])
    np.testing.assert_allclose(distances(vectors, episode, "simpleshot-un"), [1.802776, 2.061553], atol=1e-6)
    squares = distances(vectors, episode, "simpleshot-cl2n", np.array([1.0, 1.0])).square()
    np.testing.assert_allclose(squares, [0.923879, 2.618034], atol=1e-6)
    head = HEADS["simpleshot-cl2n"]
    line = head.fit(head.prepare(torch.as_tensor(vectors), torch.ones(2), None), torch.as_tensor(episode.support), 1.0)
    np.testing.assert_allclose(line.weights[0], [[0.827895, -0.511667], [-0.723607, 0.447214]], atol=1e-6)  # the centroids
    # The query is asked once for each class, and always found nearer to the first.
    for head in ("simpleshot-un", "simpleshot-cl2n"):
        assert score_episodes(vectors, episode, head=head, base_mean=np.array([1.0, 1.0])).accuracy == [0.5]


def test_cl2n_differs_from_l2n_and_un():
    vectors, _, episodes = drawn(gap=0.4, episodes=200)
    offset = vectors + 3.0
    by_head = {
        head: score_episodes(offset, episodes, head=head, base_mean=offset.mean(0)).accuracy.mean()
        for head in ("simpleshot-un", "simpleshot-l2n", "simpleshot-cl2n")
    }
    assert len(set(by_head.values())) == 3


@pytest.mark.parametrize(("head", "metric"), ALL)
@pytest.mark.parametrize("factor", [1e30, 1e-30, 3e37, 1e-36])
def test_scale_changes_nothing(head, metric, factor):
    vectors, _, episodes = drawn(dtype=np.float32, gap=1.0)
    mean = np.full(12, 0.2, dtype=np.float32)
    plain = score_episodes(vectors, episodes, head=head, metric=metric, base_mean=mean)
    scaled = score_episodes(vectors * np.float32(factor), episodes, head=head, metric=metric, base_mean=mean * np.float32(factor))
    np.testing.assert_allclose(scaled.accuracy, plain.accuracy, atol=1e-12)


def test_a_far_offset_changes_nothing_for_l2():
    vectors, _, episodes = drawn()
    plain = score_episodes(vectors, episodes).accuracy
    for offset in (0.5, 1, 2, 100, 1e6):  # from where the mean is left in to where it must be taken out
        np.testing.assert_array_equal(score_episodes(vectors + offset, episodes).accuracy, plain)


@pytest.mark.parametrize("value", [1.0, 0.1, 1e30, -3e-30])
@pytest.mark.parametrize("dim", [1, 7, 640])
@pytest.mark.parametrize(("head", "metric"), ALL)
def test_equal_vectors_score_chance(head, metric, dim, value):
    _, _, episodes = drawn()
    vectors = np.full((160, dim), value, dtype=np.float32)
    found = score_episodes(vectors, episodes, head=head, metric=metric, base_mean=vectors.mean(0, dtype=np.float64))
    np.testing.assert_allclose(found.accuracy, 1 / 3, atol=1e-12)


def test_a_tie_goes_to_the_class_drawn_first():
    vectors = np.array([[1.0, 2.0], [1.0, 2.0], [5.0, 1.0]])
    first = Episodes(support=np.array([[[0], [1]]]), query=np.array([[[2], [2]]]), classes=np.array([[0, 1]]))
    swapped = Episodes(support=np.array([[[1], [0]]]), query=np.array([[[2], [2]]]), classes=np.array([[1, 0]]))
    assert score_episodes(vectors, first).accuracy == score_episodes(vectors, swapped).accuracy == [0.5]


def test_opposite_support_has_no_direction_and_scores_nothing():
    vectors = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [0.0, 2.0], [1.0, -1.0]])
    episode = Episodes(support=torch.tensor([[[0, 1], [2, 3]]]), query=torch.tensor([[[5], [4]]]), classes=torch.tensor([[0, 1]]))
    assert score_episodes(vectors, episode, metric="cosine").accuracy.tolist() == [1.0]


@pytest.mark.parametrize(("head", "metric"), ALL)
def test_blocks_order_and_kind_change_nothing(head, metric, monkeypatch):
    vectors, _, episodes = drawn(dtype=np.float32)
    given = {"head": head, "metric": metric, "base_mean": np.zeros(12)}
    whole = score_episodes(vectors, episodes, **given).accuracy
    np.testing.assert_array_equal(score_episodes(vectors, episodes, block_bytes=2000, **given).accuracy, whole)
    for cache in (1, 3000):
        monkeypatch.setattr("evalharness.numerics._episode_heads._CACHE_BYTES", cache)
        np.testing.assert_array_equal(score_episodes(vectors, episodes, **given).accuracy, whole)
    tensors = Episodes(*(torch.from_numpy(part) for part in episodes))
    assert score_episodes(torch.from_numpy(vectors), tensors, **given).accuracy.tolist() == whole.tolist()
    backwards = Episodes(*(part[::-1].copy() for part in episodes))
    np.testing.assert_array_equal(score_episodes(vectors, backwards, **given).accuracy, whole[::-1])


@pytest.mark.gpu
@pytest.mark.parametrize(("head", "metric"), ALL)
def test_a_gpu_scores_the_same(head, metric):
    vectors, _, episodes = drawn(dtype=np.float32, gap=1.0)
    given = {"head": head, "metric": metric, "base_mean": np.zeros(12, dtype=np.float32)}
    tensor = torch.from_numpy(vectors)
    found = score_episodes(tensor.cuda(), episodes, **given)
    assert found.accuracy.is_cuda
    np.testing.assert_allclose(found.accuracy.cpu(), score_episodes(tensor, episodes, **given).accuracy, atol=1.01 / 15)


@pytest.mark.parametrize(("head", "metric"), ALL)
def test_one_way_is_always_right_and_one_query_is_enough(head, metric):
    vectors, _, episodes = drawn(way=1, shot=1, query=1)
    assert (score_episodes(vectors, episodes, head=head, metric=metric, base_mean=np.zeros(12)).accuracy == 1).all()


def test_wrong_input_is_refused():
    vectors, _, episodes = drawn()
    with pytest.raises(UsageError, match="unknown head `ridg`; did you mean `ridge`"):
        score_episodes(vectors, episodes, head="ridg")
    with pytest.raises(UsageError, match="unknown metric `dot`"):
        score_episodes(vectors, episodes, metric="dot")
    with pytest.raises(UsageError, match="`penalty` must be positive, got 0"):
        score_episodes(vectors, episodes, head="ridge", penalty=0)
    with pytest.raises(UsageError, match="give `base_mean`, or use `simpleshot-l2n`"):
        score_episodes(vectors, episodes, head="simpleshot-cl2n")
    with pytest.raises(UsageError, match=r"`base_mean` must have shape \(12,\), got \(3,\)"):
        score_episodes(vectors, episodes, head="simpleshot-cl2n", base_mean=np.zeros(3))
    with pytest.raises(VectorsError, match="`base_mean` must be finite"):
        score_episodes(vectors, episodes, head="simpleshot-cl2n", base_mean=np.full(12, np.nan))
    with pytest.raises(UsageError, match="point beyond the 100 rows"):
        score_episodes(vectors[:100], episodes)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_named(bad):
    vectors, _, episodes = drawn()
    vectors[7, 3] = bad
    for head in HEADS:
        with pytest.raises(VectorsError, match="must be finite, got NaN or infinity in id r7"):
            score_episodes(vectors, episodes, head=head, base_mean=np.zeros(12), ids=[f"r{at}" for at in range(160)])


def test_a_vector_without_direction_is_named_where_it_needs_one():
    vectors, _, episodes = drawn()
    vectors[7] = 0
    for head in ("simpleshot-l2n", "ridge", "logistic"):
        with pytest.raises(VectorsError, match="got norm 0 in row 7"):
            score_episodes(vectors, episodes, head=head)
    assert np.isfinite(score_episodes(vectors, episodes, head="simpleshot-cl2n", base_mean=np.zeros(12)).accuracy).all()


def test_a_fit_that_does_not_converge_is_said_so(monkeypatch):
    from evalharness.numerics import _episode_heads

    solve = _episode_heads.logistic_path
    monkeypatch.setattr(_episode_heads, "logistic_path", lambda *given: solve(*given, max_iterations=1))
    vectors, _, episodes = drawn()
    found = score_episodes(vectors, episodes, head="logistic", penalty=1e-6)
    assert not found.converged.any()


# --- the peer -------------------------------------------------------------------------------------------------------


def load_easyfsl(monkeypatch):
    """Import easyfsl 1.5 without torchvision, which only its image folders and networks need, and for a torch whose samplers take no data."""
    if importlib.util.find_spec("easyfsl") is None:
        pytest.skip("easyfsl is not installed")
    if importlib.util.find_spec("torchvision") is None:
        for name in ("torchvision", "torchvision.datasets", "torchvision.models", "torchvision.models.resnet", "torchvision.transforms"):
            module = types.ModuleType(name)
            module.__getattr__ = lambda _: object
            monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(torch.utils.data.Sampler, "__init__", lambda self, data_source=None: None)
    from easyfsl.datasets import FeaturesDataset
    from easyfsl.methods import PrototypicalNetworks
    from easyfsl.samplers import TaskSampler

    return FeaturesDataset, PrototypicalNetworks, TaskSampler


@pytest.mark.real
def test_equals_easyfsl_on_its_own_episodes(monkeypatch):
    dataset_of, networks, sampler_of = load_easyfsl(monkeypatch)
    vectors, labels, _ = drawn(classes=20, each=30, dim=64, gap=0.4, dtype=np.float32)
    held = dataset_of(labels.tolist(), torch.from_numpy(vectors), [str(code) for code in range(20)])
    random.seed(0)
    sampler = sampler_of(held, n_way=5, n_shot=5, n_query=15, n_tasks=50)
    model, theirs, rows = networks(), [], []
    for batch in sampler:
        support, support_labels, query, query_labels, _ = sampler.episodic_collate_fn([held[at] for at in batch])
        model.process_support_set(support, support_labels)
        theirs.append(float((model(query).argmax(1) == query_labels).double().mean()))
        rows.append(np.array(batch).reshape(5, 20))
    drawn_rows = np.stack(rows)
    episodes = Episodes(support=drawn_rows[..., :5], query=drawn_rows[..., 5:], classes=labels[drawn_rows[..., 0]])
    np.testing.assert_allclose(score_episodes(vectors, episodes).accuracy, theirs, atol=1e-12)
