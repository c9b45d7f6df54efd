"""Runs from end to end on toys: the two laws, resume, digests, failures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from evalharness.errors import StoreError
from evalharness.records import score_digest
from evalharness.store import ResultsReader, ViewCache

BASIC = """
data: {dataset: toy, target: label}
evaluators:
  centroid: {use: centroid}
main: centroid.accuracy
"""
WIDE = """
data: {dataset: toy, target: [label, parity, colour]}
fits:
  all: {}
  half: {budget: 0.5}
  few: {budget: 4/class, draws: 2}
  red: {where: {colour: red}}
evaluators:
  centroid: {use: centroid}
  knn: {use: knn, k: 1}
codecs: [float32, int8, binary]
groups: [colour, [colour, parity]]
cross: [[fits, targets], [codecs, targets]]
main: centroid.accuracy
"""
SHIFTED = """
data: {dataset: toy, target: [label, colour]}
evaluators:
  centroid: {use: centroid}
  move: {use: displacement}
shifts:
  jitter: {use: jitter, severities: [1, 2]}
  colours: {select: {colour: [red, blue]}}
main: centroid.accuracy
"""


def read(out):
    return ResultsReader([out])


def test_a_plain_run_writes_records_units_rows_and_outcomes(run_tasks, write_task, tmp_path):
    outcome = run_tasks(write_task(BASIC))

    assert outcome.report.counts == {"measured": 1}
    (run,) = read(tmp_path / "out").runs
    assert {path.name for path in run.folder.iterdir()} == {"run.json", "records.jsonl", "units.jsonl", "rows", "outcomes"}
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

    assert whole["method"] == "bootstrap-bca"
    assert whole["low"] < whole["value"] <= whole["high"]
    assert {record["group"] for record in rows if record["statistic"] == "value"} == {None, "colour=red", "colour=blue"}
    assert {record["statistic"] for record in rows} == {"value", "worst", "gap"}

    a, b = (reader.outcome(next(r for r in rows if r["encoder"] == name and r["group"] is None)).columns for name in ("counting", "doubling"))
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
    toys.plugins["toys"].module.Counting.encode.__globals__["np"]  # the module is alive
    original = toys.plugins["toys"].module.Counting.encode

    def changed(self, batch, **options):
        return original(self, batch, **options) + 1

    toys.plugins["toys"].module.Counting.encode = changed
    try:
        outcome = run_tasks([one, write_task(SHIFTED, "two")])
    finally:
        toys.plugins["toys"].module.Counting.encode = original
    assert outcome.plan.encoders["counting"].identity.kind == "probe"


# --- failures -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("encoder", "reason"),
    [
        ("bad-nan", "encoder `bad-nan`, data set `toy`, split `.*`: vectors are NaN or infinite at rows `.*/1`"),
        ("bad-shape", r"expected vectors of shape \(B, D\) = \(.*\) on batch 1, got"),
    ],
)
def test_a_bad_encoder_fails_its_units_and_others_go_on(run_tasks, write_task, tmp_path, encoder, reason):
    import re

    outcome = run_tasks(write_task(BASIC), [encoder, "counting"])

    assert outcome.report.counts == {"failed": 1, "measured": 1}
    record = next(record for record in read(tmp_path / "out").records() if record["encoder"] == encoder)
    assert (record["status"], record["value"], record["main"]) == ("failed", None, True)
    assert re.search(reason, record["reason"])


def test_an_encoder_that_raises_on_batch_7_is_named(run_tasks, write_task, tmp_path):
    run_tasks(write_task(BASIC), ["bad-raise"], batch_size=20)

    record = next(record for record in read(tmp_path / "out").records() if record["main"])
    assert "encoder `bad-raise` raised on batch 7 of data set `toy`" in record["reason"]
    assert "ValueError: a bad batch" in record["reason"]


def test_failed_units_are_tried_again_and_then_replaced(run_tasks, write_task, toys, tmp_path):
    path = write_task(BASIC)
    module = toys.plugins["toys"].module
    original, module.Counting.encode = module.Counting.encode, lambda self, batch, **_: 1 / 0
    try:
        run_tasks(path)
    finally:
        module.Counting.encode = original
    assert {record["status"] for record in read(tmp_path / "out").records()} == {"failed"}

    outcome = run_tasks(path)

    assert outcome.report.counts == {"measured": 1}
    assert {record["status"] for record in read(tmp_path / "out").records()} == {"measured"}


def test_an_evaluator_that_raises_is_named(run_tasks, write_task, toys, tmp_path):
    module = toys.plugins["toys"].module
    original = toys.get("evaluator", "centroid")
    from dataclasses import replace

    broken = replace(original, score=lambda *_, **__: [][0])
    toys._specs["evaluator"]["centroid"] = broken
    run_tasks(write_task(BASIC))

    record = next(record for record in read(tmp_path / "out").records() if record["main"])
    assert record["status"] == "failed"
    assert "evaluator `centroid` (plugin `toys`) raised IndexError" in record["reason"]
    assert module is not None


def test_k_larger_than_the_bank_fails_with_the_largest_possible_k(run_tasks, write_task, tmp_path):
    run_tasks(write_task(BASIC.replace("main: centroid", "  knn: {use: knn, k: 1000}\nmain: centroid")))

    record = next(record for record in read(tmp_path / "out").records() if record["evaluator"] == "knn")
    assert record["reason"] == "k = 1000 exceeds the 300 rows of the bank; the largest possible k is 300"


def test_unlabelled_rows_are_dropped_and_counted(run_tasks, write_task, tmp_path):
    run_tasks(write_task(BASIC.replace("target: label", "target: label, params: {gaps: true}")))

    (run,) = read(tmp_path / "out").runs
    assert run.units[0]["details"]["rows_without_label"] == 29
    assert next(record for record in run.records if record["main"])["n"] == 200 - 29


def test_a_class_unseen_in_training_is_a_counted_miss(run_tasks, write_task, tmp_path):
    body = BASIC.replace("target: label", "target: label, params: {odd: true}").replace("use: centroid", "use: linear-probe")
    run_tasks(write_task(body.replace("centroid.accuracy", "centroid.accuracy")))

    (run,) = read(tmp_path / "out").runs
    details = run.units[0]["details"]["all"]
    assert details["test_items_of_unseen_classes"] == 1
    assert details["unseen_classes"] == ["naïve / \t 🦜"]
    assert next(record for record in run.records if record["main"])["n"] == 200


def test_names_of_any_characters_are_stored(run_tasks, write_task, tmp_path):
    body = BASIC.replace("target: label", "target: label, params: {odd: true}").replace("main:", "groups: [label]\nmain:")
    run_tasks(write_task(body, "aufgabe-ünï"))

    assert any(record["group"] == "label=naïve / \t 🦜" for record in read(tmp_path / "out").records())
    assert "ünï" in (next((tmp_path / "out").glob("*/records.jsonl"))).read_text(encoding="utf-8")


def test_an_unwritable_folder_is_one_line(run_tasks, write_task, tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(StoreError, match=r"cannot write `.*file/out`: Not a directory"):
        run_tasks(write_task(BASIC), out=tmp_path / "file" / "out")


def test_a_full_disk_stops_the_run_and_a_later_one_goes_on(run_tasks, write_task, tmp_path, monkeypatch):
    import errno

    from evalharness.store import files

    path = write_task(WIDE)
    count = 0

    def full(what):
        nonlocal count
        count += 1
        if count == 12:
            raise OSError(errno.ENOSPC, "No space left on device")

    files.set_operation_counter(full)
    try:
        with pytest.raises(StoreError, match=r"cannot write `.*`: No space left on device; free some space or name another folder"):
            run_tasks(path)
    finally:
        files.set_operation_counter(None)
    run_tasks(path)
    monkeypatch.setenv("EVALHARNESS_CACHE", str(tmp_path / "other"))
    run_tasks(path, out=tmp_path / "undisturbed")

    assert score_digest(read(tmp_path / "out").records()) == score_digest(read(tmp_path / "undisturbed").records())


def test_a_flipped_byte_is_found_named_and_recomputed(run_tasks, write_task, toys, cache):
    path = write_task(BASIC)
    run_tasks(path)
    shard = sorted((cache / "views").glob("*/*/shard-*"))[0]
    raw = bytearray(shard.read_bytes())
    raw[-3] ^= 1
    shard.write_bytes(raw)

    complete, faults = ViewCache().verify()
    assert complete == 1
    assert faults == [f"{shard}: content differs from its checksum"]

    toys.counts.clear()
    run_tasks(path, force=True)
    assert toys.counts["rows"] in (200, 300, 204, 304)  # that view alone, and the probe of the other
    assert ViewCache().verify() == (2, [])


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


# --- kill -9 ------------------------------------------------------------------------------------------------------

CHILD = """
import os, signal, sys
from pathlib import Path
from evalharness.registry import load_registry
from evalharness.session import Session, Settings, Silent
from evalharness.store import files
from evalharness.suites import Library

def work(toys, tasks, out, cache, stop):
    os.environ["EVALHARNESS_CACHE"] = cache
    count = 0
    def tick(what):
        nonlocal count
        count += 1
        if count == stop:
            os.kill(os.getpid(), signal.SIGKILL)
    files.set_operation_counter(tick)
    import torch
    torch.set_num_threads(1)
    session = Session(load_registry([toys]), Settings(out=Path(out)), Silent())
    session.run(Library([]).select(tasks), ["counting", "doubling"])
    return count

def child(*arguments):
    pid = os.fork()  # before torch has started a thread, so that each trial costs no import
    if pid == 0:
        read_end = None
        try:
            count = work(*arguments)
            Path(arguments[2]).with_suffix(".count").write_text(str(count))
            os._exit(0)
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

import evalharness.run, evalharness.embed, evalharness.numerics, pyarrow.parquet
toys, base, moments, *tasks = sys.argv[1:]
assert child(toys, tasks, base + "/whole", base + "/cache-whole", 0) == 0
total = int(Path(base + "/whole.count").read_text())
for at in range(int(moments)):
    stop = 1 + at * (total - 1) // (int(moments) - 1)
    out, cache = f"{base}/out-{at}", f"{base}/cache-{at}"
    assert child(toys, tasks, out, cache, stop) == -9, (at, stop, total)
    assert child(toys, tasks, out, cache, 0) == 0
print(total)
"""


def test_a_run_killed_at_twenty_moments_resumes_to_the_same_digest(write_task, tmp_path):
    tasks = [write_task(WIDE, "one"), write_task(SHIFTED, "two")]
    command = [sys.executable, "-c", CHILD, str(Path(__file__).parent / "toys.py"), str(tmp_path), "20", *map(str, tasks)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)

    assert result.returncode == 0, result.stderr[-2000:]
    assert int(result.stdout) > 40
    whole = score_digest(read(tmp_path / "whole").records())
    for at in range(20):
        assert score_digest(read(tmp_path / f"out-{at}").records()) == whole
        complete, faults = ViewCache(tmp_path / f"cache-{at}").verify()
        assert faults == []
        assert complete >= 8


def test_every_line_on_disk_is_strict_json(run_tasks, write_task, tmp_path):
    run_tasks(write_task(WIDE))

    def refuse(name):
        raise AssertionError(name)

    for path in (tmp_path / "out").glob("*/*.json*"):
        text = path.read_text(encoding="utf-8")
        for line in [text] if path.suffix == ".json" else text.splitlines():
            json.loads(line, parse_constant=refuse)
