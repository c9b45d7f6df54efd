"""Paired tests."""

import math

import numpy as np
import pytest
from scipy.stats import norm, permutation_test
from statsmodels.stats.contingency_tables import mcnemar as reference_mcnemar

from evalharness import stats
from evalharness.errors import DataError, UsageError


def test_mcnemar_reference_values():
    got = stats.mcnemar(12, 3)
    assert got == pytest.approx((0.035156, 0.035156, 0.021271, 5.4, 0.020137, 4.266667, 0.038867), abs=1e-6)


def test_mcnemar_is_exact_below_25_and_equals_statsmodels():
    assert stats.mcnemar(14, 10).p == stats.mcnemar(14, 10).exact
    assert stats.mcnemar(15, 10).p == stats.mcnemar(15, 10).chi_square_p
    assert stats.mcnemar(14, 10).exact == pytest.approx(reference_mcnemar([[0, 14], [10, 0]], exact=True).pvalue)
    assert stats.mcnemar(40, 10).p == pytest.approx(reference_mcnemar([[0, 40], [10, 0]], exact=False, correction=False).pvalue)


def test_mcnemar_without_discordance_is_a_tie():
    assert stats.mcnemar(0, 0).p == 1.0
    assert stats.mcnemar(5, 5).exact == 1.0
    assert 0 < stats.mcnemar(5, 5).mid_p < 1
    with pytest.raises(UsageError, match="must not be negative, got -1 and 2"):
        stats.mcnemar(-1, 2)


def test_sign_flip_is_exact_when_few():
    assert stats.sign_flip([0.1, 0.2, -0.05, 0.15, 0.3], np.random.default_rng(0)) == 4 / 32


def test_sign_flip_equals_scipy():
    differences = np.random.default_rng(3).standard_normal(12) + 0.4
    reference = permutation_test((differences,), np.mean, permutation_type="samples", n_resamples=np.inf)
    assert stats.sign_flip(differences, np.random.default_rng(0)) == pytest.approx(reference.pvalue)


def test_sign_flip_with_many_units_samples_and_is_never_zero():
    generator = np.random.default_rng(0)
    assert stats.sign_flip(np.ones(200), generator) == 1 / 10000
    differences = generator.standard_normal(500) + 0.09
    expected = 2 * norm.sf(abs(differences.sum()) / np.sqrt((differences**2).sum()))
    assert stats.sign_flip(differences, generator) == pytest.approx(expected, abs=0.015)


def test_sign_flip_moves_clusters_whole():
    differences, clusters = np.ones(40), np.repeat(np.arange(4), 10)
    assert stats.sign_flip(differences, np.random.default_rng(0), clusters) == 2 / 16


def test_sign_flip_of_nothing_is_a_tie_and_nan_is_refused():
    generator = np.random.default_rng(0)
    assert stats.sign_flip(np.zeros(9), generator) == 1.0
    with pytest.raises(DataError, match="`differences` must be finite, got NaN or infinity at 1 of 2"):
        stats.sign_flip([1.0, np.nan], generator)
    with pytest.raises(DataError, match="at least one row"):
        stats.sign_flip([], generator)
    with pytest.raises(UsageError, match="`flips` must be at least 1"):
        stats.sign_flip([1.0], generator, flips=0)


def paired(shift, seed=0, n=300):
    generator = np.random.default_rng(seed)
    first = generator.standard_normal(n) + shift
    second = first - shift + 0.3 * generator.standard_normal(n)
    weights = stats.counts(n, 2000, generator)
    return stats.paired_difference(first.mean(), second.mean(), stats.mean(first, weights), stats.mean(second, weights))


def test_paired_difference_sees_what_pairing_shows():
    clear, none = paired(0.1), paired(0.0)
    assert clear.interval.low > 0
    assert clear.p < 0.01
    assert none.interval.low < 0 < none.interval.high
    assert none.p > 0.05


def test_paired_p_agrees_with_the_interval():
    for seed in range(20):
        got = paired(0.03, seed)
        assert (got.p < 0.05) == (not got.interval.low <= 0 <= got.interval.high) or abs(got.p - 0.05) < 0.004


def test_expanded_p_agrees_with_the_expanded_interval():
    generator = np.random.default_rng(0)
    for shift in np.linspace(0.2, 0.9, 15):
        deltas = shift + 0.25 * generator.standard_normal(4000)
        got = stats.paired_difference(shift, 0.0, deltas, np.zeros(4000), n=8, expand=True)
        plain = stats.paired_difference(shift, 0.0, deltas, np.zeros(4000), n=8)
        assert got.p > plain.p
        assert (got.p < 0.05) == (got.interval.low > 0) or abs(got.p - 0.05) < 0.002
    with pytest.raises(UsageError, match="need `n`"):
        stats.paired_difference(0.1, 0.0, [0.1, 0.2], [0.0, 0.0], expand=True)


def test_paired_difference_is_antisymmetric():
    generator = np.random.default_rng(1)
    a, b = generator.standard_normal(500) + 0.2, generator.standard_normal(500)
    one, other = stats.paired_difference(0.2, 0.0, a, b), stats.paired_difference(0.0, 0.2, b, a)
    assert (one.difference, one.interval.low, one.p) == pytest.approx((-other.difference, -other.interval.high, other.p))


def test_identical_systems_tie():
    same = np.linspace(0, 1, 100)
    got = stats.paired_difference(0.5, 0.5, same, same)
    assert (got.difference, got.p) == (0.0, 1.0)
    assert math.isnan(got.interval.low)


def test_undefined_differences_have_no_p_and_lengths_must_agree():
    assert math.isnan(stats.paired_difference(math.nan, 0.5, [0.1, 0.2], [0.1, 0.3]).p)
    with pytest.raises(UsageError, match="must come from the same resamples, got 1 and 2"):
        stats.paired_difference(0.1, 0.2, [0.1], [0.1, 0.2])
