"""The ledger: encoders against targets, linear and hidden-layer probes side by side, controls, and differences to a reference."""

import csv
import json

import numpy as np
import pytest
from builders import record

from evalharness.errors import DataError
from evalharness.ledger import ledger_tables

TASK = """task: factors
version: 1
modality: vector
data:
  dataset: csv:{base}
  inputs: {{vector: [a, b, c]}}
  target: [sign, distance, exclusive]
  splits: {{folds: 3}}
evaluators:
  linear: {{use: linear-probe, grid: [0.01, 1.0]}}
  hidden: {{use: mlp-probe, hidden: 32, epochs: 100}}
  shuffled: {{use: linear-probe, grid: [0.01, 1.0], control: shuffled}}
cross: [[targets]]
main: linear.accuracy
"""


@pytest.fixture
def folder(tmp_path, cli):
    """Write rows whose first column's sign is linear, whose exclusive or of two signs is not, and run two encoders on them."""
    base = tmp_path / "rows"
    base.mkdir()
    values = np.random.default_rng(0).standard_normal((360, 3))
    values += 0.3 * np.sign(values)
    with (base / "all.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["a", "b", "c", "sign", "distance", "exclusive"])
        for a, b, c in values:
            writer.writerow([a, b, c, "plus" if a > 0 else "minus", f"{2 * b + 0.1 * c:.6f}", "yes" if (b > 0) != (c > 0) else "no"])
    (tmp_path / "factors.yaml").write_text(TASK.format(base=base))
    out = tmp_path / "out"
    cli("run", str(tmp_path / "factors.yaml"), "-e", "identity", "-e", "random-projection?dim=2", "--out", str(out))
    return out


def test_a_ledger_of_two_encoders(folder, cli):
    ran = cli("leaderboard", folder, "--by", "target", "--reference", "identity", "--format", "json")
    assert ran.code == 0, ran.err
    scores, gains, differences = json.loads(ran.out)
    rows = {row["encoder"]: {target: cell["value"] for target, cell in row["scores"].items()} for row in scores["rows"]}

    assert list(scores["columns"]) == ["sign", "distance", "exclusive"]
    assert scores["columns"]["distance"].startswith("distance\nR2\n")
    assert rows["identity · linear-probe"]["sign"] > 0.9
    assert rows["identity · linear-probe"]["distance"] > 0.9
    assert rows["identity · linear-probe"]["exclusive"] < 0.2 < 0.6 < rows["identity · mlp-probe"]["exclusive"]
    assert rows["identity · linear-probe, shuffled labels"]["sign"] < 0.25
    gained = {row["encoder"]: row["scores"] for row in gains["rows"]}
    assert gains["title"] == "single tasks · factors · ledger, what a hidden layer adds"
    assert gained["identity"]["exclusive"]["value"] == pytest.approx(
        rows["identity · mlp-probe"]["exclusive"] - rows["identity · linear-probe"]["exclusive"]
    )
    assert gained["identity"]["exclusive"]["low"] > 0.3
    (reading,) = [note for note in gains["notes"] if note.startswith("identity: ")]
    assert reading.startswith("identity: some of `exclusive` is there, but not linearly")

    table = cli("leaderboard", folder, "--by", "target").out.partition("what a hidden layer adds")[2]
    (line,) = [line for line in table.splitlines() if line.startswith("identity  ")]
    assert line.rstrip().endswith(" *")
    assert line.count("*") == 1

    gaps = {row["encoder"]: row["scores"] for row in differences["rows"]}
    name = next(name for name in gaps if name.endswith("· linear-probe"))
    assert name == "random-projection?dim=2 · linear-probe"
    expected = rows[name]["sign"] - rows["identity · linear-probe"]["sign"]
    assert gaps[name]["sign"]["value"] == pytest.approx(expected)
    assert gaps[name]["sign"]["low"] < expected < gaps[name]["sign"]["high"] < 0

    compared = cli("compare", "identity", "random-projection?dim=2", folder, "--where", "target=distance", "--metric", "r2", "--items", 1)
    assert compared.code == 0, compared.err
    assert "r2" in compared.out
    assert cli("verify", folder).code == 0
    assert "`reference` goes with `by` = target" in cli("leaderboard", folder, "--reference", "identity").err
    assert (
        "no task has a probe on several targets among what matches target=sign"
        in cli("leaderboard", folder, "--by", "target", "--where", "target=sign").err
    )


def test_a_reference_that_is_no_encoder_is_refused():
    with pytest.raises(DataError, match="`reference`: unknown encoder `c`"):
        list(ledger_tables([record("a"), record("b")], pair, "c"))


def pair(one, other, apart):
    raise AssertionError("nothing here is to be compared")


def cell(encoder="a", target="x", value=0.5, **fields):
    given = {"evaluator": "linear-probe", "metric": "accuracy_above_majority", "params": {"scale": "standard"}, "main": False}
    return record(encoder, value, target=target, **(given | fields))


def shown(records):
    (table,) = list(ledger_tables(records, pair))
    return {row.encoder: {target: score.value for target, score in row.scores.items()} for row in table.rows}, table.notes


def test_probes_of_one_evaluator_with_other_parameters_have_rows_of_their_own():
    raw = {"params": {"scale": "raw"}}
    rows, _ = shown([cell(value=0.1), cell(target="y", value=0.2), cell(value=0.3, **raw), cell(target="y", value=0.4, **raw)])
    assert rows == {"a · linear-probe, scale=standard": {"x": 0.1, "y": 0.2}, "a · linear-probe, scale=raw": {"x": 0.3, "y": 0.4}}


def test_the_first_variant_stands_for_an_evaluator():
    params = [{"params": {"k": [1, 5], "variant": name}} for name in ("k=5", "k=1")]
    rows, _ = shown([cell(target=target, value=value, **params[at]) for at, value in enumerate((0.7, 0.2)) for target in "xy"])
    assert rows == {"a · linear-probe": {"x": 0.7, "y": 0.7}}


def test_all_cells_of_a_probe_are_of_one_fit_and_the_table_says_which():
    draws = [cell(target=target, value=0.1 * at, fit=f"few/{at}") for at in (1, 2) for target in "xy"]
    means = [cell(target="y", value=0.15, fit="few", statistic="mean", over="draw", main=True)]
    whole = [cell(target=target, value=0.8, fit="all") for target in "xy"]
    rows, notes = shown([*draws, *means, *whole])
    assert rows == {"a · linear-probe": {"x": 0.8, "y": 0.8}}
    assert not any(note.startswith("Learned") for note in notes)
    rows, notes = shown([*draws, *means])
    assert rows == {"a · linear-probe": {"x": 0.1, "y": 0.1}}
    assert "Learned from one draw, `few/1`." in notes
