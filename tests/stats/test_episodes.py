"""Intervals of few-shot scores."""

import math

import numpy as np
import pytest

from evalharness import stats
from evalharness.errors import UsageError


def test_episode_interval_by_hand():
    interval = stats.episode_interval([0.6, 0.7, 0.8, 0.9, 0.5])
    assert (interval.high - interval.low) / 2 == pytest.approx(0.196324, abs=1e-6)
    # METRICS 3 gives 1.96 s / sqrt(E) with ddof 1 and 0; ours is the t quantile at 4 degrees of freedom of the former.
    assert (interval.high - interval.low) / 2 / 2.776445 * 1.96 == pytest.approx(0.138593, abs=1e-6)
    assert (interval.high - interval.low) / 2 / 2.776445 * 1.96 * math.sqrt(4 / 5) == pytest.approx(0.123961, abs=1e-6)
    assert (interval.high + interval.low) / 2 == pytest.approx(0.7)
    scores = np.random.default_rng(0).standard_normal(600)
    scores = 0.7 + 0.1 * (scores - scores.mean()) / scores.std(ddof=1)
    half = (stats.episode_interval(scores).high - stats.episode_interval(scores).low) / 2
    assert half == pytest.approx(0.008002 * 1.963932 / 1.959964, abs=1e-6)
    many = np.tile((-1.0, 1.0), 5000) * 0.1 * math.sqrt(9999 / 10000)
    interval = stats.episode_interval(many)
    assert (interval.high - interval.low) / 2 == pytest.approx(0.00196, abs=1e-6)


def test_episode_interval_of_one_or_equal_episodes_is_undefined():
    assert math.isnan(stats.episode_interval([0.5]).low)
    assert math.isnan(stats.episode_interval([0.5, 0.5]).low)


def draw(num_classes, way, episodes, generator):
    return np.argsort(generator.random((episodes, num_classes)), axis=1)[:, :way]


def test_class_jackknife_equals_its_formula():
    generator = np.random.default_rng(0)
    classes = draw(12, 3, 50, generator)
    scores = generator.random(50) + 0.4 * (classes == 2).any(axis=1)
    left_out = np.array([scores[~(classes == at).any(axis=1)].mean() for at in range(12)])
    spread = 11 / 12 * ((left_out - scores.mean()) ** 2).sum()
    sampling = scores.var(ddof=1) / 50
    error = math.sqrt(max(spread - (3 * 12 / 9 - 1) * sampling, sampling))
    got, reason, found = stats.episode_jackknife(scores, classes, 12)
    assert reason is None
    assert found == pytest.approx(error)
    assert got.n == 12
    assert got.high - scores.mean() == pytest.approx(2.200985 * error, rel=1e-6)


def test_wide_episodes_have_a_reason_instead():
    generator = np.random.default_rng(0)
    interval, reason, error = stats.episode_jackknife(generator.random(30), draw(9, 5, 30, generator), 9)
    assert math.isnan(interval.low)
    assert math.isnan(error)
    assert reason == "5-way episodes of 9 classes share too many classes: the way may be at most half of them"
    interval, reason, _ = stats.episode_jackknife(np.arange(3.0), np.array([[0, 1], [0, 2], [0, 3]]), 4)
    assert math.isnan(interval.low)
    assert "1 classes are in every episode" in reason
    assert "at least 2 are needed" in stats.episode_jackknife([0.5], [[0]], 4).reason
    assert "score the same" in stats.episode_jackknife([0.5, 0.5], [[0], [1]], 4).reason


def test_wrong_classes_are_refused():
    with pytest.raises(UsageError, match=r"must be \(episodes, way\) for 2 scores, got shape \(2,\)"):
        stats.episode_jackknife([0.1, 0.2], [0, 1], 4)
    with pytest.raises(UsageError, match=r"must lie in \[0, 2\), got 0 to 2"):
        stats.episode_jackknife([0.1, 0.2], [[0], [2]], 2)


@pytest.mark.slow
def test_class_jackknife_covers_where_episodes_do_not():
    generator = np.random.default_rng(0)
    covered = {"classes": 0, "episodes": 0}
    for _ in range(300):
        effects = 0.1 * generator.standard_normal(20)
        classes = draw(20, 5, 600, generator)
        scores = effects[classes].mean(axis=1) + 0.05 * generator.standard_normal(600)
        for name, interval in (
            ("classes", stats.episode_jackknife(scores, classes, 20).interval),
            ("episodes", stats.episode_interval(scores)),
        ):
            covered[name] += interval.low <= 0 <= interval.high
    assert covered["classes"] / 300 > 0.9
    assert covered["episodes"] / 300 < 0.4
