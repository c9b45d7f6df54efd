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


@pytest.mark.parametrize("method", ["percentile", "basic"])
def test_simple_bootstraps_equal_scipy(method):
    from scipy.stats import bootstrap

    values = np.random.default_rng(0).standard_exponential(40)
    reference = bootstrap((values,), np.mean, n_resamples=999, method=method, rng=1)
    got = stats.bootstrap(values.mean(), reference.bootstrap_distribution, method=method)
    assert (got.low, got.high) == pytest.approx(tuple(reference.confidence_interval))


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
    with pytest.raises(UsageError, match="`method` must be `basic`, `percentile`, `bca` or `se`, got 'bac'"):
        stats.bootstrap(0.5, [0.1, 0.2], method="bac")
    with pytest.raises(UsageError, match="needs `jackknife`, the leave-one-out values"):
        stats.bootstrap(0.5, [0.1, 0.2], method="bca")


def test_expansion_makes_a_normal_percentile_interval_a_t_interval():
    """Replicates of a normal mean spread by s · √((n - 1) / n) / √n; expanded quantiles then reach t · s / √n."""
    n, replicates = 12, norm.ppf((np.arange(200_000) + 0.5) / 200_000) * math.sqrt(11 / 12)
    wide = stats.bootstrap(0.0, replicates, method="percentile", n=n, expand=True)
    from scipy.stats import t

    assert (wide.low, wide.high) == pytest.approx((-t.ppf(0.975, 11), t.ppf(0.975, 11)), rel=1e-3)
    assert (wide.method, wide.level) == ("bootstrap-percentile-expanded", 0.95)
    mirrored = stats.bootstrap(0.0, replicates, n=n, expand=True)
    assert mirrored.low == pytest.approx(wide.low, rel=1e-6)
    assert stats.expanded_level(0.9, 10**6) == pytest.approx(0.9, abs=1e-5)
    for refused in ({"expand": True}, {"method": "se"}):
        with pytest.raises(UsageError, match="need `n`, the number of independent units"):
            stats.bootstrap(0.0, replicates, **refused)
    with pytest.raises(UsageError, match="`units` must be at least 2, got 1"):
        stats.expanded_level(0.95, 1)
    assert math.isnan(stats.bootstrap(0.0, replicates, n=1, expand=True).low)


def test_standard_error_form_is_symmetric_about_the_value():
    replicates = np.random.default_rng(0).standard_normal(500) + 3
    got = stats.bootstrap(1.0, replicates, method="se", n=21)
    assert got.high - 1.0 == pytest.approx(1.0 - got.low) == pytest.approx(2.085963 * replicates.std(ddof=1), rel=1e-6)
    assert got.method == "bootstrap-se"


def test_effective_wilson_is_wilson_where_rows_are_independent():
    hits = np.repeat([0.0, 1.0], [40, 160])
    got = stats.wilson_effective(0.8, stats.leave_one_out("mean", hits), 200)
    plain = stats.wilson(160, 200)
    assert (got.low, got.high) == pytest.approx((plain.low, plain.high), abs=2e-3)
    assert (got.n, got.method) == (200, "wilson-effective")
    copied = stats.wilson_effective(0.8, stats.leave_one_out("mean", np.repeat(hits, 5), clusters=np.repeat(np.arange(200), 5)), 1000)
    assert (copied.low, copied.high) == pytest.approx((got.low, got.high), abs=1e-9)


def test_effective_wilson_of_clusters_that_agree_counts_each_once():
    from scipy.stats import t

    got = stats.wilson_effective(1.0, np.ones(9), 90)
    z = t.ppf(0.975, 8)
    assert (got.low, got.high) == (pytest.approx(9 / (9 + z * z)), 1.0)
    assert math.isnan(stats.wilson_effective(0.5, [0.5], 10).low)
    assert math.isnan(stats.wilson_effective(math.nan, [0.5, 0.4], 10).low)
    with pytest.raises(UsageError, match=r"`share` must lie in \[0, 1\], got 1.5"):
        stats.wilson_effective(1.5, [0.5, 0.4], 10)


def test_jackknife_of_a_mean_is_the_t_interval():
    from scipy.stats import t

    left_out = stats.mean(FIVE, stats.jackknife_weights(5))
    got = stats.jackknife_interval(4.0, left_out)
    assert (got.low, got.high) == pytest.approx(t.interval(0.95, 4, 4.0, FIVE.std(ddof=1) / math.sqrt(5)))
    assert stats.jackknife_interval(4.0, left_out, low=0.0).low == 0.0
    assert math.isnan(stats.jackknife_interval(1.0, [1.0]).low)
    assert math.isnan(stats.jackknife_interval(0.3, [0.3] * 7).low)


def test_fisher_interval_is_that_of_z():
    generator = np.random.default_rng(0)
    x = generator.standard_normal(40)
    y = x + generator.standard_normal(40)
    value, left_out = stats.pearson(x, y, np.ones((1, 40)))[0], stats.leave_one_out("pearson", x, y)
    got, z = (
        stats.jackknife_interval(value, left_out, transform="fisher"),
        stats.jackknife_interval(np.arctanh(value), np.arctanh(left_out)),
    )
    assert (np.arctanh(got.low), np.arctanh(got.high)) == pytest.approx((z.low, z.high))
    assert got.method == "jackknife-fisher"
    assert math.isnan(stats.jackknife_interval(1.0, [1.0, 0.9, 1.0], transform="fisher").low)
    with pytest.raises(UsageError, match="`transform` must be `fisher` or None, got 'logit'"):
        stats.jackknife_interval(0.5, [0.4, 0.6], transform="logit")


def test_t_interval_equals_scipy_and_the_jackknife():
    from scipy.stats import ttest_1samp

    got = stats.t_interval(FIVE, 0.9)
    expected = ttest_1samp(FIVE, 0).confidence_interval(0.9)
    assert (got.low, got.high, got.method, got.n) == (pytest.approx(expected.low), pytest.approx(expected.high), "t", 5)
    jackknife = stats.jackknife_interval(4.0, stats.leave_one_out("mean", FIVE), 0.9)
    assert (got.low, got.high) == pytest.approx((jackknife.low, jackknife.high))
    for few in ([], [1.0], [2.0, 2.0]):
        assert math.isnan(stats.t_interval(few).low)
    with pytest.raises(UsageError, match="`level` must lie strictly between 0 and 1, got 95"):
        stats.t_interval([], 95)


def test_detectable_difference_is_found_with_its_power():
    from statsmodels.stats.power import NormalIndPower

    expected = NormalIndPower().solve_power(nobs1=100, alpha=0.05, power=0.8, ratio=0)
    assert stats.detectable_difference(0.1) == pytest.approx(expected, abs=1e-3)
    found = np.abs(np.random.default_rng(0).normal(stats.detectable_difference(0.5, 0.9, 0.7), 0.5, 100_000)) > norm.ppf(0.95) * 0.5
    assert found.mean() == pytest.approx(0.7, abs=0.01)
    assert (stats.detectable_difference(0.0), stats.detectable_difference(1.0, 0.5, 0.01)) == (0.0, 0.0)
    assert math.isnan(stats.detectable_difference(math.nan))
    with pytest.raises(UsageError, match="`power` must lie strictly between 0 and 1, got 80"):
        stats.detectable_difference(0.1, power=80)
    with pytest.raises(UsageError, match="`error` must not be negative, got -1"):
        stats.detectable_difference(-1)


def test_half_samples_are_taken_about_their_own_mean():
    replicates = np.linspace(4.0, 6.0, 2001)
    half = 1.961161 * replicates.std(ddof=1)
    got = stats.half_sample(4.5, replicates, n=50)
    assert (got.low, got.high, got.n) == (pytest.approx(4.5 - half, abs=1e-5), pytest.approx(4.5 + half, abs=1e-5), 50)
    assert math.isnan(stats.half_sample(1.0, [1.0, 1.0]).low)


@pytest.mark.parametrize(("groups", "z"), [(2, 2.241403), (5, 2.575829), (10, 2.807034), (20, 3.023341)])
def test_bonferroni_quantiles(groups, z):
    assert norm.ppf((1 + stats.simultaneous_level(0.95, groups)) / 2) == pytest.approx(z, abs=1e-6)


def test_worst_group_bound_lies_below_all_groups():
    hits, sizes = [40, 9, 30], [50, 10, 60]
    intervals = [stats.wilson(hit, size, stats.one_sided_level(0.95)) for hit, size in zip(hits, sizes, strict=True)]
    worst = stats.worst_group_bound([0.8, 0.9, 0.5], intervals)
    assert worst == (2, 0.5, min(interval.low for interval in intervals))
    mirrored = stats.worst_group_bound([0.8, 0.9, 0.5], intervals, higher_is_better=False)
    assert mirrored == (1, 0.9, max(interval.high for interval in intervals))
    with pytest.raises(UsageError, match="`intervals` must be made at level 0.9 or above, see `one_sided_level`"):
        stats.worst_group_bound([0.8, 0.9, 0.5], [stats.wilson(1, 2, 0.8)] * 3)
    with pytest.raises(UsageError, match="one entry a group, got 1 and 0"):
        stats.worst_group_bound([0.8], [])
    with pytest.raises(UsageError, match="`groups` must be at least 1"):
        stats.simultaneous_level(0.95, 0)
    with pytest.raises(UsageError, match="`level` of one side must lie above 0.5, got 0.5"):
        stats.one_sided_level(0.5)


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
