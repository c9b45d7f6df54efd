"""An encoder, a data set and an evaluator whose metric is an AUC."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from evalharness import (
    Column,
    Dataset,
    DatasetSpec,
    EncoderSpec,
    EvaluatorSpec,
    MetricInfo,
    Outcome,
    Samples,
    as_encoder,
    class_column,
    hookimpl,
)

ROWS = {"train": 400, "test": 300}


# --- an encoder -------------------------------------------------------------------------------------------------------


def add_squares(vectors):
    """Return the vectors (B, F) followed by the squares of their values, (B, 2 F)."""
    import torch

    return torch.cat([vectors, vectors.square()], dim=1)


@hookimpl
def evalharness_encoders():
    """Register `squares`."""
    yield EncoderSpec(
        name="squares",
        summary="Vectors and their squares",
        modalities=("vector",),
        build=lambda *, device, dtype: as_encoder(add_squares),
        differentiable=True,
    )


# --- a data set -------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=2)
def draw_rings(split: str, noise: float, seed: int):
    """Return points (N, 2) float32 on two rings of radius 1 and 2, which ring each is on, and its half of the plane."""
    generator = np.random.default_rng([seed, list(ROWS).index(split)])
    outer = np.arange(ROWS[split]) % 2
    angle = generator.uniform(0, 2 * np.pi, ROWS[split])
    radius = 1 + outer + generator.normal(0, noise, ROWS[split])
    points = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).astype(np.float32)
    return points, outer, np.where(angle < np.pi, "upper", "lower")


def load_rings(split: str, *, noise: float, seed: int) -> Dataset:
    """Make one split."""
    points, outer, half = draw_rings(split, noise, seed)

    def read(at):
        import torch

        return torch.from_numpy(points[at])

    columns: dict[str, Column] = {"ring": class_column([("inner", "outer")[code] for code in outer]), "half": class_column(half.tolist())}
    ids = np.array([f"{split}/{row}" for row in range(len(points))])
    fingerprint = f"rings-1-{split}-{noise}-{seed}"
    return Dataset(
        parts={"items": Samples(modality="vector", size=len(points), read=read, ids=ids, columns=columns, fingerprint=fingerprint)}
    )


@hookimpl
def evalharness_datasets():
    """Register `rings`."""
    yield DatasetSpec(
        name="rings",
        summary="Points on two rings; target `ring`, group `half`",
        params={"noise": 0.4, "seed": 0},
        modalities=("vector",),
        splits=tuple(ROWS),
        load=load_rings,
    )


# --- an evaluator -----------------------------------------------------------------------------------------------------


def fit_direction(train, validation, *, generator):
    """Return the direction (D,) from the mean of the first class to that of the second."""
    vectors = train.vectors.dense()
    return vectors[train.target.values == 1].mean(dim=0) - vectors[train.target.values == 0].mean(dim=0)


def score_direction(direction, test, *, generator, clean=None, exact=None, base=None):
    """Return how far each test item lies along the direction, and whether it is of the second class."""
    scores = test.items.vectors.dense() @ direction
    return [
        Outcome(item="sample", part="items", rows=test.items.rows, columns={"score": scores, "positive": test.items.target.values == 1})
    ]


@hookimpl
def evalharness_evaluators():
    """Register `mean-difference`; the core makes interval, subgroups and comparison of its AUC."""
    yield EvaluatorSpec(
        name="mean-difference",
        summary="Order test items along the difference of two class means",
        target_kinds=("class",),
        metrics=(MetricInfo(name="auroc", columns=("score", "positive"), reduce="auc", chance=0.5),),
        main="auroc",
        needs=frozenset({"train"}),
        fit=fit_direction,
        score=score_direction,
    )
