"""A plugin for tests: a toy data set, encoders that count or misbehave, and an evaluator that counts its fits."""

from __future__ import annotations

from collections import Counter

import numpy as np

from evalharness import (
    Dataset,
    DatasetSpec,
    EncoderSpec,
    EvaluatorSpec,
    Identity,
    MetricInfo,
    Outcome,
    Samples,
    class_column,
    hookimpl,
    number_column,
)

COUNTS: Counter[str] = Counter()
SIZES = {"train": 300, "test": 200}
SEEN: dict[str, list] = {}  # what encoders were given, by encoder name


def load(split, *, size=1.0, gaps=False, odd=False):
    import torch

    COUNTS["loads"] += 1
    n = int(SIZES[split] * size)
    draw = np.random.default_rng([7, len(split)])
    label = np.arange(n) % 5
    vectors = (draw.normal(size=(n, 8)) + 2.0 * np.eye(5, 8)[label]).astype(np.float32)
    names = np.array([f"class-{code}" for code in label], dtype=object)
    if gaps:
        names[::7] = None
    if odd:
        names[0] = "naïve / \t 🦜" if split == "test" else names[0]
    columns = {
        "label": class_column(names),
        "parity": class_column(["even" if code % 2 == 0 else "odd" for code in label]),
        "colour": class_column(["red" if value > 0 else "blue" for value in vectors[:, 7]]),
        "person": class_column([f"p{row // 4}" for row in range(n)]),
        "norm": number_column(np.linalg.norm(vectors, axis=1)),
    }
    ids = np.array([f"{split}/{row}" for row in range(n)])

    def read(at):
        return torch.from_numpy(vectors[at])

    samples = Samples(modality="vector", size=n, read=read, ids=ids, columns=columns, fingerprint=f"toy-{split}-{size}-{gaps}-{odd}")
    return Dataset(parts={"items": samples})


class Counting:
    dim = 8

    def __init__(self, name="counting", scale=1.0, fault=None):
        self.name, self.scale, self.fault = name, scale, fault
        self.calls = 0
        self.first = float(load("train").parts["items"].read(np.arange(1))[0, 0]) if fault == "width" else 0.0
        COUNTS["builds"] += 1

    def encode(self, batch, *, role="document", layers=None):
        self.calls += 1
        COUNTS["rows"] += len(batch)
        SEEN.setdefault(self.name, []).append(batch.clone())
        result = batch * self.scale
        if self.fault == "nan":
            result[1] = float("nan")
        if self.fault == "raise" and self.calls == 7:
            raise ValueError("a bad batch")
        if self.fault == "shape":
            return result[:, None]
        if self.fault == "width" and float(batch[0, 0]) != self.first:
            return result[:, :6]
        return {layer: result + float(layer[-1]) for layer in layers} if layers else result


@hookimpl
def evalharness_datasets():
    for name in ("toy", "toy-twin"):
        yield DatasetSpec(
            name=name,
            summary="Five Gaussian classes",
            modalities=("vector",),
            splits=("train", "test"),
            params={"size": 1.0, "gaps": False, "odd": False},
            load=load,
            identity=lambda split, **params: Identity(kind="source", digest=f"{split}{params}"),
        )


@hookimpl
def evalharness_encoders():
    for name, scale in (("counting", 1.0), ("doubling", 2.0)):
        yield EncoderSpec(
            name=name,
            summary="Counts rows",
            modalities=("vector",),
            params={"scale": scale},
            layers=("layer-1", "layer-2"),
            build=lambda *, device, dtype, scale, name=name: Counting(name, scale),
        )
    for fault in ("nan", "raise", "shape", "width"):
        yield EncoderSpec(
            name=f"bad-{fault}",
            summary="Misbehaves",
            modalities=("vector",),
            build=lambda *, device, dtype, fault=fault: Counting(fault=fault),
        )
    yield EncoderSpec(
        name="unsteady", summary="Has no identity", modalities=("vector",), build=lambda *, device, dtype: Counting("unsteady"),
        identity=lambda: Identity(kind="none", digest=""),
    )  # fmt: skip


def shift(inputs, severities, keys, *, model=None, labels=None, amount=1.0):
    from evalharness.numerics import keyed_normal

    return [inputs + amount * severity * keyed_normal(keys[at], inputs.shape[1:]) for at, severity in enumerate(severities)]


@hookimpl
def evalharness_shifts():
    from evalharness import ShiftSpec

    yield ShiftSpec(
        name="jitter",
        summary="Adds keyed noise",
        mechanism="apply",
        apply=shift,
        kind="corruption",
        shift_type="noise",
        modality="vector",
        severities=(1, 2),
        params={"amount": 1.0},
        preserves=("label", "parity"),
    )


def fit(train, validation, *, generator):
    import torch

    COUNTS["fits"] += 1
    codes = torch.from_numpy(train.target.values)
    vectors = train.vectors.dense()
    return torch.stack([vectors[codes == code].mean(dim=0) for code in range(len(train.target.names))])


def score(fitted, test, *, generator, clean=None, exact=None, base=None):
    import torch

    COUNTS["scores"] += 1
    table = test.items
    similarity = -torch.cdist(table.vectors.dense(), fitted)
    truth = torch.from_numpy(table.target.values)
    prediction = similarity.argmax(dim=1)
    columns = {"truth": truth, "prediction": prediction, "hit": prediction == truth, "score": similarity[:, 0], "positive": truth == 0}
    return [Outcome(item="sample", part="items", rows=table.rows, columns=columns)]


@hookimpl
def evalharness_evaluators():
    yield EvaluatorSpec(
        name="centroid",
        summary="Nearest centroid",
        target_kinds=("class",),
        metrics=(
            MetricInfo(name="auc", columns=("score", "positive"), reduce="auc"),
            MetricInfo(name="accuracy", columns=("hit",), interval="wilson"),
        ),
        main="auc",
        needs=frozenset({"train"}),
        fit=fit,
        score=score,
    )
