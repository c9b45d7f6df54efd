"""Resamples that are walked again and again, leave-one-out values, and the draws beneath both."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from scipy.stats import chisquare, poisson

from evalharness import stats
from evalharness.errors import DataError, UsageError
from evalharness.stats import _draws

CLUSTERS = np.random.default_rng(1).integers(0, 23, 90)


def draw(clusters=None, resamples=700, **options):
    return stats.Resamples(90, resamples, 5, clusters, **options)


def weights_of(clusters=None, resamples=700):
    return stats.counts(90, resamples, np.random.default_rng(5), clusters)


def columns(generator=None):
    generator = generator or np.random.default_rng(2)
    values = generator.standard_normal(90)
    return values, values + generator.standard_normal(90)


@pytest.mark.parametrize("clusters", [None, CLUSTERS])
@pytest.mark.parametrize("keep_bytes", [0, 2**20])
def test_blocks_are_the_counts_however_often_they_are_walked(clusters, keep_bytes):
    held = draw(clusters, keep_bytes=keep_bytes)
    for _ in range(2):
        np.testing.assert_array_equal(np.concatenate(list(held.blocks())), weights_of(clusters))
    assert (held.n, held.num_units, held.resamples) == (90, 90 if clusters is None else len(np.unique(CLUSTERS)), 700)


@pytest.mark.parametrize("clusters", [None, CLUSTERS])
@pytest.mark.parametrize("name", ["mean", "ratio", "spearman", "median"])
def test_apply_equals_the_reducer_on_counts(clusters, name):
    held, given = draw(clusters), columns()[: 1 if name in ("mean", "median") else 2]
    np.testing.assert_allclose(held.apply(name, *given), stats.get_reducer(name)(*given, weights_of(clusters)), atol=1e-12)


@pytest.mark.parametrize("clusters", [None, CLUSTERS])
@pytest.mark.parametrize("name", ["mean", "ratio", "spearman", "median"])
def test_apply_at_takes_the_part_of_each_resample_that_falls_on_some_rows(clusters, name):
    at = np.array([3, 70, 4, 5, 88, 3, 21, 40])
    held, given = draw(clusters), [column[at] for column in columns()[: 1 if name in ("mean", "median") else 2]]
    expected = stats.get_reducer(name)(*given, weights_of(clusters)[:, at])
    np.testing.assert_allclose(held.apply_at(name, at, *given), expected, atol=1e-9)


@pytest.mark.parametrize("clusters", [None, CLUSTERS])
def test_means_of_several_columns_in_one_product(clusters):
    table = np.stack([*columns(), np.arange(90)], axis=1)
    table[17, 1] = np.nan
    got, weights = draw(clusters).means(table), weights_of(clusters)
    assert got.shape == (700, 3)
    for at in range(3):
        np.testing.assert_allclose(got[:, at], stats.mean(table[:, at], weights), atol=1e-12)
    assert 0 < np.isnan(got[:, 1]).sum() < 700


def test_an_own_reducer_may_be_any_callable():
    def largest(values, weights):
        return np.where(weights > 0, values, -np.inf).max(axis=1)

    values = columns()[0]
    np.testing.assert_array_equal(draw().apply(largest, values), largest(values, weights_of()))


def test_rows_absent_from_a_resample_leave_nan():
    got = draw().apply_at("mean", [4], [1.0])
    assert 0.3 < np.isnan(got).mean() < 0.45
    assert np.isnan(draw().apply_at("mean", [], [])).all()


def test_none_and_one():
    assert draw(resamples=0).apply("median", columns()[0]).shape == (0,)
    assert draw(resamples=0).means(np.ones((90, 2))).shape == (0, 2)
    one = stats.Resamples(1, 5, 0)
    assert one.apply("mean", [3.0]).tolist() == [3.0] * 5
    single = stats.Resamples(4, 5, 0, np.zeros(4))
    assert single.num_units == 1
    assert single.apply("mean", np.arange(4.0)).tolist() == [1.5] * 5


def test_fewer_resamples_are_the_first_of_more():
    for n in (10, 300):
        few, many = (stats.counts(n, resamples, np.random.default_rng(0)) for resamples in (7, 600))
        np.testing.assert_array_equal(few, many[:7])


def test_memory_stays_small_at_any_size():
    held = stats.Resamples(400_000, 60, 0)
    values = np.random.default_rng(0).random(400_000)
    tracemalloc.start()
    held.apply("mean", values)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 60 * 2**20


def test_wrong_arguments_are_refused():
    with pytest.raises(UsageError, match="`seed` must be a seed, not a generator, which could not be walked twice"):
        stats.Resamples(5, 5, np.random.default_rng(0))
    with pytest.raises(UsageError, match="`resamples` must not be negative, got -1"):
        stats.Resamples(5, -1, 0)
    with pytest.raises(DataError, match="at least one row to resample, got none"):
        stats.Resamples(0, 5, 0)
    with pytest.raises(UsageError, match=r"`clusters` must name one unit for each of the 5 rows, got shape \(4,\)"):
        stats.Resamples(5, 5, 0, np.zeros(4))
    with pytest.raises(UsageError, match=r"columns of reducer `mean` must have shape \(90,\) like its weights, got \(3,\)"):
        draw().apply("mean", np.ones(3))
    with pytest.raises(UsageError, match=r"`columns` must be \(90, metrics\), one row a row, got shape \(90,\)"):
        draw().means(np.ones(90))
    with pytest.raises(UsageError, match=r"`positions` must be a vector of rows in \[0, 90\)"):
        draw().apply_at("mean", [90], [1.0])


# --- leave one out ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mean", "ratio", "spearman"])
@pytest.mark.parametrize(("clusters", "limit"), [(None, None), (CLUSTERS, None), (CLUSTERS, 7), (None, 20)])
def test_leave_one_out_equals_its_weights(name, clusters, limit):
    given = columns()[: 1 if name == "mean" else 2]
    expected = stats.get_reducer(name)(*given, stats.jackknife_weights(90, clusters, limit=limit))
    np.testing.assert_allclose(stats.leave_one_out(name, *given, clusters=clusters, limit=limit), expected, atol=1e-9)


def test_leave_one_out_with_gaps_and_alone():
    values = np.array([1.0, np.nan, 3.0])
    np.testing.assert_allclose(stats.leave_one_out("mean", values), [np.nan, 2.0, np.nan])
    assert np.isnan(stats.leave_one_out("mean", [5.0])).all()
    with pytest.raises(UsageError, match="`limit` must be at least 2"):
        stats.leave_one_out("mean", values, limit=1)
    with pytest.raises(DataError, match="at least one row"):
        stats.leave_one_out("mean", [])


# --- draws ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [20, 40, 300, 3000])
def test_draws_are_multinomial(n):
    """Both ways to draw, and rows cut into chunks or not, give the counts of n draws from n."""
    weights = stats.counts(n, 400_000 // n, np.random.default_rng(n))
    assert (weights.sum(axis=1) == n).all()
    observed = np.bincount(weights.ravel(), minlength=8)
    observed = np.append(observed[:5], observed[5:].sum())
    # Marginally a binomial; counts of a row depend on each other so weakly that the test stays valid.
    from scipy.stats import binom

    chances = binom.pmf(np.arange(5), n, 1 / n)
    assert chisquare(observed, weights.size * np.append(chances, 1 - chances.sum())).pvalue > 1e-3


def test_numbers_of_distinct_rows_agree_with_direct_draws():
    """A joint fact of a row: how many rows a resample of 12 leaves out; the Poisson way is forced to small n."""
    direct = np.random.default_rng(0).integers(0, 12, (60_000, 12))
    expected = np.array([len(set(row)) for row in direct])
    tally = np.empty((60_000, 12), dtype=np.uint8)
    generator = np.random.default_rng(1)
    sums = _draws._fill_poisson(tally, generator)
    _draws._top_up(tally, 12 - sums, generator)
    assert (tally.sum(axis=1) == 12).all()
    got = (tally > 0).sum(axis=1)
    counts = np.stack([np.bincount(np.clip(each, 5, 10), minlength=11)[5:] for each in (got, expected)])
    from scipy.stats import chi2_contingency

    assert chi2_contingency(counts).pvalue > 1e-3


def test_table_of_pairs_and_its_remainders_make_the_poisson_distribution():
    for rate in (0.5, 0.97):
        table, residual = _draws._poisson_table(rate)
        known = table[table != _draws._ESCAPE]
        mass = np.bincount(known // 256 * _draws._ORDERS + known % 256, minlength=_draws._ORDERS**2) / 2**16
        mass += (len(table) - len(known)) / 2**16 * np.diff(residual, prepend=0)
        chances = poisson.pmf(np.arange(_draws._ORDERS), rate)
        np.testing.assert_allclose(mass, np.outer(chances, chances).ravel(), atol=1e-12)
        assert len(known) > 0.999 * len(table)
