"""Random numbers that are a function of a key and a position: the same on every device and in every batch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from evalharness.errors import UsageError
from evalharness.numerics._arrays import as_kind, as_tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_MULTIPLIERS = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)
_BLOCK = {"cpu": 2**18, "cuda": 2**24}  # on a CPU blocks stay in the cache


def keyed_uniform(keys: Any, shape: Sequence[int]) -> Any:
    """Return uniform numbers in (0, 1) that depend on key and position only.

    Args:
        keys: (...,) int64 tensor or array, one an item.
        shape: the shape for each key.

    Returns:
        (*keys.shape, *shape) float32, multiples of 2^-24, never 0 or 1; of the keys' kind and device.

    Raises:
        UsageError: the keys are not int64 or a size is negative.

    Source:
        SplitMix64 (Steele, Lea & Flood 2014), seeded by the mixed key; no state, so blocks may be cut anywhere.
    """
    # 23 bits and a half step are exact in float32, so no number can round to 1.
    return _fill(keys, shape, lambda bits: (((bits >> 41) & (2**23 - 1)).to(torch.float32) + 0.5) * 2.0**-23)


def keyed_normal(keys: Any, shape: Sequence[int]) -> Any:
    """Return standard normal numbers that depend on key and position only.

    The inverse distribution function is taken in float64 of 52 bits, so values are within 8.3 and devices agree to the rounding of float32.

    Args:
        keys: (...,) int64 tensor or array, one an item.
        shape: the shape for each key.

    Returns:
        (*keys.shape, *shape) float32, of the keys' kind and device.

    Raises:
        UsageError: the keys are not int64 or a size is negative.

    Source:
        As ``keyed_uniform``; Box-Muller was not taken, since vectorised and scalar sines differ and with them batch sizes.
    """
    return _fill(
        keys, shape, lambda bits: torch.special.ndtri((((bits >> 12) & (2**52 - 1)).to(torch.float64) + 0.5) * 2.0**-52).to(torch.float32)
    )


def _fill(keys: Any, shape: Sequence[int], convert: Any) -> Any:
    tensor = as_tensor(keys)
    if tensor.dtype != torch.int64:
        raise UsageError(f"`keys` must be int64, got {tensor.dtype}")
    if any(size < 0 for size in shape):
        raise UsageError(f"`shape` must not hold negative sizes, got {tuple(shape)}")
    size = math.prod(shape)
    states = _mix(tensor.flatten() ^ _MULTIPLIERS[0])
    result = torch.empty((len(states), size), device=tensor.device)
    block = _BLOCK.get(tensor.device.type, _BLOCK["cpu"])
    width = min(max(size, 1), block)
    height = max(1, block // width)
    for first in range(0, len(states), height):
        for start in range(0, size, width):
            stop = min(start + width, size)
            steps = torch.arange(start + 1, stop + 1, device=tensor.device) * _GOLDEN
            bits = _mix(states[first : first + height, None] + steps)
            result[first : first + height, start:stop] = convert(bits)
    return as_kind(result.view(*tensor.shape, *shape), keys)


def _mix(values: torch.Tensor) -> torch.Tensor:
    """Return SplitMix64's finaliser; int64 products wrap on every device, and masks make shifts logical."""
    values = values.clone()
    for shift, multiplier in zip((30, 27), _MULTIPLIERS, strict=True):
        values.bitwise_xor_((values >> shift).bitwise_and_(2 ** (64 - shift) - 1)).mul_(multiplier)
    return values.bitwise_xor_((values >> 31).bitwise_and_(2**33 - 1))
