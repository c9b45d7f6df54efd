"""Two encoders item by item: the test that fits, what may be claimed, what is refused."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from evalharness import stats
from evalharness.compare import compare, item_scores, paired_test
from evalharness.errors import DataError
from evalharness.estimates import Items, Resampler
from evalharness.evidence import Evidence
from evalharness.joint import Joint
from evalharness.types import MetricInfo

ACCURACY = MetricInfo(name="accuracy", columns=("hit",), interval="wilson")
TASK = """data: {dataset: toy, target: label}
fits: {all: {}, few: {budget: 4/class, draws: 3}}
evaluators:
  centroid: {use: centroid, fits: [all]}
  probe: {use: linear-probe, fits: [few], grid: [0.01, 1.0]}
codecs: [float32, binary]
main: centroid.accuracy
"""


def make_items(columns, rows=None, clusters=None, **fields):
    first = next(iter(columns.values()))
    given = {"variant": "", "item": "sample", "part": "items", "cluster_name": None if clusters is None else "person", **fields}
    return Items(rows=np.arange(len(first)) if rows is None else rows, columns=columns, clusters=clusters, **given)


def apply_test(metric, first, second, **fields):
    joint = Joint(metric, [make_items(first, **fields), make_items(second, **fields)], Resampler(0))
    return paired_test(joint, [1.0, -1.0], np.random.default_rng(0))


# --- the test that fits -------------------------------------------------------------------------------------------


def test_few_discordant_items_are_tested_exactly():
    first, second = np.ones(100, dtype=bool), np.ones(100, dtype=bool)
    first[:3], second[3:15] = False, False
    name, p, error = apply_test(ACCURACY, {"hit": first}, {"hit": second})

    assert (name, p) == ("exact McNemar", pytest.approx(0.035156, abs=1e-6))
    assert error == pytest.approx(np.sqrt((15 - 81 / 100) / 99 / 100), rel=0.1)


def test_many_discordant_items_flip_signs_and_clusters_flip_whole():
    draw = np.random.default_rng(0)
    first, second = {"hit": draw.random(1000) < 0.8}, {"hit": draw.random(1000) < 0.7}
    people = np.repeat(np.arange(20), 50)

    name, p, error = apply_test(ACCURACY, first, second)
    _, by_person, wider = apply_test(ACCURACY, first, {"hit": second["hit"] & (people < 15)}, clusters=people)
    assert (name, p) == ("sign flips", pytest.approx(0.0002, abs=2e-4))
    assert by_person > p
    assert wider > 1.5 * error


def test_equal_items_are_a_tie_with_p_one():
    hits = {"hit": np.random.default_rng(0).random(100) < 0.5}

    assert apply_test(ACCURACY, hits, dict(hits)) == ("identical", 1.0, 0.0)


@pytest.mark.parametrize("metric", ["spearman", "auc", "macro_f1"])
def test_other_reducers_are_compared_on_paired_resamples(metric):
    draw = np.random.default_rng(0)
    if metric == "macro_f1":
        truth = draw.integers(0, 5, 400)
        better, worse = (np.where(draw.random(400) < share, truth, draw.integers(0, 5, 400)) for share in (0.9, 0.5))
        info = MetricInfo(name=metric, columns=("truth", "prediction"), reduce=metric)
        first, second = {"truth": truth, "prediction": better}, {"truth": truth, "prediction": worse}
    else:
        gold = draw.normal(size=400)
        target = gold > 0 if metric == "auc" else gold
        info = MetricInfo(name=metric, columns=("score", "gold"), reduce=metric, low=-1.0)
        first = {"score": gold + draw.normal(size=400), "gold": target}
        second = {"score": gold + 4 * draw.normal(size=400), "gold": target}
    name, p, error = apply_test(info, first, second)

    assert (name, p) == ("paired bootstrap", pytest.approx(2 / 2001, rel=0.2))
    assert stats.detectable_difference(error) == pytest.approx((1.959964 + 0.841621) * error, rel=1e-5)


def test_few_units_of_other_reducers_use_the_jackknife():
    draw = np.random.default_rng(0)
    gold = draw.normal(size=12)
    info = MetricInfo(name="pearson", columns=("score", "gold"), reduce="pearson", low=-1.0)
    name, p, _ = apply_test(info, {"score": gold + 0.1, "gold": gold}, {"score": draw.normal(size=12), "gold": gold})

    assert name == "jackknife t"
    assert p < 0.2


def test_lower_log_loss_of_an_item_is_better_and_correlations_are_judged_by_ranks():
    spearman = MetricInfo(name="spearman", columns=("score", "gold"), reduce="spearman")
    scores = item_scores(spearman, make_items({"score": np.array([1.0, 2.0, 9.0]), "gold": np.array([1.0, 3.0, 2.0])}))

    assert scores.tolist() == pytest.approx([0.0, -1 / 3, -1 / 3])


# --- over stored results ------------------------------------------------------------------------------------------


@pytest.fixture
def results(run_tasks, write_task, tmp_path):
    run_tasks(write_task(TASK), ["counting", "doubling", "random-projection?dim=3"])
    return tmp_path / "out"


def test_the_better_of_two_is_named_with_interval_p_and_power(results):
    table = compare(Evidence([results]), "counting", "random-projection?dim=3", items=5)
    (row,) = table.rows

    assert row.verdict == "first"
    assert row.difference.interval.low > 0
    assert row.p == row.holm < 0.05
    assert 0 < row.detectable < 0.2
    assert table.sentence == "`counting` is better than `random-projection?dim=3` in accuracy on toy-task (at p < 0.05)."
    assert len(row.items) == 5
    assert all(item.first == item.truth != item.second for item in row.items if item.gain > 0)
    assert all(item.second == item.truth != item.first for item in row.items if item.gain < 0)
    assert {item.gain for item in row.items} == {1.0, -1.0}  # items in favour of either


def test_encoders_that_never_differ_tie(results):
    (row,) = compare(Evidence([results]), "counting", "doubling").rows

    assert (row.verdict, row.p, row.difference.value) == ("tie", 1.0, 0.0)


def test_another_metric_and_another_cell(results):
    evidence = Evidence([results])
    metric = compare(evidence, "counting", "random-projection?dim=3", metric="auc").rows[0]
    cell = compare(evidence, "counting", "random-projection?dim=3", where={"codec": "binary"}).rows[0]

    assert (metric.metric, metric.test) == ("auc", "paired bootstrap")
    assert cell.metric == "accuracy"
    assert cell.difference.value != compare(evidence, "counting", "random-projection?dim=3").rows[0].difference.value


def test_a_subgroup_is_compared_on_its_own_rows(run_tasks, write_task, tmp_path):
    run_tasks(write_task(TASK.replace("main:", "groups: [colour]\nmain:")), ["counting", "random-projection?dim=3"])
    (row,) = compare(Evidence([tmp_path / "out"]), "counting", "random-projection?dim=3", where={"group": "colour=red"}).rows

    assert 50 < row.difference.n < 150
    assert row.first - row.second == pytest.approx(row.difference.value)


def test_what_is_missing_is_named(results):
    with pytest.raises(DataError, match="toy-task: `counting` has no record of codec=int4"):
        compare(Evidence([results]), "counting", "doubling", where={"codec": "int4"})


def test_means_over_draws_are_compared_item_by_item(run_tasks, write_task, tmp_path):
    run_tasks(write_task(TASK.replace("main: centroid.accuracy", "main: probe.accuracy")), ["counting", "random-projection?dim=3"])
    (row,) = compare(Evidence([tmp_path / "out"]), "counting", "random-projection?dim=3").rows

    assert row.test == "sign flips"
    assert row.difference.n == 200
    assert row.first - row.second == pytest.approx(row.difference.value)


def test_holm_runs_over_all_tasks_compared(run_tasks, write_task, tmp_path):
    paths = [write_task(TASK.replace("toy,", f"toy, params: {{size: {size}}},"), f"toy-{at}") for at, size in enumerate((1.0, 0.5))]
    run_tasks(paths, ["counting", "random-projection?dim=3"])
    rows = compare(Evidence([tmp_path / "out"]), "counting", "random-projection?dim=3").rows

    assert [row.holm for row in rows] == stats.holm([row.p for row in rows]).tolist()


# --- refusals -----------------------------------------------------------------------------------------------------


def change(results, encoder, **fields):
    run = next(results.glob("*/run.json")).parent
    lines = [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]
    for line in lines:
        if line["encoder"] == encoder:
            line.update(fields)
    (run / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize(
    ("field", "value"),
    [("task_version", 2), ("dataset_fingerprint", "f"), ("selection", "test[colour=red]"), ("seed", 5), ("protocols", {"evaluator": "9"})],
)
def test_other_versions_data_and_selections_are_refused(field, value, results):
    change(results, "counting", **{field: value})

    with pytest.raises(DataError, match=f"cannot be compared: toy-task: `{field}` differs"):
        compare(Evidence([results]), "counting", "doubling")


def test_limited_rows_are_not_compared_with_full_ones(run_tasks, write_task, tmp_path):
    path = write_task(TASK)
    run_tasks(path, ["counting"])
    run_tasks(path, ["doubling"], limit=50)

    with pytest.raises(DataError, match="nothing that both `counting` and `doubling` were measured on"):
        compare(Evidence([tmp_path / "out"]), "counting", "doubling")


def test_results_of_two_folders_are_joined_by_id(run_tasks, write_task, tmp_path):
    path = write_task(TASK)
    for name in ("counting", "random-projection?dim=3"):
        run_tasks(path, [name], out=tmp_path / name[:4])
    (row,) = compare(Evidence([tmp_path / "coun", tmp_path / "rand"]), "counting", "random-projection?dim=3").rows

    assert row.difference.n == 200


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("counting", "nobody"), "unknown encoder `nobody`"),
        (("counting", "countin"), "did you mean `counting`"),
        (("counting", "counting"), "`counting` is compared with itself; name two encoders"),
        (("counting", "doubling", "--where", "kodec=int8"), "unknown field `kodec`; did you mean `codec`"),
        (("counting", "doubling", "--where", "codec"), "expected `--where KEY=VALUE`"),
        (("counting", "doubling", "--metric", "nothing"), "nothing that both"),
    ],
)
def test_mistakes_are_one_line(arguments, message, results, cli):
    found = cli("compare", *arguments[:2], results, *arguments[2:])

    assert found.code == (6 if "nothing that both" in message else 2)
    assert found.err.count("\n") == 1
    assert message in found.err


def test_the_command_prints_a_table_a_sentence_and_items(results, cli):
    text = cli("compare", "counting", "random-projection?dim=3", results, "--items", 3).out
    found = json.loads(cli("compare", "counting", "random-projection?dim=3", results, "--json").out)

    assert "`counting` is better than `random-projection?dim=3` in accuracy on toy-task" in " ".join(text.split())
    assert "toy-task: the 3 items on which they differ most" in text
    assert "test/" in text
    assert found["tasks"][0]["verdict"] == "first"


def test_a_missing_outcome_file_is_said(results, tmp_path):
    shutil.rmtree(next(results.glob("*/outcomes")))

    with pytest.raises(DataError, match=r"cannot be compared: toy-task: outcome file `.*` is missing"):
        compare(Evidence([results]), "counting", "doubling")


def test_nothing_is_compared_without_results(tmp_path):
    with pytest.raises(DataError, match="no results match"):
        compare(Evidence([tmp_path]), "a", "b")
