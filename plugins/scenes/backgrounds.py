"""Backgrounds of scenes: functions of pixel positions and three uniform draws an item, as (B, 3, H, W) colours."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .shapes import box, length

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from evalharness.types import Array

    Background = Callable[[Array, Array, Array, float], Array]


def wave(t: Array) -> Array:
    """Return a triangle wave of period 1 between -1 and 1."""
    folded: Array = 4.0 * np.abs(t - np.floor(t) - 0.5) - 1.0
    return folded


def ramp(value: Array, width: Array | float) -> Array:
    """Return how much of a pixel of the given width lies on the positive side, in [0, 1]."""
    share: Array = np.clip(0.5 + value / width, 0.0, 1.0)
    return share


def blend(below: Array, above: Array, share: Array) -> Array:
    """Mix colours (B, 3, H, W) by a share (B, H, W)."""
    mixed: Array = below + (above - below) * share[:, None]
    return mixed


def colour(red: float, green: float, blue: float) -> Array:
    """Return a colour that broadcasts against (B, 3, H, W)."""
    return np.array([red, green, blue], dtype=np.float32).reshape(1, 3, 1, 1)


def _tint(draws: Array, spread: float) -> Array:
    tint: Array = (draws[:, :3] * 2.0 - 1.0).reshape(-1, 3, 1, 1) * np.float32(spread)
    return tint


def _studio(x: Array, y: Array, draws: Array, pixel: float) -> Array:
    del pixel
    glow = 1.0 - 0.22 * (x * x + (y + 0.2) * (y + 0.2))
    backdrop: Array = (colour(0.74, 0.75, 0.77) + _tint(draws, 0.06)) * glow[None, None]
    return backdrop


def _room(x: Array, y: Array, draws: Array, pixel: float) -> Array:
    wall = (colour(0.86, 0.80, 0.66) + _tint(draws, 0.05)) * np.ones_like(x)[None, None]
    depth = np.maximum(y - 0.2, 0.02)
    boards = wave((x / (depth + 0.45))[None] * 1.6 + draws[:, 3, None, None])
    floor = colour(0.58, 0.41, 0.27) * (1.0 - 0.3 * ramp(0.93 - np.abs(boards), -0.12))[:, None]
    floor = floor * (0.72 + 0.35 * depth)[None, None]
    lit = blend(wall, floor, np.broadcast_to(ramp(y - 0.36, pixel), boards.shape))
    skirting = np.broadcast_to(ramp(0.03 - np.abs(y - 0.33), pixel), boards.shape)
    return blend(lit, colour(0.93, 0.91, 0.86), skirting)


def _meadow(x: Array, y: Array, draws: Array, pixel: float) -> Array:
    rise = (y + 1.0)[None, None] * 0.5
    sky = colour(0.40, 0.64, 0.92) * (1.0 - rise) + colour(0.86, 0.93, 0.98) * rise + _tint(draws, 0.02)
    shift = draws[:, 3, None, None] * 2.0
    cloud = length((x[None] - shift + 1.0) / 0.42, (y[None] + 0.62) / 0.13) - 1.0
    sky = blend(sky, colour(0.97, 0.98, 0.99), ramp(-cloud, 0.6))
    hills = 0.22 - 0.5 * (x[None] - shift + 1.0) * (x[None] - shift + 1.0) / 3.0 + 0.12
    far = blend(sky, colour(0.47, 0.63, 0.42), ramp(y[None] - hills, pixel))
    blades = wave(x[None] * 9.0 + shift * 3.0) * wave(y[None] * 7.0 + x[None] * 2.0)
    grass = colour(0.36, 0.60, 0.24) + 0.035 * blades[:, None]
    return blend(far, grass, np.broadcast_to(ramp(y - 0.4, pixel), hills.shape))


def _bricks(x: Array, y: Array, draws: Array, pixel: float) -> Array:
    down = y[None] * 4.5 + draws[:, 3, None, None]
    row = np.floor(down)
    across = x[None] * 2.2 + 0.5 * (row - 2.0 * np.floor(row * 0.5)) + draws[:, 4, None, None]
    brick = np.floor(across)
    edge = np.minimum(np.minimum(across - brick, 1.0 - across + brick) / 2.2, np.minimum(down - row, 1.0 - down + row) / 4.5)
    shade = 0.86 + 0.14 * wave(brick * 0.37 + row * 0.61)
    stone = (colour(0.62, 0.33, 0.26) + _tint(draws, 0.03)) * shade[:, None]
    return blend(colour(0.76, 0.73, 0.69), stone, ramp(edge - 0.02, pixel))


def _tiles(x: Array, y: Array, draws: Array, pixel: float) -> Array:
    wall = (colour(0.62, 0.72, 0.72) + _tint(draws, 0.05)) * (1.0 + 0.12 * y)[None, None]
    depth = np.maximum(y + 0.12, 0.03)
    across, along = (x / depth)[None] * 0.8 + draws[:, 3, None, None], (0.9 / depth)[None] + draws[:, 4, None, None]
    # Far tiles are smaller than a pixel; the wider the transition, the greyer they become, which is what a camera sees.
    width = np.minimum(1.0 + 0.0 * depth, pixel * 1.6 / (depth * depth)) * 4.0
    light = ramp(wave(across) * wave(along), width[None])
    floor = colour(0.22, 0.24, 0.28) + (colour(0.88, 0.87, 0.84) - colour(0.22, 0.24, 0.28)) * light[:, None]
    return blend(wall, floor, np.broadcast_to(ramp(y - 0.12, pixel), across.shape))


def _night(x: Array, y: Array, draws: Array, pixel: float) -> Array:
    rise = (y + 1.0)[None, None] * 0.5
    sky = colour(0.04, 0.05, 0.14) * (1.0 - rise) + colour(0.20, 0.16, 0.34) * rise + _tint(draws, 0.02)
    stars = np.full((len(draws), *x.shape), 9.0, dtype=np.float32)
    for at in range(3, 23, 2):
        across, down = draws[:, at, None, None] * 2.0 - 1.0, draws[:, at + 1, None, None] * 1.5 - 1.0
        stars = np.minimum(stars, length(x[None] - across, y[None] - down))
    sky = blend(sky, colour(0.97, 0.95, 0.80), ramp(0.022 - stars, np.maximum(pixel, 0.02)))
    blocks = np.minimum(box(x[None] + 0.7, y[None] - 0.9, 0.24, 0.42), box(x[None] - 0.62, y[None] - 0.95, 0.32, 0.34))
    town = np.minimum(blocks, box(x[None] + 0.08, y[None] - 1.0, 0.3, 0.26))
    return blend(sky, colour(0.03, 0.03, 0.07), ramp(-town, pixel))


BACKGROUNDS: Mapping[str, Background] = {
    "studio": _studio, "room": _room, "meadow": _meadow, "bricks": _bricks, "tiles": _tiles, "night": _night
}  # fmt: skip
NUM_DRAWS = 24
