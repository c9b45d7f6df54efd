"""Simulated few-shot episodes and clouds of vectors, with what is known of their statistics."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from benchmarks._forms import Setting
from evalharness import stats
from evalharness.estimates import Items
from evalharness.types import MetricInfo

Array = np.ndarray
Generator = np.random.Generator
DIMENSIONS, PER_CLASS, WAY, QUERIES, EPISODES = 16, 40, 5, 15, 600
SPREAD = 0.8  # of class means, in standard deviations of their items
HALVES = 50
VARIANCES = 0.15 * 0.9 ** np.arange(16.0)  # of a cloud's dimensions


def _score(support: Array, queries: Array) -> Array:
    """Return hits (E, way, query) of the nearest of one support vector a class: support (E, way, D), queries (E, way, query, D)."""
    products = queries.reshape(len(queries), -1, DIMENSIONS) @ support.transpose(0, 2, 1)
    distances = np.square(support).sum(axis=2)[:, None, :] - 2 * products
    nearest = distances.argmin(axis=2).reshape(len(queries), WAY, QUERIES)
    return np.asarray(nearest == np.arange(WAY)[None, :, None])


def draw_episodes(num_classes: int, generator: Generator) -> Items:
    """Return 5-way 1-shot episodes over a fresh data set: fresh classes, 40 items each, which episodes share."""
    means = SPREAD * generator.standard_normal((num_classes, 1, DIMENSIONS))
    items = (means + generator.standard_normal((num_classes, PER_CLASS, DIMENSIONS))).astype(np.float32)
    classes = np.argpartition(generator.random((EPISODES, num_classes)), WAY, axis=1)[:, :WAY]
    chosen = np.argpartition(generator.random((EPISODES, WAY, PER_CLASS), dtype=np.float32), QUERIES, axis=2)[:, :, : QUERIES + 1]
    drawn = items[classes[:, :, None], chosen]
    hits = _score(drawn[:, :, 0], drawn[:, :, 1:])
    by_class = np.bincount(classes.ravel(), hits.mean(axis=2).ravel(), minlength=num_classes)
    counts = np.bincount(classes.ravel(), minlength=num_classes).astype(np.float64)
    return Items(
        variant="",
        item="episode",
        part="items",
        rows=np.arange(EPISODES),
        columns={"accuracy": hits.mean(axis=(1, 2))},
        clusters=classes,
        num_classes=num_classes,
        details={"by_class": (by_class, counts)},
    )


def true_accuracy(episodes: int = 200_000) -> float:
    """Return the mean accuracy of episodes each of which has classes and items of its own."""
    generator, total = np.random.default_rng(0), 0.0
    for _ in range(episodes // 5000):
        means = SPREAD * generator.standard_normal((5000, WAY, 1, DIMENSIONS))
        drawn = (means + generator.standard_normal((5000, WAY, QUERIES + 1, DIMENSIONS))).astype(np.float32)
        total += float(_score(drawn[:, :, 0], drawn[:, :, 1:]).mean())
    return total / (episodes // 5000)


def episode_settings() -> list[Setting]:
    """Return few-shot accuracy with few and with many classes."""
    truth = true_accuracy()
    return [
        Setting(
            what="few-shot accuracy, 5-way 1-shot",
            size=f"{classes} classes, {EPISODES} episodes",
            metric=MetricInfo(name="accuracy", columns=("accuracy",)),
            truth=truth,
            draw=partial(draw_episodes, classes),
            rejected=("over episodes", "by the query's class", "product weights"),
            effort=0.4,
        )
        for classes in (20, 242)
    ]


def draw_cloud(n: int, generator: Generator) -> Items:
    """Return a cloud's uniformity and participation ratio, both on 50 halves and, for the first, on resamples with duplicates."""
    scales = np.sqrt(VARIANCES)
    vectors = scales * generator.standard_normal((n, len(VARIANCES)))
    squares = np.square(vectors).sum(axis=1)
    kernel = np.exp(-2 * (squares[:, None] + squares - 2 * vectors @ vectors.T))
    halves = np.argsort(generator.random((HALVES, n)), axis=1)[:, : n // 2]
    masks = np.zeros((HALVES + 1, n))
    np.put_along_axis(masks[:HALVES], halves, 1.0, axis=1)
    masks[HALVES] = 1.0
    weights = stats.counts(n, 500, generator).astype(np.float64)
    pairs, resampled = _uniformity(kernel, masks), _uniformity(kernel, weights)
    ratios = np.array([_participation(vectors[half]) for half in halves])
    return Items(
        variant="",
        item="sample",
        part="items",
        rows=np.arange(n),
        columns={},
        clusters=None,
        scalars={"uniformity": float(pairs[HALVES]), "participation_ratio": _participation(vectors)},
        replicates={"uniformity": pairs[:HALVES], "participation_ratio": ratios},
        details={"bootstrap": resampled},
    )


def _uniformity(kernel: Array, weights: Array) -> Array:
    """Return the log of the mean kernel over pairs of rows, (R, n) to (R,); a row drawn twice is a pair at distance 0."""
    total = weights.sum(axis=1)
    together = np.einsum("rn,rn->r", weights @ kernel, weights) - total
    return np.asarray(np.log(together / (total * (total - 1))))


def _participation(vectors: Array) -> float:
    """Return (Σ λ)² / Σ λ² of the covariance."""
    centred = vectors - vectors.mean(axis=0)
    covariance = centred.T @ centred
    return float(np.trace(covariance) ** 2 / np.square(covariance).sum())


def mean_participation(n: int, draws: int = 4000) -> float:
    """Return the mean participation ratio of clouds of n vectors, below that of the population."""
    generator = np.random.default_rng(0)
    return float(np.mean([_participation(np.sqrt(VARIANCES) * generator.standard_normal((n, len(VARIANCES)))) for _ in range(draws)]))


def cloud_settings() -> list[Setting]:
    """Return statistics of whole clouds; of those that depend on the number of vectors, the truth is the mean at this number."""
    uniformity = float(-0.5 * np.log1p(8 * VARIANCES).sum())
    return [
        Setting(
            what=f"{name.replace('_', ' ')}{'' if name == 'uniformity' else ' at this n'}",
            size=f"{n} vectors",
            metric=MetricInfo(name=name, reduce=None, low=-math.inf, high=math.inf, interval="half-sample"),
            truth=uniformity if name == "uniformity" else mean_participation(n),
            draw=partial(draw_cloud, n),
            rejected=("percentile with duplicates", "quantiles of halves") if name == "uniformity" else ("quantiles of halves",),
            effort=0.6,
        )
        for n in (100, 400)
        for name in ("uniformity", "participation_ratio")
    ]
