"""Paired tests, multiplicity and rank sets."""

import math

import numpy as np
import pytest
from scipy.stats import norm, permutation_test
from statsmodels.stats.contingency_tables import mcnemar as reference_mcnemar
from statsmodels.stats.multitest import multipletests

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


def test_holm_reference_values():
    np.testing.assert_allclose(stats.holm([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02])


def test_holm_equals_statsmodels_and_leaves_gaps():
    p = np.random.default_rng(0).random(20) ** 3
    np.testing.assert_allclose(stats.holm(p), multipletests(p, method="holm")[1])
    np.testing.assert_allclose(stats.holm([0.01, np.nan, 0.04]), [0.02, np.nan, 0.04])
    assert stats.holm([]).shape == (0,)
    with pytest.raises(UsageError, match=r"`p` must lie in \[0, 1\]"):
        stats.holm([0.5, 1.5])


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


def test_rank_sets_reference_case():
    scores = np.array([0.80, 0.78, 0.70])
    replicates = scores[:, None] + 0.01 * np.random.default_rng(0).standard_normal((3, 40000))
    assert stats.rank_sets(scores, replicates) == [(1, 2), (1, 2), (3, 3)]
    assert stats.rank_sets(scores, replicates, higher_is_better=False) == [(2, 3), (2, 3), (1, 1)]


def test_rank_sets_use_the_studentised_range():
    from evalharness.stats._ranks import _studentise

    draws = 0.01 * np.random.default_rng(0).standard_normal((3, 40000))
    assert np.quantile(_studentise(draws)[1], 0.95) == pytest.approx(2.343701, abs=0.03)


def test_rank_sets_of_ties_and_of_certainties():
    generator = np.random.default_rng(0)
    draw = generator.standard_normal(500)
    assert stats.rank_sets([0.5, 0.5], np.stack([draw, draw])) == [(1, 2), (1, 2)]
    assert stats.rank_sets([0.6, 0.5], np.stack([draw + 0.1, draw])) == [(1, 1), (2, 2)]
    assert stats.rank_sets([0.6], draw[None]) == [(1, 1)]


def test_rank_sets_refuse_gaps():
    with pytest.raises(UsageError, match="must be finite; leave out models that were not measured"):
        stats.rank_sets([0.5, np.nan], np.zeros((2, 3)))
    with pytest.raises(UsageError, match=r"must be \(models, resamples\) for 2 values, got shape \(3, 2\)"):
        stats.rank_sets([0.5, 0.6], np.zeros((3, 2)))


@pytest.mark.slow
def test_rank_sets_cover_together():
    generator = np.random.default_rng(0)
    truth, covered = np.array([0.3, 0.25, 0.2, 0.0]), 0
    for _ in range(300):
        values = truth + generator.standard_normal((200, 4))
        weights = stats.counts(200, 500, generator)
        replicates = np.stack([stats.mean(values[:, at], weights) for at in range(4)])
        sets = stats.rank_sets(values.mean(axis=0), replicates)
        covered += all(low <= rank <= high for rank, (low, high) in zip(range(1, 5), sets, strict=True))
    assert covered / 300 > 0.92
