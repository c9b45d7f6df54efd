"""Silhouettes as signed distances, negative inside.

Coordinates are those of the object: x to the right, y down, the object within the unit circle.
Each shape is a list of layers, painted in order, each with a distance and a tone; ``wide`` and ``tall`` in [-1, 1] vary its proportions.
Only correctly rounded operations (+ - * / sqrt, min, max, abs, floor) are used, so that bits agree for every batch and machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from evalharness.types import Array

    Layer = tuple[Array, str]
    Shape = Callable[[Array, Array, Array, Array], list[Layer]]


def length(x: Array, y: Array) -> Array:
    """Return the Euclidean length of vectors."""
    norm: Array = np.sqrt(x * x + y * y)
    return norm


def box(x: Array, y: Array, half_width: Array | float, half_height: Array | float, radius: float = 0.0) -> Array:
    """Return the distance to a box about the origin with rounded corners."""
    across, down = np.abs(x) - half_width + radius, np.abs(y) - half_height + radius
    inside = np.minimum(np.maximum(across, down), 0.0)
    distance: Array = length(np.maximum(across, 0.0), np.maximum(down, 0.0)) + inside - radius
    return distance


def ellipse(x: Array, y: Array, a: Array | float, b: Array | float) -> Array:
    """Return a first-order distance to an ellipse about the origin."""
    value = length(x / a, y / b)
    slope = length(x / (a * a), y / (b * b)) + 1e-6
    distance: Array = value * (value - 1.0) / slope
    return distance


def wedge(x: Array, y: Array, top: Array | float, bottom: Array | float, half_height: Array | float) -> Array:
    """Return a bound on the distance to a trapezium about the origin, half as wide as ``top`` and ``bottom`` at its ends."""
    half = (top + bottom) * 0.5 + (bottom - top) * 0.5 * (y / half_height)
    slope = (bottom - top) * 0.5 / half_height
    distance: Array = np.maximum((np.abs(x) - half) / np.sqrt(1.0 + slope * slope), np.abs(y) - half_height)
    return distance


def _boat(x: Array, y: Array, wide: Array, tall: Array) -> list[Layer]:
    hull = wedge(x, y - 0.52, 0.85 + 0.1 * wide, 0.5, 0.24)
    mast = box(x + 0.05, y + 0.3, 0.04, 0.62)
    height = 0.5 + 0.08 * tall
    sail = np.maximum(wedge(x + 0.02, y + 0.32, 0.02, 1.5 + 0.2 * wide, height), -x - 0.02)
    jib = np.maximum(wedge(x + 0.1, y + 0.24, 0.02, 0.9, 0.42), x + 0.13)
    return [(mast, "wood"), (sail, "colour"), (jib, "light"), (hull, "colour"), (box(x, y - 0.36, 0.84, 0.035), "light")]


def _car(x: Array, y: Array, wide: Array, tall: Array) -> list[Layer]:
    cabin = wedge(x + 0.08, y + 0.22, 0.34 + 0.06 * wide, 0.6, 0.26 + 0.05 * tall)
    glass = np.maximum(wedge(x + 0.08, y + 0.2, 0.28 + 0.06 * wide, 0.48, 0.17), 0.04 - np.abs(x + 0.08))
    body = box(x, y - 0.16, 0.92, 0.24, 0.14)
    layers = [(cabin, "colour"), (glass, "light"), (body, "colour"), (box(x - 0.84, y - 0.1, 0.07, 0.06, 0.03), "light")]
    for centre in (-0.5, 0.52):
        wheel = length(x - centre, y - 0.42)
        layers += [(wheel - 0.24, "dark"), (wheel - 0.1, "light")]
    return layers


def _chair(x: Array, y: Array, wide: Array, tall: Array) -> list[Layer]:
    half, top = 0.46 + 0.07 * wide, 0.5 + 0.1 * tall
    back = np.minimum(box(x + half, y + 0.4, 0.085, top, 0.03), box(x + half, y - 0.5, 0.085, 0.45, 0.03))
    seat = box(x, y - 0.12, half + 0.12, 0.1, 0.05)
    legs = box(x - half, y - 0.55, 0.075, 0.4, 0.03)
    far_legs = np.minimum(box(x - half + 0.22, y - 0.45, 0.05, 0.34), box(x + half - 0.24, y - 0.45, 0.05, 0.34))
    rail = box(x, y - 0.58, half, 0.045)
    return [(far_legs, "shade"), (rail, "shade"), (back, "colour"), (legs, "colour"), (seat, "colour")]


def _fish(x: Array, y: Array, wide: Array, tall: Array) -> list[Layer]:
    body = ellipse(x - 0.12, y, 0.7 + 0.06 * wide, 0.4 + 0.09 * tall)
    tail = np.maximum(wedge(y, x + 0.72, 0.46, 0.04, 0.24), 0.16 - length(x + 1.02, y))
    fin = wedge(x - 0.05, y + 0.4 + 0.06 * tall, 0.1, 0.36, 0.16)
    side_fin = ellipse(x + 0.02, y - 0.1, 0.17, 0.1)
    eye = length(x - 0.52, y + 0.08)
    return [(tail, "colour"), (fin, "shade"), (body, "colour"), (side_fin, "shade"), (eye - 0.1, "light"), (eye - 0.05, "dark")]


def _house(x: Array, y: Array, wide: Array, tall: Array) -> list[Layer]:
    half = 0.56 + 0.1 * wide
    walls = box(x, y - 0.36, half, 0.5)
    roof = wedge(x, y + 0.46 + 0.04 * tall, 0.02, half + 0.2, 0.38 + 0.08 * tall)
    chimney = box(x - 0.34, y + 0.56, 0.09, 0.26)
    door = box(x, y - 0.58, 0.14, 0.28)
    panes = np.minimum(box(x - half * 0.62, y - 0.24, 0.13, 0.14), box(x + half * 0.62, y - 0.24, 0.13, 0.14))
    return [(chimney, "wood"), (walls, "colour"), (roof, "shade"), (door, "wood"), (panes, "light")]


def _lamp(x: Array, y: Array, wide: Array, tall: Array) -> list[Layer]:
    shade = wedge(x, y + 0.5, 0.26 + 0.06 * wide, 0.58 + 0.08 * wide, 0.36 + 0.06 * tall)
    pole = box(x, y - 0.3, 0.05, 0.55)
    base = ellipse(x, y - 0.84, 0.4, 0.12)
    glow = box(x, y + 0.14 - 0.06 * tall, 0.5 + 0.08 * wide, 0.05, 0.05)
    return [(pole, "dark"), (base, "shade"), (shade, "colour"), (glow, "light")]


def _mug(x: Array, y: Array, wide: Array, tall: Array) -> list[Layer]:
    half, high = 0.5 + 0.08 * wide, 0.6 + 0.1 * tall
    body = np.maximum(box(x + 0.14, y - 0.04, half, high, 0.12), wedge(x + 0.14, y, half + 0.02, half - 0.06, 0.9))
    handle = np.abs(length(x + 0.14 - half, (y - 0.02) / 1.15) - 0.3) - 0.085
    opening = ellipse(x + 0.14, y + high - 0.06, half * 0.92, 0.13)
    return [(handle, "colour"), (body, "colour"), (opening, "light"), (ellipse(x + 0.14, y + high - 0.1, half * 0.8, 0.085), "dark")]


def _tree(x: Array, y: Array, wide: Array, tall: Array) -> list[Layer]:
    trunk = wedge(x, y - 0.56, 0.08, 0.15, 0.4)
    spread, rise = 0.3 + 0.06 * wide, 0.45 + 0.08 * tall
    crown = length(x, y + rise) - 0.42
    for at, drop, radius in ((-1.0, 0.0, 0.34), (1.0, 0.02, 0.36), (-0.45, -0.16, 0.3), (0.5, -0.14, 0.3)):
        crown = np.minimum(crown, length(x - at * spread, y + 0.12 - drop) - radius)
    return [(trunk, "wood"), (crown, "colour")]


SHAPES: Mapping[str, Shape] = {
    "boat": _boat, "car": _car, "chair": _chair, "fish": _fish, "house": _house, "lamp": _lamp, "mug": _mug, "tree": _tree
}  # fmt: skip
# Widths and heights of the five instances: corners of the range and its middle, so that no two are alike.
INSTANCES = np.array([[0.0, 0.0], [1.0, -1.0], [-1.0, 1.0], [1.0, 1.0], [-1.0, -1.0]], dtype=np.float32)
