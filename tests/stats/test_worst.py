"""The worst of several groups under labels dealt out at random."""

from __future__ import annotations

import math

import numpy as np
import pytest

from evalharness import stats
from evalharness.errors import DataError, UsageError


def draw(seed=0):
    return np.random.default_rng(seed)


def expected_worst(size, generator):
    """Return the mean over data sets of what the null expects, for ten groups that all score .8."""
    groups = np.repeat(np.arange(10), size)
    shifts = []
    for _ in range(30):
        hits = generator.random(10 * size) < 0.8
        shifts.append(stats.worst_group_null([hits], groups, "mean", generator).expected - hits.mean())
    return 0.8 + np.mean(shifts)


@pytest.mark.parametrize(("size", "expected"), [(50, 0.710), (500, 0.772)])
def test_ten_equal_groups_of_the_reference(size, expected):
    assert expected_worst(size, draw()) == pytest.approx(expected, abs=0.002)


def test_a_bad_group_is_found_and_a_chance_one_is_not():
    generator = draw(1)
    groups = np.repeat(np.arange(10), 100)
    even = (generator.random(1000) < 0.8).astype(float)
    bad = np.where(groups == 3, generator.random(1000) < 0.5, even)
    assert stats.worst_group_null([bad], groups, "mean", generator).p == 1 / 1000
    assert stats.worst_group_null([even], groups, "mean", generator).p > 0.05
    mirrored = stats.worst_group_null([-bad], groups, "mean", generator, higher_is_better=False)
    assert mirrored.p == 1 / 1000
    assert mirrored.value == -bad[groups == 3].mean()


def test_all_ways_to_deal_agree(monkeypatch):
    """Hits drawn as from an urn, sums by unit, and a reducer over rows estimate one null."""
    monkeypatch.setattr("evalharness.stats._worst._BLOCK_CELLS", 3000)
    groups, classes = np.tile(np.repeat(np.arange(3), 40), 2), np.repeat(np.arange(2), 120)
    hits = (draw(3).random(240) < 0.5 + 0.3 * classes).astype(float)
    median_of = stats.make_reducer(lambda values, weights: weights @ values / weights.sum(axis=1))
    found = [
        stats.worst_group_null([hits], groups, "mean", draw(), classes=classes, permutations=4000),
        stats.worst_group_null([hits], groups, "mean", draw(), classes=classes, permutations=4000, clusters=np.arange(240)),
        stats.worst_group_null([2 * hits], groups, "mean", draw(), classes=classes, permutations=4000),
        stats.worst_group_null([hits], groups, median_of, draw(), classes=classes, permutations=4000),
    ]
    for at, each in enumerate(found):
        scale = 2 if at == 2 else 1
        assert each.expected / scale == pytest.approx(found[0].expected, abs=0.003)
        assert each.p == pytest.approx(found[0].p, abs=0.03)


def test_expected_is_exact_by_enumeration():
    """Two groups of two among four values: the lower mean over the three ways to split them."""
    got = stats.worst_group_null([[0.0, 1.0, 2.0, 5.0]], np.array([0, 0, 1, 1]), "mean", draw(), permutations=20000, minimum=2)
    assert got.value == 0.5
    assert got.expected == pytest.approx(np.mean([0.5, 1.0, 1.5]), abs=0.01)
    assert got.p == pytest.approx(1 / 3, abs=0.01)


def test_labels_stay_within_classes():
    """A group of hard classes is no worse than its classes are."""
    generator = draw(2)
    classes = np.repeat([0, 1], 500)
    groups = np.where(generator.random(1000) < 0.9, classes, 1 - classes)
    hits = generator.random(1000) < np.where(classes == 0, 0.5, 0.95)
    assert stats.worst_group_null([hits], groups, "mean", generator).p < 0.01
    assert stats.worst_group_null([hits], groups, "mean", generator, classes=classes).p > 0.05


def test_clusters_move_whole():
    """Twenty clusters of fifty equal hits are twenty values; taken as rows they would show a difference that is not there."""
    rejected = {True: 0, False: 0}
    for seed in range(40):
        generator = draw(seed)
        clusters = np.repeat(np.arange(20), 50)
        hits, groups = (generator.random(20) < 0.7)[clusters], (np.arange(20) % 2)[clusters]
        for whole in rejected:
            found = stats.worst_group_null([hits], groups, "mean", generator, clusters=clusters if whole else None, permutations=199)
            rejected[whole] += found.p <= 0.05
    assert rejected[True] <= 5
    assert rejected[False] > 20


def test_clusters_of_several_groups_hand_on_their_labels_row_by_row():
    clusters = np.repeat(np.arange(4), 2)
    groups = np.array([0, 1, 1, 0, 0, 0, 1, 1])
    values = np.array([0.0, 10.0, 1.0, 20.0, 3.0, 4.0, 5.0, 6.0])
    got = stats.worst_group_null([values], groups, "mean", draw(), clusters=clusters, minimum=1, permutations=8000)
    worst = []
    for first, second in ((groups[:2], groups[2:4]), (groups[2:4], groups[:2])):
        for third, fourth in ((groups[4:6], groups[6:]), (groups[6:], groups[4:6])):
            dealt = np.concatenate([first, second, third, fourth])
            worst.append(min(values[dealt == 0].mean(), values[dealt == 1].mean()))
    assert got.expected == pytest.approx(np.mean(worst), abs=0.05)


def test_clusters_of_several_classes_trade_with_each_other_only():
    clusters, classes = np.repeat(np.arange(4), 2), np.array([0, 0, 0, 0, 0, 1, 0, 1])
    got = stats.worst_group_null(
        [np.array([0.0, 0, 1, 1, 8, 8, 9, 9])], np.repeat([0, 1, 0, 1], 2), "mean", draw(), clusters=clusters, classes=classes, minimum=1
    )
    assert got.expected == pytest.approx((4 + 4 + 4.5 + 4.5) / 4, abs=0.05)


@pytest.mark.parametrize(
    ("groups", "options", "reason"),
    [
        (np.zeros(60, int), {}, "only one group has 30 rows: there is nothing to compare it with"),
        (np.full(60, -1), {}, "no group has 30 rows"),
        (np.arange(60) // 30, {"classes": np.arange(60) // 30}, "the group is a function of the class: no label can move within a class"),
        (np.arange(60) // 30, {"classes": np.arange(60) // 15}, "the group is a function of the class: no label can move within a class"),
        (
            np.arange(60) // 30,
            {"clusters": np.zeros(60)},
            "no two clusters that could trade their groups differ in them: no label can move",
        ),
        (np.arange(60) // 30, {"clusters": np.arange(60) // 30}, "the worst group scores the same however labels are dealt out"),
    ],
)
def test_where_nothing_can_move_there_is_a_reason(groups, options, reason):
    hits = (draw().random(60) < 0.7).astype(float)
    got = stats.worst_group_null([hits], groups, "mean", draw(), **options)
    assert math.isnan(got.p)
    assert math.isnan(got.expected)
    assert got.reason == reason


def test_small_groups_and_rows_without_one_take_no_part():
    generator = draw(4)
    groups = np.repeat([0, 1, 2, -1], [100, 100, 5, 50])
    values = np.where(groups == 2, -50.0, np.where(groups == -1, 90.0, generator.standard_normal(255)))
    got = stats.worst_group_null([values], groups, "mean", generator)
    assert got.value == min(values[:100].mean(), values[100:200].mean())
    assert abs(got.expected) < 0.5


def test_undefined_groups_are_left_out():
    hits = (draw().random(90) < 0.5).astype(float)
    hits[:30] = np.nan
    got = stats.worst_group_null([hits], np.repeat([0, 1, 2], 30), "mean", draw())
    assert got.value == min(hits[30:60].mean(), hits[60:].mean())
    assert stats.worst_group_null([np.full(90, np.nan)], np.repeat([0, 1, 2], 30), "mean", draw()).reason == (
        "the metric is undefined in every group"
    )


def test_other_reducers_are_dealt_out_too():
    generator = draw(5)
    truth = generator.integers(0, 3, 400)
    prediction = np.where(generator.random(400) < 0.7, truth, generator.integers(0, 3, 400))
    got = stats.worst_group_null([truth, prediction], np.repeat([0, 1], 200), "macro_f1", generator, classes=truth, permutations=99)
    assert 0.01 <= got.p <= 1
    assert got.value <= 1


def test_wrong_arguments_are_refused():
    with pytest.raises(UsageError, match=r"columns of reducer `mean` must have shape \(4,\)"):
        stats.worst_group_null([np.ones(3)], np.zeros(4, int), "mean", draw())
    with pytest.raises(UsageError, match="`permutations` must be at least 1, got 0"):
        stats.worst_group_null([np.ones(4)], np.zeros(4, int), "mean", draw(), permutations=0)
    with pytest.raises(DataError, match="at least one row"):
        stats.worst_group_null([np.ones(0)], np.zeros(0, int), "mean", draw())
