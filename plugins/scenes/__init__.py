"""Rendered objects with independent factors, and captions of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evalharness import hookimpl
from evalharness.types import DatasetSpec

if TYPE_CHECKING:
    from collections.abc import Iterable

from .data import PARAMS, identify, load_captions, load_scenes, render

SPLITS = ("train", "validation", "test")


@hookimpl
def evalharness_datasets() -> Iterable[DatasetSpec]:
    """Register `scenes` and `scene-captions`."""
    yield DatasetSpec(
        name="scenes",
        summary="Rendered objects with eleven independent or confounded factors; target `category`",
        source="generated",
        params=dict(PARAMS),
        modalities=("image",),
        splits=SPLITS,
        load=load_scenes,
        render=render,
        identity=identify,
    )
    yield DatasetSpec(
        name="scene-captions",
        summary="Images of `scenes` linked to captions that are true of them",
        source="generated",
        params=dict(PARAMS),
        modalities=("image", "text"),
        splits=SPLITS,
        load=load_captions,
        identity=identify,
    )
