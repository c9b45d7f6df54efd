"""Tables of vectors, ids and targets for fits and scores, coded where a codec is asked for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from evalharness.cells import CodecUse
from evalharness.embed import Embedder
from evalharness.errors import StoreError, VectorsError
from evalharness.plan import Plan, TablePlan, TaskPlan
from evalharness.registry import Registry
from evalharness.types import Array, Codec, Column, Links, Side, Table
from evalharness.vectors import code_vectors, learn_codec

KEEP = 4


class TableMaker:
    """Make the tables of one task for one encoder; the last few are kept."""

    def __init__(self, registry: Registry, plan: Plan, task: TaskPlan, similarity: str, embedder: Embedder) -> None:
        self._registry = registry
        self._plan = plan
        self._task = task
        self._similarity = similarity
        self._embedder = embedder
        self._tables: OrderedDict[Any, Table] = OrderedDict()
        self._codecs: OrderedDict[Any, Codec | None] = OrderedDict()
        self._seen: tuple[int, str] | None = None

    def close(self) -> None:
        """Let go of all tables and codecs."""
        self._tables.clear()
        self._codecs.clear()

    def codec(self, use: CodecUse, calibration: TablePlan | None) -> Codec | None:
        """Return a codec learned on calibration rows; None for float32."""
        if not use.chain or calibration is None:
            return None
        key = (use.name, calibration.key)
        if key not in self._codecs:
            while len(self._codecs) >= KEEP:
                self._codecs.popitem(last=False)
            self._codecs[key] = learn_codec(self._registry, use.chain, self.vectors(calibration))
        return self._codecs[key]

    def vectors(self, plan: TablePlan) -> torch.Tensor:
        """Return the float32 vectors (N, D) of a table.

        Raises:
            StoreError: a view could not be embedded.
            VectorsError: the encoder gave other rows another number of dimensions.
        """
        pieces = []
        for segment in plan.segments:
            if segment.family in self._embedder.failed:
                raise StoreError(self._embedder.failed[segment.family])
            view = self._plan.views[segment.family]
            pieces.append(self._embedder.read(view, segment.rows))
            self._check_dimensions(pieces[-1].shape[1], f"`{view.part}` of split `{view.source.split}`")
        return torch.cat(pieces)

    def _check_dimensions(self, size: int, where: str) -> None:
        known, first = self._seen = self._seen or (size, where)
        if size != known:
            raise VectorsError(
                f"vectors of {where} have {size} dimensions, those of {first} {known}; an encoder gives all items of a task the same number"
            )

    def table(self, plan: TablePlan, codec: Codec | None, codec_name: str, target: str | None, names: tuple[str, ...] | None) -> Table:
        """Return a table with its target in the vocabulary ``names`` of a fit, or in that of the data set; the last few are kept."""
        key = (plan.key, codec_name, id(codec), target, names)
        if key not in self._tables:
            while len(self._tables) >= KEEP:
                self._tables.popitem(last=False)
            self._tables[key] = self._make_table(plan, codec, target, names)
        self._tables.move_to_end(key)
        return self._tables[key]

    def _make_table(self, plan: TablePlan, codec: Codec | None, target: str | None, names: tuple[str, ...] | None) -> Table:
        pool = self._task.data.pools[plan.part]
        column = pool.columns.get(target) if target is not None else None
        if column is not None:
            column = column.take(plan.positions)
            column = align(column, names) if names is not None else column
        ids = pool.ids[plan.positions]
        return Table(
            vectors=code_vectors(self.vectors(plan), codec, self._similarity, ids),
            ids=ids,
            rows=plan.positions,
            target=column,
            columns={name: item.take(plan.positions) for name, item in pool.columns.items()},
        )

    def side(
        self, tables: Mapping[str, TablePlan], codec: Codec | None, codec_name: str, target: str | None, names: tuple[str, ...] | None
    ) -> tuple[Side, dict[str, Array]]:
        """Return what is scored, and for links which links of the data set they are."""
        made = {part: self.table(plan, codec, codec_name, target, names) for part, plan in tables.items()}
        links, kept = {}, {}
        for name, item in self._task.data.links.items():
            links[name], kept[name] = relink(item, made, target)
        return Side(parts=made, links=links), kept


def align(column: Column, names: tuple[str, ...]) -> Column:
    """Express a class column in a fit's vocabulary; classes that the fit never saw get codes behind it."""
    if column.kind != "class" or column.names == names:
        return column
    present = [column.names[code] for code in np.unique(column.values) if code >= 0]
    wide = (*names, *[name for name in present if name not in set(names)])
    code = {name: at for at, name in enumerate(wide)}
    table = np.array([*[code.get(name, -1) for name in column.names], -1], dtype=np.int64)
    return Column(kind="class", values=table[column.values], names=wide)


def relink(links: Links, tables: Mapping[str, Table], target: str | None) -> tuple[Links, Array]:
    """Express links in rows of the tables; links to rows that are not there are left out. A number target takes the place of grades."""
    inside = np.ones(len(links.rows), dtype=bool)
    rows = np.empty_like(links.rows)
    for side, part in enumerate((links.source, links.target)):
        positions = tables[part].rows
        at = np.searchsorted(positions, links.rows[:, side]).clip(max=max(len(positions) - 1, 0))
        inside &= positions[at] == links.rows[:, side] if len(positions) else False
        rows[:, side] = at
    kept = np.flatnonzero(inside)
    column = links.columns.get(target) if target is not None else None
    grades = links.grades if column is None or column.kind != "number" else column.values
    taken = {name: item.take(kept) for name, item in links.columns.items()}
    return Links(source=links.source, target=links.target, rows=rows[kept], grades=grades[kept], ids=links.ids[kept], columns=taken), kept
