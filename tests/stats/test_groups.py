"""Subgroups: the check values of METRICS 8."""

from __future__ import annotations

import numpy as np
import pytest

from evalharness import stats
from evalharness.errors import DataError, UsageError

TRUTH = np.array([int(digit) for digit in "1110001100"])
PREDICTION = np.array([int(digit) for digit in "1100011011"])
GROUPS = np.array(list("AAAAAABBBB"))


def accuracies():
    hit = (TRUTH == PREDICTION).astype(float)
    weights = np.stack([GROUPS == "A", GROUPS == "B", np.ones(10)]).astype(int)
    return stats.get_reducer("mean")(hit, weights)


def test_worst_gap_and_ratio_of_the_reference():
    a, b, whole = accuracies()
    found = stats.group_gaps([a, b])

    assert (a, b) == pytest.approx((0.666667, 0.25), abs=1e-6)
    assert found == pytest.approx((0.25, 0.416667, 0.375), abs=1e-6)
    assert max(abs(a - whole), abs(b - whole)) == pytest.approx(0.25, abs=1e-6)


def test_fairness_gaps_of_the_reference():
    assert stats.equalised_odds(TRUTH, PREDICTION, GROUPS) == pytest.approx((0.666667, 0.333333), abs=1e-6)
    assert stats.demographic_parity(PREDICTION, GROUPS).difference == pytest.approx(0.25, abs=1e-6)


def test_simultaneous_quantiles_of_the_reference():
    from scipy.special import ndtri

    levels = [stats.simultaneous_level(0.95, groups) for groups in (2, 5, 10, 20)]
    assert [ndtri((1 + level) / 2) for level in levels] == pytest.approx([2.241403, 2.575829, 2.807034, 3.023341], abs=1e-6)


def test_the_minimum_of_equal_groups_is_biased_down():
    """Ten equal groups at a true .8 show an expected worst of .710 at 50 items and .772 at 500."""
    draw = np.random.default_rng(0)
    for size, expected in ((50, 0.710), (500, 0.772)):
        worst = (draw.binomial(size, 0.8, (20_000, 10)) / size).min(axis=1).mean()
        assert worst == pytest.approx(expected, abs=0.002)


def test_empty_and_zero_groups():
    assert np.isnan(stats.group_gaps([0.0, 0.0]).ratio)
    assert stats.group_gaps([0.5, np.nan]) == (0.5, 0.0, 1.0)
    with pytest.raises(DataError, match="no group has a value"):
        stats.group_gaps([np.nan])
    with pytest.raises(UsageError, match="expected `prediction` to hold 0 and 1 only"):
        stats.demographic_parity([0, 2], ["a", "b"])
    with pytest.raises(UsageError, match="must have one length, got 1 and 2"):
        stats.demographic_parity([0], ["a", "b"])
