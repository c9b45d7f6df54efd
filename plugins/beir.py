"""Retrieval collections in the layout of BEIR: ``beir:ORG/NAME`` in the mirror, or ``beir:PATH``.

A collection is a folder with ``corpus.jsonl``, ``queries.jsonl`` and ``qrels/SPLIT.tsv``.
Documents and queries are found by their place in the file and read when asked for, so a corpus may be larger than memory.

Source: Thakur et al., BEIR, NeurIPS 2021 (Datasets and Benchmarks), and its file format.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evalharness import hookimpl
from evalharness.errors import DataError, UnknownNameError, UsageError, unknown_name
from evalharness.types import Array, Dataset, DatasetSpec, Identity, Links, Samples

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from evalharness.types import Spec


@dataclass(slots=True, kw_only=True)
class Lines:
    """Hold where the records of a JSON lines file begin, and their ids."""

    path: Path
    offsets: Array
    ids: list[str]


@dataclass(slots=True, kw_only=True)
class Judgements:
    """Hold the rows of a qrels file."""

    queries: list[str]
    documents: list[str]
    grades: list[float]


@hookimpl
def evalharness_resolve(kind: str, reference: str) -> Spec | None:
    """Make the spec of a collection."""
    if kind != "dataset" or not reference.startswith("beir:") or reference == "beir:":
        return None

    def load(split: str, *, missing: str = "error") -> Dataset:
        return _load(reference, split, missing)

    def identify(split: str, *, missing: str = "error") -> Identity:
        return _identify(reference, split, missing)

    folder = _find_folder(reference)
    return DatasetSpec(
        name=reference,
        summary="Queries, documents and relevance judgements",
        source="BEIR layout, Thakur et al. 2021",
        params={"missing": "error"},
        modalities=("text",),
        splits=tuple(_find_splits(folder)) if folder else (),
        load=load,
        identity=identify,
    )


def _find_folder(reference: str) -> Path | None:
    """Return the collection's folder: in the mirror if it is there, else the path itself."""
    name = reference.removeprefix("beir:")
    mirror = os.environ.get("EVALHARNESS_MIRROR")
    places = [Path(mirror).expanduser() / name] if mirror else []
    return next((place for place in (*places, Path(name).expanduser()) if place.is_dir()), None)


def _find_splits(folder: Path) -> dict[str, Path]:
    return {path.stem: path for path in sorted((folder / "qrels").glob("*.tsv"))}


def _find_files(reference: str, split: str) -> tuple[Path, Path, Path]:
    """Return the paths of corpus, queries and judgements.

    Raises:
        DataError: there is no such folder, or a file is missing.
        UnknownNameError: there are no judgements of this split.
    """
    folder = _find_folder(reference)
    if folder is None:
        raise DataError(
            f"`{reference}` is neither in the mirror nor a folder; set EVALHARNESS_MIRROR or `--mirror`, or give a path: `beir:PATH`"
        )
    corpus, queries, splits = folder / "corpus.jsonl", folder / "queries.jsonl", _find_splits(folder)
    for path in (corpus, queries):
        if not path.is_file():
            raise DataError(f"`{reference}` lacks {path}; a collection is corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv")
    if split not in splits:
        raise UnknownNameError(unknown_name(f"split of `{reference}`", split, splits))
    return corpus, queries, splits[split]


def _load(reference: str, split: str, missing: str) -> Dataset:
    if missing not in {"error", "drop"}:
        raise UsageError(f"`missing` of `{reference}` is `error` or `drop`, got `{missing}`")
    corpus_path, queries_path, judged_path = _find_files(reference, split)
    corpus, queries = _index_lines(corpus_path), _index_lines(queries_path)
    judged = _read_judgements(judged_path)
    kept = _keep_known(judged, set(queries.ids), set(corpus.ids), judged_path, drop=missing == "drop")
    asked = {judged.queries[at] for at in kept}
    # Queries of other splits stand in the same file; without judgements nothing can be said about them.
    queries = _take_lines(queries, [row for row, name in enumerate(queries.ids) if name in asked])
    parts = {
        "queries": _make_samples(queries, _digest(queries_path, judged_path)),
        "corpus": _make_samples(corpus, _digest(corpus_path)),
    }
    return Dataset(parts=parts, links={"qrels": _make_links(judged, kept, queries.ids, corpus.ids)})


def _identify(reference: str, split: str, missing: str) -> Identity:
    stats = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in _find_files(reference, split)]
    return Identity(kind="declared", digest=hashlib.blake2b(repr((stats, missing)).encode(), digest_size=16).hexdigest())


def _index_lines(path: Path) -> Lines:
    """Read the ids and places of all records.

    Raises:
        DataError: a line is no JSON object with `_id`, or an id repeats.
    """
    offsets, ids, at = [], [], 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                offsets.append(at)
                ids.append(_parse_id(line, path, number))
            at += len(line)
    if len(set(ids)) < len(ids):
        seen: set[str] = set()
        twice = next(name for name in ids if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise DataError(f"{path}: id `{twice}` stands on two lines; ids are unique")
    return Lines(path=path, offsets=np.array(offsets, dtype=np.int64), ids=ids)


def _parse_id(line: bytes, path: Path, number: int) -> str:
    try:
        return str(json.loads(line)["_id"])
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}, line {number}: expected a JSON object with `_id` and `text`, got {line[:40]!r}") from error


def _take_lines(lines: Lines, rows: list[int]) -> Lines:
    return Lines(path=lines.path, offsets=lines.offsets[rows], ids=[lines.ids[row] for row in rows])


def _read_judgements(path: Path) -> Judgements:
    """Read a qrels file of query, document and grade, tab-separated, with or without a header.

    Raises:
        DataError: a line has another form, or a pair is judged twice.
    """
    judged = Judgements(queries=[], documents=[], grades=[])
    seen: set[tuple[str, str]] = set()
    # Not splitlines(), which also breaks at rarer signs that an id may hold.
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        cells = line.rstrip("\r").split("\t")
        if not line.strip() or (number == 1 and not _is_number(cells[-1])):
            continue
        if len(cells) != 3 or not _is_number(cells[2]):
            raise DataError(f"{path}, line {number}: expected query, document and grade between tabs, got `{line[:60]}`")
        if (cells[0], cells[1]) in seen:
            raise DataError(f"{path}, line {number}: document `{cells[1]}` is judged twice for query `{cells[0]}`")
        seen.add((cells[0], cells[1]))
        judged.queries.append(cells[0])
        judged.documents.append(cells[1])
        judged.grades.append(float(cells[2]))
    return judged


def _is_number(text: str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False


def _keep_known(judged: Judgements, queries: set[str], corpus: set[str], path: Path, *, drop: bool) -> list[int]:
    """Return the rows whose query and document exist; others are an error unless they are to be dropped."""
    known = [at for at, pair in enumerate(zip(judged.queries, judged.documents, strict=True)) if pair[0] in queries and pair[1] in corpus]
    lost = len(judged.grades) - len(known)
    if lost and not drop:
        odd = next(at for at in range(len(judged.grades)) if at >= len(known) or known[at] != at)
        pair = f"query `{judged.queries[odd]}`, document `{judged.documents[odd]}`"
        raise DataError(
            f"{path}: {lost} of {len(judged.grades)} judgements name a query or document that is not there ({pair}); leave them out with `missing: drop`"
        )
    if not known:
        raise DataError(f"{path} holds no judgement of known queries and documents")
    return known


def _make_links(judged: Judgements, kept: list[int], queries: list[str], corpus: list[str]) -> Links:
    query_rows, corpus_rows = ({name: row for row, name in enumerate(names)} for names in (queries, corpus))
    rows = [(query_rows[judged.queries[at]], corpus_rows[judged.documents[at]]) for at in kept]
    return Links(
        source="queries",
        target="corpus",
        rows=np.array(rows, dtype=np.int64),
        grades=np.array([judged.grades[at] for at in kept], dtype=np.float64),
        ids=np.array([f"{judged.queries[at]}/{judged.documents[at]}" for at in kept], dtype=str),
    )


def _make_samples(lines: Lines, fingerprint: str) -> Samples:
    return Samples(
        modality="text", size=len(lines.ids), read=_read_lines(lines), ids=np.array(lines.ids, dtype=str), fingerprint=fingerprint
    )


def _read_lines(lines: Lines) -> Callable[[Array], list[str]]:
    def read(at: Array) -> list[str]:
        texts = []
        with lines.path.open("rb") as file:
            for offset in lines.offsets[np.asarray(at)].tolist():
                file.seek(offset)
                texts.append(_join_text(json.loads(file.readline())))
        return texts

    return read


def _join_text(record: Mapping[str, Any]) -> str:
    return f"{record.get('title') or ''} {record.get('text') or ''}".strip()


def _digest(*paths: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for path in paths:
        stat = path.stat()
        digest.update(_digest_file(path, stat.st_size, stat.st_mtime_ns))
    return digest.hexdigest()


@lru_cache(maxsize=1024)
def _digest_file(path: Path, size: int, time: int) -> bytes:
    del size, time  # only part of the key
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).digest()
