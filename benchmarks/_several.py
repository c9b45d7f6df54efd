"""Simulations of what rests on several samples: differences, worst groups, rank sets, tests and bands."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.special import ndtri

from benchmarks._forms import USED, Tally
from benchmarks._settings import Confusion, draw_clusters, make_items, metric
from evalharness import stats
from evalharness.estimates import LEVEL, Items, Resampler, estimate
from evalharness.joint import Joint
from evalharness.types import Interval, MetricInfo

Array = np.ndarray
Generator = np.random.Generator
POOL = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Hold one line of a table: a form, its role (used, rejected, other), how often it was right and how often it should be."""

    what: str
    size: str
    form: str
    role: str
    right: float
    aim: float = LEVEL
    width: str = ""
    given: float = 1.0


def _resamplers() -> list[Resampler]:
    return [Resampler(at, keep=64) for at in range(POOL)]


# --- differences ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Hold a difference to simulate: ``draw`` gives two pieces of items."""

    what: str
    size: str
    metric: MetricInfo
    truth: float
    draw: Callable[[Generator], tuple[Items, Items]]
    others: Mapping[str, Callable[[Joint], Interval]]
    effort: float = 1.0


def _take_unpaired(joint: Joint) -> Interval:
    """Return the interval that forgets the pairing, by taking the second's replicates in another order."""
    first, second = joint.replicates
    return stats.bootstrap(float(joint.values[0] - joint.values[1]), first - np.roll(second, 1))


def _percentile(joint: Joint) -> Interval:
    first, second = joint.replicates
    return stats.bootstrap(float(joint.values[0] - joint.values[1]), first - second, method="percentile")


def _expanded(joint: Joint) -> Interval:
    first, second = joint.replicates
    return stats.bootstrap(float(joint.values[0] - joint.values[1]), first - second, n=joint.units, expand=True)


def _left_out(joint: Joint) -> Interval:
    return stats.jackknife_interval(float(joint.values[0] - joint.values[1]), joint.left_out[0] - joint.left_out[1])


def _wald(joint: Joint) -> Interval:
    sizes = [len(piece.rows) for piece in joint.pieces]
    error = math.sqrt(sum(value * (1 - value) / size for value, size in zip(joint.values, sizes, strict=True)))
    centre, half = float(joint.values[0] - joint.values[1]), float(ndtri((1 + LEVEL) / 2)) * error
    return Interval(low=centre - half, high=centre + half, level=LEVEL, method="wald", n=sum(sizes))


def _paired_values(n: int, generator: Generator) -> tuple[Items, Items]:
    base = generator.standard_exponential(n)
    first, second = (make_items(values=base + 0.5 * generator.standard_exponential(n) + shift) for shift in (0.1, 0.0))
    return first, second


def _paired_predictions(models: tuple[Confusion, Confusion], n: int, generator: Generator) -> tuple[Items, Items]:
    truth = models[0].draw_truth(n, generator)
    shared = ndtri(generator.random(n))
    pieces = []
    for model in models:
        luck = 0.5 * (1 + np.vectorize(math.erf)((0.8 * shared + 0.6 * generator.standard_normal(n)) / math.sqrt(2)))
        pieces.append(make_items(truth=truth, prediction=model.predict(truth, luck, generator)))
    return pieces[0], pieces[1]


def _paired_clusters(clusters: int, generator: Generator) -> tuple[Items, Items]:
    first = draw_clusters(clusters, 0, generator)
    assert first.clusters is not None
    flipped = generator.random(len(first.rows)) < 0.2
    hits = first.columns["values"]
    return first, make_items(first.clusters, values=np.where(flipped, 1 - hits, hits))


def _apart(generator: Generator) -> tuple[Items, Items]:
    first = make_items(values=(generator.random(50) < 0.95).astype(float))
    second = make_items(values=(generator.random(80) < 0.85).astype(float))
    second.rows = second.rows + 50
    return first, second


def pairs() -> list[Pair]:
    """Return all differences."""
    anywhere = metric("mean", "values", low=-math.inf, high=math.inf)
    hits = metric("mean", "values", interval="wilson")
    paired: dict[str, Callable[[Joint], Interval]] = {
        "unpaired": _take_unpaired,
        "percentile": _percentile,
        "basic expanded": _expanded,
        "t on the jackknife": _left_out,
    }
    found = [
        Pair(what="paired means, skewed", size=f"{n} items", metric=anywhere, truth=0.1, draw=partial(_paired_values, n), others=paired)
        for n in (20, 50, 300)
    ]
    for classes, n in ((77, 300), (10, 300)):
        models = Confusion(classes, 0.8), Confusion(classes, 0.75)
        truth, info = models[0].macro_f1() - models[1].macro_f1(), metric("macro_f1", "truth", "prediction")
        what, draw = f"paired macro-F1, {classes} classes", partial(_paired_predictions, models, n)
        found.append(Pair(what=what, size=f"{n} items", metric=info, truth=truth, draw=draw, others=paired, effort=0.4))
    truth = 0.75 - (0.75 * 0.8 + 0.25 * 0.2)
    found += [
        Pair(
            what="paired clustered hits",
            size=f"{clusters} clusters",
            metric=hits,
            truth=truth,
            draw=partial(_paired_clusters, clusters),
            others=paired,
        )
        for clusters in (20, 50)
    ]
    wald: dict[str, Callable[[Joint], Interval]] = {"Wald": _wald}
    found.append(Pair(what="unpaired proportions", size="50 and 80 items", metric=hits, truth=0.1, draw=_apart, others=wald))
    return found


def difference_lines(repeats: int) -> Iterator[Line]:
    """Simulate differences."""
    resamplers = _resamplers()
    for pair in pairs():
        generator = np.random.default_rng([1, *pair.what.encode(), *pair.size.encode()])
        tallies = {form: Tally() for form in (USED, *pair.others)}
        values, method = [], ""
        for at in range(int(repeats * pair.effort)):
            joint = Joint(pair.metric, pair.draw(generator), resamplers[at % POOL])
            found = joint.combine([1.0, -1.0])
            method = found.interval.method
            values.append(found.value)
            tallies[USED].add(found.interval, pair.truth)
            for form, make in pair.others.items():
                tallies[form].add(make(joint), pair.truth)
        unit = 2 * float(ndtri((1 + LEVEL) / 2)) * float(np.std(values, ddof=1))
        for form, tally in tallies.items():
            role = USED if form == USED else "rejected" if form in ("unpaired", "Wald") else "other"
            yield Line(
                what=pair.what,
                size=pair.size,
                form=method if form == USED else form,
                role=role,
                right=tally.coverage,
                width=f"{tally.width / max(1, tally.given) / unit:.2f}",
                given=tally.given / tally.total,
            )


# --- worst groups ---------------------------------------------------------------------------------------------------------


def group_lines(repeats: int) -> Iterator[Line]:
    """Simulate the bound below all of ten groups, the bootstrap of the minimum, and the permutation null."""
    info = metric("mean", "values", interval="wilson")
    for title, sizes, chances in (
        ("worst of ten equal groups", [50] * 10, [0.8] * 10),
        ("worst of ten equal groups", [500] * 10, [0.8] * 10),
        ("worst of ten groups, one of them worse", [30, 50, 50, 100, 100, 200, 200, 300, 400, 500], [0.7] + [0.85] * 9),
    ):
        yield from _worst_lines(title, np.array(sizes), np.array(chances), info, repeats)


def _worst_lines(title: str, sizes: Array, chances: Array, info: MetricInfo, repeats: int) -> Iterator[Line]:
    generator, resamplers = np.random.default_rng([2, *sizes.tolist()]), _resamplers()
    groups = np.repeat(np.arange(len(sizes)), sizes)
    simultaneous = stats.simultaneous_level(LEVEL, len(sizes))
    bounded, gaps, bootstrapped, found = np.zeros(2), np.zeros(2), Tally(), 0
    for at in range(repeats):
        hits = (generator.random(len(groups)) < chances[groups]).astype(float)
        pieces = [make_items(values=hits[groups == group]) for group in range(len(sizes))]
        estimates = [estimate(info, piece, resamplers[at % POOL], stats.one_sided_level(LEVEL)) for piece in pieces]
        value = min(each.value for each in estimates)
        wide = [stats.wilson(each.value * each.n, each.n, simultaneous).low for each in estimates]
        worst = stats.worst_group_bound([each.value for each in estimates], [each.interval for each in estimates], level=LEVEL)
        bounds = np.array([worst.bound, min(wide)])
        bounded += bounds <= chances.min()
        gaps += chances.min() - bounds
        resampled = generator.binomial(sizes, [each.value for each in estimates], (2000, len(sizes))) / sizes
        bootstrapped.add(stats.bootstrap(value, resampled.min(axis=1), method="percentile"), float(chances.min()))
        if len(set(chances)) == 1:
            found += stats.worst_group_null([hits], groups, "mean", generator, permutations=199).p <= 1 - LEVEL
    size = f"{sizes.min()} to {sizes.max()} items each" if len(set(sizes)) > 1 else f"{sizes[0]} items each"
    forms = (("lowest of one-sided bounds", USED), ("lowest of simultaneous bounds", "rejected"))
    for place, (form, role) in enumerate(forms):
        width = f"{gaps[place] / repeats:.3f} below"
        yield Line(what=title, size=size, form=form, role=role, right=bounded[place] / repeats, width=width)
    yield Line(what=title, size=size, form="percentile of the minimum", role="rejected", right=bootstrapped.coverage)
    if len(set(chances)) == 1:
        yield Line(what=title, size=size, form="permutation null, p ≤ .05", role=USED, right=found / repeats, aim=1 - LEVEL)


# --- rank sets ------------------------------------------------------------------------------------------------------------


def _contains(sets: Sequence[tuple[int, int]], truth: Array) -> bool:
    """Return whether every set holds all ranks that its model may claim; models of equal truth share theirs."""
    better = (truth[None, :] > truth[:, None]).sum(axis=1)
    worse = (truth[None, :] < truth[:, None]).sum(axis=1)
    return all(low <= 1 + up and high >= len(truth) - down for (low, high), up, down in zip(sets, better, worse, strict=True))


def _rank_quantiles(replicates: Array) -> list[tuple[int, int]]:
    """Return the middle 95 % of each model's ranks over resamples."""
    ranks = 1 + (replicates[None, :, :] > replicates[:, None, :]).sum(axis=1)
    ends = np.quantile(ranks, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=1, method="nearest")
    return [(int(low), int(high)) for low, high in ends.T]


def rank_lines(repeats: int) -> Iterator[Line]:
    """Simulate rank sets of five models on 200 shared items: all sets right at once."""
    for title, truth in (
        ("five equal models", np.zeros(5)),
        ("five near models", np.array([0.2, 0.15, 0.1, 0.05, 0.0])),
        ("two equal, three far behind", np.array([1.0, 1.0, 0.5, 0.25, 0.0])),
    ):
        generator, draws = np.random.default_rng([3, *title.encode()]), [stats.Resamples(200, 2000, seed) for seed in range(POOL)]
        right, sizes = dict.fromkeys((USED, "pairs at 1.96 each", "quantiles of bootstrap ranks"), 0), dict.fromkeys(range(3), 0.0)
        for at in range(repeats):
            values = generator.standard_normal((200, 1)) + generator.standard_normal((200, 5)) + truth
            replicates, means = draws[at % POOL].means(values).T, values.mean(axis=0)
            each = (
                stats.rank_sets(means, replicates),
                stats.rank_sets_from_errors(means, stats.pairwise(means, replicates).error, 1.959964),
                _rank_quantiles(replicates),
            )
            for place, (form, sets) in enumerate(zip(right, each, strict=True)):
                right[form] += _contains(sets, truth)
                sizes[place] += sum(high - low + 1 for low, high in sets) / 5 / repeats
        for place, (form, count) in enumerate(right.items()):
            name = "max-t over pairs" if form == USED else form
            role = USED if form == USED else "rejected"
            yield Line(what=title, size="200 items", form=name, role=role, right=count / repeats, width=f"{sizes[place]:.2f} ranks")


# --- tests and bands ------------------------------------------------------------------------------------------------------


def test_lines(repeats: int) -> Iterator[Line]:
    """Simulate how often tests reject what is true, and the band of a calibrated model."""
    found = dict.fromkeys(range(6), 0)
    generator, draws = np.random.default_rng(4), [stats.Resamples(100, 2000, seed) for seed in range(POOL)]
    for at in range(repeats):
        skewed = generator.standard_exponential(60) - generator.standard_exponential(60)
        found[0] += stats.sign_flip(skewed, generator, flips=999) <= 1 - LEVEL
        clusters = np.repeat(np.arange(12), 10)
        found[1] += (
            stats.sign_flip(generator.standard_normal(12)[clusters] + generator.standard_normal(120), generator, clusters) <= 1 - LEVEL
        )
        found[2] += (
            stats.sign_flip(generator.standard_normal(12)[clusters] + generator.standard_normal(120), generator, flips=999) <= 1 - LEVEL
        )
        one, other = (int(count) for count in generator.multinomial(200, [0.1, 0.1, 0.8])[:2])
        mcnemar = stats.mcnemar(one, other)
        found[3] += mcnemar.p <= 1 - LEVEL
        found[4] += mcnemar.mid_p <= 1 - LEVEL
        first, second = generator.standard_exponential((2, 100))
        replicates = draws[at % POOL].means(np.stack([first, second], axis=1))
        found[5] += stats.paired_difference(first.mean(), second.mean(), *replicates.T).p <= 1 - LEVEL
    for (what, size, form, role), count in zip(
        (
            ("sign flips, skewed differences", "60 items", "random signs", USED),
            ("sign flips, clustered differences", "12 clusters of 10", "signs of whole clusters", USED),
            ("sign flips, clustered differences", "12 clusters of 10", "signs of rows", "rejected"),
            ("McNemar", "200 items, .2 discordant", "exact below 25, else chi-square", USED),
            ("McNemar", "200 items, .2 discordant", "mid-p", "other"),
            ("paired bootstrap", "100 items", "inverted basic interval", USED),
        ),
        found.values(),
        strict=True,
    ):
        yield Line(what=what, size=size, form=form, role=role, right=count / repeats, aim=1 - LEVEL)
    yield from _band_lines(repeats // 2)


def _band_lines(repeats: int) -> Iterator[Line]:
    generator = np.random.default_rng(5)
    reducer, weights, inside = stats.get_reducer("calibration_error"), np.ones((1, 300), dtype=np.int8), 0
    for _ in range(repeats):
        confidence = 0.4 + 0.6 * generator.random(300)
        hits = (generator.random(300) < confidence).astype(float)
        inside += reducer(confidence, hits, weights)[0] <= stats.calibration_band(confidence, generator)
    yield Line(what="band of a calibrated model", size="300 items", form="calibration_band", role=USED, right=inside / repeats)
