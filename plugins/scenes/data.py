"""The data sets `scenes` and `scene-captions`: items made from id and seed, nothing stored."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evalharness.errors import DataError, UnknownNameError, UsageError, unknown_name
from evalharness.types import Array, Column, Dataset, Identity, Links, Samples

from .captions import describe, group_captions
from .factors import FACTORS, SPLITS, check_confound, draw_factors, item_keys, make_ids, parse_ids
from .renderer import render_items

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PARAMS: Mapping[str, Any] = {
    "train": 2000, "validation": 400, "test": 1000, "seed": 0, "image_size": 64, "confound": None, "confound_test": False
}  # fmt: skip
_SIZES = (8, 1024)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Hold checked parameters."""

    counts: Mapping[str, int]
    seed: int
    image_size: int
    confound: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    confound_test: bool = False

    def draw(self, split: str, rows: Array) -> tuple[Array, dict[str, Array]]:
        """Return keys (B,) and factor codes of rows of a split."""
        keys = item_keys(self.seed, split, rows)
        tied = self.confound if split != "test" or self.confound_test else {}
        return keys, draw_factors(keys, tied)


def load_scenes(split: str, **params: Any) -> Dataset:
    """Load a split of `scenes`: part "items", images with one class column a factor."""
    return Dataset(parts={"items": _make_images(split, read_settings(params))})


def load_captions(split: str, **params: Any) -> Dataset:
    """Load a split of `scene-captions`: parts "images" and "texts", links "captions" from each image to all texts that are true of it."""
    images = _make_images(split, read_settings(params))
    codes = {name: column.values for name, column in images.columns.items()}
    keys = item_keys(read_settings(params).seed, split, np.arange(images.size))
    texts = describe(codes, keys)
    captions = Samples(
        modality="text",
        size=images.size,
        read=lambda at: [texts[row] for row in np.asarray(at).tolist()],
        # An id of its own: image and caption are not the same thing, and searches may leave out what has the query's id.
        ids=np.array([f"{name}/caption" for name in images.ids.tolist()], dtype=str),
        columns=images.columns,
        fingerprint=images.fingerprint,
    )
    rows = group_captions(codes)
    ids = np.array([f"{images.ids[i]}={captions.ids[j]}" for i, j in rows.tolist()], dtype=str)
    links = Links(source="images", target="texts", rows=rows, grades=np.ones(len(rows)), ids=ids)
    return Dataset(parts={"images": images, "texts": captions}, links={"captions": links})


def render(ids: Sequence[str], factors: Mapping[str, Array], **params: Any) -> Any:
    """Render the items of the given ids with changed factors.

    Args:
        ids: B ids such as ``train/000017``.
        factors: factor to (B,) codes into the names of its column; a factor left out keeps the item's own value.
        **params: as for loading.

    Returns:
        (B, 3, H, W) float32 tensor in [0, 1]; with unchanged factors the very bits that reading gives.

    Raises:
        UnknownNameError: a factor does not exist.
        DataError: an id or a code does not exist, or lengths differ.
    """
    settings = read_settings(params)
    splits, rows = parse_ids(ids)
    keys, codes = np.zeros(len(rows), dtype=np.uint64), {name: np.zeros(len(rows), dtype=np.int64) for name in FACTORS}
    for split in np.unique(splits).tolist():
        at = np.flatnonzero(splits == split)
        keys[at], drawn = settings.draw(split, rows[at])
        for name, values in drawn.items():
            codes[name][at] = values
    codes.update(_check_codes(factors, len(rows)))
    return _as_tensor(render_items(codes, keys, settings.image_size))


def identify(split: str, **params: Any) -> Identity:
    """Return a digest of this folder's source and of what the split is made from."""
    settings = read_settings(params)
    _check_split(split)
    return Identity(kind="source", digest=_digest(split, settings))


def read_settings(params: Mapping[str, Any]) -> Settings:
    """Check parameters.

    Raises:
        UsageError: a number is out of range, or `confound` has a wrong form.
    """
    given = {**PARAMS, **params}
    for name in SPLITS:
        if not isinstance(given[name], int) or given[name] < 1:
            raise UsageError(f"`{name}` of `scenes` is a number of images, at least 1, got {given[name]!r}")
    size = 64 if given["image_size"] is None else given["image_size"]
    if not isinstance(size, int) or not _SIZES[0] <= size <= _SIZES[1]:
        raise UsageError(f"`image_size` of `scenes` is a number of pixels from {_SIZES[0]} to {_SIZES[1]}, got {size!r}")
    if not isinstance(given["seed"], int):
        raise UsageError(f"`seed` of `scenes` is a whole number, got {given['seed']!r}")
    return Settings(
        counts={name: given[name] for name in SPLITS},
        seed=given["seed"],
        image_size=size,
        confound=check_confound(given["confound"]),
        confound_test=bool(given["confound_test"]),
    )


def _make_images(split: str, settings: Settings) -> Samples:
    _check_split(split)
    rows = np.arange(settings.counts[split])
    keys, codes = settings.draw(split, rows)

    def read(at: Array) -> Any:
        at = np.asarray(at)
        return _as_tensor(render_items({name: values[at] for name, values in codes.items()}, keys[at], settings.image_size))

    return Samples(
        modality="image",
        size=len(rows),
        read=read,
        ids=make_ids(split, rows),
        columns={name: Column(kind="class", values=values, names=FACTORS[name]) for name, values in codes.items()},
        fingerprint=_digest(split, settings),
    )


def _check_split(split: str) -> None:
    if split not in SPLITS:
        raise UnknownNameError(unknown_name("split of `scenes`", split, SPLITS))


def _check_codes(factors: Mapping[str, Array], num_items: int) -> dict[str, Array]:
    checked = {}
    for name, values in factors.items():
        if name not in FACTORS:
            raise UnknownNameError(unknown_name("factor of `scenes`", name, FACTORS))
        codes = np.asarray(values).astype(np.int64)
        if codes.shape != (num_items,):
            raise DataError(f"`factors[{name!r}]` needs one code for each of {num_items} ids, got shape {codes.shape}")
        if num_items and not 0 <= codes.min() <= codes.max() < len(FACTORS[name]):
            raise DataError(f"`factors[{name!r}]` takes codes from 0 to {len(FACTORS[name]) - 1}, got {codes.min()} to {codes.max()}")
        checked[name] = codes
    return checked


def _as_tensor(images: Array) -> Any:
    import torch

    return torch.from_numpy(images)


def _digest(split: str, settings: Settings) -> str:
    confound = settings.confound if split != "test" or settings.confound_test else {}
    made_from = (split, settings.counts[split], settings.seed, settings.image_size, sorted(confound.items()), list(confound))
    return hashlib.blake2b(_read_source() + repr(made_from).encode(), digest_size=16).hexdigest()


@lru_cache(maxsize=1)
def _read_source() -> bytes:
    return b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
