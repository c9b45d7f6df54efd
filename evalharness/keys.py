"""Digests: one canonical text for every structured key, and BLAKE2 over it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

DIGEST_BYTES = 16


def plain(value: Any) -> Any:
    """Reduce a value to what JSON can hold: strings, numbers, booleans, None, lists and mappings.

    Raises:
        TypeError: the value holds something else.
    """
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        return float(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return [plain(item) for item in value.tolist()]
    if isinstance(value, (set, frozenset)):
        return sorted(plain(item) for item in value)
    if isinstance(value, Iterable):
        return [plain(item) for item in value]
    raise TypeError(f"`{type(value).__name__}` cannot be part of a key")


def strict(value: Any) -> Any:
    """Reduce a value to strict JSON; what is not finite becomes None."""
    value = plain(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: strict(item) for key, item in value.items()}
    return [strict(item) for item in value] if isinstance(value, list) else value


def canonical(value: Any) -> str:
    """Return the canonical JSON text of a value: sorted keys, no spaces, UTF-8, whole floats as integers."""
    return json.dumps(_whole(plain(value)), sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _whole(value: Any) -> Any:
    """Turn 2.0 into 2, so that ``severity: 2`` and ``severity: 2.0`` make one key; refuse NaN by name."""
    if isinstance(value, float):
        if math.isnan(value) or math.isinf(value):
            return str(value)
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    if isinstance(value, dict):
        return {key: _whole(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_whole(item) for item in value]
    return value


def digest(value: Any) -> str:
    """Return 32 hexadecimal digits that name a structured value."""
    return digest_bytes(canonical(value).encode())


def digest_bytes(*parts: bytes) -> str:
    """Return 32 hexadecimal digits that name a sequence of bytes."""
    state = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        state.update(part)
    return state.hexdigest()


def digest_texts(texts: Iterable[str]) -> str:
    """Return a digest of a sequence of strings, each framed by its length."""
    state = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for text in texts:
        raw = text.encode()
        state.update(len(raw).to_bytes(8, "little"))
        state.update(raw)
    return state.hexdigest()


def seed_of(*about: Any) -> int:
    """Return a 63-bit seed keyed by what a draw is about; never by who is measured."""
    return int(digest(list(about))[:16], 16) >> 1
