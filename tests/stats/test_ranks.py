"""All pairs at once, and rank sets."""

from __future__ import annotations

import math

import numpy as np
import pytest

from evalharness import stats
from evalharness.errors import UsageError

EQUAL = 0.01 * math.sqrt(2) * (1 - np.eye(3))


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
    with pytest.raises(UsageError, match=r"must be \(models, resamples\) for 2 values, two resamples or more, got shape \(3, 2\)"):
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


def test_rank_sets_from_errors_reference_case():
    """Scores .80, .78, .70 of SE .01 each: critical 2.343, sets {1,2}, {1,2}, {3}."""
    assert stats.rank_sets_from_errors([0.80, 0.78, 0.70], EQUAL, 2.343) == [(1, 2), (1, 2), (3, 3)]
    assert stats.rank_sets_from_errors([-0.80, -0.78, -0.70], EQUAL, 2.343) == [(2, 3), (2, 3), (1, 1)]


def test_errors_of_zero_decide_and_unknown_ones_never_do():
    zero = np.zeros((2, 2))
    assert stats.rank_sets_from_errors([0.5, 0.5], zero, 2.0) == [(1, 2), (1, 2)]
    assert stats.rank_sets_from_errors([0.3, 0.1 + 0.2], zero, 2.0) == [(1, 2), (1, 2)]
    assert stats.rank_sets_from_errors([0.5, 0.6], zero, 2.0) == [(2, 2), (1, 1)]
    assert stats.rank_sets_from_errors([0.5, 0.6], zero, math.inf) == [(2, 2), (1, 1)]
    for unknown in (math.nan, math.inf):
        assert stats.rank_sets_from_errors([0.5, 0.6], np.full((2, 2), unknown), 2.0) == [(1, 2), (1, 2)]
    assert stats.rank_sets_from_errors([], np.zeros((0, 0)), 2.0) == []


def test_rank_sets_from_errors_refuse_what_does_not_fit():
    with pytest.raises(UsageError, match=r"`errors` must be \(2, 2\) for 2 values, got shape \(3, 3\)"):
        stats.rank_sets_from_errors([0.1, 0.2], EQUAL, 2.0)
    with pytest.raises(UsageError, match="`values` must be finite; leave out models that were not measured"):
        stats.rank_sets_from_errors([0.1, math.nan, 0.3], EQUAL, 2.0)
    with pytest.raises(UsageError, match="`errors` and `critical` must not be negative, got 0 and nan"):
        stats.rank_sets_from_errors([0.1, 0.2, 0.3], EQUAL, math.nan)
    with pytest.raises(UsageError, match="`errors` and `critical` must not be negative, got -0.0141421 and 2"):
        stats.rank_sets_from_errors([0.1, 0.2, 0.3], -EQUAL, 2.0)


def test_pairwise_equals_its_definition():
    generator = np.random.default_rng(2)
    values, draws = np.array([0.3, 0.1, 0.25]), 0.1 * generator.standard_normal((3, 3000)) + 0.05 * generator.standard_normal(3000)
    got = stats.pairwise(values, draws)
    deltas = draws[:, None] - draws[None, :]
    t = np.abs(deltas - deltas.mean(axis=2, keepdims=True)) / np.where(np.eye(3) > 0, 1, deltas.std(axis=2, ddof=1))[..., None]
    largest = t.max(axis=(0, 1))
    np.testing.assert_allclose(got.error, deltas.std(axis=2, ddof=1), atol=1e-12)
    assert got.critical == pytest.approx(np.quantile(largest, 0.95))
    np.testing.assert_allclose(got.high - got.difference, got.critical * got.error)
    observed = 0.2 / got.error[0, 1]
    assert got.p[0, 1] == got.p[1, 0] == pytest.approx((1 + (largest >= observed).sum()) / 3001)
    assert np.diag(got.p).tolist() == [1, 1, 1]


def test_pairwise_of_independent_models_adjusts_as_the_studentised_range_does():
    from scipy.stats import studentized_range

    draws = np.random.default_rng(0).standard_normal((4, 40000))
    got = stats.pairwise([3.0, 0.0, 0.0, 0.0], draws)
    assert got.p[0, 1] == pytest.approx(studentized_range.sf(3.0, 4, np.inf), rel=0.05)


def test_pairs_that_never_vary():
    same = np.random.default_rng(0).standard_normal(99)
    got = stats.pairwise([0.5, 0.5, 0.7], np.stack([same, same, same + 0.2]))
    assert got.critical == 0.0
    assert got.p.tolist() == [[1.0, 1.0, 0.01], [1.0, 1.0, 0.01], [0.01, 0.01, 1.0]]
    assert got.error.max() == 0.0
    with pytest.raises(UsageError, match=r"two resamples or more, got shape \(2, 1\)"):
        stats.pairwise([0.5, 0.6], np.zeros((2, 1)))


def test_rank_sets_do_not_read_rounding_as_a_difference():
    draw = np.random.default_rng(0).random(50)
    assert stats.rank_sets([0.3, 0.1 + 0.2], np.stack([draw, draw])) == [(1, 2), (1, 2)]
