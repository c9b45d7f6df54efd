"""What lies behind ids and names in results: the items of a task's data set, read again by id, and the columns of a data set."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from evalharness.errors import DataError
from evalharness.pools import PoolMaker
from evalharness.registry import Registry
from evalharness.stamp import Source, Sources
from evalharness.suites import Task
from evalharness.types import Column

NAMED = 5


class Contents:
    """Read the scored items of one task again.

    Raises:
        DataError: the task's data are not those of the results, or its items are in several parts.
    """

    def __init__(self, registry: Registry, task: Task, fingerprint: str) -> None:
        self._sources = Sources(registry)
        data = PoolMaker(registry, self._sources, task).make(seed=0)
        if data.fingerprint != fingerprint:
            raise DataError(f"the data of task `{task.name}` are not those that the results were made from")
        if "items" not in data.pools:
            raise DataError(f"the items of task `{task.name}` are in several parts: {', '.join(data.pools)}")
        self._pool = data.pools["items"]
        self.modality = self._pool.modality

    def read(self, ids: Iterable[str]) -> dict[str, Any]:
        """Return the items of some ids: texts, or tensors as the data set gives them.

        Raises:
            DataError: an id is not among the items.
        """
        wanted = np.unique(np.array(list(ids), dtype=str))
        order = np.argsort(self._pool.ids)
        at = order[np.searchsorted(self._pool.ids, wanted, sorter=order).clip(max=len(order) - 1)]
        absent = wanted[self._pool.ids[at] != wanted]
        if len(absent):
            raise DataError(f"{len(absent)} ids are not among the items of the data set, `{absent[0]}` first")
        found: dict[str, Any] = {}
        for source, _ in self._pool.segments(at):
            own = at[self._pool.source_of[at] == source]
            samples = self._sources.load(self._pool.sources[source]).parts["items"]
            found |= zip(self._pool.ids[own].tolist(), samples.read(self._pool.row_of[own]), strict=True)
        return found


def image_uri(image: Any, size: int = 96) -> str:
    """Return an image (3, H, W) float32 in [0, 1] as a data URI of a PNG, its longer side brought to at least ``size`` pixels without smoothing."""
    from PIL import Image

    pixels = (np.asarray(image).transpose(1, 2, 0).clip(0, 1) * 255).round().astype(np.uint8)
    picture = Image.fromarray(pixels)
    scale = max(1, round(size / max(picture.size)))
    if max(picture.size) > 2 * size:
        picture.thumbnail((2 * size, 2 * size))
    elif scale > 1:
        picture = picture.resize((picture.width * scale, picture.height * scale), Image.Resampling.NEAREST)
    stream = io.BytesIO()
    picture.save(stream, "PNG")
    return f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}"


def describe_columns(registry: Registry, reference: str) -> list[dict[str, Any]]:
    """Return the columns of a data set, by split and part: kind, how many rows lack a value, and what values there are.

    Raises:
        DataError: there is no such data set.
    """
    spec = registry.get("dataset", reference)
    sources = Sources(registry)
    found = []
    for split in spec.splits or ("train",):  # a data set that is not at hand has none, and says so when it is loaded
        stamp = sources.stamp(Source(dataset=reference, split=split, params=registry.params("dataset", reference, {})))
        tables: Mapping[str, tuple[int, Mapping[str, Column]]] = {
            **{part: (len(own.ids), own.columns) for part, own in stamp.parts.items()},
            **{name: (len(links.rows), links.columns) for name, links in stamp.links.items()},
        }
        for part, (size, columns) in tables.items():
            where = {"split": split, "part": part, "rows": size}
            found += [{**where, "column": name, **_describe_column(column)} for name, column in columns.items()] or [
                {**where, "column": None, "kind": None, "missing": None, "values": None}
            ]
    return found


def _describe_column(column: Column) -> dict[str, Any]:
    if column.kind == "number":
        known = column.values[~np.isnan(column.values)]
        values = f"{known.min():g} to {known.max():g}" if len(known) else "none"
        return {"kind": column.kind, "missing": len(column) - len(known), "values": values}
    more = f", … {len(column.names)} in all" if len(column.names) > NAMED else ""
    missing = int((column.values < 0).sum()) if column.kind == "class" else 0
    return {"kind": column.kind, "missing": missing, "values": ", ".join(column.names[:NAMED]) + more}
