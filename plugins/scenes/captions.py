"""Word what a scene shows, and find which captions are true of which images."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .factors import FACTORS, uniform

if TYPE_CHECKING:
    from collections.abc import Mapping

    from evalharness.types import Array

DESCRIBED = ("category", "colour", "texture", "size", "position", "background")
_PLACES = {
    "centre": ("in the middle", "at the centre"), "left": ("on the left", "at the left edge"), "right": ("on the right", "at the right edge"),
    "top": ("at the top", "in the upper part"), "bottom": ("at the bottom", "in the lower part"),
}  # fmt: skip
_BACKGROUNDS = {
    "studio": ("a plain studio backdrop", "an empty backdrop"), "room": ("a room with a wooden floor", "a living room"),
    "meadow": ("a green meadow", "grass and blue sky"), "bricks": ("a brick wall", "a wall of bricks"),
    "tiles": ("a tiled floor", "a chessboard floor"), "night": ("a city at night", "a starry night sky"),
}  # fmt: skip
_SIZES = {"small": ("small", "little"), "medium": ("medium-sized", "mid-sized"), "large": ("large", "big")}
_TEXTURES = {"plain": "plain", "stripes": "striped", "dots": "dotted", "checks": "checked", "zigzag": "zigzag-patterned"}
_PHRASES = (
    "A {size} {colour} {texture} {category} {position}, in front of {background}.",
    "In front of {background}, a {size} {texture} {category} in {colour} {position} of the picture.",
    "There is a {texture} {colour} {category} {position}; it is {size}, and behind it is {background}.",
    "{background}, and {position} a {category}: {size}, {colour}, {texture}.",
)


def describe(codes: Mapping[str, Array], keys: Array) -> list[str]:
    """Return one caption an item; wording depends on the key alone."""
    phrases = (uniform(keys, "caption") * len(_PHRASES)).astype(np.int64).tolist()
    words = {name: [FACTORS[name][code] for code in codes[name].tolist()] for name in DESCRIBED}
    synonyms = (uniform(keys, "caption/words") * 8).astype(np.int64).tolist()
    return [_word(_PHRASES[phrase], {name: words[name][row] for name in DESCRIBED}, synonyms[row]) for row, phrase in enumerate(phrases)]


def _word(phrase: str, values: Mapping[str, str], synonym: int) -> str:
    text = phrase.format(
        category=values["category"],
        colour=values["colour"],
        texture=_TEXTURES[values["texture"]],
        size=_SIZES[values["size"]][synonym & 1],
        position=_PLACES[values["position"]][synonym >> 1 & 1],
        background=_BACKGROUNDS[values["background"]][synonym >> 2 & 1],
    )
    return text[0].upper() + text[1:]


def group_captions(codes: Mapping[str, Array]) -> Array:
    """Return (L, 2) int64 rows of image and text that agree in all described factors, so that no true caption counts as wrong."""
    joint = np.zeros(len(next(iter(codes.values()))), dtype=np.int64)
    for name in DESCRIBED:
        joint = joint * len(FACTORS[name]) + codes[name]
    order = np.argsort(joint, kind="stable")
    starts = np.flatnonzero(np.diff(joint[order], prepend=-1))
    groups = np.split(order, starts[1:])
    pairs = [np.stack(np.meshgrid(rows, rows, indexing="ij"), axis=-1).reshape(-1, 2) for rows in groups]
    joined = np.concatenate(pairs)
    ordered: Array = joined[np.lexsort((joined[:, 1], joined[:, 0]))]
    return ordered
