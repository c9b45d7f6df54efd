"""Intervals against METRICS.md, scipy and statsmodels."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import norm
from statsmodels.stats.proportion import confint_proportions_2indep, proportion_confint

from evalharness import stats
from evalharness.errors import UsageError

FIVE = np.array([1.0, 2, 3, 4, 10])


def every_mean():
    return np.array([FIVE[list(at)].mean() for at in itertools.product(range(5), repeat=5)])


@pytest.mark.parametrize(
    ("hits", "n", "low", "high"),
    [(8, 10, 0.490162, 0.943318), (0, 10, 0, 0.277533), (10, 10, 0.722467, 1), (1, 3, 0.061492, 0.792340), (95, 100, 0.888250, 0.978456)],
)
def test_wilson_reference_values(hits, n, low, high):
    interval = stats.wilson(hits, n)
    assert (interval.low, interval.high) == (pytest.approx(low, abs=1e-6), pytest.approx(high, abs=1e-6))
    assert (interval.n, interval.level, interval.method) == (n, 0.95, "wilson")


def test_wilson_equals_statsmodels_at_other_levels():
    for level in (0.8, 0.99):
        expected = proportion_confint(13, 57, alpha=1 - level, method="wilson")
        assert (stats.wilson(13, 57, level).low, stats.wilson(13, 57, level).high) == pytest.approx(expected, abs=1e-12)


def test_wilson_takes_effective_numbers_and_nothing():
    assert stats.wilson(4.2, 10.5).low < 0.4 < stats.wilson(4.2, 10.5).high
    assert math.isnan(stats.wilson(0, 0).low)


def test_wilson_refuses_impossible_counts():
    with pytest.raises(UsageError, match=r"`successes` must lie in \[0, n\], got 11 of 10"):
        stats.wilson(11, 10)
    with pytest.raises(UsageError, match="`level` must lie strictly between 0 and 1, got 95"):
        stats.wilson(1, 10, level=95)


def test_newcombe_equals_statsmodels():
    expected = confint_proportions_2indep(56, 70, 48, 80, method="newcomb", compare="diff")
    got = stats.newcombe(56, 70, 48, 80)
    assert (got.low, got.high) == pytest.approx(expected, abs=1e-6)
    assert got.n == 150
    assert math.isnan(stats.newcombe(1, 2, 0, 0).low)


def test_percentile_by_exact_enumeration():
    interval = stats.bootstrap(4.0, every_mean(), method="percentile")
    assert (interval.low, interval.high) == (pytest.approx(1.8), pytest.approx(7.2))
    assert every_mean().std() == pytest.approx(1.414214, abs=1e-6)


def test_bca_by_exact_enumeration_counts_ties_as_half():
    left_out = stats.mean(FIVE, stats.jackknife_weights(5))
    interval = stats.bootstrap(4.0, every_mean(), method="bca", jackknife=left_out)
    assert (interval.low, interval.high, interval.n) == (pytest.approx(2.0), pytest.approx(8.2), 5)
    assert interval.method == "bootstrap-bca"


def test_bca_equals_scipy():
    from scipy.stats import bootstrap

    generator = np.random.default_rng(0)
    values = generator.standard_exponential(40)
    reference = bootstrap((values,), np.mean, n_resamples=4000, method="BCa", random_state=1)
    replicates = reference.bootstrap_distribution
    left_out = stats.mean(values, stats.jackknife_weights(40))
    got = stats.bootstrap(values.mean(), replicates, method="bca", jackknife=left_out)
    assert (got.low, got.high) == pytest.approx(tuple(reference.confidence_interval), abs=1e-3)


def test_basic_mirrors_percentile_and_is_clipped():
    replicates = np.linspace(0.7, 1.0, 1001)
    percentile = stats.bootstrap(0.9, replicates, method="percentile")
    basic = stats.bootstrap(0.9, replicates, low=0.0, high=1.0)
    assert basic.low == pytest.approx(1.8 - percentile.high)
    assert basic.high == 1.0
    assert stats.bootstrap(0.9, replicates).high == pytest.approx(1.8 - percentile.low)


@pytest.mark.parametrize("replicates", [np.full(100, 0.1), np.r_[np.full(90, 0.5), np.full(10, np.nan)], np.full(9, np.nan), []])
def test_degenerate_replicates_give_no_interval(replicates):
    for method in ("basic", "percentile", "bca"):
        interval = stats.bootstrap(0.1, replicates, method=method, jackknife=np.arange(5.0))
        assert math.isnan(interval.low)
        assert math.isnan(interval.high)


def test_many_undefined_replicates_give_no_interval_and_few_are_left_out():
    replicates = np.linspace(0, 1, 101)
    few, many = replicates.copy(), replicates.copy()
    few[[0, 100]] = np.nan
    many[:6] = np.nan
    assert stats.bootstrap(0.5, few, method="percentile").low == pytest.approx(np.nanquantile(few, 0.025))
    assert math.isnan(stats.bootstrap(0.5, many).low)


def test_bootstrap_refuses_what_it_cannot_do():
    with pytest.raises(UsageError, match="`method` must be `basic`, `percentile` or `bca`, got 'bac'"):
        stats.bootstrap(0.5, [0.1, 0.2], method="bac")
    with pytest.raises(UsageError, match="needs `jackknife`, the leave-one-out values"):
        stats.bootstrap(0.5, [0.1, 0.2], method="bca")


def test_jackknife_of_a_mean_is_the_t_interval():
    from scipy.stats import t

    left_out = stats.mean(FIVE, stats.jackknife_weights(5))
    got = stats.jackknife_interval(4.0, left_out)
    assert (got.low, got.high) == pytest.approx(t.interval(0.95, 4, 4.0, FIVE.std(ddof=1) / math.sqrt(5)))
    assert stats.jackknife_interval(4.0, left_out, low=0.0).low == 0.0
    assert math.isnan(stats.jackknife_interval(1.0, [1.0]).low)
    assert math.isnan(stats.jackknife_interval(0.3, [0.3] * 7).low)


def test_half_samples_are_taken_about_their_own_mean():
    replicates = np.linspace(4.0, 6.0, 2001)
    got = stats.half_sample(4.5, replicates, n=50)
    assert (got.low, got.high, got.n) == (pytest.approx(3.55), pytest.approx(5.45), 50)
    assert math.isnan(stats.half_sample(1.0, [1.0, 1.0]).low)


@pytest.mark.parametrize(("groups", "z"), [(2, 2.241403), (5, 2.575829), (10, 2.807034), (20, 3.023341)])
def test_bonferroni_quantiles(groups, z):
    assert norm.ppf((1 + stats.simultaneous_level(0.95, groups)) / 2) == pytest.approx(z, abs=1e-6)


def test_worst_group_bound_covers_all_groups():
    hits, sizes = [40, 9, 30], [50, 10, 60]
    level = stats.simultaneous_level(0.95, 3)
    intervals = [stats.wilson(hit, size, level) for hit, size in zip(hits, sizes, strict=True)]
    worst = stats.worst_group_bound([0.8, 0.9, 0.5], intervals)
    assert worst == (2, 0.5, min(interval.low for interval in intervals))
    assert stats.worst_group_bound([0.8, 0.9, 0.5], intervals, higher_is_better=False)[:2] == (1, 0.9)
    with pytest.raises(UsageError, match=r"of 3 groups must be made at level 0.983333"):
        stats.worst_group_bound([0.8, 0.9, 0.5], [stats.wilson(1, 2)] * 3)
    with pytest.raises(UsageError, match="one entry a group, got 1 and 0"):
        stats.worst_group_bound([0.8], [])
    with pytest.raises(UsageError, match="`groups` must be at least 1"):
        stats.simultaneous_level(0.95, 0)


@pytest.mark.slow
def test_intervals_cover_near_their_level():
    generator = np.random.default_rng(0)
    hit = {"bca": 0, "jackknife": 0, "wilson": 0}
    for _ in range(400):
        values = generator.standard_exponential(40)
        weights = stats.counts(40, 600, generator)
        left_out = stats.mean(values, stats.jackknife_weights(40))
        bca = stats.bootstrap(values.mean(), stats.mean(values, weights), method="bca", jackknife=left_out)
        t = stats.jackknife_interval(values.mean(), left_out)
        score = stats.wilson(generator.binomial(40, 0.2), 40)
        hit["bca"] += bca.low <= 1 <= bca.high
        hit["jackknife"] += t.low <= 1 <= t.high
        hit["wilson"] += score.low <= 0.2 <= score.high
    assert all(0.88 <= value / 400 <= 0.99 for value in hit.values()), hit
