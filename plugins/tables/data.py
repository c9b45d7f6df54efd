"""Make data sets of tables: choose inputs, ids and columns, and say what is wrong with them."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evalharness.errors import DataError, UnknownNameError, UsageError, unknown_name
from evalharness.types import Array, Column, Dataset, DatasetSpec, Identity, Links, Samples

from .columns import describe_kind, read_column, take_columns
from .files import (
    Source,
    digest_content,
    find_file,
    find_mirror,
    find_splits,
    identify_files,
    load_hub,
    open_source,
    pick_split,
)
from .media import make_decoder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .readers import Reader

MODALITIES = ("text", "image", "audio", "vector")
PARAMS: Mapping[str, Any] = {"inputs": None, "id": None, "pair_id": None, "number": None, "missing": "error"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """Say which column or columns hold a part's inputs."""

    part: str
    modality: str
    columns: tuple[str, ...]
    is_stacked: bool


@dataclass(slots=True, kw_only=True)
class Table:
    """Hold one split: its reader, what its rows are called, and where relative file names start."""

    reference: str
    split: str
    reader: Reader
    folder: Path | None
    digest: str

    def check_column(self, name: str) -> str:
        """Return the name of a column that exists."""
        if name not in self.reader.schema.names:
            raise UnknownNameError(unknown_name(f"column of `{self.reference}`, split `{self.split}`,", name, self.reader.schema.names))
        return name


def make_hub_spec(reference: str) -> DatasetSpec:
    """Make the spec of ``hf:ORG/NAME[/CONFIG]``, from the mirror if it is there.

    Raises:
        UsageError: the reference has another form.
    """
    parts = reference.removeprefix("hf:").split("/")
    if not 1 <= len(parts) <= 3 or not all(parts) or ".." in parts:
        raise UsageError(f"`{reference}` is no data set of the hub; write `hf:ORG/NAME` or `hf:ORG/NAME/CONFIG`")
    name, config = "/".join(parts[:2]), parts[2] if len(parts) == 3 else None
    sources = _find_mirrored(reference)

    def open_table(split: str, revision: str | None) -> Table:
        mirrored = _find_mirrored(reference)
        if mirrored is None:
            reader, digest = load_hub(name, config, split, revision)
            return Table(reference=reference, split=split, reader=reader, folder=None, digest=digest)
        return _open_files(reference, split, mirrored)

    def load(split: str, *, revision: str | None = None, **params: Any) -> Dataset:
        return load_table(open_table(split, revision), **params)

    def identify(split: str, *, revision: str | None = None, **params: Any) -> Identity:
        mirrored = _find_mirrored(reference)
        if mirrored is not None:
            return identify_files(pick_split(reference, split, mirrored), sorted(params.items(), key=str))
        return _identify_revision(reference, split, revision, params)

    return DatasetSpec(
        name=reference,
        summary=f"{name} of the Hugging Face hub" + (f", {config}" if config else ""),
        source=f"https://huggingface.co/datasets/{name}",
        params={**PARAMS, "revision": None},
        modalities=MODALITIES,
        splits=tuple(sources or ()),
        load=load,
        identity=identify,
    )


def make_file_spec(form: str, reference: str) -> DatasetSpec:
    """Make the spec of ``csv:PATH`` or ``parquet:PATH``; whether the path exists is checked when it is used."""
    path = Path(reference.removeprefix(f"{form}:")).expanduser()

    def load(split: str, **params: Any) -> Dataset:
        return load_table(_open_files(reference, split, find_file(path, form)), **params)

    def identify(split: str, **params: Any) -> Identity:
        return identify_files(pick_split(reference, split, find_file(path, form)), sorted(params.items(), key=str))

    return DatasetSpec(
        name=reference,
        summary=f"The table {path}",
        params=dict(PARAMS),
        modalities=MODALITIES,
        splits=("all",) if path.is_file() else tuple(find_splits(path)) if path.is_dir() else (),
        load=load,
        identity=identify,
    )


def _find_mirrored(reference: str) -> dict[str, Source] | None:
    """Return the splits in the mirror, or None without mirror or folder.

    Raises:
        DataError: the folder holds configurations and none was named.
    """
    mirror = find_mirror()
    folder = mirror / reference.removeprefix("hf:") if mirror else None
    if folder is None or not folder.is_dir():
        return None
    sources = find_splits(folder)
    if not sources:
        configs = sorted(path.name for path in folder.iterdir() if path.is_dir() and find_splits(path))
        hint = (
            f"name one of its configurations: {', '.join(f'{reference}/{config}' for config in configs)}"
            if configs
            else "put SPLIT.parquet there"
        )
        raise DataError(f"`{reference}` is {folder} in the mirror, which holds no SPLIT.parquet, .jsonl or .csv; {hint}")
    return sources


def _open_files(reference: str, split: str, sources: Mapping[str, Source]) -> Table:
    source = pick_split(reference, split, sources)
    return Table(reference=reference, split=split, reader=open_source(source), folder=source.folder, digest=digest_content(source))


def _identify_revision(reference: str, split: str, revision: str | None, params: Mapping[str, Any]) -> Identity:
    pinned = bool(revision and re.fullmatch(r"[0-9a-f]{40}", revision))
    content = repr((reference, split, revision, sorted(params.items(), key=str)))
    # A branch moves and a missing revision means its newest commit, so only a commit says what the data are.
    return Identity(kind="declared" if pinned else "none", digest=hashlib.blake2b(content.encode(), digest_size=16).hexdigest())


def load_table(
    table: Table,
    *,
    inputs: Mapping[str, Any] | None = None,
    id: str | None = None,  # noqa: A002 - named as in task files
    pair_id: str | None = None,
    number: Sequence[str] | None = None,
    missing: str = "error",
) -> Dataset:
    """Make a data set of a table.

    Args:
        table: the opened split.
        inputs: ``PART.MODALITY`` to a column, or for vectors to a list of them; the part ``items`` may be left out.
        id: column of ids; ``split/row`` without it.
        pair_id: column of ids of the links between two parts; the row's id without it.
        number: integer columns that are numbers, not classes.
        missing: ``error`` or ``drop``, for rows without text or with an incomplete vector.

    Raises:
        UnknownNameError: a column does not exist.
        DataError: ids repeat, inputs are missing, or no input can be guessed.
    """
    if missing not in {"error", "drop"}:
        raise UsageError(f"`missing` of `{table.reference}` is `error` or `drop`, got `{missing}`")
    chosen = _parse_inputs(table, inputs) if inputs else [_guess_input(table)]
    # Columns are looked up before anything is read, so that a misspelt one costs no time.
    numbers = [table.check_column(name) for name in _as_list(number)]
    keys = [None if name is None else table.check_column(name) for name in (id, pair_id)]
    rows = _keep_rows(table, chosen, drop=missing == "drop")
    ids = _make_ids(table, keys[0], rows)
    columns = _read_columns(table, {name for entry in chosen for name in entry.columns}, numbers, rows)
    parts = {entry.part: _make_samples(table, entry, rows, ids, columns) for entry in chosen}
    links = {}
    if len(chosen) > 1:
        pair_ids = ids if keys[1] is None else _make_ids(table, keys[1], rows)
        both = np.repeat(np.arange(len(rows))[:, None], 2, axis=1)
        source, target = list(parts)[:2]
        links["pairs"] = Links(source=source, target=target, rows=both, grades=np.ones(len(rows)), ids=pair_ids, columns=columns)
    return Dataset(parts=parts, links=links)


def _as_list(value: str | Sequence[str] | None) -> list[str]:
    return [] if value is None else [value] if isinstance(value, str) else list(value)


def _parse_inputs(table: Table, inputs: Mapping[str, Any]) -> list[Input]:
    parsed = []
    for key, value in inputs.items():
        part, _, modality = key.rpartition(".")
        if modality not in MODALITIES:
            raise UsageError(
                f"`inputs` of `{table.reference}` maps PART.MODALITY to a column, with modality {', '.join(MODALITIES)}; got `{key}`"
            )
        names = tuple(table.check_column(name) for name in _as_list(value))
        if not names or (len(names) > 1 and modality != "vector"):
            raise UsageError(f"`{key}` of `{table.reference}` takes one column, got {len(names)}")
        parsed.append(Input(part=part or "items", modality=modality, columns=names, is_stacked=_check_kind(table, modality, names)))
    repeated = {entry.part for entry in parsed if sum(other.part == entry.part for other in parsed) > 1}
    if repeated:
        raise UsageError(
            f"`inputs` of `{table.reference}` gives part `{repeated.pop()}` more than one column; name parts apart, as in `left.text`"
        )
    return parsed


def _check_kind(table: Table, modality: str, names: Sequence[str]) -> bool:
    """Return whether the columns are numbers to be stacked to vectors; refuse columns that cannot hold the modality."""
    kinds = [describe_kind(table.reader.schema.field(name).type) for name in names]
    fitting = {"text": {"text"}, "vector": {"number"} if len(names) > 1 else {"number", "list"}}.get(modality, {"text", "bytes", "file"})
    for name, kind in zip(names, kinds, strict=True):
        if kind not in fitting:
            held = table.reader.schema.field(name).type
            raise DataError(
                f"column `{name}` of `{table.reference}` holds {held}, which is no {modality}; choose another column in `inputs`"
            )
    return kinds[0] == "number"


def _guess_input(table: Table) -> Input:
    known = [name for name in ("text", "image") if name in table.reader.schema.names]
    if len(known) == 1:
        return Input(part="items", modality=known[0], columns=(known[0],), is_stacked=_check_kind(table, known[0], known))
    raise DataError(
        f"`{table.reference}`, split `{table.split}`, does not say which column is its input; set `inputs`, for example {{text: COLUMN}}, "
        f"from the columns {', '.join(table.reader.schema.names)}"
    )


def _keep_rows(table: Table, inputs: Sequence[Input], *, drop: bool) -> Array:
    """Return the rows (N,) whose text and vector inputs are complete.

    Images and audio are looked at when they are read: finding out here would read all of them.
    """
    incomplete = np.zeros(table.reader.size, dtype=bool)
    for entry in inputs:
        for name in entry.columns if entry.modality in {"text", "vector"} else ():
            absent = np.concatenate([_find_missing(chunk) for chunk in table.reader.stream(name)] or [incomplete])
            if absent.any() and not drop:
                bad = np.flatnonzero(absent)
                shown = ", ".join(f"{table.split}/{row}" for row in bad[:5].tolist()) + (", …" if len(bad) > 5 else "")
                raise DataError(
                    f"`{table.reference}`: {len(bad)} of {len(absent)} rows have no value in input column `{name}` ({shown}); leave them out with `missing: drop`"
                )
            incomplete |= absent
    return np.flatnonzero(~incomplete)


def _find_missing(chunk: Any) -> Array:
    import pyarrow.compute as pc
    import pyarrow.types as kinds

    missing: Array = pc.is_null(chunk, nan_is_null=True).to_numpy(zero_copy_only=False)
    if kinds.is_list(chunk.type) or kinds.is_large_list(chunk.type) or kinds.is_fixed_size_list(chunk.type):
        holes = pc.is_null(pc.list_flatten(chunk), nan_is_null=True).to_numpy(zero_copy_only=False)
        missing = missing.copy()
        missing[pc.list_parent_indices(chunk).to_numpy(zero_copy_only=False)[holes]] = True
    return missing


def _make_ids(table: Table, column: str | None, rows: Array) -> Array:
    if column is None:
        return np.array([f"{table.split}/{row}" for row in rows.tolist()], dtype=str)
    values = [value for chunk in table.reader.stream(column) for value in chunk.to_pylist()]
    ids = np.array([str(values[row]) for row in rows.tolist()], dtype=str)
    empty = [row for row in rows.tolist() if values[row] is None]
    if empty:
        raise DataError(f"`{table.reference}`: row {table.split}/{empty[0]} has no id in column `{column}` ({len(empty)} such rows)")
    names, counts = np.unique(ids, return_counts=True)
    if len(names) < len(ids):
        raise DataError(
            f"`{table.reference}`: id `{names[counts.argmax()]}` of column `{column}` stands in {counts.max()} rows of split `{table.split}`; ids are unique"
        )
    return ids


def _read_columns(table: Table, used: set[str], numbers: Sequence[str], rows: Array) -> dict[str, Column]:
    read = {name: read_column(table.reader, name, as_number=name in numbers) for name in table.reader.schema.names if name not in used}
    return take_columns({name: column for name, column in read.items() if column is not None}, rows)


def _make_samples(table: Table, entry: Input, rows: Array, ids: Array, columns: Mapping[str, Column]) -> Samples:
    read = _read_stacked(table, entry, rows) if entry.is_stacked else _read_cells(table, entry, rows, ids)
    return Samples(modality=entry.modality, size=len(rows), read=read, ids=ids, columns=columns, fingerprint=table.digest)


def _read_cells(table: Table, entry: Input, rows: Array, ids: Array) -> Callable[[Array], Any]:
    decode = make_decoder(entry.modality, table.folder)
    column = entry.columns[0]

    def read(at: Array) -> Any:
        at = np.asarray(at)
        return decode(table.reader.take(column, rows[at]).to_pylist(), ids[at].tolist())

    return read


def _read_stacked(table: Table, entry: Input, rows: Array) -> Callable[[Array], Any]:
    """Return a reader of vectors made of one number column a dimension; they are few and small, so they stay in memory."""
    stacked: list[Array] = []
    for name in entry.columns:
        column = read_column(table.reader, name, as_number=True)
        assert column is not None
        stacked.append(column.values.astype(np.float32))
    return partial(_take_rows, np.stack(stacked, axis=1)[rows])


def _take_rows(values: Array, at: Array) -> Any:
    import torch

    return torch.from_numpy(values[np.asarray(at)])
