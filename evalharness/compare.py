"""Two encoders item by item over stored outcomes: difference, interval, p, and what may be claimed."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from evalharness import stats
from evalharness.errors import DataError, StoreError, UsageError, unknown_name
from evalharness.estimates import LEVEL, NO_INTERVAL, Estimate, Items, nothing
from evalharness.evidence import Basis, Evidence
from evalharness.forms import FEW_UNITS
from evalharness.joint import Joint
from evalharness.records import limit_of
from evalharness.shown import COMPARED, Record, check_where, counterparts, field_of, label_of, matches, number, where_text, why_none
from evalharness.types import Array, MetricInfo

ALPHA = 1 - LEVEL
POWER = 0.8
FLIPS = 9999
EXACT_BELOW = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemPair:
    """Hold one item on which the two encoders differ: its id and what was seen of it, as text."""

    id: str
    truth: str
    first: str
    second: str
    gain: float  # how much better the first did, in units of the metric's own column


@dataclass(slots=True, kw_only=True)
class Comparison:
    """Hold one task's comparison; ``difference`` is the first encoder's value less the second's."""

    suite: str | None
    task: str
    metric: str
    first: float
    second: float
    higher_is_better: bool
    difference: Estimate
    test: str
    p: float
    holm: float = math.nan
    detectable: float = math.nan
    items: list[ItemPair] = field(default_factory=list)
    refused: str | None = None

    @property
    def verdict(self) -> str:
        """Return which encoder may be called better: ``first``, ``second``, ``tie`` where they never differ, or ``none``."""
        if self.p == 1 and self.difference.value == 0 and not math.isfinite(self.difference.interval.low):
            return "tie"
        if not self.holm < ALPHA or self.difference.value == 0:
            return "none"
        return "first" if (self.difference.value > 0) == self.higher_is_better else "second"


@dataclass(slots=True, kw_only=True)
class ComparisonTable:
    """Hold the comparison of two encoders over all tasks that both were measured on."""

    first: str
    second: str
    rows: list[Comparison]
    skipped: list[str]
    others: list[str] = field(default_factory=list)  # tasks of another modality
    cell: str = ""  # which cell is compared, where it is not the main one

    @property
    def sentence(self) -> str:
        """Return in plain words what may be claimed, and what may not."""
        return _sentence(self)


def compare(
    evidence: Evidence,
    first: str,
    second: str,
    *,
    suite: str | None = None,
    task: str | None = None,
    metric: str | None = None,
    where: Mapping[str, str] | None = None,
    items: int = 0,
) -> ComparisonTable:
    """Compare two encoders on the main metric of every task that both were measured on.

    Args:
        evidence: the results.
        first: the label of an encoder, ``name`` or ``name@layer``, parameters with it.
        second: the label of another.
        suite: keep one suite's records.
        task: keep one task.
        metric: another metric of the main cell's evaluator.
        where: another cell, by the fields of its records, as ``codec=int8``; axes not named are the main cell's.
        items: list so many items on which the two differ most.

    Raises:
        UsageError: an encoder is unknown, or the two are one.
        DataError: there is nothing that both were measured on, or no pair of rows may be compared.
    """
    records = [
        record
        for record in evidence.reader.records()
        if (suite is None or record["suite"] == suite) and (task is None or record["task"] == task)
    ]
    _check_names(records, first, second)
    check_where(where or {}, records)
    named = {**(where or {}), **({} if metric is None else {"metric": metric})}
    pairs, skipped, others = _pairs(records, (first, second), named)
    if not pairs:
        reasons = [*skipped, *([f"of another modality: {', '.join(others)}"] if others else [])]
        because = f": {'; '.join(reasons)}" if reasons else ""
        raise DataError(f"nothing that both `{first}` and `{second}` were measured on{because}")
    rows = []
    for one, other in pairs:
        rows.append(compare_records(evidence, one, other, items))
        evidence.forget()
    if all(row.refused for row in rows):
        raise DataError(f"`{first}` and `{second}` cannot be compared: " + "; ".join(f"{row.task}: {row.refused}" for row in rows))
    for row, adjusted in zip(rows, stats.holm([row.p for row in rows]), strict=True):
        row.holm = float(adjusted)
    return ComparisonTable(first=first, second=second, rows=rows, skipped=skipped, others=others, cell=where_text(named))


def _check_names(records: Sequence[Record], first: str, second: str) -> None:
    known = sorted({label_of(record) for record in records})
    if not known:
        raise DataError("no results match; run `evalharness run` first, or name a folder")
    for name in (first, second):
        if name not in known:
            raise UsageError(f"{unknown_name('encoder', name, known)} (encoders in these results: {', '.join(known)})")
    if first == second:
        raise UsageError(f"`{first}` is compared with itself; name two encoders")


def _pairs(
    records: Sequence[Record], labels: tuple[str, str], where: Mapping[str, str]
) -> tuple[list[tuple[Record, Record]], list[str], list[str]]:
    """Return the records to compare, one pair a task, why tasks were left out, and those that are of another modality."""
    pairs: list[tuple[Record, Record]] = []
    skipped, others = [], []
    for name in sorted({record["task"] for record in records}):
        own = [[record for record in records if record["task"] == name and label_of(record) == label] for label in labels]
        if any(record["main"] and record["status"] == "not_applicable" for side in own for record in side):
            others.append(name)
            continue
        sides = [counterparts(side, where) for side in own]
        for limit in sorted({limit_of(record) for side in own for record in side if record["main"]}):
            held = [[record for record in side if limit_of(record) == limit] for side in sides]
            reasons = [_why_not(*each, limit, where) for each in zip(held, own, labels, strict=True)]
            because = next((reason for reason in reasons if reason), None)
            if because:
                skipped.append(f"{name}{f' limited to {limit} rows' if limit else ''}: {because}")
            else:
                pairs.append((_same_suite(held[0], held[1]), _same_suite(held[1], held[0])))
    return pairs, skipped, others


def _why_not(side: Sequence[Record], own: Sequence[Record], label: str, limit: str, where: Mapping[str, str]) -> str | None:
    if not side and any(limit_of(record) == limit for record in own):
        elsewhere = f" ({why_none(own, where)})" if any(matches(record, where) for record in own) else ""
        return f"`{label}` has no record of {where_text(where)}{elsewhere}"
    if not side:
        return f"`{label}` was not run"
    if all(record["value"] is None for record in side):
        return f"`{label}` is {side[0]['status'].replace('_', ' ')}" + (f" ({side[0]['reason']})" if side[0]["reason"] else "")
    return None


def _same_suite(side: Sequence[Record], other: Sequence[Record]) -> Record:
    """Return one of the records of a cell that stands under several suites, of a suite that both share where there is one."""
    measured = [record for record in side if record["value"] is not None]
    shared = {record["suite"] for record in other if record["value"] is not None}
    return next((record for record in measured if record["suite"] in shared), measured[-1])


# --- one pair of records ------------------------------------------------------------------------------------------


def compare_records(evidence: Evidence, one: Record, other: Record, num_items: int = 0, *, apart: Collection[str] = ()) -> Comparison:
    """Compare two records; what must not be compared is refused with the reason, but for fields that are meant to be ``apart``."""
    row = Comparison(
        suite=one["suite"],
        task=one["task"],
        metric=one["metric"],
        first=one["value"],
        second=other["value"],
        higher_is_better=one["higher_is_better"] is not False,
        difference=_no_estimate(one["value"] - other["value"]),
        test="",
        p=math.nan,
    )
    row.refused = refusal(one, other, apart)
    if row.refused is None:
        try:
            sides = [evidence.basis(one), evidence.basis(other)]
            _align(evidence, (one, other), sides)
        except StoreError as fault:
            row.refused = str(fault)
    if row.refused is not None:
        return row
    factors = [*sides[0].weights, *[-weight for weight in sides[1].weights]]
    joint = Joint(sides[0].metric, [*sides[0].pieces, *sides[1].pieces], evidence.resampler(one))
    row.difference = joint.combine(factors)
    row.test, row.p, error = paired_test(joint, factors, evidence.resampler(one).generator("sign flips", one["task"]))
    row.detectable = stats.detectable_difference(error, LEVEL, POWER) if error > 0 else math.nan
    if num_items:
        row.items = _items(evidence, one, sides, num_items, higher=row.higher_is_better)
    return row


def _no_estimate(value: float) -> Estimate:
    return Estimate(value=value, interval=nothing(0), scope=None, n=0, n_units=0)


def refusal(one: Record, other: Record, apart: Collection[str] = ()) -> str | None:
    """Return why two records must not be compared, naming the field that differs and is not meant to be ``apart``."""
    for name in ("task", "metric", *COMPARED, "evaluator", "params", "target", "fit", "shift", "severity", "codec", "statistic", "over"):
        values = field_of(one, name), field_of(other, name)
        if values[0] != values[1] and name not in apart:
            return f"`{name}` differs: {_short(values[0])} and {_short(values[1])}"
    bad = next((record for record in (one, other) if record["status"] != "measured"), None)
    return None if bad is None else f"`{label_of(bad)}` is {bad['status'].replace('_', ' ')}"


def _short(value: Any) -> str:
    text = str(value)
    return f"`{text}`" if len(text) <= 60 else f"`{text[:57]}…`"


def _align(evidence: Evidence, records: tuple[Record, Record], sides: Sequence[Basis]) -> None:
    """Bring the second side's items into the first's rows by id.

    Raises:
        StoreError: the two were not scored on the same items.
    """
    ids = [evidence.ids(record, side.pieces[0]) for record, side in zip(records, sides, strict=True)]
    shared = np.intersect1d(ids[0].astype(str), ids[1].astype(str))
    if not len(shared):
        raise StoreError("they have no items in common")
    sizes = [len(np.unique(each.astype(str))) for each in ids]
    if len(shared) < max(sizes):
        raise StoreError(f"they were scored on other items: {len(shared)} in common of {sizes[0]} and {sizes[1]}")
    rows = dict(zip(ids[0].tolist(), sides[0].pieces[0].rows.tolist(), strict=True))
    for at, piece in enumerate(sides[1].pieces):
        own = ids[1] if at == 0 else evidence.ids(records[1], piece)
        sides[1].pieces[at] = replace(piece, rows=np.array([rows[item] for item in own], dtype=np.int64))


def paired_test(joint: Joint, factors: Sequence[float], generator: np.random.Generator) -> tuple[str, float, float]:
    """Return the name of the test that a difference asks for, its two-sided p, and the standard error of the difference.

    Exact McNemar under 25 discordant items, sign flips of whole clusters for means, the class-level jackknife for episodes, the paired bootstrap for the rest.
    Encoders that never differ are a tie with p = 1.
    """
    weights = np.asarray(factors, dtype=np.float64)
    if not math.isfinite(float(weights @ joint.values)) or not joint.paired:
        return "", math.nan, math.nan
    if _identical(joint, weights):
        return "identical", 1.0, 0.0
    error = joint.error(weights)
    if joint.episodic:
        return "class jackknife t", _t_test(float(weights @ joint.values), error, joint.units - 1), error
    if joint.metric.reduce == "mean":
        differences = joint.combined_scores(weights)
        return *_mean_test(joint, differences, generator), error
    if joint.units < NO_INTERVAL:
        return "", math.nan, error
    if joint.metric.reduce is None or joint.units < FEW_UNITS:
        return (
            "jackknife t" if joint.metric.reduce else "half-sample",
            _t_test(float(weights @ joint.values), error, joint.units - 1),
            error,
        )
    deltas = weights @ joint.replicates
    found = stats.paired_difference(float(weights @ joint.values), 0.0, deltas, np.zeros(len(deltas)), n=joint.units, expand=True)
    return "paired bootstrap", found.p, error


def _identical(joint: Joint, weights: Array) -> bool:
    """Say whether no item, or half-sample, tells the two sides apart."""
    if joint.metric.reduce is None:
        return bool(joint.replicates.shape[1]) and not (weights @ joint.replicates).any() and not (weights @ joint.values)
    half = len(weights) // 2
    if len(weights) == 2 * half and (weights[:half] == -weights[half:]).all():
        pairs = zip(joint.pieces[:half], joint.pieces[half:], strict=True)
        return all((one.columns[name] == other.columns[name]).all() for one, other in pairs for name in joint.metric.columns)
    return False


def _mean_test(joint: Joint, differences: Array, generator: np.random.Generator) -> tuple[str, float]:
    if not np.isfinite(differences).all():
        return "", math.nan
    discordant = differences[differences != 0]
    if joint.clusters is None and np.isin(differences, (-1.0, 0.0, 1.0)).all() and len(discordant) < EXACT_BELOW:
        return "exact McNemar", stats.mcnemar(int((discordant > 0).sum()), int((discordant < 0).sum())).exact
    return "sign flips", stats.sign_flip(differences, generator, joint.clusters, flips=FLIPS)


def _t_test(value: float, error: float, degrees: int) -> float:
    from scipy.special import stdtr

    return float(2 * stdtr(degrees, -abs(value) / error)) if error > 0 else math.nan


# --- items --------------------------------------------------------------------------------------------------------


def _items(evidence: Evidence, record: Record, sides: Sequence[Basis], count: int, *, higher: bool) -> list[ItemPair]:
    """Return the items on which the two differ most; of equal ones, those that differ most in the other columns."""
    metric = sides[0].metric
    one, other = (side.pieces[0].in_order() for side in sides)
    scores = [item_scores(metric, items) for items in (one, other)]
    if scores[0] is None or scores[1] is None:
        return []
    gains = (scores[0] - scores[1]) * (1 if higher or metric.reduce != "mean" else -1)
    finer = _finer(one, other, metric)
    order = _most_different(gains, finer, count)
    ids, columns = evidence.ids(record, one), evidence.columns(record, one)
    target = columns.get(record["target"] or "")
    names = target.names if target is not None and target.kind == "class" else ()
    return [
        ItemPair(
            id=str(ids[at]),
            truth=_truth(one, target, names, at),
            first=_seen(one, metric, names, at),
            second=_seen(other, metric, names, at),
            gain=float(gains[at]),
        )
        for at in order
    ]


def _most_different(gains: Array, finer: Array, count: int) -> list[int]:
    """Return the places of the largest differences, those in favour of the first and of the second in turn; a tie goes by a finer number."""
    order = np.lexsort([np.arange(len(gains)), -np.abs(finer), -np.abs(gains)])
    signed = gains if gains.any() else -finer
    better, worse = (iter([int(at) for at in order if sign * signed[at] > 0]) for sign in (1, -1))
    chosen: list[int] = []
    while len(chosen) < count:
        turn = [at for at in (next(better, None), next(worse, None)) if at is not None]
        if not turn:
            break
        chosen += turn
    return chosen[:count]


def item_scores(metric: MetricInfo, items: Items) -> Array | None:
    """Return how well each item went, larger being better, (M,): its own share of a mean, or how far it lies from its place in a correlation."""
    held = [np.asarray(items.columns[name], dtype=np.float64) for name in metric.columns]
    if metric.reduce in ("mean", "above_chance"):
        return held[0]
    if metric.reduce in ("macro_f1", "balanced_accuracy"):
        return (held[0] == held[1]).astype(np.float64)
    if metric.reduce in ("spearman", "pearson"):
        return -np.abs(_rank(held[0]) - _rank(held[1]))
    if metric.reduce in ("auc", "average_precision"):
        return np.where(held[1] > 0, _rank(held[0]), 1 - _rank(held[0]))
    if metric.reduce in ("r2", "calibration_error"):
        return -np.abs(held[0] - held[1])
    return None


def _rank(values: Array) -> Array:
    from scipy.stats import rankdata

    return np.asarray((rankdata(values) - 0.5) / len(values))


def _finer(one: Items, other: Items, metric: MetricInfo) -> Array:
    """Return the difference in the first further number that was stored of the items, 0 where there is none."""
    for name in ("log_loss", "margin", *sorted(one.columns)):
        if name in one.columns and name in other.columns and name not in metric.columns and one.columns[name].dtype.kind == "f":
            return np.nan_to_num(np.asarray(one.columns[name], dtype=np.float64) - other.columns[name])
    return np.zeros(len(one.rows))


def _truth(items: Items, target: Any, names: Sequence[str], at: int) -> str:
    if target is not None and target.kind == "class":
        return str(names[target.values[at]]) if target.values[at] >= 0 else ""
    for name in ("truth", "gold", "grade", "target", "number"):
        if name in items.columns:
            return number(float(items.columns[name][at]))
    return ""


def _seen(items: Items, metric: MetricInfo, names: Sequence[str], at: int) -> str:
    if names and "prediction" in items.columns:
        return str(names[int(items.columns["prediction"][at])])
    name = "predicted_number" if "predicted_number" in items.columns else metric.columns[0]
    return number(float(np.asarray(items.columns[name])[at]))


# --- words --------------------------------------------------------------------------------------------------------


def _sentence(table: ComparisonTable) -> str:
    measured = [row for row in table.rows if row.refused is None]
    sure = f"at p < {ALPHA:.2g}" + (f" after Holm's correction over {len(measured)} tasks" if len(measured) > 1 else "")
    won = [
        f"`{label}` is better than `{other}` in {_listed(rows)}"
        for verdict, label, other in (("first", table.first, table.second), ("second", table.second, table.first))
        if (rows := [f"{row.metric} on {row.task}" for row in measured if row.verdict == verdict])
    ]
    sentences = [f"{'; '.join(won)} ({sure})"] if won else []
    if tied := [row.task for row in measured if row.verdict == "tie"]:
        sentences.append(f"They never differ on {_listed(tied)}")
    if unsure := [row for row in measured if row.verdict == "none"]:
        seen = [
            row.task + (f" (one of {number(row.detectable)} would be visible)" if math.isfinite(row.detectable) else "") for row in unsure
        ]
        sentences.append(f"No difference may be claimed on {_listed(seen)}")
    return " ".join(f"{sentence}." for sentence in sentences)


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
