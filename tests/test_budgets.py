"""Label budgets: what ten times the labels add, and the labels that a score needs."""

import numpy as np
import pytest

from evalharness.budgets import LabelCurve, first_crossing
from evalharness.estimates import Items, Resampler
from evalharness.store.results import ResultsReader
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
    assert np.isnan(at_once.value)
    assert at_once.status == "undecided"
    assert at_once.reason.startswith("at most ")


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


KINDS = """task: kinds
version: 1
modality: vector
data:
  dataset: csv:{base}
  inputs: {{vector: [a, b]}}
  target: [sign, distance]
  splits: {{train: train, test: test}}
fits:
  few: {{budget: 0.2, draws: 3}}
  all: {{}}
evaluators:
  probe: {{use: linear-probe, grid: [0.01, 1.0]}}
cross: [[targets, fits]]
main: probe.accuracy @ fit=all
"""


@pytest.fixture
def kinds(tmp_path):
    """Write a task with a class and a number as targets, and return its file."""
    base = tmp_path / "rows"
    base.mkdir()
    for split, seed in (("train", 0), ("test", 1)):
        values = np.random.default_rng(seed).standard_normal((120, 2)).round(4)
        rows = [f"{a},{b},{'up' if a > 0 else 'down'},{a + b / 2:.4f}" for a, b in values]
        (base / f"{split}.csv").write_text("\n".join(["a,b,sign,distance", *rows]) + "\n")
    (tmp_path / "kinds.yaml").write_text(KINDS.format(base=base))
    return tmp_path / "kinds.yaml"


def test_targets_of_each_kind_have_means_over_draws_of_their_own_metric(kinds, tmp_path, cli):
    done = cli("run", kinds, "-e", "identity", "--out", tmp_path / "out")
    assert done.code == 0, done.err
    made = [record for record in ResultsReader([tmp_path / "out"]).records() if record["over"] == "draw"]
    assert {(record["target"], record["metric"], record["statistic"], record["fit"]) for record in made} == {
        ("sign", "accuracy", "mean", "few"),
        ("sign", "accuracy", "spread", "few"),
        ("distance", "r2", "mean", "few"),
        ("distance", "r2", "spread", "few"),
    }
    assert cli("verify", tmp_path / "out").code == 0


def test_numbers_far_from_zero_are_stored_and_verified(kinds, tmp_path, cli):
    for path in (tmp_path / "rows").iterdir():
        head, *rows = path.read_text().splitlines()
        path.write_text("\n".join([f"{head},far", *[f"{row},{float(row.split(',')[3]) + 1e7:.4f}" for row in rows]]) + "\n")
    kinds.write_text(kinds.read_text().replace("[sign, distance]", "[distance, far]").replace("probe.accuracy", "probe.r2"))
    done = cli("run", kinds, "-e", "identity", "--out", tmp_path / "out")
    assert done.code == 0, done.err
    found = {
        (row["target"], row["fit"]): row["value"]
        for row in ResultsReader([tmp_path / "out"]).records()
        if row["metric"] == "r2" and not row["over"]
    }
    assert found["far", "all"] == pytest.approx(found["distance", "all"], abs=1e-4)
    assert cli("verify", tmp_path / "out").code == 0


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("grid: [0.01, 1.0]}", "grid: [1.0], reach: 1.5}", "1.5 is no score to be reached: accuracy lies in [0, 1]"),
        ("grid: [0.01, 1.0]}", "grid: [1.0], reach: true}", "expected a score"),
        ("grid: [0.01, 1.0]}", "fits: [all], grid: [1.0], reach: 0.5}", "needs two fits of different `budget`"),
        ("{budget: 0.2, draws: 3}", "{draws: 3}", "`draws` draw a `budget` anew"),
    ],
)
def test_a_curve_that_cannot_be_is_refused(kinds, cli, old, new, message):
    text = kinds.read_text()
    assert old in text
    kinds.write_text(text.replace(old, new))
    done = cli("validate", kinds)
    assert done.code != 0
    assert message in done.out + done.err


def test_budgets_that_come_to_the_same_number_of_labels_say_that_there_is_no_curve(kinds, tmp_path, cli):
    text = kinds.read_text().replace("{budget: 0.2, draws: 3}", "{budget: 1.0}").replace("grid: [0.01, 1.0]}", "grid: 1.0, reach: 0.7}")
    kinds.write_text(text.replace("target: [sign, distance]", "target: [sign, other]"))
    for path in (tmp_path / "rows").iterdir():
        head, *rows = path.read_text().splitlines()
        path.write_text("\n".join([f"{head},other", *[f"{row},{'left' if row[0] == '-' else 'right'}" for row in rows]]) + "\n")
    done = cli("run", kinds, "-e", "identity", "--out", tmp_path / "out")
    assert done.code == 0, done.err
    made = [record for record in ResultsReader([tmp_path / "out"]).records() if record["over"] == "budget"]

    assert {record["statistic"] for record in made} == {"slope", "reach"}
    assert {record["status"] for record in made} == {"failed"}
    assert all("learn from 120 labels each: a curve needs two numbers of them" in record["reason"] for record in made)
    assert cli("verify", tmp_path / "out").code == 0
