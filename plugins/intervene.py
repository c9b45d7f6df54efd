"""Counterfactual intervention: render the same items with one factor changed and all others kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from evalharness import ShiftSpec, hookimpl
from evalharness.errors import DataError, UnknownNameError, UsageError, unknown_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import torch

    from evalharness.types import Array

FACTORS = (
    "category", "colour", "orientation", "size", "position", "background", "lighting", "texture", "viewpoint", "camera", "instance"
)  # fmt: skip


def change_factor(
    inputs: Mapping[str, Array],
    severities: Sequence[float],
    keys: torch.Tensor,
    *,
    model: Any = None,
    labels: Mapping[str, tuple[str, ...]] | None = None,
    factor: str = "lighting",
    value: str | None = None,
) -> list[dict[str, Array]]:
    """Return the factors of the changed items, one mapping a severity.

    Args:
        inputs: factor to (B,) int64 codes.
        severities: 1 changes the factor, 0 leaves it.
        keys: (S, B) int64, the only randomness.
        model: not used.
        labels: factor to the names of its codes.
        factor: the factor to change.
        value: the name that every item gets; None draws one of the other values for each item, never its own.

    Raises:
        DataError: the factor has a single value, so there is no other.
        UnknownNameError: the data have no such factor, or it no such value.
        UsageError: a severity is neither 0 nor 1.

    Source:
        METRICS.md 6.
    """
    del model
    names = labels or {}
    if factor not in inputs or factor not in names:
        raise UnknownNameError(unknown_name("factor", factor, inputs))
    if value is not None and value not in names[factor]:
        raise UnknownNameError(unknown_name(f"value of factor `{factor}`", value, names[factor]))
    if value is None and len(names[factor]) < 2:
        raise DataError(f"factor `{factor}` has the single value `{names[factor][0]}`; there is no other to change it to")
    codes = np.asarray(inputs[factor])
    changed = []
    for at, severity in enumerate(severities):
        if severity not in (0, 1):
            raise UsageError(f"`intervene` changes a factor or does not: expected severity 1 or 0, got {severity:g}")
        if severity == 0:
            new = codes
        elif value is not None:
            new = np.full_like(codes, names[factor].index(value))
        else:
            new = draw_others(codes, keys[at], len(names[factor]))
        changed.append({**inputs, factor: new})
    return changed


def draw_others(codes: Array, keys: torch.Tensor, num_values: int) -> Array:
    """Return another code for each of (B,) codes, uniform over the others; keys (B,) int64."""
    from evalharness.numerics import keyed_uniform

    uniform = keyed_uniform(keys, ()).cpu().numpy().astype(np.float64)
    steps = 1 + (uniform * (num_values - 1)).astype(np.int64)
    return np.asarray((codes + steps) % num_values)


def preserved(factor: str = "lighting", value: str | None = None) -> tuple[str, ...]:
    """Return the factors that keep their value.

    Raises:
        UnknownNameError: there is no such factor.
    """
    del value
    if factor not in FACTORS:
        raise UnknownNameError(unknown_name("factor of `intervene`", factor, FACTORS))
    return tuple(name for name in FACTORS if name != factor)


@hookimpl
def evalharness_shifts() -> Iterable[ShiftSpec]:
    """Register `intervene`."""
    yield ShiftSpec(
        name="intervene",
        summary="The same items rendered with one factor set to another value",
        source="METRICS.md 6",
        params={"factor": "lighting", "value": None},
        mechanism="render",
        apply=change_factor,
        kind="intervention",
        shift_type="factor",
        modality="image",
        severities=(1,),
        preserves=preserved,
    )
