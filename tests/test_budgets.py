"""Label budgets: what ten times the labels add, and the labels that a score needs."""

import numpy as np
import pytest

from evalharness.budgets import LabelCurve, first_crossing
from evalharness.estimates import Items, Resampler
from evalharness.types import MetricInfo

ACCURACY = MetricInfo(name="accuracy", columns=("hit",), interval="wilson")


def side(share, rows=400, seed=0):
    hits = np.random.default_rng(seed).random(rows) < share
    return Items(variant="", item="sample", part="items", rows=np.arange(rows), columns={"hit": hits}, clusters=None)


def curve(shares, labels=(10, 100, 1000), metric=ACCURACY):
    return LabelCurve(metric, labels, [[side(share, seed=at)] for at, share in enumerate(shares)], Resampler(0))


def test_a_crossing_is_interpolated_on_the_axis_given():
    values = np.array([[0.5, 0.9, 0.1, 0.5], [0.7, 0.8, 0.2, 0.85], [0.9, 0.95, 0.3, 0.6]])
    decades = np.array([1.0, 2.0, 3.0])
    assert first_crossing(values, decades, 0.8).tolist() == pytest.approx([2.5, 1.0, np.inf, 1 + 0.3 / 0.35])
    assert first_crossing(-values, decades, -0.8, higher=False).tolist() == pytest.approx([2.5, 1.0, np.inf, 1 + 0.3 / 0.35])


def test_the_slope_is_the_least_squares_gain_of_tenfold_labels():
    made = curve((0.5, 0.7, 0.9))
    values = [side(share, seed=at).columns["hit"].mean() for at, share in enumerate((0.5, 0.7, 0.9))]
    found = made.slope()
    assert found.value == pytest.approx(np.polyfit([1, 2, 3], values, 1)[0])
    assert found.interval.low < found.value < found.interval.high


def test_labels_needed_have_an_interval_over_test_items():
    found = curve((0.5, 0.7, 0.9)).reach(0.8)
    values = [side(share, seed=at).columns["hit"].mean() for at, share in enumerate((0.5, 0.7, 0.9))]
    assert found.value == pytest.approx(10 ** (2 + (0.8 - values[1]) / (values[2] - values[1])))
    assert 100 < found.interval.low < found.value < found.interval.high < 1000


def test_the_interval_of_labels_needed_covers():
    """The truth of a straight curve from .5 to .9 at .8 is 10**2.5; the rows of the three budgets are the same."""
    covered = 0
    for seed in range(120):
        draws = np.random.default_rng(seed).random(300)
        sides = [
            [Items(variant="", item="sample", part="items", rows=np.arange(300), columns={"hit": draws < share}, clusters=None)]
            for share in (0.5, 0.7, 0.9)
        ]
        found = LabelCurve(ACCURACY, (10, 100, 1000), sides, Resampler(seed)).reach(0.8)
        covered += found.interval.low <= 10**2.5 <= found.interval.high
    assert covered >= 107


def test_what_is_not_reached_is_undecided_and_what_is_reached_at_once_says_so():
    beyond = curve((0.5, 0.6, 0.7)).reach(0.95)
    assert beyond.status == "undecided"
    assert np.isnan(beyond.value)
    assert beyond.reason.startswith("0.95 is not reached with 1000 labels, the largest budget, which gives 0.7")
    at_once = curve((0.9, 0.92, 0.95)).reach(0.5)
    assert at_once.value == pytest.approx(10)
    assert at_once.reason == "reached at the smallest budget already"


def test_a_score_reached_in_some_resamples_only_has_an_open_end():
    sides = [
        [Items(variant="", item="sample", part="items", rows=np.arange(400), columns={"hit": np.arange(400) < hits}, clusters=None)]
        for hits in (200, 280, 322)
    ]
    found = LabelCurve(ACCURACY, (10, 100, 1000), sides, Resampler(0)).reach(0.8)
    assert 850 < found.value < 950
    assert np.isnan(found.interval.high)
    assert found.reason.startswith("at least ")
    assert found.reason.endswith("in some resamples the largest budget is not enough")


def test_lower_is_better_turns_the_curve():
    loss = MetricInfo(name="log_loss", columns=("hit",), higher_is_better=False)
    found = curve((0.9, 0.6, 0.3), metric=loss).reach(0.5)
    assert 100 < found.value < 1000
