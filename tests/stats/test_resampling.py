"""Bootstrap counts and jackknife weights."""

import numpy as np
import pytest

from evalharness import stats
from evalharness.errors import DataError, UsageError


def test_counts_sum_to_the_number_of_rows():
    weights = stats.counts(50, 200, np.random.default_rng(0))
    assert weights.shape == (200, 50)
    assert weights.dtype == np.int8
    assert (weights.sum(axis=1) == 50).all()


def test_counts_follow_the_multinomial():
    weights = stats.counts(20, 20000, np.random.default_rng(1)).astype(float)
    np.testing.assert_allclose(weights.mean(axis=0), 1, atol=0.05)
    np.testing.assert_allclose(weights.var(axis=0), 1 - 1 / 20, atol=0.08)
    assert np.cov(weights[:, 0], weights[:, 1])[0, 1] == pytest.approx(-1 / 20, abs=0.03)


@pytest.mark.parametrize("clusters", [None, np.arange(37) // 4])
def test_blocks_give_the_same_numbers(clusters):
    whole = stats.counts(37, 1061, np.random.default_rng(4), clusters)
    blocks = list(stats.count_blocks(37, 1061, np.random.default_rng(4), clusters, block_bytes=2000))
    assert len(blocks) > 2
    np.testing.assert_array_equal(np.concatenate(blocks), whole)


def test_clusters_are_drawn_whole():
    clusters = np.array(["b", "a", "b", "c", "a"])
    weights = stats.counts(5, 300, np.random.default_rng(0), clusters)
    np.testing.assert_array_equal(weights[:, 0], weights[:, 2])
    np.testing.assert_array_equal(weights[:, 1], weights[:, 4])
    assert (weights[:, [0, 1, 3]].sum(axis=1) == 3).all()


def test_no_resamples_give_no_rows():
    assert stats.counts(3, 0, np.random.default_rng(0)).shape == (0, 3)


def test_jackknife_leaves_one_unit_out():
    np.testing.assert_array_equal(stats.jackknife_weights(3), 1 - np.eye(3))
    np.testing.assert_array_equal(stats.jackknife_weights(3, np.array([7, 5, 7])), [[1, 0, 1], [0, 1, 0]])


def test_jackknife_beyond_the_limit_leaves_groups_out():
    weights = stats.jackknife_weights(10, limit=4)
    assert weights.shape == (4, 10)
    assert (weights == 0).sum(axis=0).tolist() == [1] * 10
    whole, grouped = (stats.jackknife_weights(3000, limit=limit) for limit in (None, 300))
    values = np.random.default_rng(0).standard_exponential(3000)
    wide = [stats.jackknife_interval(values.mean(), stats.mean(values, weights)) for weights in (whole, grouped)]
    assert wide[1].high - wide[1].low == pytest.approx(wide[0].high - wide[0].low, rel=0.1)


def test_jackknife_blocks_make_the_whole():
    blocks = list(stats.jackknife_blocks(9, block_bytes=20))
    assert len(blocks) == 5
    np.testing.assert_array_equal(np.concatenate(blocks), stats.jackknife_weights(9))


def test_wrong_arguments_are_refused():
    generator = np.random.default_rng(0)
    with pytest.raises(DataError, match="at least one row to resample, got none"):
        stats.counts(0, 5, generator)
    with pytest.raises(UsageError, match=r"one unit for each of the 4 rows, got shape \(3,\)"):
        stats.counts(4, 5, generator, np.zeros(3))
    with pytest.raises(UsageError, match="`resamples` must not be negative, got -1"):
        stats.counts(4, -1, generator)
    with pytest.raises(UsageError, match="`limit` must be at least 2, got 1"):
        stats.jackknife_weights(4, limit=1)
