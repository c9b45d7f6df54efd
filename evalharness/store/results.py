"""The results store: a folder a run, in which a unit counts once its line stands in ``units.jsonl``.

The outcome file is renamed into place first, record lines follow, the unit line comes last; whatever a kill leaves behind before that line is ignored when read.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from evalharness.errors import DataError, StoreError
from evalharness.keys import DIGEST_BYTES, canonical, digest, digest_texts
from evalharness.records import cell_key, limit_of, record_key, score_digest
from evalharness.store.files import append_lines, atomic_write, read_json, read_lines, storing, write_json
from evalharness.types import Array, Column

MAX_NAME = 60
_BLUR = 1e-6  # of the range of a column


def safe_name(name: str) -> str:
    """Return a file name for a task, encoder or reference of any characters; a digest tells altered names apart.

    >>> safe_name("pixels")
    'pixels'
    """
    clean = re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._")[:MAX_NAME]
    return clean if clean == name else f"{clean or 'name'}-{digest(name)[:8]}"


def compact(values: Any) -> Array:
    """Return a column as it is stored: bits for booleans, the smallest integers, float32 for floats unless it blurs their differences, (M,) or (M, way)."""
    array = values.detach().cpu().numpy() if hasattr(values, "detach") else np.asarray(values)
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):
            narrow = array.astype(np.float32)
        sound = np.isfinite(array)
        span = float(np.ptp(array[sound])) if sound.any() else 0.0
        blur = float(np.abs(array[sound] - narrow[sound].astype(array.dtype)).max(initial=0.0))
        return array if span > 0 and blur > _BLUR * span else narrow
    if array.dtype.kind in "iu":
        low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
        kinds = (np.int8, np.int16, np.int32, np.int64)
        return array.astype(next(kind for kind in kinds if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max))
    return array


def row_set_digest(ids: Array, columns: Mapping[str, Column]) -> str:
    """Return the digest of the ids and columns of a row set, which can be made again from its file."""
    state = hashlib.blake2b(digest_size=DIGEST_BYTES)
    state.update(digest_texts([str(item) for item in ids]).encode())
    for name, column in sorted(columns.items()):
        if name != "id":
            values: Array = column.values.astype({"class": np.int64, "number": np.float64, "multilabel": np.bool_}[column.kind])
            state.update(canonical([name, column.kind, list(column.names), list(values.shape)]).encode())
            state.update(np.ascontiguousarray(np.where(values == values, values, np.nan) if column.kind == "number" else values).tobytes())  # noqa: PLR0124 (every NaN alike)
    return state.hexdigest()


@dataclass(slots=True, kw_only=True)
class RowSet:
    """Hold the ids (N,) and columns of one part's rows, as they are stored."""

    ids: Array
    columns: dict[str, Column]


def read_rows(path: Path) -> RowSet:
    """Load a row set.

    Raises:
        StoreError: the file is missing or cannot be read.
    """
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
        metadata = table.schema.metadata or {}
        columns = {}
        for name in table.column_names:
            if name != "id":
                kind, names = json.loads(metadata[f"column:{name}".encode()])
                columns[name] = _read_column(table[name], kind, tuple(names))
        return RowSet(ids=np.array(table["id"].to_pylist(), dtype=object), columns=columns)
    except (OSError, ValueError, KeyError) as error:
        raise StoreError(f"row file `{path}` cannot be read: {error}") from error


def _read_column(stored: Any, kind: Any, names: tuple[str, ...]) -> Column:
    if kind == "number":
        return Column(kind=kind, values=np.array([np.nan if value is None else value for value in stored.to_pylist()], dtype=np.float64))
    if kind == "multilabel":
        place = {name: at for at, name in enumerate(names)}
        values = np.zeros((len(stored), len(names)), dtype=bool)
        for row, held in enumerate(stored.to_pylist()):
            values[row, [place[name] for name in held]] = True
        return Column(kind=kind, values=values, names=names)
    codes = stored.combine_chunks().indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return Column(kind=kind, values=codes.astype(np.int64), names=names)


def outcome_digest(rows: Array, columns: Mapping[str, Array]) -> str:
    """Return a digest of what was seen of every item, independent of the file format."""
    state = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for name, values in [("row", rows.astype(np.int64)), *sorted(columns.items())]:
        # A file of several units may hold float32 as float64.
        wide = np.array(compact(values)) if values.dtype.kind == "f" else values.astype(np.int64)
        if wide.dtype.kind == "f":
            wide[np.isnan(wide)] = np.nan  # every NaN alike, whatever its sign
        state.update(f"{name}:{wide.dtype}:{wide.shape};".encode())
        state.update(np.ascontiguousarray(wide).tobytes())
    return state.hexdigest()


@dataclass(slots=True, kw_only=True)
class StoredOutcome:
    """Hold one variant's items as they are stored: ``rows`` (M,), ``columns`` name to (M,) or (M, way).

    ``beside`` holds what stands in the unit's line and not in the file: statistics of the whole cloud and their replicates.
    """

    variant: str
    rows: Array
    columns: Mapping[str, Array]
    beside: Mapping[str, Array] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Return the digest of all that was seen."""
        return outcome_digest(self.rows, {**self.columns, **self.beside})


def beside_columns(scalars: Mapping[str, float], replicates: Mapping[str, Array]) -> dict[str, Array]:
    """Return statistics of a whole cloud as arrays, for the digest."""
    found = {f"scalar {name}": np.array([value], dtype=np.float32) for name, value in scalars.items()}
    return found | {f"replicates {name}": np.asarray(values, dtype=np.float32) for name, values in replicates.items()}


@dataclass(slots=True, kw_only=True)
class UnitResult:
    """Hold all that one finished unit leaves behind."""

    key: str
    line: dict[str, Any]
    records: list[dict[str, Any]]
    outcomes: list[StoredOutcome] = field(default_factory=list)


class RunWriter:
    """Write one run's folder; nothing appears before the first commit."""

    def __init__(self, out: Path, name: str, settings: Mapping[str, Any], planned: Sequence[Mapping[str, Any]] = ()) -> None:
        self.folder = out / name
        self._settings = settings
        self._planned = planned
        self._parts: dict[str, int] = {}
        self._costs: set[str] = set()
        self._started = False

    def start(self) -> None:
        """Make the folder; write ``run.json`` and, in ``planned.jsonl``, what a complete run holds."""
        if not self._started:
            with atomic_write(self.folder / "planned.jsonl") as stream:
                stream.writelines(canonical(line).encode() + b"\n" for line in self._planned)
            write_json(self.folder / "run.json", dict(self._settings))
            self._started = True

    def write_rows(self, name: str, ids: Array, columns: Mapping[str, Column]) -> None:
        """Write the ids and columns of a row set, once; ``name`` is its digest."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.start()
        path = self.folder / "rows" / f"{name}.parquet"
        if path.exists():
            return
        arrays = {"id": pa.array([str(item) for item in ids])} | {
            key: _arrow_column(column) for key, column in columns.items() if key != "id"
        }
        names = {
            f"column:{key}": json.dumps([column.kind, list(column.names)], ensure_ascii=False)
            for key, column in columns.items()
            if key != "id"
        }
        with atomic_write(path) as stream:
            pq.write_table(pa.table(arrays).replace_schema_metadata(names), stream, compression="zstd")

    def commit(self, task: str, encoder: str, units: Sequence[UnitResult]) -> None:
        """Store finished units: outcomes, then records, then the lines that make them count."""
        self.start()
        stem = f"{safe_name(task)}-{safe_name(encoder)}"
        held = [unit for unit in units if unit.outcomes]
        if held:
            part = self._parts[stem] = self._parts.get(stem, -1) + 1
            file = f"outcomes/{stem}-{part:04d}.parquet"
            self._write_outcomes(self.folder / file, held)
            for unit in held:
                unit.line["file"] = f"{self.folder.name}/{file}"
        for unit in units:
            self._point(unit)
        for unit in units:
            unit.line |= {"records": len(unit.records), "digest": score_digest(unit.records)}
        append_lines(self.folder / "records.jsonl", [record for unit in units for record in unit.records])
        append_lines(self.folder / "units.jsonl", [unit.line for unit in units])

    def write_costs(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Append what passes cost to ``costs.jsonl``, each line once; these are facts of a machine and in no digest."""
        fresh = {canonical(line): line for line in lines}
        fresh = {text: line for text, line in fresh.items() if text not in self._costs}
        if fresh:
            self.start()
            append_lines(self.folder / "costs.jsonl", list(fresh.values()))
            self._costs |= fresh.keys()

    def _point(self, unit: UnitResult) -> None:
        """Say in every record of a cell where its items lie."""
        known = {outcome.variant: outcome.digest for outcome in unit.outcomes}
        for record in unit.records:
            variant = record.pop("_variant", None)
            if variant in known:
                record["outcome"] = f"{unit.line['file']}#{unit.key}#{variant}#{known[variant]}"

    def _write_outcomes(self, path: Path, units: Sequence[UnitResult]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        tables = [_arrow_outcome(unit.key, outcome) for unit in units for outcome in unit.outcomes]
        with atomic_write(path) as stream:
            table = pa.concat_tables(tables, promote_options="permissive")
            # Floats are as good as random in their last bytes; set apart by byte, the rest of them compresses.
            floats = {field.name for field in table.schema if pa.types.is_floating(field.type)}
            others = [name for name in table.schema.names if name not in floats]
            pq.write_table(table, stream, compression="zstd", use_dictionary=others, use_byte_stream_split=sorted(floats))


def _arrow_column(column: Column) -> Any:
    import pyarrow as pa

    if column.kind == "class":
        codes = pa.array(column.values.astype(np.int32), mask=column.values < 0)
        return pa.DictionaryArray.from_arrays(codes, pa.array(list(column.names), type=pa.string()))
    if column.kind == "multilabel":
        return pa.array([[column.names[at] for at in np.flatnonzero(row)] for row in column.values], type=pa.list_(pa.string()))
    return pa.array(column.values, from_pandas=True)


def _arrow_outcome(key: str, outcome: StoredOutcome) -> Any:
    import pyarrow as pa

    count = len(outcome.rows)
    columns: dict[str, Any] = {
        "unit": pa.array([key] * count),
        "variant": pa.array([outcome.variant] * count),
        "row": pa.array(outcome.rows.astype(np.int64)),
    }
    for name, values in outcome.columns.items():
        if name in columns:
            raise StoreError(f"an outcome cannot have a column named `{name}`")
        columns[name] = pa.array(list(values)) if values.ndim > 1 else pa.array(values)
    return pa.table(columns)


# --- reading ------------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class RunFolder:
    """Hold what one run's folder says."""

    folder: Path
    settings: Mapping[str, Any]
    units: list[dict[str, Any]]
    records: list[dict[str, Any]]

    @property
    def started(self) -> str:
        """Return the start time, ISO 8601."""
        return str(self.settings.get("started", ""))


class ResultsReader:
    """Read the committed units and records of result folders; each folder holds runs, or is a run."""

    def __init__(self, folders: Iterable[Path]) -> None:
        found = [run for folder in folders for run in _runs(folder)]
        self.runs = sorted(found, key=lambda run: (run.started, str(run.folder)))

    def finished(self) -> dict[tuple[str | None, str], dict[str, Any]]:
        """Return the last line of every unit by (suite, unit key)."""
        return {(line.get("suite"), line["unit"]): line for run in self.runs for line in run.units}

    def records(self) -> list[dict[str, Any]]:
        """Return the newest record of every key, in the order in which they were written; of several main records of an encoder and task the last is the main one.

        A unit that was done again replaces all records of its cell, also those whose key the new unit no longer has (a failure, another worst group).
        """
        newest: dict[str, dict[str, Any]] = {}
        unit_of: dict[str, str] = {}
        for run in self.runs:
            for record in run.records:
                key = record_key(record)
                newest.pop(key, None)  # what was written last stands last
                newest[key] = record
                unit_of[cell_key(record)] = record["unit"]
        return _one_main([record for record in newest.values() if unit_of[cell_key(record)] == record["unit"]])

    def has_records(self, key: str) -> bool:
        """Say whether a unit ever wrote a record."""
        return any(record["unit"] == key for run in self.runs for record in run.records)

    def unit_outcomes(self, key: str) -> list[tuple[Mapping[str, Any], StoredOutcome]]:
        """Return what the newest line of a unit says of its outcomes, and their items; empty where it has none."""
        lines = [(run, line) for run in self.runs for line in run.units if line["unit"] == key and line["status"] != "failed"]
        return self.outcomes_of(*lines[-1]) if lines else []

    def outcomes_of(self, run: RunFolder, line: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], StoredOutcome]]:
        """Return what a run's line of a unit says of its outcomes, and their items; empty where it has none.

        Another folder may hold the same unit with other items, by rounding if not by more; the run's own folder comes first.

        Raises:
            StoreError: a file is missing or cannot be read.
        """
        if not line.get("file"):
            return []
        places = [each.folder.parent / line["file"] for each in (run, *self.runs)]
        path = next((place for place in places if place.is_file()), None)
        if path is None:
            raise StoreError(f"outcome file `{line['file']}` is missing")
        details = line.get("details", {})
        return [
            ({**details.get(facts["variant"] or "all", {}), **facts}, read_outcome(path, line["unit"], facts["variant"]))
            for facts in line.get("outcomes", [])
        ]

    def unit_records(self, key: str, suite: str | None) -> list[dict[str, Any]]:
        """Return the newest run's records of one unit under one suite."""
        for run in reversed(self.runs):
            found = [record for record in run.records if record["unit"] == key and record["suite"] == suite]
            if found:
                return found
        return []

    def outcome(self, record: Mapping[str, Any]) -> StoredOutcome:
        """Load the items behind a record.

        Raises:
            StoreError: the record has no outcome, or its file is missing or cannot be read.
        """
        if not record.get("outcome"):
            raise StoreError(f"the record of `{record['task']}` `{record['metric']}` has no outcome")
        file, unit, variant, _ = record["outcome"].split("#")
        for run in self.runs:
            path = run.folder.parent / file
            if path.is_file():
                return read_outcome(path, unit, variant)
        raise StoreError(f"outcome file `{file}` is missing")


def _one_main(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Take the mark of the main value from all but the last main record of an encoder, task and limit: a task may have named another cell before."""
    last = {_main_key(record): at for at, record in enumerate(records) if record["main"]}
    return [
        record if not record["main"] or last[_main_key(record)] == at else {**record, "main": False} for at, record in enumerate(records)
    ]


def _main_key(record: Mapping[str, Any]) -> tuple[Any, ...]:
    return record["suite"], record["task"], record["encoder"], record["layer"], limit_of(record)


def read_outcome(path: Path, unit: str, variant: str) -> StoredOutcome:
    """Load one variant of one unit from an outcome file."""
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path, filters=[("unit", "=", unit), ("variant", "=", variant)])
    except (OSError, ValueError) as error:
        raise StoreError(f"outcome file `{path}` cannot be read: {error}") from error
    columns = {}
    for name in table.column_names:
        column = table[name]
        if name not in ("unit", "variant", "row") and column.null_count < len(column):
            columns[name] = np.array(column.to_pylist()) if str(column.type).startswith("list") else column.to_numpy()
    return StoredOutcome(variant=variant, rows=table["row"].to_numpy(), columns=columns)


def require_results(folders: Sequence[Path]) -> None:
    """Refuse folders that hold no run and are none.

    Raises:
        DataError: the message names them.
    """
    missing = [folder for folder in folders if not (folder / "run.json").is_file() and not any(folder.glob("*/run.json"))]
    if missing:
        raise no_results(missing)


def no_results(folders: Sequence[Path]) -> DataError:
    """Return the error that folders hold no results."""
    return DataError(f"no results in {', '.join(f'`{folder}`' for folder in folders)}; run `evalharness run` first, or name a folder")


def _runs(folder: Path) -> Iterator[RunFolder]:
    candidates = [folder] if (folder / "run.json").is_file() else sorted(path.parent for path in folder.glob("*/run.json"))
    for candidate in candidates:
        settings = read_json(candidate / "run.json")
        if settings is None:
            continue
        units = [line for line in read_lines(candidate / "units.jsonl") if isinstance(line, dict) and "unit" in line]
        committed = {line["unit"] for line in units}
        records = [line for line in read_lines(candidate / "records.jsonl") if isinstance(line, dict) and line.get("unit") in committed]
        yield RunFolder(folder=candidate, settings=settings, units=units, records=records)


def check_writable(out: Path) -> None:
    """Fail early when a folder cannot be written.

    Raises:
        StoreError: the folder cannot be made or written.
    """
    probe = out / ".writable"
    with storing(out):
        out.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"")
        probe.unlink()


def variant_name(variant: Mapping[str, Any]) -> str:
    """Return the canonical name of a variant, ``k=20``; the empty string for the only one.

    >>> variant_name({"k": 20})
    'k=20'
    """
    return ",".join(f"{key}={value if isinstance(value, str) else canonical(value)}" for key, value in sorted(variant.items()))


def load_settings(folder: Path) -> Mapping[str, Any]:
    """Return ``run.json`` of a run's folder."""
    return json.loads((folder / "run.json").read_text(encoding="utf-8"))
