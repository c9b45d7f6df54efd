"""Which interval a statistic gets, by its reducer and the number of independent units.

The choices come from simulation: ``docs/coverage.md`` shows what each covers, and what the forms rejected would.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from evalharness import stats
from evalharness.types import Array, Interval, MetricInfo

FEW_UNITS = 30
TEN_UNITS = 10
JACKKNIFE_LIMIT = 500


@dataclass(frozen=True, slots=True)
class Form:
    """Hold one way of making an interval: ``jackknife``, ``fisher`` (the same on the scale of Fisher's z), ``studentised``, or a method of the bootstrap."""

    method: str
    expand: bool = False


_JACKKNIFE, _FISHER = Form("jackknife"), Form("fisher")
_STUDENTISED = Form("studentised")
_PERCENTILE, _BCA, _BASIC, _SE = Form("percentile", True), Form("bca", True), Form("basic", True), Form("se")
_FORMS: dict[str, tuple[Form, Form]] = {  # with fewer than thirty units, and with more
    "mean": (_BCA, _BCA),  # of values between bounds that are often reached, as nDCG; others see below
    "ratio": (_STUDENTISED, _STUDENTISED),
    "above_chance": (_PERCENTILE, _PERCENTILE),
    "median": (_PERCENTILE, _PERCENTILE),
    "quantile": (_PERCENTILE, _PERCENTILE),
    "macro_f1": (_JACKKNIFE, _BASIC),
    "balanced_accuracy": (_PERCENTILE, _PERCENTILE),
    "auc": (_PERCENTILE, _BCA),
    "average_precision": (_PERCENTILE, _PERCENTILE),
    "macro_average_precision": (_PERCENTILE, _PERCENTILE),
    "spearman": (Form("bca"), _BCA),
    "pearson": (_FISHER, _FISHER),
    "r2": (_BCA, _BCA),
    "calibration_error": (_SE, _SE),
    "adjusted_rand": (_JACKKNIFE, _JACKKNIFE),  # of given clusters; what clustering afresh adds, only `clustering` knows
    "completeness": (_JACKKNIFE, _JACKKNIFE),
    "homogeneity": (_JACKKNIFE, _JACKKNIFE),
    "v_measure": (_JACKKNIFE, _JACKKNIFE),
}
_OPEN_MEAN = (_JACKKNIFE, _STUDENTISED)  # of values without an upper end in practice, as losses; ten units are enough
_OTHERS = (_JACKKNIFE, _PERCENTILE)


def choose_form(metric: MetricInfo, units: int) -> Form:
    """Return the form for a metric over some independent units."""
    if metric.interval == "jackknife":
        return _JACKKNIFE
    name = metric.reduce if isinstance(metric.reduce, str) else str(getattr(metric.reduce, "__name__", "")).partition("(")[0]
    few, many = _FORMS.get(name, _OTHERS)
    if name == "mean" and (metric.unit in ("nats", "bits") or not (math.isfinite(metric.low) and math.isfinite(metric.high))):
        return _OPEN_MEAN[units >= TEN_UNITS]
    return few if units < FEW_UNITS else many


def make_interval(
    metric: MetricInfo,
    value: float,
    columns: list[Array],
    clusters: Array | None,
    units: int,
    resamples: stats.Resamples,
    level: float,
) -> Interval:
    """Return the interval of a metric's value over items, columns (M,) each."""
    form, reduce = choose_form(metric, units), stats.get_reducer(metric.reduce)  # type: ignore[arg-type]
    limits: dict[str, Any] = {"low": metric.low, "high": metric.high}
    if form.method in ("jackknife", "fisher"):
        limit = None if units < FEW_UNITS else JACKKNIFE_LIMIT
        left_out = stats.leave_one_out(reduce, *columns, clusters=clusters, limit=limit)
        transform: Any = "fisher" if form.method == "fisher" else None
        return stats.jackknife_interval(value, left_out, level, transform=transform, **limits)
    if form.method == "studentised":
        found = stats.bootstrap_t(resamples, *[column.astype(np.float64) for column in columns], level=level, **limits)
        if math.isfinite(found.low):
            return found
        form = _PERCENTILE  # values that are mostly equal leave too many resamples without an error of their own
    replicates = resamples.apply(reduce, *columns)
    without = stats.leave_one_out(reduce, *columns, clusters=clusters, limit=JACKKNIFE_LIMIT) if form.method == "bca" else None
    method: Any = form.method
    return stats.bootstrap(value, replicates, method=method, level=level, jackknife=without, n=units, expand=form.expand, **limits)
