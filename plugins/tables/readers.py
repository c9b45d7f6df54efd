"""Read tables lazily: from parquet files by row group, from Arrow tables in memory, or from the `datasets` library."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from evalharness.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from evalharness.types import Array

# Decoded row groups of one column kept in memory; rows are mostly asked for in order, so few are enough.
_CACHED_GROUPS = 4


class Reader(Protocol):
    """Give columns of one split as Arrow arrays; ``features`` maps columns to the feature descriptions of `datasets`."""

    schema: Any
    size: int
    features: Mapping[str, Any]

    def stream(self, column: str) -> Iterator[Any]:
        """Yield a column in order, an Arrow array at a time."""
        ...

    def take(self, column: str, rows: Array) -> Any:
        """Return an Arrow array of a column at rows (B,)."""
        ...


class ArrowReader:
    """Read a table that lies in memory."""

    def __init__(self, table: Any) -> None:
        self.table, self.schema, self.size = table, table.schema, table.num_rows
        self.features = parse_features(table.schema)

    def stream(self, column: str) -> Iterator[Any]:
        """Yield the column's chunks."""
        yield from self.table.column(column).chunks

    def take(self, column: str, rows: Array) -> Any:
        """Return the column at rows (B,)."""
        return _flatten(self.table.column(column).take(rows))


class ParquetReader:
    """Read parquet files that together are one split, one row group of one column at a time."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._files = [_open_parquet(path) for path in paths]
        self.schema = self._files[0].schema_arrow
        for path, file in zip(paths, self._files, strict=True):
            if not file.schema_arrow.equals(self.schema):
                raise DataError(f"{path} has other columns or types than {paths[0]}; shards of one split must agree")
        self.features = parse_features(self.schema)
        self._groups = [(file, group) for file in self._files for group in range(file.num_row_groups)]
        sizes = [file.metadata.row_group(group).num_rows for file, group in self._groups]
        self._starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).astype(np.int64)
        self.size = int(self._starts[-1])
        self._read_group = lru_cache(maxsize=_CACHED_GROUPS)(self._read)

    def _read(self, column: str, group: int) -> Any:
        file, index = self._groups[group]
        # Nested columns are asked for by their top name, which brings all their fields.
        return file.read_row_group(index, columns=[column]).column(column)

    def stream(self, column: str) -> Iterator[Any]:
        """Yield the column's chunks; nothing is kept."""
        for group in range(len(self._groups)):
            yield from self._read(column, group).chunks

    def take(self, column: str, rows: Array) -> Any:
        """Return the column at rows (B,), reading only row groups that hold one of them."""
        import pyarrow as pa

        if not len(rows):
            return pa.array([], type=self.schema.field(column).type)
        groups = np.searchsorted(self._starts, rows, side="right") - 1
        parts, places = [], []
        for group in np.unique(groups).tolist():
            places.append(np.flatnonzero(groups == group))
            parts.append(_flatten(self._read_group(column, group).take(rows[places[-1]] - self._starts[group])))
        return pa.concat_arrays(parts).take(pa.array(np.argsort(np.concatenate(places))))


class HubReader:
    """Read a split that the `datasets` library downloaded; its table is mapped into memory."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset.with_format("arrow")
        self.schema, self.size = dataset.data.schema, len(dataset)
        self.features = dataset.features.to_dict()

    def stream(self, column: str) -> Iterator[Any]:
        """Yield the column's chunks."""
        for start in range(0, self.size, 1000):
            yield self.take(column, np.arange(start, min(start + 1000, self.size)))

    def take(self, column: str, rows: Array) -> Any:
        """Return the column at rows (B,)."""
        return _flatten(self._dataset.select_columns([column])[rows.tolist()].column(column))


def _flatten(column: Any) -> Any:
    combined = column.combine_chunks()
    # Older versions of Arrow give a chunked array of one chunk, newer ones the chunk itself.
    return combined.chunk(0) if hasattr(combined, "chunk") else combined


def _open_parquet(path: Path) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path, memory_map=True)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read as parquet: {_first_line(error)}") from error


def read_csv(path: Path) -> Any:
    """Read a CSV file into an Arrow table; empty cells and NA, NaN, N/A and null are missing."""
    import pyarrow.csv as pc

    options = pc.ConvertOptions(strings_can_be_null=True, null_values=["", "NA", "NaN", "nan", "N/A", "n/a", "null", "NULL"])
    # Line breaks inside quotes are common in texts.
    parse = pc.ParseOptions(newlines_in_values=True)
    table = _read_text(path, "CSV", lambda: pc.read_csv(path, convert_options=options, parse_options=parse))
    # Arrow keeps a column that is not UTF-8 as bytes, which no task could use.
    broken = [name for name, kind in zip(table.column_names, table.schema.types, strict=True) if str(kind) == "binary"]
    if broken:
        raise DataError(f"{path}: column `{broken[0]}` is not UTF-8; save the file as UTF-8")
    return table


def read_jsonl(path: Path) -> Any:
    """Read a file of one JSON object a line into an Arrow table."""
    import pyarrow.json as pj

    return _read_text(path, "JSON lines", lambda: pj.read_json(path))


def _read_text(path: Path, form: str, read: Callable[[], Any]) -> Any:
    import pyarrow as pa

    try:
        return read()
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as {form}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def parse_features(schema: Any) -> Mapping[str, Any]:
    """Return the feature descriptions that the `datasets` library left in a schema's metadata."""
    metadata = schema.metadata or {}
    if b"huggingface" not in metadata:
        return {}
    features: Mapping[str, Any] = json.loads(metadata[b"huggingface"]).get("info", {}).get("features") or {}
    return features
