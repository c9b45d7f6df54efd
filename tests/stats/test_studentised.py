"""The bootstrap of t."""

from __future__ import annotations

import math

import numpy as np
import pytest

from evalharness import stats
from evalharness.errors import UsageError


def test_mean_equals_its_definition():
    values = np.random.default_rng(0).standard_exponential(25)
    draws = stats.Resamples(25, 3000, 1)
    t = []
    for row in np.concatenate(list(draws.blocks())):
        drawn = np.repeat(values, row)
        t.append((drawn.mean() - values.mean()) / (drawn.std() * math.sqrt(25 / 24) / 5))
    error = values.std() * math.sqrt(25 / 24) / 5
    below, above = np.quantile(t, [0.05, 0.95])
    got = stats.bootstrap_t(draws, values, level=0.9)
    assert (got.low, got.high) == pytest.approx((values.mean() - above * error, values.mean() - below * error))
    assert (got.n, got.method, got.level) == (25, "bootstrap-t", 0.9)


def test_clusters_are_ratios_of_their_sums():
    generator = np.random.default_rng(1)
    clusters = generator.integers(0, 20, 100)
    values = generator.standard_normal(100)
    sums, sizes = np.bincount(clusters, values), np.bincount(clusters).astype(float)
    whole = stats.bootstrap_t(stats.Resamples(100, 500, 3, clusters), values)
    by_unit = stats.bootstrap_t(stats.Resamples(len(sums), 500, 3), sums, sizes)
    assert (whole.low, whole.high) == pytest.approx((by_unit.low, by_unit.high))
    assert whole.n == len(sums)


def test_shift_and_scale_move_the_interval_along():
    values = np.random.default_rng(2).standard_exponential(30)
    draws = stats.Resamples(30, 500, 0)
    plain, moved = stats.bootstrap_t(draws, values), stats.bootstrap_t(draws, 1e6 + 2 * values)
    assert (moved.low - 1e6, moved.high - 1e6) == pytest.approx((2 * plain.low, 2 * plain.high), rel=1e-6)
    assert stats.bootstrap_t(draws, values, low=0.9).low == 0.9
    assert plain.high - values.mean() > values.mean() - plain.low


def test_values_that_hardly_vary_have_no_interval():
    draws = stats.Resamples(20, 500, 0)
    for values in (np.full(20, 0.1), np.r_[np.ones(19), 0.0], np.zeros(20)):
        assert math.isnan(stats.bootstrap_t(draws, values).low)
    assert math.isnan(stats.bootstrap_t(stats.Resamples(1, 50, 0), [1.0]).low)
    assert math.isnan(stats.bootstrap_t(draws, np.zeros(20), np.zeros(20)).low)


def test_wrong_values_are_refused():
    draws = stats.Resamples(3, 5, 0)
    with pytest.raises(UsageError, match="must hold 3 finite values, got 2 and 3"):
        stats.bootstrap_t(draws, [1.0, 2.0])
    with pytest.raises(UsageError, match="must hold 3 finite values"):
        stats.bootstrap_t(draws, [1.0, 2.0, math.nan])
    with pytest.raises(UsageError, match="`level` must lie strictly"):
        stats.bootstrap_t(draws, [1.0, 2.0, 3.0], level=95)
