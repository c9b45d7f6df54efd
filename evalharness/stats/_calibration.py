"""What calibration error a perfectly calibrated model would show."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from evalharness.errors import DataError
from evalharness.stats._checks import as_vector, check_level
from evalharness.stats._reducers import NUM_BINS, assign_bins

if TYPE_CHECKING:
    from evalharness.types import Array

_BLOCK_CELLS = 2**21


def calibration_null(confidence: Any, resamples: int, generator: np.random.Generator) -> Array:
    """Return calibration errors of simulated hits that follow the confidences exactly.

    Args:
        confidence: (M,) probabilities, M at least 1.
        resamples: R.
        generator: the source of randomness.

    Returns:
        (R,) float64.

    Raises:
        DataError: there are no rows, or a confidence lies outside [0, 1].
    """
    chances = as_vector(confidence, "confidence")
    if not len(chances) or not ((chances >= 0) & (chances <= 1)).all():
        raise DataError(f"`confidence` must hold probabilities in [0, 1], got {len(chances)} values, some outside or none")
    members = np.zeros((len(chances), NUM_BINS))
    members[np.arange(len(chances)), assign_bins(chances)] = 1.0
    expected = chances @ members
    errors = np.empty(resamples)
    step = max(1, _BLOCK_CELLS // len(chances))
    for start in range(0, resamples, step):
        hits = generator.random((min(step, resamples - start), len(chances))) < chances
        errors[start : start + step] = np.abs(hits @ members - expected).sum(axis=1) / len(chances)
    return errors


def calibration_band(confidence: Any, generator: np.random.Generator, *, resamples: int = 1000, level: float = 0.95) -> float:
    """Return the calibration error that a perfectly calibrated model exceeds with probability 1 - ``level``.

    A calibration error below it says nothing against calibration, and an interval about it would be misleading.

    Args:
        confidence: (M,) probabilities of the predicted classes, M at least 1.
        generator: the source of randomness.
        resamples: the number of simulations.
        level: a fraction.

    Returns:
        The upper end of the band, in [0, 1].

    Raises:
        DataError: there are no rows, or a confidence lies outside [0, 1].
        UsageError: ``level`` is outside (0, 1).

    Source:
        METRICS.md 1.2; Vaicenavicius et al. 2019 (consistency resampling).
    """
    check_level(level)
    return float(np.quantile(calibration_null(confidence, resamples, generator), level))
