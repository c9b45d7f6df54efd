"""Argument checks that the modules of ``stats`` share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from evalharness.errors import DataError, UsageError

if TYPE_CHECKING:
    from evalharness.types import Array


def check_level(level: float) -> None:
    """Refuse a confidence level outside (0, 1).

    Raises:
        UsageError: ``level`` is not strictly between 0 and 1, as when per cent are passed.
    """
    if not 0 < level < 1:
        raise UsageError(f"`level` must lie strictly between 0 and 1, got {level}; pass a fraction such as 0.95")


def as_vector(values: Any, name: str) -> Array:
    """Return ``values`` as a (n,) float64 array.

    Raises:
        UsageError: it is not one-dimensional.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise UsageError(f"`{name}` must have one dimension, got shape {array.shape}")
    return array


def unit_codes(n: int, clusters: Any | None) -> tuple[Array, int]:
    """Return the unit of each of ``n`` rows, (n,) int64 counted from 0, and the number of units.

    Args:
        n: the number of rows.
        clusters: (n,) labels of any kind; None makes every row a unit of its own.

    Raises:
        DataError: there are no rows.
        UsageError: ``clusters`` does not have one entry a row.
    """
    if n < 1:
        raise DataError("expected at least one row to resample, got none")
    if clusters is None:
        return np.arange(n), n
    labels = np.asarray(clusters)
    if labels.shape != (n,):
        raise UsageError(f"`clusters` must name one unit for each of the {n} rows, got shape {labels.shape}")
    names, codes = np.unique(labels, return_inverse=True)
    return codes.reshape(n), len(names)
