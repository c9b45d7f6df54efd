"""The embedding cache: one folder a view, safetensors shards, and a manifest with checksums written last.

A view that lacks its manifest is unfinished; its finished shards are listed in ``progress.jsonl`` and are used again.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from evalharness.errors import StoreError
from evalharness.keys import digest_bytes
from evalharness.store.files import (
    DigestMemo,
    append_line,
    atomic_write,
    cache_folder,
    content_digest,
    read_json,
    read_lines,
    storing,
    write_json,
)
from evalharness.types import Array

ROWS_PER_SHARD = 4096
FORMAT = 1


def rows_digest(rows: Array) -> str:
    """Return a digest of sorted row numbers."""
    return digest_bytes(np.ascontiguousarray(rows, dtype=np.int64).tobytes())


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredView:
    """Read a complete view; shards are memory-mapped."""

    folder: Path | None
    rows: Array
    dim: int
    shards: tuple[Callable[[], Array], ...]
    starts: tuple[int, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def bytes_per_vector(self) -> int:
        """Return the bytes that a stored vector takes."""
        return self.dim * (self.shards[0]().dtype.itemsize if self.shards else np.dtype(np.float32).itemsize)

    def gather(self, rows: Array) -> Array:
        """Return the vectors of the given rows of the source, (N, D) in the stored dtype.

        Raises:
            KeyError: a row is not in this view.
        """
        places = np.searchsorted(self.rows, rows)
        if len(rows) and (places.max() >= len(self.rows) or (self.rows[places] != rows).any()):
            raise KeyError("rows outside the view")
        of_shard = np.searchsorted(self.starts, places, side="right") - 1
        first = self.shards[0]() if self.shards else np.empty((0, self.dim), np.float32)
        result = np.empty((len(rows), self.dim), dtype=first.dtype)
        for shard in np.unique(of_shard):
            mask = of_shard == shard
            result[mask] = self.shards[shard]()[places[mask] - self.starts[shard]]
        return result


def _shard_reader(path: Path) -> Callable[[], Array]:
    def read() -> Array:
        with path.open("rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(size))["vectors"]
        dtype = {"F32": np.float32, "F16": np.float16, "F64": np.float64}[header["dtype"]]
        return np.memmap(path, dtype=dtype, mode="r", offset=8 + size + header["data_offsets"][0], shape=tuple(header["shape"]))

    return read


class ViewCache:
    """Find, write, verify and prune views below one folder."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = (folder or cache_folder()) / "views"
        self._memo = DigestMemo(folder or cache_folder())
        self.damaged: list[str] = []

    def families(self) -> Iterator[Path]:
        """Yield the folder of every view."""
        yield from sorted(path.parent for path in self.folder.glob("*/*/key.json"))

    def find(self, family: str, rows: Array) -> StoredView | None:
        """Return a complete, undamaged view of a family that holds all the rows."""
        for folder in sorted((self.folder / family).glob("*")):
            manifest = read_json(folder / "manifest.json")
            if manifest is None or manifest.get("format") != FORMAT:
                continue
            try:
                stored = np.load(folder / "rows.npy")
            except (OSError, ValueError):
                continue
            if len(np.setdiff1d(rows, stored, assume_unique=True)) == 0 and self._intact(folder, manifest):
                return self._open(folder, manifest, stored)
        return None

    def writer(self, family: str, rows: Array, key: Mapping[str, Any]) -> ViewWriter:
        """Start or resume writing a view of exactly these sorted rows."""
        return ViewWriter(self.folder / family / rows_digest(rows), rows, key)

    def discard(self, folder: Path) -> None:
        """Remove a view."""
        shutil.rmtree(folder, ignore_errors=True)

    def _open(self, folder: Path, manifest: Mapping[str, Any], rows: Array) -> StoredView:
        counts = [shard["rows"] for shard in manifest["shards"]]
        readers = tuple(_shard_reader(folder / shard["file"]) for shard in manifest["shards"])
        starts = tuple(np.cumsum([0, *counts[:-1]]).tolist()) if counts else (0,)
        return StoredView(folder=folder, rows=rows, dim=manifest["dim"], shards=readers, starts=starts, facts=manifest.get("facts", {}))

    def _intact(self, folder: Path, manifest: Mapping[str, Any]) -> bool:
        fault = self._fault(folder, manifest, self._memo.digest)
        if fault:
            self.damaged.append(fault)
            self.discard(folder)
        return fault is None

    def _fault(self, folder: Path, manifest: Mapping[str, Any], digest: Callable[[Path], str]) -> str | None:
        for item in [*manifest["shards"], manifest["rows"]]:
            path = folder / item["file"]
            if not path.is_file():
                return f"{path}: missing"
            if digest(path) != item["digest"]:
                return f"{path}: content differs from its checksum"
        return None

    def verify(self) -> tuple[int, list[str]]:
        """Hash everything again; return the number of complete views and the faults found, each naming its file."""
        faults = []
        complete = 0
        for folder in self.families():
            manifest = read_json(folder / "manifest.json")
            if manifest is None:
                continue
            fault = self._fault(folder, manifest, content_digest)
            complete += fault is None
            faults += [fault] if fault else []
        return complete, faults

    def entries(self) -> list[dict[str, Any]]:
        """Describe every view: its key, rows, bytes and whether it is complete."""
        result = []
        for folder in self.families():
            manifest = read_json(folder / "manifest.json")
            size = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
            key = read_json(folder / "key.json") or {}
            result.append(
                {"folder": str(folder), "bytes": size, "complete": manifest is not None, "key": key, "rows": (manifest or {}).get("size")}
            )
        return result

    def prune(self, *, older_than_days: float | None = None, everything: bool = False) -> tuple[int, int]:
        """Remove unfinished and damaged views, and those last used before a number of days; return views and bytes freed."""
        import time

        freed = views = 0
        damaged = {str(Path(fault.split(": ")[0]).parent) for fault in self.verify()[1]}
        for entry in self.entries():
            folder = Path(entry["folder"])
            age = (time.time() - max(path.stat().st_atime for path in folder.iterdir())) / 86400
            if everything or not entry["complete"] or str(folder) in damaged or (older_than_days is not None and age > older_than_days):
                self.discard(folder)
                views, freed = views + 1, freed + entry["bytes"]
        return views, freed


class ViewWriter:
    """Write one view shard by shard; several processes may write different shards."""

    def __init__(self, folder: Path, rows: Array, key: Mapping[str, Any]) -> None:
        self.folder = folder
        self.rows = np.ascontiguousarray(rows, dtype=np.int64)
        self.key = dict(key)
        self.bounds = [(start, min(start + ROWS_PER_SHARD, len(rows))) for start in range(0, len(rows), ROWS_PER_SHARD)]

    def lock(self) -> contextlib.AbstractContextManager[Any]:
        """Keep other processes from writing this view."""
        with storing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            return FileLock(str(self.folder.with_suffix(".lock")))

    def start(self) -> None:
        """Write down what the view is."""
        write_json(self.folder / "key.json", self.key)

    def missing(self) -> list[int]:
        """Return the shards still to be written; finished ones are checked against their checksums."""
        done = {line["shard"]: line for line in read_lines(self.folder / "progress.jsonl") if isinstance(line, dict) and "digest" in line}
        missing = []
        for shard in range(len(self.bounds)):
            path = self.folder / _shard_name(shard)
            if shard not in done or not path.is_file() or content_digest(path) != done[shard]["digest"]:
                missing.append(shard)
        return missing

    def write_shard(self, shard: int, vectors: Any, facts: Mapping[str, Any] | None = None, extra: Mapping[str, Any] | None = None) -> None:
        """Store the vectors (N, D) of one shard, and tensors that belong to it, and note it as finished."""
        from safetensors.torch import save

        start, stop = self.bounds[shard]
        if len(vectors) != stop - start:
            raise StoreError(f"shard {shard} of `{self.folder}` takes {stop - start} rows, got {len(vectors)}")
        path = self.folder / _shard_name(shard)
        raw = save({"vectors": vectors.contiguous(), **(extra or {})})
        with atomic_write(path) as stream:
            stream.write(raw)
        note = {
            "shard": shard,
            "file": path.name,
            "rows": stop - start,
            "dim": int(vectors.shape[1]),
            "digest": digest_bytes(raw),
            "facts": dict(facts or {}),
        }
        append_line(self.folder / "progress.jsonl", note)

    def finish(self, facts: Mapping[str, Any] | None = None) -> None:
        """Write the manifest; from now on the view is complete."""
        notes = {line["shard"]: line for line in read_lines(self.folder / "progress.jsonl") if isinstance(line, dict) and "digest" in line}
        with atomic_write(self.folder / "rows.npy") as stream:
            np.save(stream, self.rows)
        shards = [{key: notes[shard][key] for key in ("file", "rows", "digest", "facts")} for shard in range(len(self.bounds))]
        manifest = {
            "format": FORMAT,
            "size": len(self.rows),
            "dim": notes[0]["dim"] if shards else 0,
            "rows_per_shard": ROWS_PER_SHARD,
            "shards": shards,
            "rows": {"file": "rows.npy", "digest": content_digest(self.folder / "rows.npy")},
            "facts": dict(facts or {}),
        }
        write_json(self.folder / "manifest.json", manifest)


def _shard_name(shard: int) -> str:
    return f"shard-{shard:05d}.safetensors"


class MemoryViews:
    """Keep the views of a live module in memory only; the same reading side as :class:`ViewCache`."""

    def __init__(self) -> None:
        self._views: dict[str, list[StoredView]] = {}
        self.damaged: list[str] = []

    def find(self, family: str, rows: Array) -> StoredView | None:
        """Return a view of a family that holds all the rows."""
        for view in self._views.get(family, []):
            if len(np.setdiff1d(rows, view.rows, assume_unique=True)) == 0:
                return view
        return None

    def writer(self, family: str, rows: Array, key: Mapping[str, Any]) -> MemoryWriter:
        """Start writing a view."""
        del key
        return MemoryWriter(self._views.setdefault(family, []), rows)


class MemoryWriter:
    """Write one view into memory."""

    def __init__(self, views: list[StoredView], rows: Array) -> None:
        self._views = views
        self.rows = np.ascontiguousarray(rows, dtype=np.int64)
        self.bounds = [(start, min(start + ROWS_PER_SHARD, len(rows))) for start in range(0, len(rows), ROWS_PER_SHARD)]
        self._shards: dict[int, Array] = {}

    def lock(self) -> contextlib.AbstractContextManager[Any]:
        """Need no lock."""
        return contextlib.nullcontext()

    def start(self) -> None:
        """Need no preparation."""

    def missing(self) -> list[int]:
        """Return the shards still to be written."""
        return [shard for shard in range(len(self.bounds)) if shard not in self._shards]

    def write_shard(self, shard: int, vectors: Any, facts: Mapping[str, Any] | None = None, extra: Mapping[str, Any] | None = None) -> None:
        """Keep the vectors (N, D) of one shard."""
        del facts, extra
        self._shards[shard] = vectors.cpu().numpy()

    def finish(self, facts: Mapping[str, Any] | None = None) -> None:
        """Publish the view."""
        shards = [self._shards[shard] for shard in range(len(self.bounds))]
        self._views.append(
            StoredView(
                folder=None,
                rows=self.rows,
                dim=int(shards[0].shape[1]) if shards else 0,
                shards=tuple(partial(np.asarray, array) for array in shards),
                starts=tuple(start for start, _ in self.bounds) or (0,),
                facts=dict(facts or {}),
            )
        )
