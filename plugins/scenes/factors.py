"""Draw the factors of scenes from ids: every draw is a hash of seed, split and row, so nothing depends on order or number."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from evalharness.errors import DataError, UnknownNameError, UsageError, unknown_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from evalharness.types import Array

SPLITS = ("train", "validation", "test")
FACTORS: Mapping[str, tuple[str, ...]] = {
    "category": ("boat", "car", "chair", "fish", "house", "lamp", "mug", "tree"),
    "colour": ("red", "orange", "yellow", "green", "teal", "blue", "purple", "pink"),
    "orientation": ("upright", "tilted-left", "tilted-right", "lying-left", "lying-right", "upside-down"),
    "size": ("small", "medium", "large"),
    "position": ("centre", "left", "right", "top", "bottom"),
    "background": ("studio", "room", "meadow", "bricks", "tiles", "night"),
    "lighting": ("from-left", "from-right", "from-above", "dim", "bright"),
    "texture": ("plain", "stripes", "dots", "checks", "zigzag"),
    "viewpoint": ("frontal", "from-left", "from-right", "from-above", "from-below"),
    "camera": ("sharp", "soft", "noisy", "warm", "faded"),
    "instance": ("shape-1", "shape-2", "shape-3", "shape-4", "shape-5"),
}
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def mix(keys: Array) -> Array:
    """Scramble uint64 keys.

    Source: the finaliser of SplitMix64, Steele, Lea and Flood, OOPSLA 2014.
    """
    keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Array = keys ^ (keys >> np.uint64(31))
    return mixed


def uniform(keys: Array, stream: str) -> Array:
    """Return (B,) float64 in [0, 1), one a key, independent between streams."""
    words = mix(mix(keys + _word(stream)) + _GOLDEN)
    drawn: Array = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return drawn


def item_keys(seed: int, split: str, rows: Array) -> Array:
    """Return (B,) uint64 keys of the rows of a split."""
    return mix(_word(f"scenes/{seed}/{split}") + rows.astype(np.uint64) * _GOLDEN)


def draw_factors(keys: Array, confound: Mapping[str, tuple[str, float]]) -> dict[str, Array]:
    """Draw all factors as (B,) int64 codes, independently, then tie the confounded ones in the order given.

    A factor confounded with strength s takes, with probability s, the code of the other factor modulo its own number of values.
    """
    drawn = {name: (uniform(keys, name) * len(values)).astype(np.int64) for name, values in FACTORS.items()}
    for name, (other, strength) in confound.items():
        tied = uniform(keys, f"{name}|{other}") < strength
        drawn[name] = np.where(tied, drawn[other] % len(FACTORS[name]), drawn[name])
    return drawn


def check_confound(confound: Mapping[str, Sequence[Any]] | None) -> dict[str, tuple[str, float]]:
    """Check and normalise the parameter ``confound``.

    Raises:
        UnknownNameError: a factor does not exist.
        UsageError: an entry is not ``FACTOR: [OTHER, STRENGTH]`` with a strength in [0, 1].
    """
    checked: dict[str, tuple[str, float]] = {}
    for name, entry in (confound or {}).items():
        form = f"`confound` of `scenes` takes FACTOR: [OTHER, STRENGTH] with a strength from 0 to 1, got {name}: {entry!r}"
        if isinstance(entry, str) or len(entry) != 2:
            raise UsageError(form)
        other, strength = entry
        for factor in (name, other):
            if factor not in FACTORS:
                raise UnknownNameError(unknown_name("factor of `scenes`", str(factor), FACTORS))
        if name == other or isinstance(strength, str) or not 0.0 <= strength <= 1.0:
            raise UsageError(form)
        checked[name] = (other, float(strength))
    return checked


def make_ids(split: str, rows: Array) -> Array:
    """Return ids such as ``train/000017``."""
    return np.array([f"{split}/{row:06d}" for row in rows.tolist()], dtype=str)


def parse_ids(ids: Sequence[str]) -> tuple[Array, Array]:
    """Return splits (B,) and rows (B,) int64 of ids.

    Raises:
        DataError: an id is not of the form ``SPLIT/ROW``.
    """
    pairs = [str(name).partition("/") for name in ids]
    for name, (split, _, row) in zip(ids, pairs, strict=True):
        if split not in SPLITS or not row.isdecimal():
            raise DataError(f"`{name}` is no id of `scenes`; ids look like `train/000017`, with split {', '.join(SPLITS)}")
    return np.array([split for split, _, _ in pairs], dtype=str), np.array([int(row) for _, _, row in pairs], dtype=np.int64)


def _word(text: str) -> np.uint64:
    return np.uint64(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little"))
