"""Simulated neighbourhoods and clusters of labelled clouds, scored by the evaluators themselves."""

from __future__ import annotations

import math
from functools import cache, partial
from typing import Any

import numpy as np
import torch

from benchmarks._forms import Setting
from evalharness.estimates import Items
from evalharness.plugins import clustering, neighbours
from evalharness.types import Column, Side, Table
from evalharness.vectors import CodedVectors

Generator = np.random.Generator
CLASSES, DIMENSIONS, GAP = 5, 12, 1.2  # the gap of class means from the middle, in standard deviations of an item
EVALUATORS: dict[str, Any] = {"neighbours": neighbours, "clustering": clustering}
PARAMS: dict[str, dict[str, Any]] = {"neighbours": {"metric": "l2", "examples": 0}, "clustering": {"metric": "l2", "seeds": 3}}
SHOWN = {
    "neighbours": ("label_purity", "antihub_rate", "hubness", "robin_hood"),
    "clustering": ("v_measure", "adjusted_mutual_info"),
}


def draw_labelled(evaluator: str, n: int, generator: Generator, **params: Any) -> Items:
    """Return the outcome of an evaluator on a fresh cloud of n items, of five Gaussian classes with fixed means."""
    labels = generator.integers(0, CLASSES, n)
    vectors = GAP * np.eye(CLASSES, DIMENSIONS)[labels] * math.sqrt(2) + generator.standard_normal((n, DIMENSIONS))
    column = Column(kind="class", values=labels, names=tuple("abcde"))
    rows = np.arange(n)
    table = Table(vectors=CodedVectors(torch.from_numpy(vectors.astype(np.float32))), ids=rows.astype(str), rows=rows, target=column)
    seeded = torch.Generator().manual_seed(int(generator.integers(2**31)))
    (outcome,) = EVALUATORS[evaluator].score(None, Side(parts={"items": table}), generator=seeded, **PARAMS[evaluator], **params)
    return Items(
        variant="",
        item="sample",
        part="items",
        rows=rows,
        columns={name: np.asarray(values) for name, values in outcome.columns.items()},
        clusters=None,
        scalars=dict(outcome.scalars),
        replicates=dict(outcome.replicates),
    )


@cache
def truths(evaluator: str, n: int, draws: int = 2000) -> dict[str, float]:
    """Return the mean of every metric over clouds of n items."""
    from evalharness.estimates import value_of

    generator = np.random.default_rng(0)
    clouds = [draw_labelled(evaluator, n, generator, replicates=2) for _ in range(draws)]
    metrics = [metric for metric in EVALUATORS[evaluator].METRICS if metric.name in SHOWN[evaluator]]
    return {metric.name: float(np.mean([value_of(metric, cloud) for cloud in clouds])) for metric in metrics}


def settings_of(evaluator: str) -> list[Setting]:
    """Return what one evaluator says of labelled clouds; each depends on the number of items, so the truth is the mean at this number."""
    return [
        Setting(
            what=f"{metric.name.replace('_', ' ')} at this n",
            size=f"{n} items",
            metric=metric,
            truth=truths(evaluator, n)[metric.name],
            draw=partial(draw_labelled, evaluator, n),
            effort=0.6 if evaluator == "neighbours" else 0.3,
        )
        for n in (100, 400)
        for metric in EVALUATORS[evaluator].METRICS
        if metric.name in SHOWN[evaluator] and (metric.name != "hubness" or n >= neighbours.HUBS_FROM)
    ]


def neighbourhood_settings() -> list[Setting]:
    """Return what is said of neighbours and clusters."""
    return [setting for evaluator in SHOWN for setting in settings_of(evaluator)]
