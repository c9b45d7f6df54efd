"""Records over several cells of one evaluator: differences to a reference, means over severities, domains, families and draws, slopes, and the worst of several attacks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from evalharness.budgets import LabelCurve, order_budgets
from evalharness.estimates import LEVEL, Estimate, Items, Resampler, estimate, nothing
from evalharness.joint import Joint
from evalharness.records import inside
from evalharness.summaries import SummaryPlan, empty_record, extreme_records, group_records, make_metric_record
from evalharness.types import MetricInfo

Record = dict[str, Any]
Side = list[Items]  # one cell's items; those of every draw where a cell stands for several
CLEAN, FLOAT32 = "clean", "float32"
REFERENCES = (CLEAN, FLOAT32)


@dataclass(slots=True, kw_only=True)
class CellResult:
    """Hold what became of one cell: its record fields and its items by variant, none where it failed or was not applicable.

    A cell that stands for several draws of a fit holds the items of each.
    """

    base: Mapping[str, Any]
    items: Mapping[str, Items]
    status: str
    mains: frozenset[str] | None = None  # the main metrics of its kind of target; None for those of the plan
    reason: str | None = None
    grouped: bool = False  # whether subgroups are asked of the mean over draws
    labels: int | None = None  # rows that its fit learned from
    draws: list[CellResult] = field(default_factory=list)

    def key(self, *less: str) -> tuple[Any, ...]:
        """Return what sets the cell apart within its evaluator, without some of the axes."""
        return tuple(self.base[name] for name in ("fit", "target", "shift", "severity", "codec", "selection") if name not in less)

    def side(self, variant: str) -> Side:
        """Return the items of one variant, a piece a draw."""
        return [draw.items[variant] for draw in self.draws] if self.draws else [self.items[variant]]


@dataclass(slots=True, kw_only=True)
class AcrossPlan:
    """Hold what the records over cells need: the plan that they share, the attacks of each metric, and what the main record must match."""

    summary: SummaryPlan
    robust: Mapping[str, Sequence[str]] = field(default_factory=dict)  # metric -> attacks, in the order of the task
    main: Mapping[str, Any] | None = None  # fields of the main record, where it runs over several cells
    reach: float | None = None  # the score whose label budget is asked for

    def is_main(self, base: Mapping[str, Any], metric: MetricInfo, over: str, variant: str | None = None, *, first: bool = True) -> bool:
        """Say whether a record over cells is the task's main one; without a variant named, the first one is."""
        if self.main is None or metric.name != self.summary.main_metric:
            return False
        wanted = {"over": over.partition(":")[0], "variant": variant, **base}
        free = {name for name in ("fit", "target", "variant") if wanted.get(name) is None}
        return ("variant" in self.main or first) and all(
            _equal(wanted[name], value) for name, value in self.main.items() if name not in free
        )


def _equal(first: Any, second: Any) -> bool:
    if isinstance(first, (int, float)) and isinstance(second, (int, float)):
        return math.isclose(first, second, rel_tol=1e-9, abs_tol=1e-12)
    return bool(first == second)


def across_records(plan: AcrossPlan, cells: Sequence[CellResult], resampler: Resampler) -> Iterator[Record]:
    """Yield every record that takes more than one cell of an evaluator."""
    known = [cell for cell in cells if cell.status != "not_applicable"]
    means = join_draws(known)
    for metric in plan.summary.metrics:
        own, own_means = (
            [cell for cell in among if metric.name in (plan.summary.main_metrics if cell.mains is None else cell.mains)]
            for among in (known, means)
        )
        for among in (own, own_means):
            yield from _reference_records(plan, metric, among, resampler)
            yield from _severity_records(plan, metric, among, resampler)
            yield from _domain_records(plan, metric, among, resampler)
            yield from _family_records(plan, metric, among, resampler)
        yield from _draw_records(plan, metric, own_means, resampler)
        yield from _budget_records(plan, metric, own, own_means, resampler)
        if metric.name in plan.robust:
            yield from _robust_records(plan, metric, known, resampler)


def _group(cells: Sequence[CellResult], key: Callable[[CellResult], Any]) -> dict[Any, list[CellResult]]:
    found: dict[Any, list[CellResult]] = {}
    for cell in cells:
        found.setdefault(key(cell), []).append(cell)
    return found


def join_draws(cells: Sequence[CellResult]) -> list[CellResult]:
    """Return one cell for all draws of each fit, all else equal; it lacks what any draw lacks."""
    drawn = [cell for cell in cells if "/" in str(cell.base["fit"] or "")]
    joined = []
    for group in _group(drawn, lambda cell: (str(cell.base["fit"]).rpartition("/")[0], *cell.key("fit"))).values():
        if len(group) < 2:
            continue
        base = {**group[0].base, "fit": str(group[0].base["fit"]).rpartition("/")[0]}
        because = _lacking(group, lambda cell: f"draw {cell.base['fit']}")
        shared = [name for name in group[0].items if all(name in cell.items for cell in group)]
        items = {} if because else {name: group[0].items[name] for name in shared}
        status = "failed" if because else "measured"
        joined.append(replace(group[0], base=base, items=items, status=status, reason=because, draws=group))
    return joined


def _variants(metric: MetricInfo, cells: Sequence[CellResult]) -> list[str]:
    """Return the variants that every cell has the metric's columns of, in the order of the first cell."""
    if not cells:
        return []
    return [name for name in cells[0].items if all(name in cell.items and cell.items[name].has(metric) for cell in cells)]


def _lacking(cells: Sequence[CellResult], label: Callable[[CellResult], str]) -> str | None:
    """Return why a record over these cells cannot be made: no row is dropped from a mean because its cell failed."""
    bad = [cell for cell in cells if not cell.items]
    return f"not measured: {', '.join(label(cell) for cell in bad)} ({bad[0].reason or bad[0].status})" if bad else None


class Sides:
    """Hold one metric on several cells, each of which may stand for several draws, on the same resamples."""

    def __init__(self, metric: MetricInfo, sides: Sequence[Side], resampler: Resampler) -> None:
        self._sizes = [len(side) for side in sides]
        self._joint = Joint(metric, [piece for side in sides for piece in side], resampler)

    def combine(self, weights: Sequence[float]) -> Estimate:
        """Return a weighted sum of the cells' values; draws count alike."""
        return self._joint.combine(self._spread(weights))

    def ratio(self) -> Estimate:
        """Return the first cell's value over the second's."""
        return self._joint.ratio(self._spread([1.0, 0.0]), self._spread([0.0, 1.0]))

    def _spread(self, weights: Sequence[float]) -> list[float]:
        return [weight / size for weight, size in zip(weights, self._sizes, strict=True) for _ in range(size)]


# --- differences to a reference cell ------------------------------------------------------------------------------


def _reference_of(cell: CellResult, reference: str, cells: Sequence[CellResult]) -> CellResult | None:
    """Return the cell with all else equal; the clean cell of another domain has other rows."""
    if reference == CLEAN:
        if cell.base["shift"] == CLEAN:
            return None
        found = [other for other in cells if other.base["shift"] == CLEAN and other.key(*_SHIFT) == cell.key(*_SHIFT)]
    else:
        if cell.base["codec"] == FLOAT32:
            return None
        found = [other for other in cells if other.base["codec"] == FLOAT32 and other.key("codec") == cell.key("codec")]
    return found[0] if found else None


_SHIFT = ("shift", "severity", "selection")


def _matched(side: Side, reference: Side, base: Mapping[str, Any]) -> Side:
    """Return the reference's items; those of the rows whose inputs were changed, where only some were."""
    rows = side[0].rows
    if base["shift_kind"] == "domain" or len(rows) >= len(reference[0].rows):
        return reference
    shared = [np.flatnonzero(np.isin(piece.rows, rows)) for piece in reference]
    return [piece.take(at) for piece, at in zip(reference, shared, strict=True)] if len(shared[0]) == len(rows) else reference


def _reference_records(plan: AcrossPlan, metric: MetricInfo, cells: Sequence[CellResult], resampler: Resampler) -> Iterator[Record]:
    for cell in cells:
        for reference in REFERENCES:
            other = _reference_of(cell, reference, cells)
            if other is None:
                continue
            for variant in _variants(metric, [cell, other]):
                side = cell.side(variant)
                sides = Sides(metric, [side, _matched(side, other.side(variant), cell.base)], resampler)
                fields: dict[str, Any] = {"base": cell.base, "reference": reference}
                yield make_metric_record(plan.summary, side[0], metric, sides.combine([1.0, -1.0]), statistic="difference", **fields)
                if metric.low >= 0:
                    yield make_metric_record(plan.summary, side[0], metric, sides.ratio(), statistic="ratio", **fields)


# --- severities ---------------------------------------------------------------------------------------------------


def _severity_records(plan: AcrossPlan, metric: MetricInfo, cells: Sequence[CellResult], resampler: Resampler) -> Iterator[Record]:
    shifted = [cell for cell in cells if cell.base["shift"] != CLEAN and cell.base["shift_kind"] not in ("domain", "attack")]
    shifted.sort(key=lambda cell: float(cell.base["severity"]))
    for group in _group(shifted, lambda cell: cell.key("severity")).values():
        base = {**group[0].base, "severity": None}
        made = partial(_along, plan, metric, group, base=base, cells=cells, resampler=resampler)
        yield from _of_group(plan, metric, group, base, "severity", lambda cell: f"severity {cell.base['severity']:g}", made)


def _of_group(
    plan: AcrossPlan,
    metric: MetricInfo,
    group: Sequence[CellResult],
    base: Mapping[str, Any],
    over: str,
    label: Callable[[CellResult], str],
    make: Callable[[str], Iterator[Record]],
) -> Iterator[Record]:
    """Yield what ``make`` gives for each variant of several cells; one failed record where any of them is lacking."""
    if len(group) < 2:
        return
    because = _lacking(group, label)
    if because:
        yield _failed(plan, metric, base, "mean", over, because)
        return
    for variant in _variants(metric, group):
        yield from make(variant)


def _along(
    plan: AcrossPlan,
    metric: MetricInfo,
    ordered: Sequence[CellResult],
    variant: str,
    base: Mapping[str, Any],
    cells: Sequence[CellResult],
    resampler: Resampler,
) -> Iterator[Record]:
    """Yield mean, mean difference to clean, and slope over the severities of one shift."""
    shifted = [cell.side(variant) for cell in ordered]
    clean = _clean_side(metric, ordered[0], variant, cells)
    sides = Sides(metric, [*shifted, *clean], resampler)
    share, rest = 1 / len(shifted), [0.0] * len(clean)

    def record(weights: Sequence[float], statistic: str, reference: str | None = None) -> Record:
        fields: dict[str, Any] = {"statistic": statistic, "over": "severity", "reference": reference, "base": base}
        return make_metric_record(plan.summary, shifted[0][0], metric, sides.combine(weights), **fields)

    yield record([*[share] * len(shifted), *rest], "mean")
    if clean:
        yield record([*[share] * len(shifted), -1.0], "difference", CLEAN)
    places = np.array([*[float(cell.base["severity"]) for cell in ordered], *rest])  # the clean cell lies at severity 0
    centred = places - places.mean()
    yield record(list(centred / np.square(centred).sum()), "slope")


def _clean_side(metric: MetricInfo, cell: CellResult, variant: str, cells: Sequence[CellResult]) -> list[Side]:
    """Return the clean cell's items in a list, which is empty where there are none."""
    other = _reference_of(cell, CLEAN, cells)
    if other is None or variant not in other.items or not other.items[variant].has(metric):
        return []
    return [_matched(cell.side(variant), other.side(variant), cell.base)]


# --- domains ------------------------------------------------------------------------------------------------------


def _domain_records(plan: AcrossPlan, metric: MetricInfo, cells: Sequence[CellResult], resampler: Resampler) -> Iterator[Record]:
    shifted = [cell for cell in cells if cell.base["shift_kind"] == "domain"]
    for group in _group(shifted, lambda cell: cell.key("selection", "severity")).values():
        base = {**group[0].base, "selection": joined_selection([cell.base["selection"] for cell in group])}
        made = partial(_over_domains, plan, metric, group, base=base, cells=cells, resampler=resampler)
        yield from _of_group(plan, metric, group, base, "domain", lambda cell: inside(cell.base["selection"]), made)


def _over_domains(
    plan: AcrossPlan,
    metric: MetricInfo,
    group: Sequence[CellResult],
    variant: str,
    base: Mapping[str, Any],
    cells: Sequence[CellResult],
    resampler: Resampler,
) -> Iterator[Record]:
    """Yield the unweighted mean over domains, its difference to the clean cell, and the worst domain with a bound over all."""
    domains = [cell.side(variant) for cell in group]
    first = domains[0][0]
    clean = _clean_side(metric, group[0], variant, cells)
    sides = Sides(metric, [*domains, *clean], resampler)
    share = [1 / len(domains)] * len(domains)
    plain: dict[str, Any] = {"over": "domain", "base": base}
    yield make_metric_record(plan.summary, first, metric, sides.combine([*share, *[0.0] * len(clean)]), statistic="mean", **plain)
    if clean:
        found = sides.combine([*share, -1.0])
        yield make_metric_record(plan.summary, first, metric, found, statistic="difference", reference=CLEAN, **plain)
    names = [inside(cell.base["selection"]) for cell in group]
    if len(set(names)) == len(group) and not first.episodic:

        def at_level(level: float) -> dict[str, Estimate]:
            return {name: estimate_side(metric, side, resampler, level) for name, side in zip(names, domains, strict=True)}

        yield from extreme_records(replace(plan.summary, base=base), first, metric, "domain", at_level)


def estimate_side(metric: MetricInfo, side: Side, resampler: Resampler, level: float = LEVEL) -> Estimate:
    """Return the estimate of one cell, the mean over its draws where it stands for several."""
    if len(side) == 1:
        return estimate(metric, side[0], resampler, level)
    return Joint(metric, side, resampler).combine([1 / len(side)] * len(side), level)


def joined_selection(selections: Sequence[str]) -> str:
    """Return one name for the rows of several selections.

    >>> joined_selection(["test[domain=a]", "test[domain=b]"])
    'test[domain=a|b]'
    """
    filters = [inside(selection) for selection in selections]
    names = {text.rpartition("=")[0] for text in filters}
    name = f"{names.pop()}={'|'.join(text.rpartition('=')[2] for text in filters)}" if len(names) == 1 else " or ".join(filters)
    return selections[0].replace(f"[{filters[0]}]", f"[{name}]") if filters[0] else " or ".join(selections)


# --- families of corruptions --------------------------------------------------------------------------------------


def _family_records(plan: AcrossPlan, metric: MetricInfo, cells: Sequence[CellResult], resampler: Resampler) -> Iterator[Record]:
    shifted = [cell for cell in cells if cell.base["shift_kind"] == "corruption"]
    for group in _group(shifted, lambda cell: cell.key("shift", "severity")).values():
        if len({cell.base["shift"] for cell in group}) > 1:
            base = {**group[0].base, "shift": "corruption", "severity": None, "shift_type": None, "regime": None, "protocols": None}
            made = partial(_over_families, plan, metric, group, base=base, resampler=resampler)
            yield from _of_group(plan, metric, group, base, "family", lambda cell: f"{cell.base['shift']} {cell.base['severity']:g}", made)


def _over_families(
    plan: AcrossPlan, metric: MetricInfo, group: Sequence[CellResult], variant: str, base: Mapping[str, Any], resampler: Resampler
) -> Iterator[Record]:
    """Yield the mean over families, each first averaged over its severities; seen and unseen ones apart, and their difference."""
    shifted = [cell.side(variant) for cell in group]
    sides = Sides(metric, shifted, resampler)

    def record(weights: Sequence[float], statistic: str, over: str, reference: str | None = None) -> Record:
        own = {**base, "regime": over.partition(":")[2] or None}
        fields: dict[str, Any] = {"statistic": statistic, "over": over, "reference": reference, "base": own}
        return make_metric_record(plan.summary, shifted[0][0], metric, sides.combine(weights), **fields)

    yield record(_family_weights(group, None), "mean", "family")
    regimes = {regime: _family_weights(group, regime) for regime in ("seen", "unseen")}
    for regime, weights in regimes.items():
        if any(weights):
            yield record(weights, "mean", f"family:{regime}")
    if all(any(weights) for weights in regimes.values()):
        gap = [new - old for new, old in zip(regimes["unseen"], regimes["seen"], strict=True)]
        yield record(gap, "difference", "family:unseen", "family:seen")


def _family_weights(group: Sequence[CellResult], regime: str | None) -> list[float]:
    """Return a weight a cell: families count alike, and so do the severities of each."""
    chosen = [regime is None or cell.base["regime"] == regime for cell in group]
    sizes: dict[str, int] = {}
    for cell, own in zip(group, chosen, strict=True):
        if own:
            sizes[cell.base["shift"]] = sizes.get(cell.base["shift"], 0) + 1
    return [1 / (len(sizes) * sizes[cell.base["shift"]]) if own else 0.0 for cell, own in zip(group, chosen, strict=True)]


# --- draws of training rows ---------------------------------------------------------------------------------------


def _draw_records(plan: AcrossPlan, metric: MetricInfo, means: Sequence[CellResult], resampler: Resampler) -> Iterator[Record]:
    """Yield the mean over draws with its interval over test items, the spread beside it, and its subgroups."""
    for cell in means:
        if not cell.items:
            yield _failed(plan, metric, cell.base, "mean", "draw", str(cell.reason), main=plan.is_main(cell.base, metric, "draw"))
            continue
        for at, variant in enumerate(_variants(metric, cell.draws)):
            side = cell.side(variant)
            joint = Joint(metric, side, resampler)
            found = joint.combine([1 / len(side)] * len(side))
            spread = float(joint.values.std(ddof=1))
            if found.reason is None and found.status == "measured":
                found = replace(found, reason=f"standard deviation over {len(side)} draws {spread:.3g}")
            main = plan.is_main(cell.base, metric, "draw", variant, first=at == 0)
            yield make_metric_record(plan.summary, side[0], metric, found, statistic="mean", over="draw", base=cell.base, main=main)
            sizes: dict[str, Any] = {"n": len(side), "n_units": len(side)}
            wide = Estimate(value=spread, interval=nothing(len(side)), scope="training draws", **sizes)
            yield make_metric_record(plan.summary, side[0], metric, wide, statistic="spread", over="draw", base=cell.base)
            if (main or cell.grouped) and metric.reduce is not None and not side[0].episodic:
                own = replace(plan.summary, base=cell.base, main_cell=main)
                yield from group_records(own, side, metric, resampler, estimate_side)


# --- label budgets ------------------------------------------------------------------------------------------------


def _budget_records(
    plan: AcrossPlan, metric: MetricInfo, cells: Sequence[CellResult], means: Sequence[CellResult], resampler: Resampler
) -> Iterator[Record]:
    """Yield the slope of the score over the logarithm of labels, and the labels that a stated score needs."""
    whole = [cell for cell in cells if "/" not in str(cell.base["fit"] or "")]
    for group in _group([*means, *whole], lambda cell: cell.key("fit")).values():
        ordered = order_budgets(group)
        if not ordered or (len(ordered) < 2 and (plan.reach is None or len(group) < 2)):
            continue
        base = {**ordered[0].base, "fit": None}
        because = _lacking(ordered, lambda cell: f"fit {cell.base['fit']}")
        if len(ordered) < 2:
            because = f"{' and '.join(str(cell.base['fit']) for cell in group)} learn from {ordered[0].labels} labels each: a curve needs two numbers of them"
        if because:
            yield _failed(plan, metric, base, "slope", "budget", because)
            if plan.reach is not None:
                yield _failed(plan, metric, base, "reach", "budget", because, reference=f"{metric.name}={plan.reach:g}")
            continue
        for variant in _variants(metric, ordered):
            sides = [cell.side(variant) for cell in ordered]
            curve = LabelCurve(metric, [cell.labels or 0 for cell in ordered], sides, resampler)
            fields: dict[str, Any] = {"over": "budget", "base": base}
            yield make_metric_record(plan.summary, sides[0][0], metric, curve.slope(), statistic="slope", **fields)
            if plan.reach is not None:
                fields |= {"statistic": "reach", "reference": f"{metric.name}={plan.reach:g}"}
                fewer = replace(metric, higher_is_better=False)  # the value counts labels
                yield make_metric_record(plan.summary, sides[0][0], fewer, curve.reach(plan.reach), **fields)


def _failed(
    plan: AcrossPlan,
    metric: MetricInfo,
    base: Mapping[str, Any],
    statistic: str,
    over: str,
    reason: str,
    *,
    main: bool = False,
    **more: Any,
) -> Record:
    fields = {"metric": metric.name, "statistic": statistic, "over": over, "main": main, **more}
    return empty_record(plan.summary, "failed", reason, base=base, **fields)


# --- several attacks ----------------------------------------------------------------------------------------------


def _robust_records(plan: AcrossPlan, metric: MetricInfo, cells: Sequence[CellResult], resampler: Resampler) -> Iterator[Record]:
    """Yield, at each budget, the metric of the per-item minimum over attacks, items that are wrong unattacked counting as broken.

    Source: Croce & Hein 2020: an item is robust where every attack fails.
    """
    attacks = plan.robust[metric.name]
    over = f"attack:{','.join(attacks)}"
    attacked = [cell for cell in cells if cell.base["shift"] in attacks and cell.base["codec"] == FLOAT32]
    for group in _group(attacked, lambda cell: cell.key("shift")).values():
        base = {**group[0].base, "shift": "robust"}
        clean = _reference_of(group[0], CLEAN, cells)
        pieces = group if clean is None else [clean, *group]
        because = _lacking(pieces, lambda cell: cell.base["shift"])
        if because or len(group) < len(attacks) or clean is None:
            reason, main = because or "an attack of the list has no result", plan.is_main(base, metric, over)
            yield _failed(plan, metric, base, "value", over, reason, main=main)
            continue
        for variant in _variants(metric, pieces)[:1]:
            items = least_items(metric, [cell.items[variant] for cell in pieces])
            found = estimate(metric, items, resampler)
            yield make_metric_record(
                plan.summary, items, metric, found, over=over, base=base, main=plan.is_main(base, metric, over, variant)
            )


def least_items(metric: MetricInfo, pieces: Sequence[Items]) -> Items:
    """Return the first piece's items with the least value that any piece has of each."""
    (column,) = metric.columns
    first, *rest = [piece.in_order() for piece in pieces]
    held = [np.asarray(first.columns[column], dtype=np.float64)]
    for piece in rest:
        places = np.searchsorted(piece.rows, first.rows)
        held.append(np.asarray(piece.columns[column], dtype=np.float64)[places])
    return replace(first, columns={column: np.minimum.reduce(held)})
