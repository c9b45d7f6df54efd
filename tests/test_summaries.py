"""Estimates and group records of one cell: which interval a metric gets, what few units get, and what is said of the worst group."""

from __future__ import annotations

import math

import numpy as np
import pytest

from evalharness import stats
from evalharness.estimates import Items, Resampler, estimate
from evalharness.summaries import SummaryPlan, summarise
from evalharness.types import Column, MetricInfo

ACCURACY = MetricInfo(name="accuracy", columns=("hit",), interval="wilson")


def make_items(columns, clusters=None, **fields):
    first = next(iter(columns.values()))
    given = {"variant": "", "item": "sample", "part": "items", "cluster_name": None if clusters is None else "person"} | fields
    return Items(rows=np.arange(len(first)), columns=columns, clusters=clusters, **given)


def estimate_of(metric, columns, **fields):
    return estimate(metric, make_items(columns, **fields), Resampler(0))


def records_of(columns, groups, *, main=True, metric=ACCURACY, **fields):
    column = Column(kind="class", values=groups, names=tuple("abcdefghij"))
    plan = SummaryPlan(
        base={},
        metrics=[metric],
        main_metrics=frozenset({metric.name}),
        params={},
        main_cell=main,
        main_metric=metric.name,
        main_variant=None,
        groups=lambda part: [("colour", column)],
        unit="u",
    )
    return list(summarise(plan, [make_items(columns, **fields)], Resampler(0)))


def only(records, **wanted):
    (record,) = [record for record in records if all(record[name] == value for name, value in wanted.items())]
    return record


# --- which interval -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reduce", "columns", "many", "few"),
    [
        ("mean", ("x",), "bootstrap-bca-expanded", "bootstrap-bca-expanded"),
        ("median", ("x",), "bootstrap-percentile-expanded", "bootstrap-percentile-expanded"),
        ("spearman", ("x", "y"), "bootstrap-bca-expanded", "bootstrap-bca"),
        ("pearson", ("x", "y"), "jackknife-fisher", "jackknife-fisher"),
        ("auc", ("x", "z"), "bootstrap-bca-expanded", "bootstrap-percentile-expanded"),
        ("macro_f1", ("t", "u"), "bootstrap-basic-expanded", "jackknife"),
        ("balanced_accuracy", ("t", "u"), "bootstrap-percentile-expanded", "bootstrap-percentile-expanded"),
        (stats.quantile(0.9), ("x",), "bootstrap-percentile-expanded", "bootstrap-percentile-expanded"),
    ],
)
def test_each_reducer_has_the_interval_that_covers_best(reduce, columns, many, few):
    draw = np.random.default_rng(0)
    held = {"x": draw.normal(size=200), "y": draw.normal(size=200), "z": draw.random(200) < 0.5}
    held |= {"t": draw.integers(0, 4, 200), "u": draw.integers(0, 4, 200)}
    metric = MetricInfo(name="m", columns=columns, reduce=reduce, low=-10.0, high=10.0)
    found = estimate_of(metric, held)

    assert found.interval.method == many
    assert found.interval.low < found.value < found.interval.high
    assert estimate_of(metric, {name: values[:20] for name, values in held.items()}).interval.method == few


def test_proportions_are_wilson_unless_rows_come_in_clusters():
    hits = np.random.default_rng(0).random(400) < 0.7
    people = np.repeat(np.arange(40), 10)

    assert estimate_of(ACCURACY, {"hit": hits}).interval.method == "wilson"
    found = estimate_of(ACCURACY, {"hit": hits}, clusters=people)
    assert (found.interval.method, found.scope, found.n, found.n_units) == ("wilson-effective", "clusters by person", 400, 40)


def test_means_without_an_upper_end_are_studentised_unless_most_values_are_equal():
    loss = MetricInfo(name="log_loss", columns=("loss",), unit="nats", high=math.inf, higher_is_better=False)
    draw = np.random.default_rng(0)
    rare = np.zeros(200)
    rare[0] = 1.0

    assert estimate_of(loss, {"loss": draw.exponential(size=200)}).interval.method == "bootstrap-t"
    assert estimate_of(loss, {"loss": draw.exponential(size=10)}).interval.method == "bootstrap-t"
    assert estimate_of(loss, {"loss": draw.exponential(size=9)}).interval.method == "jackknife"
    assert estimate_of(loss, {"loss": rare}).interval.method == "bootstrap-percentile-expanded"


def test_fewer_than_five_units_have_no_interval_and_are_listed():
    hits = np.array([1, 1, 0, 0, 1, 0], dtype=bool)
    found = estimate_of(ACCURACY, {"hit": hits}, clusters=np.array([0, 0, 1, 1, 2, 2]))

    assert (found.status, found.n_units) == ("insufficient", 3)
    assert found.reason == "3 independent units: too few for an interval; they have 1, 0, 0.5"
    assert math.isnan(found.interval.low)


def test_a_calibration_error_within_the_band_of_a_calibrated_model_has_no_interval():
    draw = np.random.default_rng(0)
    metric = MetricInfo(name="calibration_error", columns=("confidence", "hit"), reduce="calibration_error", higher_is_better=False)
    confidence = draw.random(500)
    calibrated = estimate_of(metric, {"confidence": confidence, "hit": draw.random(500) < confidence})
    overconfident = estimate_of(metric, {"confidence": confidence, "hit": draw.random(500) < confidence - 0.3})

    assert math.isnan(calibrated.interval.low)
    assert calibrated.reason.startswith("a perfectly calibrated model shows up to 0.0")
    assert overconfident.interval.low < overconfident.value < overconfident.interval.high


def test_a_statistic_that_cannot_vary_has_no_interval_of_zero_width():
    metric = MetricInfo(name="m", columns=("x",))

    assert math.isnan(estimate_of(metric, {"x": np.full(100, 0.5)}).interval.low)


# --- groups -------------------------------------------------------------------------------------------------------


def test_worst_gap_and_ratio_have_bounds_over_all_groups_at_once():
    draw = np.random.default_rng(0)
    groups = np.repeat(np.arange(4), 200)
    hits = draw.random(800) < np.array([0.9, 0.8, 0.85, 0.5])[groups]
    found = records_of({"hit": hits}, groups)
    worst, gap, ratio = (only(found, statistic=name) for name in ("worst", "gap", "ratio"))
    values = [hits[groups == at].mean() for at in range(4)]

    assert (worst["group"], worst["value"], worst["high"]) == ("colour=d", pytest.approx(min(values)), None)
    plain = only(found, group="colour=d", statistic="value")
    assert plain["low"] < worst["low"] < worst["value"]  # one side alone, and no correction for the number of groups
    assert gap["value"] == pytest.approx(max(values) - min(values))
    assert ratio["value"] == pytest.approx(min(values) / max(values))
    assert ratio["low"] < ratio["value"] < ratio["high"] < 1
    assert worst["p"] == pytest.approx(0.001)


def test_the_worst_of_equal_groups_is_no_finding():
    """METRICS 8: of ten equal groups at .8 with 50 rows each the worst shows .71 on average."""
    draw = np.random.default_rng(3)
    groups = np.repeat(np.arange(10), 50)
    worst = only(records_of({"hit": draw.random(500) < 0.8}, groups), statistic="worst")

    assert worst["p"] > 0.05
    expected = float(worst["reason"].partition("permuted the worst is ")[2].split()[0])
    assert expected == pytest.approx(0.71, abs=0.03)


def test_groups_without_bounds_make_no_bound():
    """A group in which nothing varies has no interval, and none of the bounds over all may be made up."""
    metric = MetricInfo(name="loss", columns=("loss",), high=2.0, higher_is_better=False)
    groups = np.repeat(np.arange(2), 100)
    found = records_of({"loss": np.where(groups == 0, 0.0, np.random.default_rng(0).random(200))}, groups, metric=metric)
    gap, worst = only(found, statistic="gap"), only(found, statistic="worst")

    assert (gap["low"], gap["high"]) == (None, None)
    assert (worst["low"], worst["high"]) == (None, None)
    assert worst["reason"].startswith("no bound over 2 groups")


def test_groups_that_are_classes_have_no_permutation_null_and_say_so():
    draw = np.random.default_rng(0)
    groups = np.repeat(np.arange(4), 100)
    worst = only(records_of({"hit": draw.random(400) < 0.8, "truth": groups}, groups), statistic="worst")

    assert worst["p"] is None
    assert "no permutation null" in worst["reason"]


def test_the_null_is_made_for_the_main_cell_alone():
    groups = np.repeat(np.arange(4), 100)
    worst = only(records_of({"hit": np.random.default_rng(0).random(400) < 0.8}, groups, main=False), statistic="worst")

    assert worst["p"] is None
    assert worst["reason"] == "one-sided bound over 4 groups"


def test_small_groups_are_listed_as_insufficient_and_do_not_count_as_the_worst():
    groups = np.concatenate([np.repeat(np.arange(2), 100), np.full(10, 2)])
    hits = np.concatenate([np.ones(200), np.zeros(10)]).astype(bool)
    found = records_of({"hit": hits}, groups)

    assert only(found, group="colour=c")["status"] == "insufficient"
    assert only(found, statistic="worst")["group"] in ("colour=a", "colour=b")


# --- where groups stand -------------------------------------------------------------------------------------------

TASK = """data: {{dataset: toy, target: [label, parity]}}
fits: {{all: {{}}, few: {{budget: 4/class}}}}
evaluators: {{centroid: {{use: centroid}}}}
codecs: [float32, int8]
groups: [colour]
{cross}main: centroid.accuracy{at}
"""


def grouped_cells(run_tasks, write_task, tmp_path, cross="", at=""):
    from evalharness.store import ResultsReader

    run_tasks(write_task(TASK.format(cross=cross, at=at)))
    records = ResultsReader([tmp_path / "out"]).records()
    return {(record["fit"], record["target"], record["codec"]) for record in records if record["statistic"] == "worst"}


def test_groups_stand_in_the_first_cell_alone(run_tasks, write_task, tmp_path):
    assert grouped_cells(run_tasks, write_task, tmp_path) == {("all", "label", "float32")}


def test_groups_stand_where_cross_asks_for_them(run_tasks, write_task, tmp_path):
    cells = grouped_cells(run_tasks, write_task, tmp_path, cross="cross: [[groups, codecs]]\n")

    assert cells == {("all", "label", "float32"), ("all", "label", "int8")}


def test_groups_stand_in_the_main_cell_wherever_it_is(run_tasks, write_task, tmp_path):
    assert ("all", "label", "int8") in grouped_cells(run_tasks, write_task, tmp_path, at=" @ codec=int8")


def test_resamples_that_lie_beside_the_value_make_no_interval():
    """Classes of one item each are missing from a third of the resamples, so a mean over the classes present is far higher there."""
    truth = np.concatenate([np.arange(60) % 2, np.arange(2, 17)])
    columns = {"truth": truth, "prediction": np.concatenate([np.arange(60) % 2, np.zeros(15, dtype=np.int64)])}
    metric = MetricInfo(name="balanced", columns=("truth", "prediction"), reduce="balanced_accuracy", interval="bootstrap")
    found = estimate_of(metric, columns)
    assert found.value == pytest.approx(2 / 17)
    assert np.isnan(found.interval.low)
    assert "not about the value" in found.reason


# --- statistics of the whole cloud --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("replicates", "reason"),
    [({}, "3 items: too few for half-samples"), ({"hubness": np.full(50, np.nan)}, "the statistic does not vary, or is undefined")],
)
def test_a_cloud_without_interval_says_why(replicates, reason):
    metric = MetricInfo(name="hubness", reduce=None, low=float("-inf"), high=float("inf"), interval="half-sample")
    found = estimate_of(metric, {"x": np.zeros(3)}, scalars={"hubness": 1.0}, replicates=replicates)

    assert math.isnan(found.interval.low)
    assert reason in found.reason


@pytest.mark.parametrize(("way", "scope"), [(3, "classes"), (1, "superclasses")])
def test_the_units_of_episodes_are_classes_or_the_one_superclass_of_each(way, scope):
    draw = np.random.default_rng(0)
    clusters = np.stack([draw.permutation(8)[:way] for _ in range(60)])
    items = make_items({"hit": draw.random(60)}, clusters, item="episode", cluster_name=None, num_classes=8)
    found = estimate(ACCURACY, items, Resampler(0))

    assert (found.scope, found.n, found.n_units) == (scope, 60, 8)
