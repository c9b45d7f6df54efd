"""Render scenes: one function from factor codes and keys to pixels, vectorised over items.

Every operation is elementwise and correctly rounded, so that an item's bits do not depend on its neighbours in the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .backgrounds import BACKGROUNDS, NUM_DRAWS, blend, colour, ramp, wave
from .factors import FACTORS, mix, uniform
from .shapes import INSTANCES, SHAPES, length

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from evalharness.types import Array

    from .shapes import Shape

# Items rendered at once: about this many pixels keep the temporaries in the cache of one core.
BLOCK_PIXELS = 1 << 17
_COLOURS = np.array(
    [[.84, .15, .15], [.95, .50, .08], [.95, .83, .14], [.20, .60, .22], [.08, .66, .68], [.15, .31, .82], [.50, .20, .70], [.95, .50, .72]],
    dtype=np.float32,
)  # fmt: skip
_TONES = {"light": colour(0.93, 0.92, 0.88), "dark": colour(0.13, 0.13, 0.15), "wood": colour(0.43, 0.27, 0.15)}
# Cosine and sine of 0, -30, 30, -90, 90 and 180 degrees; y points down, so a positive angle turns clockwise.
_TURNS = np.array([[1, 0], [0.8660254, -0.5], [0.8660254, 0.5], [0, -1], [0, 1], [-1, 0]])
_SIZES = np.array([0.31, 0.45, 0.62])
_PLACES = np.array([[0, 0], [-0.42, 0], [0.42, 0], [0, -0.38], [0, 0.38]])
# Foreshortening and shear of the front face (xx, yx, yy), and where its depth shows (x, y).
_VIEWS = np.array([[1, 0, 1, 0, 0], [0.76, 0.16, 1, -0.2, 0.04], [0.76, -0.16, 1, 0.2, 0.04], [1, 0, 0.76, 0, -0.2], [1, 0, 0.76, 0, 0.2]])
# Direction of the light (x, y, z), and its level on object and background.
_LIGHTS = np.array([[-0.68, -0.25, 0.69, 1], [0.68, -0.25, 0.69, 1], [0, -0.75, 0.66, 1], [0, -0.2, 0.98, 0.55], [0, -0.2, 0.98, 1.25]])


def render_items(factors: Mapping[str, Array], keys: Array, image_size: int) -> Array:
    """Render items.

    Args:
        factors: factor to (B,) int64 codes, all factors.
        keys: (B,) uint64, the source of phases, small jitter and noise.
        image_size: height and width in pixels.

    Returns:
        (B, 3, image_size, image_size) float32 in [0, 1].
    """
    images = np.empty((len(keys), 3, image_size, image_size), dtype=np.float32)
    step = max(1, BLOCK_PIXELS // (image_size * image_size))
    for start in range(0, len(keys), step):
        at = slice(start, start + step)
        images[at] = _render_block({name: codes[at] for name, codes in factors.items()}, keys[at], image_size)
    return images


def _render_block(factors: dict[str, Array], keys: Array, size: int) -> Array:
    axis = ((np.arange(size, dtype=np.float32) + np.float32(0.5)) * np.float32(2.0 / size)) - np.float32(1.0)
    x, y = np.meshgrid(axis, axis, indexing="xy")
    image = _paint_background(factors["background"], keys, x, y, size)
    image *= _shade_wall(_LIGHTS[factors["lighting"]].astype(np.float32), x, y)[:, None]
    for rows, name in _groups(factors["category"], FACTORS["category"]):
        chosen = {factor: codes[rows] for factor, codes in factors.items()}
        image[rows] = _paint_objects(SHAPES[name], chosen, keys[rows], image[rows], x, y)
    return _photograph(image, factors["camera"], keys)


def _groups(codes: Array, names: tuple[str, ...]) -> Iterator[tuple[Array, str]]:
    for code in np.unique(codes).tolist():
        yield np.flatnonzero(codes == code), names[code]


def _paint_background(codes: Array, keys: Array, x: Array, y: Array, size: int) -> Array:
    draws = np.stack([uniform(keys, f"background/{at}") for at in range(NUM_DRAWS)], axis=1).astype(np.float32)
    image = np.empty((len(keys), 3, size, size), dtype=np.float32)
    for rows, name in _groups(codes, FACTORS["background"]):
        image[rows] = BACKGROUNDS[name](x, y, draws[rows], 2.0 / size)
    return image


def _shade_wall(light: Array, x: Array, y: Array) -> Array:
    across, down, _, level = (light[:, at, None, None] for at in range(4))
    lit: Array = level * (1.0 + 0.28 * (across * x + down * y))
    return lit


def _jitter(keys: Array, stream: str, spread: float) -> Array:
    jitter: Array = (uniform(keys, stream) * 2.0 - 1.0) * spread
    return jitter


def _pose(factors: dict[str, Array], keys: Array) -> tuple[Array, ...]:
    """Return centre (2), inverse matrix (4), depth in object coordinates (2) and scale of each item, (B, 1, 1) float32 each."""
    half = _jitter(keys, "turn", 0.05)  # tangent of half the angle: about six degrees either way, without a sine
    cosine, sine = (1 - half * half) / (1 + half * half), 2 * half / (1 + half * half)
    turn = _TURNS[factors["orientation"]]
    cosine, sine = turn[:, 0] * cosine - turn[:, 1] * sine, turn[:, 1] * cosine + turn[:, 0] * sine
    xx, yx, yy, deep_x, deep_y = _VIEWS[factors["viewpoint"]].T
    scale = _SIZES[factors["size"]] * (1 + _jitter(keys, "scale", 0.06))
    # Inverse of view @ turn: (turn^T) (view^-1), view = [[xx, 0], [yx, yy]].
    a, b, c, d = cosine / xx - sine * yx / (xx * yy), sine / yy, -sine / xx - cosine * yx / (xx * yy), cosine / yy
    place = _PLACES[factors["position"]] + np.stack([_jitter(keys, "x", 0.05), _jitter(keys, "y", 0.05)], axis=1)
    values = (place[:, 0], place[:, 1], a / scale, b / scale, c / scale, d / scale, a * deep_x + b * deep_y, c * deep_x + d * deep_y, scale)
    return tuple(value.astype(np.float32)[:, None, None] for value in values)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Objects:
    """Hold B objects of one category; per item values are (B, 1, 1), ``u`` and ``v`` the objects' own coordinates (B, H, W)."""

    shape: Shape
    u: Array
    v: Array
    wide: Array
    tall: Array
    pixel: Array
    paint: Array  # (B, 3, 1, 1)
    light: Array  # (B, 4)

    def silhouette(self, shift_u: Array, shift_v: Array) -> Array:
        """Return the distance to the objects moved by a shift."""
        layers = self.shape(self.u - shift_u, self.v - shift_v, self.wide, self.tall)
        nearest: Array = np.minimum.reduce([distance for distance, _ in layers])
        return nearest


def _paint_objects(shape: Shape, factors: dict[str, Array], keys: Array, image: Array, x: Array, y: Array) -> Array:
    centre_x, centre_y, a, b, c, d, deep_u, deep_v, scale = _pose(factors, keys)
    form = INSTANCES[factors["instance"]].astype(np.float64)
    tint = np.stack([_jitter(keys, f"tint/{at}", 0.03) for at in range(3)], axis=1)
    objects = _Objects(
        shape=shape,
        u=a * (x - centre_x) + b * (y - centre_y),
        v=c * (x - centre_x) + d * (y - centre_y),
        wide=(form[:, 0] + _jitter(keys, "wide", 0.2)).astype(np.float32)[:, None, None],
        tall=(form[:, 1] + _jitter(keys, "tall", 0.2)).astype(np.float32)[:, None, None],
        pixel=np.float32(2.0 / x.shape[0]) / scale,
        paint=(_COLOURS[factors["colour"]] + tint).astype(np.float32)[:, :, None, None],
        light=_LIGHTS[factors["lighting"]].astype(np.float32),
    )
    # The shadow falls away from the light, on a wall behind the object.
    fall_x, fall_y = -0.16 * objects.light[:, 0, None, None] * scale, (0.1 - 0.12 * objects.light[:, 1, None, None]) * scale
    shadow = ramp(-objects.silhouette(a * fall_x + b * fall_y, c * fall_x + d * fall_y), 0.3 + objects.pixel)
    image = image * (1.0 - 0.5 * shadow)[:, None]
    image = _paint_depth(image, objects, deep_u, deep_v)
    return _paint_layers(image, objects, _draw_pattern(factors["texture"], keys, objects))


def _paint_depth(image: Array, objects: _Objects, deep_u: Array, deep_v: Array) -> Array:
    steps = [objects.silhouette(share * deep_u, share * deep_v) for share in np.linspace(0.2, 1.0, 5, dtype=np.float32)]
    side = objects.paint * (0.42 * objects.light[:, 3, None, None, None])
    return blend(image, side, ramp(-np.minimum.reduce(steps), objects.pixel))


def _paint_layers(image: Array, objects: _Objects, pattern: Array) -> Array:
    albedo, height = np.zeros_like(image), np.zeros_like(objects.u)
    whole = np.zeros_like(height)
    lighter = 0.35 + 0.65 * (1.0 - objects.paint) - 0.2 * objects.paint
    tones = {**_TONES, "colour": objects.paint + lighter * (0.75 * pattern)[:, None], "shade": objects.paint * 0.6}
    for distance, tone in objects.shape(objects.u, objects.v, objects.wide, objects.tall):
        cover = ramp(-distance, objects.pixel)
        albedo = blend(albedo, tones[tone], cover)
        depth = np.clip(distance * -4.0, 0.0, 1.0)
        height = height + (depth * (2.0 - depth) - height) * cover
        whole = np.maximum(whole, cover)
    lit = albedo * _shade_object(height, objects.light)[:, None]
    # Albedo is mixed from black below the first layer, so it is divided by the share that is not black.
    return blend(image, lit / np.maximum(whole, 1e-3)[:, None], whole)


def _shade_object(height: Array, light: Array) -> Array:
    """Return (B, H, W) brightness of a bulging surface of the given height under a distant light (Lambert)."""
    strength = np.float32(height.shape[-1] * 0.045)
    slope_x, slope_y = np.zeros_like(height), np.zeros_like(height)
    slope_x[:, :, 1:-1] = (height[:, :, 2:] - height[:, :, :-2]) * strength
    slope_y[:, 1:-1] = (height[:, 2:] - height[:, :-2]) * strength
    across, down, towards, level = (light[:, at, None, None] for at in range(4))
    facing = (towards - slope_x * across - slope_y * down) / np.sqrt(1.0 + slope_x * slope_x + slope_y * slope_y)
    shaded: Array = level * (0.42 + 0.78 * np.maximum(facing, 0.0))
    return shaded


def _draw_pattern(textures: Array, keys: Array, objects: _Objects) -> Array:
    """Return (B, H, W) shares of the lighter colour, in coordinates of the object."""
    pattern = np.zeros_like(objects.u)
    phases = np.stack([uniform(keys, "phase/0"), uniform(keys, "phase/1")], axis=1).astype(np.float32)
    for rows, name in _groups(textures, FACTORS["texture"]):
        if name != "plain":
            u = objects.u[rows] * 2.6 + phases[rows, 0, None, None]
            v = objects.v[rows] * 2.6 + phases[rows, 1, None, None]
            pattern[rows] = _PATTERNS[name](u, v, objects.pixel[rows] * 2.6)
    return pattern


def _draw_dots(u: Array, v: Array, width: Array) -> Array:
    return ramp(0.29 - length(u - np.floor(u) - 0.5, v - np.floor(v) - 0.5), width)


_PATTERNS: dict[str, Callable[[Array, Array, Array], Array]] = {
    "stripes": lambda u, v, width: ramp(wave(u * 0.9 + v * 0.35), width * 4.0),
    "dots": _draw_dots,
    "checks": lambda u, v, width: ramp(wave(u * 0.8) * wave(v * 0.8), width * 4.0),
    "zigzag": lambda u, v, width: ramp(wave(v * 1.1 + 0.3 * wave(u * 1.2)), width * 5.0),
}


def _photograph(image: Array, cameras: Array, keys: Array) -> Array:
    for rows, name in _groups(cameras, FACTORS["camera"]):
        if name == "soft":
            image[rows] = _blur(image[rows])
        elif name == "noisy":
            image[rows] += np.float32(0.07) * _noise(keys[rows], image.shape[1:])
        elif name == "warm":
            image[rows] *= colour(1.12, 0.98, 0.74)
        elif name == "faded":
            image[rows] = image[rows] * np.float32(0.5) + np.float32(0.36)
    clipped: Array = np.clip(image, 0.0, 1.0)
    return clipped


def _blur(image: Array) -> Array:
    step = max(1, image.shape[-1] // 64)
    for axis in (2, 3):
        for reach in (step, step, (step + 1) // 2):
            padding = [(0, 0)] * axis + [(reach, reach)] + [(0, 0)] * (3 - axis)
            padded = np.moveaxis(np.pad(image, padding, mode="edge"), axis, 0)
            image = np.moveaxis((padded[: -2 * reach] + 2.0 * padded[reach:-reach] + padded[2 * reach :]) * np.float32(0.25), 0, axis)
    return image


def _noise(keys: Array, shape: tuple[int, ...]) -> Array:
    """Return (B, *shape) values close to standard normal: the sum of the four 16-bit lanes of a hash, scaled to unit variance."""
    index = np.arange(int(np.prod(shape)), dtype=np.uint64) * np.uint64(0xD1342543DE82EF95)
    words = mix(mix(keys)[:, None] + index)
    lanes = sum((words >> np.uint64(16 * at)) & np.uint64(0xFFFF) for at in range(4))
    noise: Array = ((np.asarray(lanes).astype(np.float32) - np.float32(131070.0)) * np.float32(3**0.5 / 65536.0)).reshape(len(keys), *shape)
    return noise
