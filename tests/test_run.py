"""Runs from end to end on toys: the two laws, resume, digests, failures."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from evalharness.records import score_digest
from evalharness.store import ResultsReader

TASKS = Path(__file__).parent / "tasks"
BASIC, WIDE, SHIFTED = ((TASKS / f"{name}.yaml").read_text() for name in ("basic", "wide", "shifted"))


def read(out):
    return ResultsReader([out])


def test_a_plain_run_writes_records_units_rows_and_outcomes(run_tasks, write_task, tmp_path):
    outcome = run_tasks(write_task(BASIC))

    assert outcome.report.counts == {"measured": 1}
    (run,) = read(tmp_path / "out").runs
    assert {path.name for path in run.folder.iterdir()} == {
        "run.json",
        "planned.jsonl",
        "costs.jsonl",
        "records.jsonl",
        "units.jsonl",
        "rows",
        "outcomes",
    }
    (record,) = [record for record in run.records if record["main"]]
    assert record["value"] > 0.7
    assert record["low"] < record["value"] < record["high"]
    assert (record["n"], record["scope"], record["method"]) == (200, "test items", "wilson")


def test_values_are_recomputed_from_what_is_stored(run_tasks, write_task, tmp_path):
    run_tasks(write_task(BASIC))
    reader = read(tmp_path / "out")
    record = next(record for record in reader.records() if record["metric"] == "accuracy")
    outcome = reader.outcome(record)

    assert record["value"] == pytest.approx(outcome.columns["hit"].mean(), abs=1e-12)
    assert ((outcome.columns["truth"] == outcome.columns["prediction"]) == outcome.columns["hit"]).all()


def test_each_view_is_embedded_once_and_each_fit_made_once(run_tasks, write_task, toys):
    outcome = run_tasks(write_task(WIDE))

    fits = {job.fit for unit in outcome.plan.units for job in unit.jobs}
    centroid = {key for key in fits if outcome.plan.fits[key].evaluator == "centroid"}
    assert outcome.report.counts.get("failed", 0) == 0
    assert len(outcome.plan.views) == 2
    assert toys.counts["rows"] == 300 + 200
    assert toys.counts["fits"] == len(centroid)
    assert toys.counts["fits"] == len([fit for fit in outcome.plan.fits.values() if fit.evaluator == "centroid"])


def test_no_change_on_the_test_side_causes_a_fit(run_tasks, write_task, toys):
    outcome = run_tasks(write_task(SHIFTED))

    centroid = [unit for unit in outcome.plan.units if unit.cell.alias == "centroid" and unit.jobs]
    assert len(centroid) == 1 + 1 + 4  # main, second target, two severities, two colours
    assert toys.counts["fits"] == 2  # one a target
    assert toys.counts["rows"] == 300 + 3 * 200


def test_a_target_that_a_shift_does_not_preserve_is_not_applicable(run_tasks, write_task, tmp_path):
    run_tasks(write_task(SHIFTED + "cross: [[shifts, targets]]\n"))

    rows = [record for record in read(tmp_path / "out").records() if record["shift"] == "jitter" and record["target"] == "colour"]
    assert {record["status"] for record in rows} == {"not_applicable"}
    assert all("does not preserve `colour`" in record["reason"] for record in rows)


def test_a_second_run_computes_nothing(run_tasks, write_task, toys):
    path = write_task(WIDE)
    run_tasks(path)
    before = dict(toys.counts)

    outcome = run_tasks(path)

    assert outcome.report is None
    assert outcome.pending == 0
    assert dict(toys.counts) == before


def test_force_does_finished_units_again_without_embedding(run_tasks, write_task, toys):
    path = write_task(BASIC)
    run_tasks(path)
    toys.counts.clear()

    outcome = run_tasks(path, force=True)

    assert outcome.report.counts == {"measured": 1}
    assert toys.counts["rows"] == 0


def test_order_of_encoders_and_tasks_does_not_change_the_digest(run_tasks, write_task, tmp_path):
    one, two = write_task(BASIC, "one"), write_task(SHIFTED, "two")
    run_tasks([one, two], ["counting", "doubling"], out=tmp_path / "a")
    os.environ["EVALHARNESS_CACHE"] = str(tmp_path / "other-cache")
    run_tasks([two, one], ["doubling", "counting"], out=tmp_path / "b")

    assert score_digest(read(tmp_path / "a").records()) == score_digest(read(tmp_path / "b").records())


def test_other_batch_sizes_stay_within_tolerance(run_tasks, write_task, tmp_path, monkeypatch):
    path = write_task(SHIFTED)
    run_tasks(path, out=tmp_path / "a")
    monkeypatch.setenv("EVALHARNESS_CACHE", str(tmp_path / "other-cache"))
    run_tasks(path, out=tmp_path / "b", batch_size=7)

    a, b = read(tmp_path / "a").records(), read(tmp_path / "b").records()
    assert [record["value"] for record in a] == pytest.approx([record["value"] for record in b], abs=1e-5)


def test_two_encoders_get_the_same_subsets_draws_and_noise(run_tasks, write_task, toys, tmp_path):
    outcome = run_tasks(write_task(WIDE.replace("main:", "shifts: {jitter: {use: jitter}}\nmain:")), ["counting", "doubling"])

    by_encoder = {label: [unit for unit in outcome.plan.units if unit.encoder == label] for label in ("counting", "doubling")}
    for one, other in zip(*by_encoder.values(), strict=True):
        for job, twin in zip(one.jobs, other.jobs, strict=True):
            train, again = outcome.plan.fits[job.fit].train, outcome.plan.fits[twin.fit].train
            assert (train.positions == again.positions).all()
            assert (job.test["items"].positions == twin.test["items"].positions).all()
    for one, other in zip(toys.seen["counting"], toys.seen["doubling"], strict=True):
        assert (one == other).all()


def test_another_seed_selects_other_rows(run_tasks, write_task, tmp_path):
    path = write_task(WIDE)
    plans = [run_tasks(path, out=tmp_path / str(seed), seed=seed).plan for seed in (0, 1)]

    rows = [{fit.name: fit.train.positions.tolist() for fit in plan.fits.values() if fit.target == "label"} for plan in plans]
    assert rows[0]["half"] != rows[1]["half"]
    assert rows[0]["few/0"] != rows[1]["few/0"]
    assert rows[0]["few/0"] != rows[0]["few/1"]
    assert rows[0]["all"] == rows[1]["all"]


def test_limited_and_full_rows_are_both_kept_and_not_ranked_together(run_tasks, write_task, tmp_path):
    from evalharness.leaderboard import make_board

    path = write_task(BASIC)
    run_tasks(path, limit=50)
    run_tasks(path)

    main = [record for record in read(tmp_path / "out").records() if record["main"]]
    assert sorted(record["n"] for record in main) == [50, 200]
    titles = [table.title for table in make_board([tmp_path / "out"]).tables]
    assert len(titles) == 2
    assert any("limited to 50 rows" in title for title in titles)


def test_limits_are_nested(run_tasks, write_task, tmp_path):
    path = write_task(BASIC)
    rows = [set(run_tasks(path, out=tmp_path / str(n), limit=n).plan.units[0].jobs[0].test["items"].positions.tolist()) for n in (20, 60)]

    assert rows[0] < rows[1]


def test_folds_score_every_row_once_by_a_fit_that_never_saw_it(run_tasks, write_task, tmp_path):
    body = BASIC.replace("target: label", "target: label, cluster: person, splits: {folds: 4}")
    outcome = run_tasks(write_task(body))

    (unit,) = outcome.plan.units
    scored = np.concatenate([job.test["items"].positions for job in unit.jobs])
    assert sorted(scored) == list(range(500))
    person = outcome.plan.tasks["toy-task"].data.pools["items"].columns["person"].values
    for job in unit.jobs:
        train = outcome.plan.fits[job.fit].train.positions
        assert not set(person[train]) & set(person[job.test["items"].positions])
    record = next(record for record in read(tmp_path / "out").records() if record["main"])
    assert record["n"] == 500
    assert record["scope"] == "clusters by person"
    assert record["n_units"] == len(np.unique(person))


def test_a_plugin_metric_gets_interval_groups_and_pairs_without_core_code(run_tasks, write_task, tmp_path):
    from evalharness import stats

    run_tasks(write_task(BASIC.replace("main:", "groups: [colour]\nmain:")), ["counting", "doubling"])
    reader = read(tmp_path / "out")
    rows = [record for record in reader.records() if record["metric"] == "auc"]
    whole = next(record for record in rows if record["group"] is None and record["encoder"] == "counting")

    assert whole["method"] == "bootstrap-bca-expanded"
    assert whole["low"] < whole["value"] <= whole["high"]
    assert {record["group"] for record in rows if record["statistic"] == "value"} == {None, "colour=red", "colour=blue"}
    assert {record["statistic"] for record in rows} == {"value", "worst", "gap", "ratio"}

    a, b = (
        reader.outcome(next(r for r in rows if r["encoder"] == name and r["group"] is None)).columns for name in ("counting", "doubling")
    )
    weights = stats.counts(200, 500, np.random.default_rng(0))
    auc = stats.get_reducer("auc")
    paired = stats.paired_difference(
        whole["value"], whole["value"], auc(a["score"], a["positive"], weights), auc(b["score"], b["positive"], weights)
    )
    assert paired.difference == 0


def test_editing_a_plugin_file_gives_new_results(write_task, tmp_path, run_tasks):
    from evalharness.registry import load_registry

    source = (Path(__file__).parent / "toys.py").read_text()
    plugin = tmp_path / "edited.py"
    plugin.write_text(source)
    path = write_task(BASIC)
    first = run_tasks(path, registry=load_registry([str(plugin)]))
    plugin.write_text(source.replace("prediction = similarity.argmax(dim=1)", "prediction = similarity.argmin(dim=1)"))
    second = run_tasks(path, registry=load_registry([str(plugin)]))

    assert (first.pending, second.pending) == (1, 1)
    record = next(record for record in read(tmp_path / "out").records() if record["main"])
    assert record["value"] < 0.2


def test_layers_are_embedded_in_one_pass(run_tasks, write_task, toys, tmp_path):
    run_tasks(write_task(BASIC), ["counting@layer-1", "counting@layer-2"])

    layers = {record["layer"] for record in read(tmp_path / "out").records()}
    assert layers == {"layer-1", "layer-2"}


def test_an_encoder_without_identity_is_never_reused(run_tasks, write_task, toys):
    path = write_task(BASIC)
    run_tasks(path, ["unsteady"])
    again = run_tasks(path, ["unsteady"])

    assert again.pending == 1
    assert toys.counts["rows"] == 2 * 500


def test_an_encoder_that_changed_under_its_name_is_found_and_measured_anew(run_tasks, write_task, toys, tmp_path):
    one = write_task(BASIC, "one")
    run_tasks(one)
    original = toys.plugins["toys"].module.Counting.encode

    def changed(self, batch, **options):
        return original(self, batch, **options) + 1

    toys.plugins["toys"].module.Counting.encode = changed
    try:
        outcome = run_tasks([one, write_task(SHIFTED, "two")])
    finally:
        toys.plugins["toys"].module.Counting.encode = original
    assert outcome.plan.encoders["counting"].identity.kind == "probe"


def test_a_suite_takes_over_what_a_single_task_has_done(run_tasks, write_task, toys, tmp_path):
    path = write_task(BASIC)
    run_tasks(path)
    toys.counts.clear()
    suite = tmp_path / "pack.yaml"
    suite.write_text(f"suite: pack\nversion: 1\ntasks: [{path.name}]\n")

    outcome = run_tasks(suite)

    assert outcome.report is None
    assert toys.counts["fits"] == 0
    assert {record["suite"] for record in read(tmp_path / "out").records()} == {None, "pack"}


def test_every_line_on_disk_is_strict_json(run_tasks, write_task, tmp_path):
    run_tasks(write_task(WIDE))

    def refuse(name):
        raise AssertionError(name)

    for path in (tmp_path / "out").glob("*/*.json*"):
        text = path.read_text(encoding="utf-8")
        for line in [text] if path.suffix == ".json" else text.splitlines():
            json.loads(line, parse_constant=refuse)


MAIN = """task: mains
version: 1
modality: vector
data: {dataset: wine, target: label}
fits:
  all: {}
  half: {budget: 0.5, draws: 2}
evaluators:
  knn: {use: knn, fits: [all], k: [1, 5]}
  probe: {use: linear-probe, grid: [1.0]}
codecs: [float32, int8]
main: MAIN
"""


@pytest.mark.parametrize(
    ("main", "message"),
    [
        ("probe.accuracy @ codec=binary", "`main`: no cell of `probe` has codec=binary; there is float32, int8"),
        ("probe.accuracy @ fit=half, codec=binary", "`main`: no cell of `probe` has codec=binary; there is float32, int8"),
        ("probe.accuracy @ target=colour", "`main`: no cell of `probe` has target=colour; there is label"),
        ("probe.accuracy @ fit=half/7", "`main`: no cell of `probe` has fit=half/7; there is all, half/0, half/1"),
        ("probe.accuracy @ fit=half/1, codec=int8", "`main`: no cell of `probe` has all of fit=half/1, codec=int8; `cross` names axes"),
    ],
)
def test_a_main_cell_that_does_not_exist_is_refused_at_once(tmp_path, cli, main, message):
    (tmp_path / "mains.yaml").write_text(MAIN.replace("MAIN", main))
    done = cli("run", tmp_path / "mains.yaml", "-e", "identity", "--out", tmp_path / "out")
    assert done.code == 3
    assert f"mains.yaml:12: {message}" in done.err


@pytest.mark.parametrize(
    ("main", "message"),
    [
        ("knn.accuracy @ variant=k=7", "`main` names the variant `k=7`, which `knn` does not give here; it gives `k=5`, `k=1`"),
        ("knn.r2", "`main` names the metric `r2`, which `knn` does not give of this target with these parameters; it gives `accuracy`"),
    ],
)
def test_a_main_value_that_its_cell_does_not_have_fails_the_cell_and_says_why(tmp_path, cli, main, message):
    (tmp_path / "mains.yaml").write_text(MAIN.replace("MAIN", main))
    done = cli("run", tmp_path / "mains.yaml", "-e", "identity", "--out", tmp_path / "out")
    assert done.code == 8
    (record,) = [record for record in ResultsReader([tmp_path / "out"]).records() if record["main"]]
    assert record["status"] == "failed"
    assert record["reason"].startswith(message)
    assert cli("verify", tmp_path / "out").code == 0


def test_an_encoder_that_changes_its_dimensions_between_splits_fails_with_both_numbers(run_tasks, write_task, tmp_path):
    run_tasks(write_task(BASIC), encoders=["bad-width"])
    (record,) = read(tmp_path / "out").records()

    assert record["status"] == "failed"
    assert "vectors of `items` of split `test` have 6 dimensions, those of `items` of split `train` 8;" in record["reason"]
