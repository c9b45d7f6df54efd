"""Multiplicity, many models over many data sets: the check values of METRICS 15, scipy, statsmodels."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import friedmanchisquare, studentized_range
from statsmodels.stats.multitest import multipletests

from evalharness import stats
from evalharness.errors import DataError, UsageError
from evalharness.stats._many import _friedman

PVALUES = [0.01, 0.04, 0.03, 0.005]
FIRST = np.array([0.70, 0.75, 0.80, 0.72, 0.68])
SECOND = np.array([0.72, 0.78, 0.79, 0.75, 0.70])


def test_holm_reference_values():
    np.testing.assert_allclose(stats.holm([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02])


def test_holm_equals_statsmodels_and_leaves_gaps():
    p = np.random.default_rng(0).random(20) ** 3
    np.testing.assert_allclose(stats.holm(p), multipletests(p, method="holm")[1])
    np.testing.assert_allclose(stats.holm([0.01, np.nan, 0.04]), [0.02, np.nan, 0.04])
    assert stats.holm([]).shape == (0,)
    with pytest.raises(UsageError, match=r"`p` must lie in \[0, 1\]"):
        stats.holm([0.5, 1.5])


def test_bonferroni_and_benjamini_hochberg_reference_values():
    np.testing.assert_allclose(stats.bonferroni(PVALUES), [0.04, 0.16, 0.12, 0.02])
    np.testing.assert_allclose(stats.benjamini_hochberg(PVALUES), [0.02, 0.04, 0.04, 0.02])


@pytest.mark.parametrize(
    ("function", "name"), [(stats.bonferroni, "bonferroni"), (stats.holm, "holm"), (stats.benjamini_hochberg, "fdr_bh")]
)
def test_adjustments_equal_statsmodels_and_leave_gaps(function, name):
    generator = np.random.default_rng(1)
    for size in (1, 2, 17):
        p = np.round(generator.random(size) ** 3, 2)
        np.testing.assert_allclose(function(p), multipletests(p, method=name)[1])
    np.testing.assert_allclose(function([np.nan, 0.5, np.nan]), [np.nan, 0.5, np.nan])
    assert function([]).shape == (0,)
    with pytest.raises(UsageError, match=r"`p` must lie in \[0, 1\], got -0.5 to 0.2"):
        function([0.2, -0.5])


def test_friedman_of_the_paper():
    """Demšar 2006: four classifiers, 14 data sets."""
    got = _friedman(np.array([3.143, 2.0, 2.893, 1.964]), 14, 4 * 5 / 12)
    assert got.chi_square == pytest.approx(9.28, abs=0.005)
    assert got.f == pytest.approx(3.69, abs=0.005)


def test_friedman_equals_scipy_with_and_without_ties():
    generator = np.random.default_rng(0)
    for scores in (generator.random((9, 4)), np.round(generator.random((12, 5)), 1)):
        got = stats.friedman(scores)
        assert (got.chi_square, got.chi_square_p) == pytest.approx(tuple(friedmanchisquare(*scores.T)))
        mirrored = stats.friedman(-scores, higher_is_better=False)
        np.testing.assert_allclose(got.mean_ranks, mirrored.mean_ranks)


def test_iman_davenport_is_the_f_of_ranks():
    """Without ties it is the F of a two-way analysis of variance of the ranks."""
    scores = np.random.default_rng(3).random((8, 3))
    ranks = 1 + (scores[:, :, None] < scores[:, None, :]).sum(axis=2)
    between = 8 * ((ranks.mean(axis=0) - 2) ** 2).sum() / 2
    within = (((ranks - 2) ** 2).sum() - 2 * between) / (2 * 7)
    assert stats.friedman(scores).f == pytest.approx(between / within)


def test_friedman_at_its_edges():
    tied = stats.friedman([[0.5, 0.5], [0.1, 0.1]])
    assert tied[1:] == (0.0, 1.0, 0.0, 1.0)
    assert tied.mean_ranks.tolist() == [1.5, 1.5]
    agreed = stats.friedman([[0.9, 0.5], [0.8, 0.1], [0.8, 0.2]])
    assert (agreed.f, agreed.f_p) == (math.inf, 0.0)
    assert math.isnan(stats.friedman([[0.9, 0.5]]).f)
    with pytest.raises(DataError, match="`scores` must be finite, got 1 missing cells; leave out their data sets or models"):
        stats.friedman([[0.1, np.nan], [0.3, 0.2]])
    with pytest.raises(UsageError, match=r"must be \(data sets, models\) with at least one row and two columns, got shape \(3, 1\)"):
        stats.friedman(np.ones((3, 1)))


def test_nemenyi_reference_values():
    """Studentised range over root 2 for 2, 3, 4, 5 and 10 models; the difference of the paper."""
    for models, q in ((2, 1.959964), (3, 2.343701), (4, 2.569032), (5, 2.727774), (10, 3.163684)):
        assert stats.nemenyi_difference(models, 6) == pytest.approx(q * math.sqrt(models * (models + 1) / 36), abs=1e-6)
    assert stats.nemenyi_difference(4, 14) == pytest.approx(1.25, abs=0.005)
    assert stats.nemenyi_difference(3, 5, 0.9) == pytest.approx(studentized_range.ppf(0.9, 3, np.inf) / math.sqrt(2) * math.sqrt(12 / 30))
    with pytest.raises(UsageError, match="at least 2 models and 1 data set, got 1 and 3"):
        stats.nemenyi_difference(1, 3)


def test_borda_reference_values():
    """Three models over six data sets, mean ranks 7/6, 14/6, 15/6: points 11, 4, 3."""
    scores = [[3, 2, 1], [3, 2, 1], [3, 2, 1], [3, 1, 2], [3, 1, 2], [2, 3, 1]]
    np.testing.assert_allclose(stats.friedman(scores).mean_ranks, [1.166667, 2.166667, 2.666667], atol=1e-6)
    ranks = np.array([[1, 2, 3], [1, 2, 3], [1, 3, 2], [1, 3, 2], [1, 2, 3], [2, 2, 2]])
    np.testing.assert_allclose(ranks.mean(axis=0), [1.166667, 2.333333, 2.5], atol=1e-6)
    np.testing.assert_allclose(stats.borda(-ranks), [11, 4, 3])
    np.testing.assert_allclose(stats.borda(ranks, higher_is_better=False), [11, 4, 3])
    with pytest.raises(DataError, match="1 missing cells"):
        stats.borda([[1.0, np.nan]])


def test_signed_rank_reference_values():
    got = stats.bayesian_signed_rank(SECOND - FIRST, np.random.default_rng(0), rope=0.008)
    assert got[:3] == pytest.approx((0.055944, 0.160839, 0.783217), abs=1e-6)
    assert got.wins == pytest.approx((0.014, 0.028, 0.958), abs=0.006)
    assert sum(got.wins) == pytest.approx(1)


def test_signed_rank_means_are_those_of_simulated_posteriors():
    generator = np.random.default_rng(5)
    differences = generator.standard_normal(7)
    points = np.append(differences, 0.0)
    weights = generator.dirichlet(np.append(np.ones(7), 0.5), 40000)
    walsh = (points[:, None] + points) / 2
    expected = [
        np.einsum("si,sj,ij->", weights, weights, region * 1.0) / 40000 for region in (walsh < -0.3, abs(walsh) <= 0.3, walsh > 0.3)
    ]
    assert stats.bayesian_signed_rank(differences, generator, rope=0.3)[:3] == pytest.approx(expected, abs=0.01)


def test_signed_rank_without_a_region_and_at_its_edges():
    generator = np.random.default_rng(0)
    got = stats.bayesian_signed_rank([0.1, 0.2, -0.1], generator)
    mirrored = stats.bayesian_signed_rank([-0.1, -0.2, 0.1], np.random.default_rng(0))
    assert got.left == pytest.approx(mirrored.right)
    assert got.wins[1] == 0.0
    tied = stats.bayesian_signed_rank([0.0, 0.0], generator)
    assert tied == (0.0, 1.0, 0.0, (0.5, 0.0, 0.5))
    with pytest.raises(DataError, match="must be finite and at least one, got 0, 0 of them not finite"):
        stats.bayesian_signed_rank([], generator)
    with pytest.raises(UsageError, match="`rope` must not be negative and `samples` at least 1, got -1 and 20000"):
        stats.bayesian_signed_rank([0.1], generator, rope=-1)


def test_correlated_t_reference_values():
    differences = [0.01, 0.02, 0, 0.015, 0.01, 0.005, 0.02, 0.01, 0, 0.01]
    got = stats.correlated_t(differences, 10)
    assert (got.t, got.right) == pytest.approx((3.077935, 0.993408), abs=1e-6)
    assert np.mean(differences) / (np.std(differences, ddof=1) / math.sqrt(10)) == pytest.approx(4.472136, abs=1e-6)
    assert got.p == pytest.approx(2 * (1 - got.right))
    roped = stats.correlated_t(differences, 10, rope=0.008)
    assert (roped.left + roped.rope + roped.right, roped.right < got.right, roped.rope > 0) == (pytest.approx(1), True, True)


def test_correlated_t_at_its_edges():
    assert stats.correlated_t([0.1, 0.1], 2)[:2] == (math.inf, 0.0)
    assert stats.correlated_t([0.1, 0.1], 2, rope=0.2)[2:] == (0.0, 1.0, 0.0)
    assert math.isnan(stats.correlated_t([0.0, 0.0], 2).t)
    assert stats.correlated_t([0.0, 0.0], 2).p == 1.0
    with pytest.raises(DataError, match="must be finite and at least two, got 1, 0 of them not finite"):
        stats.correlated_t([0.1], 2)
    with pytest.raises(UsageError, match="`folds` must be at least 2 and `rope` not negative, got 1 and 0.0"):
        stats.correlated_t([0.1, 0.2], 1)
