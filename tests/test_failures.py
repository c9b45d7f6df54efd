"""What goes wrong in a run becomes a row, a line or a retry; never a loss."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from evalharness import Samples, number_column
from evalharness.errors import DataError, StoreError
from evalharness.records import score_digest
from evalharness.stamp import _check_samples
from evalharness.store import ResultsReader, ViewCache

TASKS = Path(__file__).parent / "tasks"
BASIC, WIDE = ((TASKS / f"{name}.yaml").read_text() for name in ("basic", "wide"))


def read(out):
    return ResultsReader([out])


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


def test_what_is_made_of_a_failed_cell_is_made_anew_when_the_cell_is_measured(run_tasks, write_task, toys, tmp_path):
    path = write_task(BASIC.replace("main:", "shifts: {jitter: {use: jitter}}\ncodecs: [float32, int8]\nmain:"))
    jitter = toys.get("shift", "jitter")
    original = jitter.apply

    def fail(inputs, severities, keys, **_):
        raise ValueError("no shift today")

    object.__setattr__(jitter, "apply", fail)
    first = run_tasks(path)
    broken = [record for record in read(tmp_path / "out").records() if record["over"] == "severity"]
    object.__setattr__(jitter, "apply", original)
    second = run_tasks(path)
    records = read(tmp_path / "out").records()

    assert first.report.counts["failed"] == 2
    assert {(record["statistic"], record["status"]) for record in broken} == {("mean", "failed")}
    assert "no shift today" in broken[0]["reason"]
    assert second.pending == 2
    assert {record["statistic"] for record in records if record["over"] == "severity"} == {"mean", "difference", "slope"}
    assert {record["status"] for record in records} == {"measured"}
    assert run_tasks(path).pending == 0


def test_an_evaluator_that_raises_is_named(run_tasks, write_task, toys, tmp_path):
    module = toys.plugins["toys"].module
    original = toys.get("evaluator", "centroid")
    from dataclasses import replace

    broken = replace(original, score=lambda *_, **__: {}["x"])
    toys._specs["evaluator"]["centroid"] = broken
    run_tasks(write_task(BASIC))

    record = next(record for record in read(tmp_path / "out").records() if record["main"])
    assert record["status"] == "failed"
    assert "evaluator `centroid` (plugin `toys`) raised KeyError" in record["reason"]
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


def test_infinite_numbers_in_a_column_are_refused_and_named():
    samples = Samples(
        modality="text",
        size=3,
        read=lambda at: [""] * len(at),
        ids=np.array(["a", "b", "c"]),
        columns={"age": number_column([1, None, np.inf])},
        fingerprint="",
    )
    with pytest.raises(DataError, match="toy: number column `age` has infinite values, id c first; NaN stands for a missing one"):
        _check_samples("toy", samples)


def test_a_class_unseen_in_training_is_a_counted_miss(run_tasks, write_task, tmp_path):
    body = BASIC.replace("target: label", "target: label, params: {odd: true}").replace("use: centroid", "use: linear-probe")
    run_tasks(write_task(body.replace("centroid.accuracy", "centroid.accuracy")))

    (run,) = read(tmp_path / "out").runs
    details = run.units[0]["details"]["all"]
    assert details["test_items_of_unseen_classes"] == 1
    assert details["unseen_classes"] == ["naïve / \t 🦜"]
    assert next(record for record in run.records if record["main"])["n"] == 200


def test_memory_that_does_not_suffice_halves_the_batch(run_tasks, write_task, toys, tmp_path, monkeypatch):
    import torch

    module = toys.plugins["toys"].module
    original, sizes = module.Counting.encode, []

    def scarce(self, batch, **options):
        sizes.append(len(batch))
        if len(batch) > 50:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return original(self, batch, **options)

    monkeypatch.setattr(module.Counting, "encode", scarce)
    outcome = run_tasks(write_task(BASIC), batch_size=160)

    assert outcome.report.counts == {"measured": 1}
    assert sizes[:3] == [160, 80, 40]
    assert {size for size in sizes if size > 50} == {160, 80}


def test_labels_with_gaps_and_a_class_of_one_member(registry, run_tasks, write_task, tmp_path):
    draw = np.random.default_rng(0)
    for split, count in (("train", 60), ("test", 30)):
        labels = np.array([3, 7, 40])[np.arange(count) % 3]
        labels[0] = 99 if split == "train" else 3
        lines = [f"{a},{b},{label}" for (a, b), label in zip(draw.normal(size=(count, 2)) + labels[:, None], labels, strict=True)]
        (tmp_path / f"{split}.csv").write_text("a,b,label\n" + "\n".join(lines) + "\n")
    (tmp_path / "gaps").mkdir()
    for split in ("train", "test"):
        (tmp_path / f"{split}.csv").rename(tmp_path / "gaps" / f"{split}.csv")
    body = f"data: {{dataset: 'csv:{tmp_path}/gaps', inputs: {{vector: [a, b]}}, target: label}}\nevaluators: {{probe: {{use: linear-probe}}}}\nmain: probe.accuracy\n"
    outcome = run_tasks(write_task(body), ["identity"], registry=registry)

    assert outcome.report.counts == {"measured": 1}
    (record,) = [record for record in read(tmp_path / "out").records() if record["main"]]
    assert record["value"] > 0.9
    (fit,) = outcome.plan.fits.values()
    assert 0 in fit.train.positions  # the only member of its class is learned from, not validated on


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
    shard = min((cache / "views").glob("*/*/shard-*"))
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
