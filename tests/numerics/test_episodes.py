"""Episodes: what they promise, and that they are drawn evenly."""

import numpy as np
import pytest
import torch

from evalharness.errors import DataError, UsageError
from evalharness.numerics import sample_episodes


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_episodes_keep_their_promises():
    labels = np.random.default_rng(0).permutation(np.r_[np.repeat(np.arange(8) * 3, 12), np.full(20, -1)])
    support, query, classes = sample_episodes(labels, way=5, shot=4, query=6, episodes=300, generator=seeded())
    assert (support.shape, query.shape, classes.shape) == ((300, 5, 4), (300, 5, 6), (300, 5))
    assert (labels[support] == classes[..., None]).all()
    assert (labels[query] == classes[..., None]).all()
    rows = np.concatenate([support, query], axis=2).reshape(300, -1)
    assert all(len(set(row)) == 50 for row in rows.tolist())
    assert all(len(set(row)) == 5 for row in classes.tolist())


def test_every_item_and_class_is_drawn_evenly_in_every_place():
    labels = np.repeat(np.arange(5), [6, 6, 6, 6, 6])
    support, query, classes = sample_episodes(labels, way=2, shot=1, query=2, episodes=30000, generator=seeded())
    for place in range(2):
        np.testing.assert_allclose(np.bincount(classes[:, place]) / 30000, 1 / 5, atol=0.012)
        np.testing.assert_allclose(np.bincount(support[:, place, 0], minlength=30) / 30000, 1 / 30, atol=0.006)
        for at in range(2):
            np.testing.assert_allclose(np.bincount(query[:, place, at], minlength=30) / 30000, 1 / 30, atol=0.006)


def test_the_same_seed_gives_the_same_episodes_of_either_kind():
    labels = np.arange(60) % 6
    one = sample_episodes(labels, way=3, shot=2, query=3, episodes=7, generator=seeded(4))
    other = sample_episodes(torch.tensor(labels), way=3, shot=2, query=3, episodes=7, generator=seeded(4))
    for array, tensor in zip(one, other, strict=True):
        assert tensor.dtype == torch.int64
        np.testing.assert_array_equal(array, tensor.numpy())


def test_whole_classes_may_be_used_up():
    labels = np.arange(12) % 3
    support, query, _ = sample_episodes(labels, way=3, shot=1, query=3, episodes=5, generator=seeded())
    assert (np.sort(np.concatenate([support, query], 2).reshape(5, -1)) == np.arange(12)).all()


def test_small_classes_are_named_with_the_largest_shot():
    labels, names = np.repeat([0, 1, 2], [30, 18, 30]), ["ant", "bee", "cat"]
    with pytest.raises(DataError, match=r"class 1 \(bee\) has 18 items, but `shot` \+ `query` = 20.* largest possible `shot` is 3"):
        sample_episodes(labels, way=2, shot=5, query=15, episodes=1, generator=seeded(), names=names)
    with pytest.raises(DataError, match=r"class 1 has 18 items.*no `shot` is possible; the largest possible `query` is 17"):
        sample_episodes(labels, way=2, shot=1, query=18, episodes=1, generator=seeded())
    with pytest.raises(DataError, match=r"class 1 has 18 items.*no `shot` is possible, and with this `shot` no `query`"):
        sample_episodes(labels, way=2, shot=20, query=18, episodes=1, generator=seeded())


def test_impossible_sizes_are_refused():
    labels = np.arange(40) % 2
    with pytest.raises(DataError, match="`way` = 3 is more than the 2 classes that have items"):
        sample_episodes(labels, way=3, shot=1, query=1, episodes=1, generator=seeded())
    with pytest.raises(UsageError, match="`shot` must be at least 1, got 0"):
        sample_episodes(labels, way=2, shot=0, query=1, episodes=1, generator=seeded())
    with pytest.raises(UsageError, match=r"`labels` must be \(N,\) integer codes"):
        sample_episodes(labels.astype(float), way=2, shot=1, query=1, episodes=1, generator=seeded())


# --- superclasses ---------------------------------------------------------------------------------------------------

SUPER = np.array([1, 1, 1, 0, 0, 2, 2, 2, 2, 2])  # of ten classes: two, three and five


def test_every_episode_stays_in_one_superclass_and_all_are_as_likely():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 8))
    support, query, classes = sample_episodes(labels, way=3, shot=2, query=3, episodes=20000, generator=seeded(), groups=SUPER[labels])
    assert (SUPER[classes] == SUPER[classes][:, :1]).all()
    assert (labels[support] == classes[..., None]).all()
    assert (labels[query] == classes[..., None]).all()
    np.testing.assert_allclose(np.bincount(SUPER[classes[:, 0]], minlength=3) / 20000, [0, 1 / 2, 1 / 2], atol=0.015)
    for place in range(3):
        chances = [1 / 6] * 3 + [0] * 2 + [1 / 10] * 5
        np.testing.assert_allclose(np.bincount(classes[:, place], minlength=10) / 20000, chances, atol=0.012)


def test_classes_that_cannot_be_drawn_may_be_small():
    labels = np.repeat(np.arange(10), [9, 9, 9, 1, 1, 9, 9, 9, 9, 9])
    drawn = sample_episodes(labels, way=3, shot=1, query=8, episodes=50, generator=seeded(), groups=SUPER[labels])
    assert not np.isin(drawn.classes, [3, 4]).any()


def test_wrong_superclasses_are_named():
    labels = np.repeat(np.arange(10), 8)
    given = {"way": 2, "shot": 1, "query": 2, "episodes": 5, "generator": seeded()}
    names, group_names = [f"c{at}" for at in range(10)], ["Greek", "Latin", "Korean"]
    with pytest.raises(DataError, match=r"no superclass has `way` = 6 classes that have items: the largest, 2 \(Korean\), has 5"):
        sample_episodes(labels, **{**given, "way": 6}, groups=SUPER[labels], group_names=group_names)
    torn = SUPER[labels]
    torn[9] = 2
    with pytest.raises(DataError, match=r"class 1 \(c1\) must belong to exactly one superclass, got 1 \(Latin\) and 2 \(Korean\)"):
        sample_episodes(labels, **given, groups=torn, names=names, group_names=group_names)
    torn[8:16] = -1
    with pytest.raises(DataError, match="class 1 must belong to exactly one superclass, got none"):
        sample_episodes(labels, **given, groups=torn)
    with pytest.raises(DataError, match="`way` = 11 is more than the 10 classes"):
        sample_episodes(labels, **{**given, "way": 11}, groups=SUPER[labels])
    with pytest.raises(UsageError, match=r"`groups` must be \(80,\) integer codes, got shape \(10,\)"):
        sample_episodes(labels, **given, groups=SUPER)


def test_a_class_too_small_within_its_superclass_is_named():
    labels = np.repeat(np.arange(10), [8, 5, *[8] * 8])
    with pytest.raises(DataError, match="class 1 has 5 items.*the largest possible `shot` is 1"):
        sample_episodes(labels, way=3, shot=4, query=4, episodes=1, generator=seeded(), groups=SUPER[labels])
