"""Targets of several labels an item, from the file to the leaderboard."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import average_precision_score

from evalharness.evidence import Evidence
from evalharness.store.results import ResultsReader

TASK = """task: tags
version: 1
modality: vector
data:
  dataset: parquet:{base}
  inputs: {{vector: [a, b, c]}}
  target: tags
  splits: {{train: train, test: test}}
evaluators:
  probe: {{use: linear-probe, grid: [0.01, 1.0]}}
groups: [place]
main: probe.mean_average_precision
"""


@pytest.fixture
def folder(tmp_path, cli):
    """Write items that carry `first` and `second` by the signs of two columns, and `rare` in one item of ten, and run two encoders on them."""
    base = tmp_path / "rows"
    base.mkdir()
    for split, seed in (("train", 0), ("test", 1)):
        rng = np.random.default_rng(seed)
        values = rng.standard_normal((160, 3)).round(3)
        carried = np.column_stack([values[:, :2] + 0.3 * rng.standard_normal((160, 2)) > 0, rng.random(160) < 0.1])
        tags = [[name for name, own in zip(("first", "second", "rare"), row, strict=True) if own] for row in carried]
        places = ["north" if at % 2 else "south" for at in range(160)]
        columns = {**{name: values[:, at] for at, name in enumerate("abc")}, "tags": pa.array(tags, pa.list_(pa.string())), "place": places}
        pq.write_table(pa.table(columns), base / f"{split}.parquet")
    (tmp_path / "tags.yaml").write_text(TASK.format(base=base))
    ran = cli("run", tmp_path / "tags.yaml", "-e", "identity", "-e", "random-projection?dim=2", "--out", tmp_path / "out")
    assert ran.code == 0, ran.err
    return tmp_path / "out"


def test_labels_have_values_intervals_groups_and_comparisons(folder, cli):
    reader = ResultsReader([folder])
    records = [row for row in reader.records() if row["encoder"] == "identity"]
    (main,) = [row for row in records if row["main"]]
    assert main["metric"] == "mean_average_precision"
    assert main["low"] < main["value"] < main["high"]
    assert {row["group"] for row in records if row["metric"] == main["metric"] and row["group"] and row["statistic"] == "value"} == {
        "place=north",
        "place=south",
    }

    (piece,) = Evidence([folder]).basis(main).pieces
    relevant, score = piece.columns["relevant"], piece.columns["label_score"]
    assert relevant.shape == score.shape == (160, 3)
    assert main["value"] == pytest.approx(average_precision_score(relevant, score, average="macro"))

    compared = cli("compare", "identity", "random-projection?dim=2", folder, "--items", 2)
    assert compared.code == 0, compared.err
    assert "mean_average_precision" in compared.out
    verified = cli("verify", folder)
    assert verified.code == 0, verified.out
    assert "0 at fault" in verified.out
