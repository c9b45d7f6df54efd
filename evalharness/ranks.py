"""Rank sets: which places on a leaderboard can be excluded, in one task and over several."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from evalharness import stats
from evalharness.errors import StoreError
from evalharness.estimates import LEVEL, NO_INTERVAL, Resampler
from evalharness.evidence import Basis, Evidence
from evalharness.forms import FEW_UNITS
from evalharness.joint import Joint
from evalharness.shown import Record, label_of, version_of
from evalharness.types import Array

RankSet = tuple[int, int]


@dataclass(slots=True, kw_only=True)
class TaskRanks:
    """Hold what tells the encoders of one task apart: values, and their replicates or the errors of all differences.

    ``replicates`` is empty where the units are few or classes of episodes; then ``errors`` and the degrees of freedom decide.
    """

    labels: list[str]
    values: Array  # (M,), the largest best
    replicates: Array  # (M, R)
    errors: Array  # (M, M)
    degrees: float
    shared: str  # what tasks that share rows have in common

    def sets(self, level: float = LEVEL) -> dict[str, RankSet]:
        """Return each encoder's rank set."""
        return _sets(self.labels, self.values, self.replicates, self.errors, self.degrees, level)


@dataclass(slots=True, kw_only=True)
class SuiteRanks:
    """Hold the mean over tasks that share a scale, its interval and rank set, for these tasks alone."""

    means: dict[str, tuple[float, float, float]]
    sets: dict[str, RankSet]


def rank_task(evidence: Evidence, records: Sequence[Record], universe: Array | None = None) -> TaskRanks | None:
    """Return what tells the encoders of one task's main records apart; None where fewer than two may be ranked together.

    Args:
        evidence: the results.
        records: one measured record an encoder, of one task.
        universe: ids of all rows that tasks of the same data share, so that they are resampled together.

    Raises:
        StoreError: files are missing, or the encoders were scored on other items.
    """
    if len(records) < 2 or len({version_of(record) for record in records}) > 1:
        return None
    bases = [evidence.basis(record) for record in records]
    rows = _align(evidence, records, bases, universe)
    return tell_apart([label_of(record) for record in records], bases, evidence.resampler(records[0]), rows, shared=_shared(records[0]))


def tell_apart(
    labels: Sequence[str], bases: Sequence[Basis], resampler: Resampler, rows: Array | None = None, *, shared: str = ""
) -> TaskRanks | None:
    """Return what tells encoders apart whose items stand in one numbering of rows; None for fewer than five units, or an undefined value.

    Replicates decide where there are thirty units or more; the units themselves, with a t quantile after Bonferroni, where they are fewer or classes of episodes.
    """
    joint = Joint(bases[0].metric, [piece for basis in bases for piece in basis.pieces], resampler, rows)
    weights = _weights(bases)
    sign = -1.0 if joint.metric.higher_is_better is False else 1.0
    values = sign * (weights @ joint.values)
    if not np.isfinite(values).all() or joint.units < NO_INTERVAL:
        return None
    plain = not joint.episodic and (joint.units >= FEW_UNITS or joint.metric.reduce is None)
    replicates = sign * (weights @ joint.replicates) if plain else np.empty((len(labels), 0))
    known = _finite(replicates)
    errors = stats.pairwise(values, known).error if known.shape[1] else _errors(joint, weights)
    return TaskRanks(
        labels=list(labels),
        values=values,
        replicates=replicates,
        errors=errors,
        degrees=math.inf if plain else joint.units - 1,
        shared=shared,
    )


def _shared(record: Record) -> str:
    return f"{record['dataset']} {record['dataset_fingerprint']}"


def _align(evidence: Evidence, records: Sequence[Record], bases: Sequence[Basis], universe: Array | None) -> Array | None:
    """Bring all pieces into one numbering of rows by id, and return the rows of the universe.

    Raises:
        StoreError: an encoder was scored on other items than the first.
    """
    first = evidence.ids(records[0], bases[0].pieces[0])
    known = {item: at for at, item in enumerate(np.unique(first.astype(str)) if universe is None else universe)}
    wanted = set(first.tolist())
    for record, basis in zip(records, bases, strict=True):
        for at, piece in enumerate(basis.pieces):
            ids = evidence.ids(record, piece)
            if len(ids) != len(first) or set(ids.tolist()) != wanted:
                raise StoreError(f"`{label_of(record)}` was scored on other items of `{record['task']}` than `{label_of(records[0])}`")
            basis.pieces[at] = replace(piece, rows=np.array([known[item] for item in ids], dtype=np.int64))
    return None if universe is None else np.arange(len(universe))


def _weights(bases: Sequence[Basis]) -> Array:
    sizes = [len(basis.pieces) for basis in bases]
    weights = np.zeros((len(bases), sum(sizes)))
    for at, basis in enumerate(bases):
        weights[at, sum(sizes[:at]) : sum(sizes[: at + 1])] = basis.weights
    return weights


def _errors(joint: Joint, weights: Array) -> Array:
    """Return the standard errors of all differences from the units themselves; NaN where they cannot be known."""
    count = len(weights)
    errors = np.zeros((count, count))
    for at in range(count):
        for other in range(at):
            errors[at, other] = errors[other, at] = joint.error(weights[at] - weights[other])
    return errors


def _finite(replicates: Array) -> Array:
    """Return the resamples in which every encoder has a value."""
    return np.asarray(replicates[:, np.isfinite(replicates).all(axis=0)])


def _sets(labels: Sequence[str], values: Array, replicates: Array, errors: Array, degrees: float, level: float) -> dict[str, RankSet]:
    if _finite(replicates).shape[1] > 1:
        found = stats.rank_sets(values, _finite(replicates), level)
    else:
        found = stats.rank_sets_from_errors(values, errors, _critical(len(values), degrees, level))
    return dict(zip(labels, found, strict=True))


def _critical(count: int, degrees: float, level: float) -> float:
    """Return how many errors apart is clear for all pairs at once, after Bonferroni."""
    from scipy.special import ndtri, stdtrit

    pairs = count * (count - 1) / 2
    probability = 1 - (1 - level) / (2 * pairs)
    return float(ndtri(probability) if math.isinf(degrees) else stdtrit(degrees, probability))


def rank_tasks(evidence: Evidence, by_task: Mapping[str, Sequence[Record]]) -> tuple[dict[str, TaskRanks], dict[str, str]]:
    """Return what tells the encoders of every task apart, tasks that share rows being resampled together, and why some have none."""
    found: dict[str, TaskRanks] = {}
    reasons: dict[str, str] = {}
    universes = _universes(evidence, by_task)
    for task, records in by_task.items():
        try:
            ranks = rank_task(evidence, records, universes.get(task))
        except StoreError as error:
            reasons[task] = str(error)
            continue
        finally:
            evidence.forget()
        if ranks is not None:
            found[task] = ranks
    return found, reasons


def _universes(evidence: Evidence, by_task: Mapping[str, Sequence[Record]]) -> dict[str, Array]:
    """Return, for tasks over the same data, the ids of all rows that any of them scores."""
    shared: dict[str, list[str]] = {}
    for task, records in by_task.items():
        if records:
            shared.setdefault(_shared(records[0]), []).append(task)
    universes: dict[str, Array] = {}
    for tasks in shared.values():
        if len(tasks) > 1:
            ids = [_ids(evidence, by_task[task][0]) for task in tasks]
            known = [each for each in ids if each is not None]
            if len(known) > 1:
                together = np.unique(np.concatenate(known))
                universes |= {task: together for task, own in zip(tasks, ids, strict=True) if own is not None}
    return universes


def _ids(evidence: Evidence, record: Record) -> Array | None:
    """Return the ids that a record's items have; None where rows are drawn in clusters, whose codes are one task's own, or are episodes."""
    try:
        piece = evidence.basis(record).pieces[0]
    except StoreError:
        return None
    if piece.clusters is not None or piece.item == "episode":
        return None
    return evidence.ids(record, piece).astype(str)


def rank_suite(ranks: Mapping[str, TaskRanks], tasks: Sequence[str]) -> SuiteRanks | None:
    """Return means over tasks with intervals and rank sets; None unless every task was measured for at least two encoders in common.

    An encoder that lacks a task has no mean.
    """
    if not tasks or any(task not in ranks for task in tasks):
        return None
    labels = [label for label in ranks[tasks[0]].labels if all(label in ranks[task].labels for task in tasks)]
    if len(labels) < 2:
        return None
    places = [[ranks[task].labels.index(label) for label in labels] for task in tasks]
    values = np.mean([ranks[task].values[at] for task, at in zip(tasks, places, strict=True)], axis=0)
    width = min(ranks[task].replicates.shape[1] for task in tasks)
    replicates = np.empty((len(labels), 0))
    if width:
        replicates = np.mean([ranks[task].replicates[at, :width] for task, at in zip(tasks, places, strict=True)], axis=0)
        errors = stats.pairwise(values, _finite(replicates)).error
    else:
        # Tasks over the same data may err together: their errors add, those of other data add as squares.
        together: dict[str, Array] = {}
        for task, at in zip(tasks, places, strict=True):
            known = ranks[task].shared or task
            together[known] = together.get(known, 0.0) + ranks[task].errors[np.ix_(at, at)]
        errors = np.sqrt(np.sum([np.square(each) for each in together.values()], axis=0)) / len(tasks)
    degrees = min(ranks[task].degrees for task in tasks)
    sets = _sets(labels, values, replicates, errors, degrees, LEVEL)
    means = {label: _interval(values[at], replicates[at]) for at, label in enumerate(labels)}
    return SuiteRanks(means=means, sets=sets)


def _interval(value: float, replicates: Array) -> tuple[float, float, float]:
    """Return a mean with the bounds of its replicates, NaN where there are none."""
    if not len(replicates):
        return float(value), math.nan, math.nan
    interval = stats.bootstrap(float(value), replicates[np.isfinite(replicates)], method="percentile", level=LEVEL)
    return float(value), interval.low, interval.high
