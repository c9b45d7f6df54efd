"""Find the files behind a reference, open them, and say what they are."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalharness.errors import DataError, UnknownNameError, unknown_name
from evalharness.types import Identity

from .readers import ArrowReader, HubReader, ParquetReader, Reader, read_csv, read_jsonl

if TYPE_CHECKING:
    from collections.abc import Mapping

IMAGES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp"})
# `train.parquet`, or shards as hubs write them: `train-00000-of-00002.parquet`.
_SPLIT_FILE = re.compile(r"(?P<split>.+?)(-\d+-of-\d+)?\.(?P<form>parquet|jsonl|csv)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Hold the files of one split; ``form`` is parquet, jsonl, csv or images, ``folder`` what their names are relative to."""

    folder: Path
    form: str
    files: tuple[Path, ...]


def find_mirror() -> Path | None:
    """Return the mirror folder named by ``EVALHARNESS_MIRROR``, or None."""
    named = os.environ.get("EVALHARNESS_MIRROR")
    return Path(named).expanduser() if named else None


def find_splits(folder: Path) -> dict[str, Source]:
    """Return the splits of a folder: files ``SPLIT.parquet|jsonl|csv``, their shards, or a tree ``SPLIT/CLASS/IMAGE``."""
    grouped: dict[tuple[str, str], list[Path]] = {}
    for place in (folder, folder / "data"):
        for path in sorted(place.iterdir()) if place.is_dir() else ():
            match = _SPLIT_FILE.fullmatch(path.name)
            if match and path.is_file():
                grouped.setdefault((match["split"], match["form"]), []).append(path)
    found: dict[str, Source] = {}
    # Parquet goes before the text forms of the same split: it knows its types.
    for (split, form), files in sorted(grouped.items(), key=lambda item: ("parquet", "jsonl", "csv").index(item[0][1])):
        found.setdefault(split, Source(folder=folder, form=form, files=tuple(files)))
    return found or _find_trees(folder)


def _find_trees(folder: Path) -> dict[str, Source]:
    found = {}
    for split in sorted(path for path in folder.iterdir() if path.is_dir()):
        files = tuple(sorted(path for path in split.glob("*/*") if path.suffix.lower() in IMAGES))
        if files:
            found[split.name] = Source(folder=folder, form="images", files=files)
    return found


def find_file(path: Path, form: str) -> dict[str, Source]:
    """Return the splits of a ``csv:`` or ``parquet:`` path: a file is "all" and its own stem, a folder holds a file a split.

    Raises:
        DataError: there is no such file, or no file of this form in the folder.
    """
    if path.is_file():
        source = Source(folder=path.parent, form=form, files=(path,))
        return {"all": source, path.stem: source}
    if not path.is_dir():
        raise DataError(f"`{form}:{path}` names no file or folder; relative paths start at {Path.cwd()}")
    found = {split: source for split, source in find_splits(path).items() if source.form == form}
    if not found:
        raise DataError(f"`{form}:{path}` is a folder without SPLIT.{form} files")
    return found


def pick_split(reference: str, split: str, sources: Mapping[str, Source]) -> Source:
    """Return the files of a split, or raise with the splits there are."""
    if split not in sources:
        raise UnknownNameError(unknown_name(f"split of `{reference}`", split, sources))
    return sources[split]


def open_source(source: Source) -> Reader:
    """Open the files of a split; parquet is read lazily, text forms lie in memory."""
    if source.form == "parquet":
        return ParquetReader(source.files)
    if source.form == "images":
        return ArrowReader(_list_images(source))
    import pyarrow as pa

    tables = [read_csv(path) if source.form == "csv" else read_jsonl(path) for path in source.files]
    return ArrowReader(pa.concat_tables(tables, promote_options="default"))


def _list_images(source: Source) -> Any:
    import pyarrow as pa

    images = [{"bytes": None, "path": str(path)} for path in source.files]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    return pa.table({"image": pa.array(images, type=kind), "label": [path.parent.name for path in source.files]})


def digest_content(source: Source) -> str:
    """Return a digest of the content of all files, remembered while they keep size and time."""
    digest = hashlib.blake2b(digest_size=16)
    for path in source.files:
        stat = path.stat()
        digest.update(f"{path.relative_to(source.folder)}\n".encode())
        digest.update(_digest_file(path, stat.st_size, stat.st_mtime_ns, stat.st_ino))
    return digest.hexdigest()


@lru_cache(maxsize=100_000)
def _digest_file(path: Path, *stat: int) -> bytes:
    del stat  # only part of the key
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).digest()


def identify_files(source: Source, *parts: Any) -> Identity:
    """Return a digest of names, sizes and times of the files, cheap enough for planning."""
    stats = [(str(path.relative_to(source.folder)), path.stat().st_size, path.stat().st_mtime_ns) for path in source.files]
    return Identity(kind="declared", digest=hashlib.blake2b(repr((stats, parts)).encode(), digest_size=16).hexdigest())


def load_hub(name: str, config: str | None, split: str, revision: str | None) -> tuple[Reader, str]:
    """Load a split with the `datasets` library; return its reader and a digest of its content.

    Raises:
        DataError: it cannot be loaded; the message says how to do without a network.
    """
    import datasets

    reference = f"hf:{name}" + (f"/{config}" if config else "")
    try:
        dataset = datasets.load_dataset(name, config, split=split, revision=revision)
    except Exception as error:  # the library raises what its many back ends raise
        mirror = find_mirror()
        lacking = f"is not in the mirror {mirror} and" if mirror else "is in no mirror and"
        reason = (str(error).splitlines() or [""])[0]
        raise DataError(
            f"`{reference}`, split `{split}`, {lacking} could not be loaded from the hub ({type(error).__name__}: {reason}); without network, "
            f"set EVALHARNESS_MIRROR or `--mirror` to a folder that holds {name}/{f'{config}/' if config else ''}{split}.parquet"
        ) from error
    files = tuple(Path(entry["filename"]) for entry in dataset.cache_files)
    digest = digest_content(Source(folder=files[0].parent, form="arrow", files=files)) if files else str(dataset._fingerprint)  # noqa: SLF001
    return HubReader(dataset), digest
