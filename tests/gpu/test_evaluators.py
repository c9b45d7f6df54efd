"""Evaluators whose vectors lie on a GPU give the values that they give on the CPU, and columns that the core can store."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from evalharness.store.results import compact
from evalharness.testing import metric_values, sample_tables
from evalharness.types import Column, Side
from evalharness.vectors import code_vectors

CASES = {
    "linear-probe": {"grid": [0.01, 1.0]},
    "linear-probe, numbers": {"grid": [0.01, 1.0]},
    "linear-probe, labels": {"grid": [0.01, 1.0]},
    "linear-probe, shuffled": {"grid": [0.01, 1.0], "control": "shuffled"},
    "linear-probe, raw": {"grid": [1.0], "scale": "raw"},
    "mlp-probe": {"epochs": 3, "hidden": 8, "weight_decays": [0.1]},
    "mlp-probe, numbers": {"epochs": 3, "hidden": 8, "weight_decays": [0.1]},
    "mdl-probe": {"grid": [0.01, 1.0]},
    "knn": {"k": [1, 5]},
    "knn, numbers": {"k": [5]},
    "knn, labels": {"k": [5]},
    "knn, l2": {"k": [5], "metric": "l2"},
    "knn, int8": {"k": [5]},
    "knn, binary": {"k": [5]},
    "few-shot": {
        "way": 3,
        "shot": [1, 5],
        "query": 5,
        "episodes": 20,
        "head": ["nearest-centroid", "simpleshot-cl2n", "ridge", "logistic"],
    },
    "neighbours": {"replicates": 2},
    "neighbours, int8": {"replicates": 2},
    "clustering": {"seeds": 1, "replicates": 2},
    "geometry": {},
    "displacement": {},
}
CODECS = ("int8", "binary")


def retarget(table, kind):
    if kind == "numbers":
        target = Column(kind="number", values=table.vectors.dense()[:, 0].double().numpy())
    elif kind == "labels":
        target = Column(kind="multilabel", values=np.stack([table.target.values == 0, table.target.values < 2], 1), names=("a", "b"))
    else:
        return table
    return replace(table, target=target)


def on(table, device, codec):
    vectors = table.vectors.dense().to(device)
    return replace(table, vectors=code_vectors(vectors, codec, "cosine", table.ids))


def run(registry, case, params, device):
    name, _, variant = case.partition(", ")
    spec = registry.get("evaluator", name)
    train, test = (retarget(table, variant) for table in sample_tables(rows=120))
    codec = registry.get("codec", variant).fit(train.vectors.dense().to(device)) if variant in CODECS else None
    train, test = on(train, device, codec), on(test, device, codec)
    given = {**spec.params, **params}
    fitted, rows = None, np.arange(len(train))
    if spec.fit is not None:
        fitted = spec.fit(train.take(rows[::2]), train.take(rows[1::2]), generator=torch.Generator().manual_seed(1), **given)
    side = Side(parts={"items": test})
    outcomes = spec.score(fitted, side, clean=side, exact=side, base=train, generator=torch.Generator().manual_seed(2), **given)
    return spec, outcomes


@pytest.mark.parametrize("case", CASES)
def test_an_evaluator_gives_the_same_on_a_gpu(gpu, registry, case):
    spec, expected = run(registry, case, CASES[case], torch.device("cpu"))
    _, found = run(registry, case, CASES[case], gpu)

    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        for name, values in one.columns.items():
            assert len(compact(values)) == len(one.rows), name
        stored = replace(one, columns={name: compact(values) for name, values in one.columns.items()})
        own, wanted = ({metric.name: value for metric, value in metric_values(spec, each)} for each in (stored, other))
        assert own.keys() == wanted.keys()
        for name, value in wanted.items():
            assert own[name] == pytest.approx(value, abs=0.02, nan_ok=True), name
