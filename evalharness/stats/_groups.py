"""Summaries over subgroups: worst, gap, ratio, and the fairness gaps of binary decisions."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from evalharness.errors import DataError, UsageError
from evalharness.types import Array


class GroupGaps(NamedTuple):
    """Hold what one metric's values by group come to: ``worst`` (their minimum), ``gap`` (maximum - minimum), ``ratio`` (minimum / maximum, NaN for 0 / 0)."""

    worst: float
    gap: float
    ratio: float


def group_gaps(values: Any) -> GroupGaps:
    """Return worst, gap and ratio of a metric of which higher is better.

    >>> group_gaps([0.5, 0.25])
    GroupGaps(worst=0.25, gap=0.25, ratio=0.5)

    Args:
        values: (G,) one value a group; NaN groups are left out.

    Raises:
        DataError: no group has a value.
    """
    known = np.asarray(values, dtype=np.float64)
    known = known[np.isfinite(known)]
    if not len(known):
        raise DataError("no group has a value")
    low, high = float(known.min()), float(known.max())
    return GroupGaps(low, high - low, low / high if high else math.nan)


class RateGaps(NamedTuple):
    """Hold the largest ``difference`` and the smallest ``ratio`` of rates between groups, in [0, 1]."""

    difference: float
    ratio: float


def _rates(selected: Array, groups: Array) -> Array:
    """Return the share of each group that is selected; groups without rows are left out."""
    return np.array([selected[groups == group].mean() for group in np.unique(groups)])


def _compare(rates: Array) -> RateGaps:
    high = float(rates.max())
    return RateGaps(high - float(rates.min()), float(rates.min()) / high if high else math.nan)


def demographic_parity(prediction: Any, groups: Any) -> RateGaps:
    """Compare the shares of positive decisions between groups.

    Args:
        prediction: (N,) 0 or 1.
        groups: (N,) labels.

    Raises:
        UsageError: lengths differ or decisions are not 0 or 1.
    """
    decisions, labels = _binary(prediction, groups, "prediction")
    return _compare(_rates(decisions, labels))


def equalised_odds(truth: Any, prediction: Any, groups: Any) -> RateGaps:
    """Compare true and false positive rates between groups: the larger of the two differences, the smaller of the two ratios.

    A group without positives (or negatives) has no such rate and is left out of it.

    Args:
        truth: (N,) 0 or 1.
        prediction: (N,) 0 or 1.
        groups: (N,) labels.

    Raises:
        UsageError: lengths differ or values are not 0 or 1.

    Source:
        Hardt et al. 2016; the aggregation is fairlearn's worst case.
    """
    decisions, labels = _binary(prediction, groups, "prediction")
    outcomes, _ = _binary(truth, groups, "truth")
    parts = [_compare(_rates(decisions[outcomes == value], labels[outcomes == value])) for value in (1, 0) if (outcomes == value).any()]
    return RateGaps(max(part.difference for part in parts), min(part.ratio for part in parts))


def _binary(values: Any, groups: Any, name: str) -> tuple[Array, Array]:
    array, labels = np.asarray(values), np.asarray(groups)
    if len(array) != len(labels):
        raise UsageError(f"`{name}` and `groups` must have one length, got {len(array)} and {len(labels)}")
    if not np.isin(array, (0, 1)).all():
        raise UsageError(f"expected `{name}` to hold 0 and 1 only")
    return array.astype(np.float64), labels
