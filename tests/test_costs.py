"""Costs are measured in the pass that embeds, kept with the view, and change nothing."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from builders import Noisy
from torch import nn

from evalharness import EncoderSpec, Identity, evaluate, hookimpl
from evalharness.costs import (
    Measured,
    Meter,
    format_bytes,
    format_count,
    median_rate,
    pass_cost,
    read_costs,
    summarise_costs,
)
from evalharness.records import score_digest
from evalharness.store import ResultsReader

TASK = """
data: {dataset: toy, target: label}
evaluators:
  centroid: {use: centroid}
main: centroid.accuracy
"""
SHIFTED = TASK + "shifts: {jitter: {use: jitter}}\n"
NULLS = ("parameters", "parameters_trainable", "parameters_embedding", "flops_per_item")


class Picky:
    """An encoder that takes no small batch, which measuring would give it."""

    dim = 8

    def __init__(self, error=ValueError):
        self.layer = nn.Linear(8, 8)
        self.error = error

    def encode(self, batch, *, role="document", layers=None):
        if len(batch) < 3:
            raise self.error("a batch this small")
        return self.layer(batch)


class Greedy(nn.Linear):
    """An encoder that runs out of memory on large batches."""

    dim = 8

    def __init__(self):
        super().__init__(8, 8)

    def encode(self, batch, *, role="document", layers=None):
        if len(batch) > 40:
            raise torch.OutOfMemoryError("too much")
        return self(batch)


@pytest.fixture
def add_encoder(toys):
    def add(name, make):
        spec = EncoderSpec(
            name=name,
            summary="For a test",
            modalities=("vector",),
            build=lambda **options: make(),
            identity=lambda: Identity(kind="declared", digest=name),
        )
        toys.register(type("Plugin", (), {"evalharness_encoders": hookimpl(lambda self: [spec])})(), name)

    return add


@pytest.fixture
def unmeasured(monkeypatch):
    """Return a function that switches measuring off."""
    return lambda: monkeypatch.setattr("evalharness.embed.build_meter", lambda *arguments: None)


# --- a pass -----------------------------------------------------------------------------------------------------------


def test_a_pass_leaves_a_line_for_each_clean_view(run_tasks, write_task, tmp_path):
    run_tasks([write_task(SHIFTED), write_task(TASK, "again")], ["random-projection?dim=16"], batch_size=50)

    (path,) = (tmp_path / "out").glob("*/costs.jsonl")
    written = [json.loads(text) for text in path.read_text().splitlines()]
    lines = {line["split"]: line for line in written}
    assert (len(written), set(lines)) == (2, {"train", "test"})
    line = lines["test"]
    assert (line["encoder"], line["layer"], line["dataset"], line["part"], line["modality"]) == (
        "random-projection?dim=16", None, "toy", "items", "vector",
    )  # fmt: skip
    assert line["encoder_identity"].startswith("source:")
    assert (line["items"], line["batches"], line["pass_items"], line["batch_size"]) == (150, 3, 200, 50)
    assert (lines["train"]["items"], lines["train"]["pass_items"]) == (300, 300)  # the encoder is warm
    assert 0 < line["pass_items_per_second"] < line["items_per_second"]
    assert (line["dim"], line["bytes_per_vector"], line["flops_per_item"], line["parameters"]) == (16, 64, 2 * 8 * 16, 8 * 16)
    assert (line["device"], line["dtype"], line["workers"], line["threads"]) == ("cpu", "float32", 1, torch.get_num_threads())
    assert set(line["reasons"]) == {"parameters_embedding"}


def test_a_cached_view_gives_its_cost_in_another_results_folder(run_tasks, write_task, toys, tmp_path):
    path = write_task(TASK)
    run_tasks(path, out=tmp_path / "one", batch_size=100)
    rows = toys.counts["rows"]
    run_tasks(path, out=tmp_path / "two", batch_size=30)

    assert toys.counts["rows"] == rows
    assert read_costs([tmp_path / "one"]) == read_costs([tmp_path / "two"]) != []


def test_a_view_of_an_older_version_has_no_cost_and_works(run_tasks, write_task, tmp_path, cache):
    path = write_task(TASK)
    run_tasks(path, out=tmp_path / "one")
    for manifest in cache.glob("views/*/*/manifest.json"):
        content = json.loads(manifest.read_text())
        assert content["facts"].pop("cost")
        manifest.write_text(json.dumps(content))
    outcome = run_tasks(path, out=tmp_path / "two")

    assert outcome.report.counts == {"measured": 1}
    assert (read_costs([tmp_path / "two"]), outcome.report.costs) == ([], [])


def test_an_encoder_without_torch_has_nulls_with_reasons(run_tasks, write_task, tmp_path):
    run_tasks(write_task(TASK), ["counting"])

    for line in read_costs([tmp_path / "out"]):
        assert [line[name] for name in NULLS] == [None] * 4
        assert line["reasons"].keys() >= set(NULLS)


def test_too_few_batches_to_time_are_null_not_zero(run_tasks, write_task, tmp_path):
    run_tasks(write_task(TASK), ["counting"])

    lines = {line["split"]: line for line in read_costs([tmp_path / "out"])}
    assert (lines["test"]["items"], lines["test"]["items_per_second"]) == (0, None)
    assert "warm-up" in lines["test"]["reasons"]["items_per_second"]
    assert lines["train"]["items_per_second"] > 0
    assert "items_per_second" not in lines["train"]["reasons"]


def test_precomputed_vectors_cost_their_encoder_nothing_that_is_known(write_task, run_tasks, tmp_path):
    ids = [f"{split}/{row}" for split, count in (("train", 300), ("test", 200)) for row in range(count)]
    np.savez(tmp_path / "made.npz", ids=np.array(ids), vectors=np.random.default_rng(0).normal(size=(500, 4)).astype(np.float32))
    outcome = run_tasks(write_task(TASK), [f"npz:{tmp_path / 'made.npz'}"])

    assert outcome.report.counts == {"measured": 1}
    for line in outcome.report.costs:
        assert {line["reasons"][name] for name in (*NULLS, "items_per_second")} == {"the vectors were made elsewhere"}
        assert (line["dim"], line["bytes_per_vector"]) == (4, 16)


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_an_encoder_that_fails_while_it_is_measured_gives_its_vectors(run_tasks, write_task, add_encoder, tmp_path, error):
    add_encoder("picky", lambda: Picky(error))
    outcome = run_tasks(write_task(TASK), ["picky"])

    assert outcome.report.counts == {"measured": 1}
    for line in read_costs([tmp_path / "out"]):
        assert line["flops_per_item"] is None
        assert line["reasons"]["flops_per_item"] == f"{error.__name__}: a batch this small"
        assert line["parameters"] == 72


@pytest.mark.parametrize("gauge", ["find_weights", "measure_parameters", "measure_flops", "take_items"])
def test_a_gauge_that_fails_is_a_reason(run_tasks, write_task, monkeypatch, tmp_path, gauge):
    def fail(*arguments):
        raise RuntimeError("a broken gauge")

    monkeypatch.setattr(f"evalharness.{'passes' if gauge == 'take_items' else 'costs'}.{gauge}", fail)
    outcome = run_tasks(write_task(TASK), ["random-projection"], batch_size=50)

    assert outcome.report.counts == {"measured": 1}
    for line in read_costs([tmp_path / "out"]):
        assert line["items_per_second"] > 0
        assert set(NULLS) & set(line["reasons"])


def test_vectors_and_digests_are_equal_with_and_without_measuring(run_tasks, write_task, add_encoder, unmeasured, tmp_path, monkeypatch):
    add_encoder("noisy", Noisy)
    path = write_task(SHIFTED)
    shards, digests, costs = [], [], []
    for name in ("with", "without"):
        if name == "without":
            unmeasured()
        monkeypatch.setenv("EVALHARNESS_CACHE", str(tmp_path / f"cache-{name}"))
        torch.manual_seed(2)
        np.random.seed(2)
        run_tasks(path, ["noisy"], out=tmp_path / name, batch_size=50)
        shards.append({file.parent.parent.name: file.read_bytes() for file in (tmp_path / f"cache-{name}").glob("views/*/*/shard-*")})
        digests.append(score_digest(ResultsReader([tmp_path / name]).records()))
        costs.append(read_costs([tmp_path / name]))

    assert len(shards[0]) == 4
    assert shards[0] == shards[1]
    assert digests[0] == digests[1]
    assert [line["flops_per_item"] for line in costs[0]] == [128, 128]
    assert costs[1] == []


def test_operations_are_counted_once_for_each_shape_of_input(run_tasks, write_task, monkeypatch):
    counted = []
    monkeypatch.setattr("evalharness.costs.measure_flops", lambda encode, batch: counted.append(len(batch)) or 6)
    outcome = run_tasks(write_task(TASK), ["random-projection"])

    assert counted == [2]
    assert [line["flops_per_item"] for line in outcome.report.costs] == [3, 3]


def test_batches_before_memory_ran_out_are_not_timed(run_tasks, write_task, add_encoder, tmp_path):
    add_encoder("greedy", Greedy)
    run_tasks(write_task(TASK), ["greedy"], batch_size=100)

    for line in read_costs([tmp_path / "out"]):
        assert line["batch_size"] == 25
        assert line["items"] == {"test": 175, "train": 300}[line["split"]]


def test_workers_on_several_devices_measure_one_view_together(run_tasks, write_task, tmp_path):
    path = write_task(
        "task: shared\nversion: 1\nmodality: image\n"
        "data: {dataset: scenes, params: {train: 60, validation: 20, test: 4200}, image_size: 32, target: colour}\n"
        "evaluators: {knn: {use: knn, k: 1}}\nmain: knn.accuracy\n"
    )
    run_tasks(path, ["random-conv?size=8&dim=16"], devices=("cpu", "cpu"))

    line = next(line for line in read_costs([tmp_path / "out"]) if line["split"] == "test")
    assert (line["workers"], line["pass_items"], line["dim"]) == (2, 4200, 16)
    assert line["items"] == 4200 - 128 - 104  # each worker warms up; the second shard is one batch
    assert line["flops_per_item"] > 0
    assert line["pass_items_per_second"] > 0


def test_a_live_module_is_measured_in_memory(write_task, monkeypatch, cache):
    from evalharness.run import Runner

    reports = []
    run = Runner.run
    monkeypatch.setattr(Runner, "run", lambda self, *arguments, **options: reports.append(run(self, *arguments, **options)) or reports[-1])
    path = write_task(
        "task: small\nversion: 1\nmodality: image\ndata: {dataset: digits, target: label}\nevaluators: {knn: {use: knn, k: 1}}\nmain: knn.accuracy\n"
    )
    evaluate(nn.Sequential(nn.Flatten(), nn.Linear(192, 16)), str(path), modality="image")

    assert list(cache.rglob("*")) == []
    (report,) = reports
    for line in report.costs:
        assert (line["parameters"], line["flops_per_item"], line["dim"]) == (192 * 16 + 16, 2 * 192 * 16, 16)
        assert line["items_per_second"] > 0


def test_the_meter_takes_device_and_dtype_from_the_weights():
    meter = Meter(nn.Linear(2, 2, dtype=torch.bfloat16), device="meta", dtype="float32")
    meter.start()
    measured = meter.finish(None, lambda batch: batch, (), 1)

    assert (measured.facts["device"], measured.facts["dtype"]) == ("cpu", "bfloat16")
    assert measured.reasons["flops_per_item"] == "no items were at hand to count with"


def test_shards_of_workers_are_joined():
    def part(timings, span, peak):
        facts = {"peak_memory_bytes": peak, "device": "cpu"}
        return Measured(timings=timings, span=span, facts=facts, reasons={"items_per_second": "too few"})

    cost = pass_cost([part([(10, 1.0)], (0.0, 2.0), 5), part([(10, 2.0), (10, 2.0)], (1.0, 5.0), 9)], rows=40, workers=2)

    assert (cost["items"], cost["batches"], cost["items_per_second"], cost["pass_items_per_second"]) == (30, 3, 5.0, 8.0)
    assert (cost["peak_memory_bytes"], cost["workers"], cost["reasons"]) == (9, 2, {})


def test_the_median_counts_items_and_ignores_one_slow_batch():
    assert median_rate([(100, 1.0), (100, 1.1), (100, 60.0), (1, 5.0)]) == pytest.approx(100 / 1.1, abs=1e-3)
    assert median_rate([]) is None


# --- reading ----------------------------------------------------------------------------------------------------------


def line(encoder="one", split="test", device="cpu", measured="2025-01-01", identity="source:a", **facts):
    return {
        "encoder": encoder, "encoder_identity": identity, "layer": None, "dataset": "toy", "dataset_params": {}, "split": split, "part": "items",
        "modality": "vector", "image_size": None, "device": device, "dtype": "float32", "measured": measured, "reasons": {}, **facts,
    }  # fmt: skip


def write_lines(folder, *lines, torn=""):
    folder.mkdir(parents=True)
    (folder / "costs.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines) + torn)


def test_the_newest_line_of_a_view_and_device_wins_and_torn_lines_are_skipped(tmp_path):
    write_lines(tmp_path / "a", line(items=2, measured="2025-02-01"), line(device="gpu", items=3))
    write_lines(tmp_path / "b", line(items=1), line(split="train", items=4), torn='{"encoder": "one", "data')

    found = read_costs([tmp_path])
    assert sorted(each["items"] for each in found) == [2, 3, 4]
    assert read_costs([tmp_path / "a"]) == found[:2]
    assert read_costs([tmp_path / "nothing"]) == []


def test_a_summary_is_a_row_for_each_encoder_and_device():
    rows = summarise_costs([
        line(items=10, items_per_second=1.0, peak_memory_bytes=5, dim=8, flops_per_item=None, reasons={"flops_per_item": "why"}),
        line(items=10, split="train", items_per_second=4.0, peak_memory_bytes=9, dim=4),
        line(items=10, split="more", items_per_second=3.0, peak_memory_bytes=None, dim=4),
        line(device="gpu", items_per_second=7.0),
        line("two", identity="source:old", measured="2024-01-01", items_per_second=99.0),
        line("two", identity="source:new", split="train", items_per_second=8.0),
    ])  # fmt: skip

    assert [(row["encoder"], row["device"], row["items_per_second"], row["num_views"]) for row in rows] == [
        ("one", "cpu", 3.0, 3), ("one", "gpu", 7.0, 1), ("two", "cpu", 8.0, 1),
    ]  # fmt: skip
    assert (rows[0]["peak_memory_bytes"], rows[0]["items"], rows[0]["dim"], rows[0]["flops_per_item"]) == (9, 30, None, None)
    assert rows[0]["reasons"]["dim"] == "differs between views: 4 to 8"
    assert rows[0]["reasons"]["flops_per_item"] == "why"
    assert rows[0]["reasons"]["parameters"] == "not measured"
    assert summarise_costs([]) == []


def test_numbers_are_short_in_tables():
    assert [format_count(value) for value in (0, 950, 999.6, 8906, 1.2e7, 999_960, 3.456, 4e18, None, float("nan"))] == [
        "0", "950", "1.0k", "8.9k", "12.0M", "1.0M", "3.46", "4000.0P", "–", "–",
    ]  # fmt: skip
    assert [format_bytes(value) for value in (512, 1536, 2.5e9, None)] == ["512 B", "1.5 kB", "2.5 GB", "–"]


def test_reading_costs_imports_no_torch(tmp_path):
    write_lines(tmp_path / "a", line(items_per_second=1.0))
    code = (
        "import sys; from pathlib import Path; from evalharness.costs import read_costs, summarise_costs\n"
        "print(len(summarise_costs(read_costs([Path(sys.argv[1])]))), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["1", "False"]
