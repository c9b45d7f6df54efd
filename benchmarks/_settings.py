"""What is simulated: one setting a statistic and size, each with a truth that is known or computed from very many draws."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

from benchmarks._forms import Setting
from evalharness import stats
from evalharness.estimates import Items
from evalharness.types import MetricInfo

Array = np.ndarray
Generator = np.random.Generator


def make_items(clusters: Array | None = None, *, item: str = "sample", **columns: Array) -> Items:
    """Return items of one variant."""
    n = len(next(iter(columns.values())))
    name = None if clusters is None else "unit"
    return Items(variant="", item=item, part="items", rows=np.arange(n), columns=columns, clusters=clusters, cluster_name=name)


def metric(reduce: Any, *columns: str, low: float = 0.0, high: float = 1.0, interval: Any = "bootstrap") -> MetricInfo:
    """Return a metric of the given reducer and range."""
    name = reduce if isinstance(reduce, str) else "statistic"
    unit = "fraction" if math.isfinite(high) else "number"
    return MetricInfo(name=name, columns=columns, reduce=reduce, low=low, high=high, interval=interval, unit=unit)


def few_or_many(units: int, few: tuple[str, ...], many: tuple[str, ...]) -> tuple[str, ...]:
    """Return the forms to show beside what is used below and from 30 units."""
    return few if units < 30 else many


# --- means and proportions ------------------------------------------------------------------------------------------------


def draw_bounded(n: int, generator: Generator) -> Items:
    """Return values in [0, 1] as gains of a ranking are: .6 are 1, .1 are 0, the rest between."""
    kind = generator.random(n)
    return make_items(values=np.where(kind < 0.6, 1.0, np.where(kind < 0.7, 0.0, generator.random(n))))


def draw_near_one(n: int, generator: Generator) -> Items:
    """Return values of which .9 are 1 and the rest a little less."""
    return make_items(values=np.where(generator.random(n) < 0.9, 1.0, 0.5 + 0.5 * generator.random(n)))


MEANS: dict[str, tuple[float, tuple[float, float], Callable[[int, Generator], Items], tuple[int, ...]]] = {
    "mean, normal": (0.0, (-math.inf, math.inf), lambda n, generator: make_items(values=generator.standard_normal(n)), (5, 10, 20, 30)),
    "mean, exponential": (
        1.0,
        (0.0, math.inf),
        lambda n, generator: make_items(values=generator.standard_exponential(n)),
        (5, 10, 20, 30, 100, 1000),
    ),
    "mean, log-normal": (
        math.exp(0.5),
        (0.0, math.inf),
        lambda n, generator: make_items(values=generator.lognormal(0, 1, n)),
        (30, 100, 1000),
    ),
    "mean in [0, 1], many ones": (0.75, (0.0, 1.0), draw_bounded, (5, 10, 20, 30, 100)),
    "mean in [0, 1], near 1": (0.975, (0.0, 1.0), draw_near_one, (20, 30, 100)),
}


def mean_settings() -> list[Setting]:
    """Return means of several shapes, few and many."""
    return [
        Setting(
            what=what,
            size=f"{n} units",
            metric=metric("mean", "values", low=low, high=high),
            truth=truth,
            draw=partial(draw, n),
            rejected=few_or_many(n, ("percentile",), ()),
            others=(*few_or_many(n, (), ("percentile",)), "t on the jackknife", "percentile expanded", "BCa expanded", "studentised"),
            effort=1.0 if n < 1000 else 0.5,
        )
        for what, (truth, (low, high), draw, sizes) in MEANS.items()
        for n in sizes
    ]


def draw_hits(n: int, chance: float, generator: Generator) -> Items:
    """Return hits of one chance."""
    return make_items(values=(generator.random(n) < chance).astype(float))


def proportion_settings() -> list[Setting]:
    """Return proportions, with Wald's interval to compare."""
    return [
        Setting(
            what=f"proportion {chance}",
            size=f"{n} items",
            metric=metric("mean", "values", interval="wilson"),
            truth=chance,
            draw=partial(draw_hits, n, chance),
            rejected=("Wald",),
            others=("percentile",),
        )
        for chance, n in ((0.9, 20), (0.9, 100), (0.7, 1000), (0.98, 100), (0.995, 200))
    ]


def draw_clusters(clusters: int, classes: int, generator: Generator) -> Items:
    """Return hits, or predictions of several classes, whose chance of .75 differs by cluster; 1 to 20 rows each."""
    codes = np.repeat(np.arange(clusters), generator.integers(1, 21, clusters))
    hits = generator.random(len(codes)) < generator.beta(6, 2, clusters)[codes]
    if not classes:
        return make_items(codes, values=hits.astype(float))
    truth = generator.integers(0, classes, len(codes))
    wrong = (truth + generator.integers(1, classes, len(codes))) % classes
    return make_items(codes, truth=truth, prediction=np.where(hits, truth, wrong))


def cluster_settings() -> list[Setting]:
    """Return clustered items, with forms that take rows for independent."""
    hits = [
        Setting(
            what="clustered hits",
            size=f"{clusters} clusters",
            metric=metric("mean", "values", interval="wilson"),
            truth=0.75,
            draw=partial(draw_clusters, clusters, 0),
            rejected=("Wilson over rows", "percentile over rows", "percentile"),
            others=("t on the jackknife", "percentile expanded", "Wilson at effective n", "studentised"),
            effort=1.0 if clusters < 200 else 0.5,
        )
        for clusters in (5, 10, 20, 30, 50, 200)
    ]
    scores = [
        Setting(
            what="macro-F1 of clustered items, 5 classes",
            size=f"{clusters} clusters",
            metric=metric("macro_f1", "truth", "prediction"),
            truth=0.75,
            draw=partial(draw_clusters, clusters, 5),
            rejected=("percentile over rows",),
            others=("basic", "basic expanded", "percentile expanded", "t on the jackknife"),
        )
        for clusters in (20, 50)
    ]
    return hits + scores


def draw_ratio(n: int, generator: Generator) -> Items:
    """Return numerators that follow their denominators."""
    below = generator.gamma(2.0, 1.0, n)
    return make_items(above=below * generator.gamma(4.0, 0.25, n), below=below)


def sum_settings() -> list[Setting]:
    """Return ratios of sums and quantiles."""
    ratios = [
        Setting(
            what="ratio of sums",
            size=f"{n} items",
            metric=metric("ratio", "above", "below", high=math.inf),
            truth=1.0,
            draw=partial(draw_ratio, n),
            others=("t on the jackknife", "percentile", "percentile expanded", "studentised"),
        )
        for n in (20, 50, 200)
    ]
    quantiles = [
        Setting(
            what=f"quantile {q}, exponential",
            size=f"{n} items",
            metric=metric(stats.quantile(q), "values", high=math.inf),
            truth=-math.log(1 - q),
            draw=partial(MEANS["mean, exponential"][2], n),
            rejected=("t on the jackknife", "basic"),
            others=("percentile", "percentile expanded"),
        )
        for q, n in ((0.5, 10), (0.5, 20), (0.5, 50), (0.5, 200), (0.9, 200))
    ]
    return ratios + quantiles


# --- classes --------------------------------------------------------------------------------------------------------------


class Confusion:
    """Hold a classifier of C classes: shares, chances of a hit, and three classes that each is mistaken for."""

    def __init__(self, num_classes: int, accuracy: float, seed: int = 0) -> None:
        """Draw the classes' shares and chances around ``accuracy``."""
        generator = np.random.default_rng(seed)
        shares = generator.lognormal(0, 0.3, num_classes)
        self.shares = shares / shares.sum()
        self.recall = generator.beta(6 * accuracy / (1 - accuracy), 6, num_classes)
        self.mistaken = (np.arange(num_classes)[:, None] + generator.integers(1, num_classes, (num_classes, 3))) % num_classes

    def draw_truth(self, n: int, generator: Generator) -> Array:
        """Return the true classes of n items."""
        return generator.choice(len(self.shares), size=n, p=self.shares)

    def predict(self, truth: Array, luck: Array, generator: Generator) -> Array:
        """Return predictions; ``luck`` (n,) in [0, 1] decides which items are hit."""
        wrong = self.mistaken[truth, generator.integers(0, 3, len(truth))]
        return np.where(luck < self.recall[truth], truth, wrong)

    def draw(self, n: int, generator: Generator) -> Items:
        """Return true and predicted classes of n items."""
        truth = self.draw_truth(n, generator)
        return make_items(truth=truth, prediction=self.predict(truth, generator.random(n), generator))

    def macro_f1(self) -> float:
        """Return the value on infinitely many items."""
        hits = self.shares * self.recall
        wrong = np.zeros_like(hits)
        np.add.at(wrong, self.mistaken, ((self.shares - hits) / 3)[:, None])
        return float((2 * hits / (self.shares + hits + wrong)).mean())

    def balanced_accuracy(self) -> float:
        """Return the value on infinitely many items."""
        return float(self.recall.mean())


def class_settings() -> list[Setting]:
    """Return macro-F1 and balanced accuracy with many and with few classes."""
    found = []
    for classes, n in ((77, 300), (77, 1000), (77, 3000), (10, 300), (5, 29)):
        model = Confusion(classes, 0.8)
        scores = (("macro_f1", "macro-F1", model.macro_f1()), ("balanced_accuracy", "balanced accuracy", model.balanced_accuracy()))
        for name, title, truth in scores:
            worst = (classes, n, name) == (77, 300, "macro_f1")
            found.append(
                Setting(
                    what=f"{title}, {classes} classes",
                    size=f"{n} items",
                    metric=metric(name, "truth", "prediction"),
                    truth=truth,
                    draw=partial(model.draw, n),
                    rejected=("percentile", "percentile within classes", "basic within classes") if worst else (),
                    others=("basic expanded", "BCa", "t on the jackknife")
                    if worst
                    else ("basic", "percentile expanded", "t on the jackknife"),
                    effort=0.5 if classes == 77 else 1.0,
                )
            )
    return found


# --- ranks and correlations -----------------------------------------------------------------------------------------------


def draw_scores(n: int, shift: float, share: float, generator: Generator) -> Items:
    """Return scores of positives and negatives, normal of equal spread; the number of positives is fixed."""
    positive = np.arange(n) < round(share * n)
    return make_items(score=generator.standard_normal(n) + shift * positive, positive=positive)


def precision_of(shift: float, share: float) -> float:
    """Return the average precision on infinitely many items: the mean precision at a positive's score."""
    at = ndtri((np.arange(200_000) + 0.5) / 200_000) + shift
    found, wrong = share * ndtr(shift - at), (1 - share) * ndtr(-at)
    return float((found / (found + wrong)).mean())


def score_settings() -> list[Setting]:
    """Return areas under the curve and average precisions."""
    areas = [
        Setting(
            what=f"AUC {area}",
            size=f"{n} items, half positive",
            metric=metric("auc", "score", "positive"),
            truth=area,
            draw=partial(draw_scores, n, float(ndtri(area)) * math.sqrt(2), 0.5),
            rejected=few_or_many(n, (), ("basic", "percentile")),
            others=few_or_many(n, ("t on the jackknife", "percentile expanded", "BCa"), ("BCa", "BCa expanded")),
        )
        for area, n in ((0.98, 60), (0.98, 200), (0.75, 60), (0.75, 300), (0.9, 20), (0.8, 29))
    ]
    precisions = [
        Setting(
            what="average precision",
            size=f"{n} items, .2 positive",
            metric=metric("average_precision", "score", "positive"),
            truth=precision_of(1.5, 0.2),
            draw=partial(draw_scores, n, 1.5, 0.2),
            others=("t on the jackknife", "percentile", "percentile expanded", "BCa"),
            effort=1.0 if n < 500 else 0.5,
        )
        for n in (25, 200, 1000)
    ]
    return areas + precisions


def draw_pairs(n: int, correlation: float, generator: Generator, kind: str = "normal") -> Items:
    """Return two columns of the given Pearson correlation before ``kind``: normal, ``ties`` (grades 0 to 5), ``skewed``."""
    first = generator.standard_normal(n)
    second = correlation * first + math.sqrt(1 - correlation**2) * generator.standard_normal(n)
    if kind == "ties":
        second = np.clip(np.round(1.2 * second + 2.5), 0, 5)
    if kind == "skewed":
        first, second = np.exp(first / 2), np.exp(second / 2)
    return make_items(first=first, second=second)


def tied_truth(correlation: float) -> float:
    """Return Spearman's correlation of very many pairs with graded seconds."""
    columns = draw_pairs(1_000_000, correlation, np.random.default_rng(0), "ties").columns
    return float(stats.spearman(columns["first"], columns["second"], np.ones((1, 1_000_000), dtype=np.int8))[0])


def correlation_settings() -> list[Setting]:
    """Return Spearman and Pearson."""
    rank = [
        (f"Spearman {value}", "spearman", value, n, 2 * math.sin(math.pi * value / 6), "normal")
        for value, n in ((0.8, 100), (0.3, 100), (0.95, 50), (0.6, 20), (0.6, 10))
    ]
    graded = tied_truth(0.75)
    rank += [("Spearman, graded", "spearman", graded, n, 0.75, "ties") for n in (20, 50)]
    plain = [(f"Pearson {value}", "pearson", value, n, value, "normal") for value, n in ((0.8, 100), (0.3, 50), (0.6, 20), (0.6, 10))]
    skewed = math.expm1(0.25 * 0.7) / math.expm1(0.25)
    plain += [("Pearson, skewed", "pearson", skewed, n, 0.7, "skewed") for n in (20, 50, 200)]
    return [
        Setting(
            what=what,
            size=f"{n} pairs",
            metric=metric(name, "first", "second", low=-1.0),
            truth=truth,
            draw=partial(draw_pairs, n, correlation, kind=kind),
            rejected=few_or_many(n, (), ("basic",)),
            others=("t on the jackknife", "BCa", "BCa expanded", "percentile expanded", "t of Fisher's z"),
        )
        for what, name, truth, n, correlation, kind in rank + plain
    ]


def draw_regression(n: int, explained: float, generator: Generator) -> Items:
    """Return a target and a prediction that explains a share of its variance."""
    prediction = math.sqrt(explained) * generator.standard_normal(n)
    return make_items(truth=prediction + math.sqrt(1 - explained) * generator.standard_normal(n), prediction=prediction)


def regression_settings() -> list[Setting]:
    """Return R2."""
    return [
        Setting(
            what=f"R2 {value}",
            size=f"{n} items",
            metric=metric("r2", "truth", "prediction", low=-math.inf),
            truth=value,
            draw=partial(draw_regression, n, value),
            others=("t on the jackknife", "BCa", "BCa expanded", "percentile expanded"),
        )
        for value, n in ((0.6, 100), (0.1, 100), (0.9, 50), (0.6, 20))
    ]


# --- calibration ----------------------------------------------------------------------------------------------------------


def draw_confidence(n: int, excess: float, generator: Generator) -> Items:
    """Return confidences and hits of a model that is too sure by ``excess`` everywhere."""
    confidence = 0.4 + 0.6 * generator.random(n)
    return make_items(confidence=confidence, hit=(generator.random(n) < confidence - excess).astype(float))


def calibration_settings() -> list[Setting]:
    """Return calibration errors; the binned error of very many items is the excess."""
    return [
        Setting(
            what=f"calibration error {excess}",
            size=f"{n} items",
            metric=metric("calibration_error", "confidence", "hit"),
            truth=excess,
            draw=partial(draw_confidence, n, excess),
            rejected=("basic", "percentile"),
            others=("t · SD", "t · SD outside the band"),
            effort=0.5,
        )
        for excess, n in ((0.1, 300), (0.1, 1000), (0.05, 1000))
    ]


SECTIONS: dict[str, Callable[[], list[Setting]]] = {
    "Means": mean_settings,
    "Proportions": proportion_settings,
    "Clusters": cluster_settings,
    "Ratios and quantiles": sum_settings,
    "Classes": class_settings,
    "AUC and average precision": score_settings,
    "Correlations": correlation_settings,
    "R2": regression_settings,
    "Calibration": calibration_settings,
}
