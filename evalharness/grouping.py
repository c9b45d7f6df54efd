"""Subgroups and independent units from the columns of a row set, the same while running and when results are read again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from evalharness.types import Array, Column


def cross(columns: Sequence[Column]) -> Column:
    """Return the crossing of class columns as one class column; a row that lacks one of them is missing."""
    if len(columns) == 1:
        return columns[0]
    first, rest = columns[0], cross(columns[1:])
    values = np.where((first.values < 0) | (rest.values < 0), -1, first.values * len(rest.names) + rest.values)
    return Column(kind="class", values=values, names=tuple(f"{one},{two}" for one in first.names for two in rest.names))


def group_columns(columns: Mapping[str, Column], groups: Sequence[str | Sequence[str]]) -> list[tuple[str, Column | None]]:
    """Return a name and a class column for each group entry of a task, None where the row set lacks a column that it names."""
    found: list[tuple[str, Column | None]] = []
    for entry in groups:
        names = [entry] if isinstance(entry, str) else list(entry)
        held = [columns[name] for name in names if name in columns and columns[name].kind == "class"]
        found.append((" x ".join(names), cross(held) if len(held) == len(names) else None))
    return found


def cluster_codes(column: Column, rows: Array) -> Array:
    """Return the independent unit of each row (M,); a row whose cluster is unknown is a unit of its own."""
    return np.asarray(np.where(column.values < 0, len(column.names) + np.arange(len(column)), column.values)[rows])
