"""Intervals of few-shot scores: over episodes, and over classes."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from evalharness.errors import UsageError
from evalharness.stats._checks import as_vector, check_level
from evalharness.stats._intervals import _t_quantile
from evalharness.types import Array, Interval


def episode_interval(scores: Any, level: float = 0.95) -> Interval:
    """Return mean ± t · s / √E, which covers the sampler's chance only, not that of the data.

    Args:
        scores: (E,) scores of episodes.
        level: the confidence level, a fraction.

    Returns:
        The interval with ``n`` = E; NaN bounds for fewer than two episodes or no spread.

    Raises:
        UsageError: ``level`` is outside (0, 1).

    Source:
        Common practice; s with ddof = 1 and a t quantile in place of 1.96.
    """
    check_level(level)
    values = as_vector(scores, "scores")
    episodes = len(values)
    half = math.nan
    if episodes >= 2 and float(np.ptp(values)) > 0:
        half = _t_quantile((1 + level) / 2, episodes - 1) * float(values.std(ddof=1)) / math.sqrt(episodes)
    mean = float(values.mean()) if episodes else math.nan
    return Interval(low=mean - half, high=mean + half, level=level, method="episodes", n=episodes)


class ClassInterval(NamedTuple):
    """Hold a class-level interval, the ``reason`` where its bounds are NaN, and the standard error that it is made of."""

    interval: Interval
    reason: str | None
    error: float


def episode_jackknife(scores: Any, classes: Any, num_classes: int, level: float = 0.95) -> ClassInterval:
    """Return the delete-one-class jackknife interval of a mean over episodes.

    Leaving a class out drops the episodes that hold it.
    SE² = max(J - (way · C / (C - way) - 1) · s² / E, s² / E) with J = (C - 1) / C · Σ_c (mean without c - mean)², and a t quantile at C - 1.

    Args:
        scores: (E,) scores of episodes.
        classes: (E, way) int, the classes of each episode, in [0, num_classes).
        num_classes: C, the classes that episodes are drawn from.
        level: the confidence level, a fraction.

    Returns:
        The interval with ``n`` = C, and a reason where the bounds are NaN: way > C / 2, fewer than two episodes, or a class in every episode.

    Raises:
        UsageError: the shapes do not fit, a class lies outside [0, num_classes), or ``level`` outside (0, 1).

    Source:
        DESIGN.md section 8; the subtracted term is the part of J that comes from dropping episodes at random.
    """
    check_level(level)
    values, held = as_vector(scores, "scores"), np.asarray(classes, dtype=np.int64)
    if held.ndim != 2 or len(held) != len(values):
        raise UsageError(f"`classes` must be (episodes, way) for {len(values)} scores, got shape {held.shape}")
    if held.size and not 0 <= held.min() <= held.max() < num_classes:
        raise UsageError(f"`classes` must lie in [0, {num_classes}), got {held.min()} to {held.max()}")
    error, reason = _class_error(values, held, num_classes)
    half = math.nan if reason else _t_quantile((1 + level) / 2, num_classes - 1) * error
    mean = float(values.mean()) if len(values) else math.nan
    interval = Interval(low=mean - half, high=mean + half, level=level, method="class-jackknife", n=num_classes)
    return ClassInterval(interval, reason, math.nan if reason else error)


def _class_error(values: Array, held: Array, num_classes: int) -> tuple[float, str | None]:
    episodes, way = held.shape
    if episodes < 2:
        return math.nan, f"{episodes} episodes: at least 2 are needed"
    if 2 * way > num_classes:
        return math.nan, f"{way}-way episodes of {num_classes} classes share too many classes: the way may be at most half of them"
    with_class = np.bincount(held.ravel(), minlength=num_classes)
    sums = np.bincount(held.ravel(), weights=np.repeat(values, way), minlength=num_classes)
    if (with_class == episodes).any():
        return math.nan, f"{int((with_class == episodes).sum())} classes are in every episode: sample more episodes"
    left_out = (values.sum() - sums) / (episodes - with_class)
    spread = (num_classes - 1) / num_classes * float(np.square(left_out - values.mean()).sum())
    sampling = float(values.var(ddof=1)) / episodes
    squared = max(spread - (way * num_classes / (num_classes - way) - 1) * sampling, sampling)
    if squared <= 0:
        return math.nan, "all episodes score the same"
    return math.sqrt(squared), None
