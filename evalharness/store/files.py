"""Files that appear whole or not at all, and content digests that are computed once."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from evalharness.errors import StoreError
from evalharness.keys import DIGEST_BYTES

_BLOCK = 1 << 22
_count_operations = None  # tests set a callable here to kill the process at a chosen store operation


def count_operation(what: str) -> None:
    """Tell a test harness that a store operation is about to happen."""
    if _count_operations is not None:
        _count_operations(what)


def set_operation_counter(counter: Any) -> None:
    """Install a callable that is told of every store operation; None removes it."""
    global _count_operations
    _count_operations = counter


def cache_folder() -> Path:
    """Return the folder of the embedding cache: ``$EVALHARNESS_CACHE``, or ``~/.cache/evalharness``."""
    named = os.environ.get("EVALHARNESS_CACHE")
    return Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "evalharness"


@contextlib.contextmanager
def storing(path: Path) -> Iterator[None]:
    """Turn an error of the operating system into one line that names the path.

    Raises:
        StoreError: the folder cannot be written, the disk is full, …
    """
    try:
        yield
    except OSError as error:
        raise StoreError(f"cannot write `{path}`: {error.strerror or error}; free some space or name another folder") from error


@functools.cache
def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file beside ``path`` and rename it into place when all is written and synced."""
    with storing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}-")
        try:
            Path(name).chmod(0o666 & ~_umask())  # a temporary file is its owner's alone
            with os.fdopen(handle, "wb") as stream:
                yield stream
                stream.flush()
                count_operation(f"write {path.name}")
                os.fsync(stream.fileno())
            count_operation(f"rename {path.name}")
            Path(name).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(name).unlink()
            raise


def write_json(path: Path, value: Any) -> None:
    """Write strict JSON atomically."""
    with atomic_write(path) as stream:
        stream.write(json.dumps(value, ensure_ascii=False, allow_nan=False, indent=1, sort_keys=True).encode())


def read_json(path: Path) -> Any:
    """Read JSON, or return None when the file is absent or torn."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def append_line(path: Path, value: Any, *, sync: bool = True) -> None:
    """Append one line of strict JSON; a line torn by an earlier kill is closed off first."""
    append_lines(path, [value], sync=sync)


def append_lines(path: Path, values: list[Any], *, sync: bool = True) -> None:
    """Append lines of strict JSON in one write."""
    text = "".join(json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n" for value in values)
    with storing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab+") as stream:
            if stream.tell():
                stream.seek(-1, os.SEEK_END)
                if stream.read(1) != b"\n":
                    text = "\n" + text
            count_operation(f"append {path.name}")
            stream.write(text.encode())
            stream.flush()
            if sync:
                os.fsync(stream.fileno())


def read_lines(path: Path) -> Iterator[Any]:
    """Yield the lines of a JSON-lines file; torn lines are skipped."""
    try:
        with path.open("rb") as stream:
            for raw in stream:
                with contextlib.suppress(ValueError):
                    if raw.strip():
                        yield json.loads(raw)
    except FileNotFoundError:
        return


def torn_lines(path: Path) -> list[int]:
    """Return the numbers, from 1, of the lines that are no JSON, an unfinished last one included."""
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    torn = []
    for number, raw in enumerate(lines, 1):
        try:
            if raw.strip():
                json.loads(raw)
        except ValueError:
            torn.append(number)
    if lines[-1].strip() and len(lines) not in torn:
        torn.append(len(lines))
    return torn


def content_digest(path: Path) -> str:
    """Return the BLAKE2 digest of a file's content, read in blocks."""
    state = hashlib.blake2b(digest_size=DIGEST_BYTES)
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            state.update(block)
    return state.hexdigest()


class DigestMemo:
    """Remember content digests by (path, size, mtime, inode), so that nothing large is read twice."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "digests.jsonl"
        self._known: dict[str, str] | None = None

    def digest(self, path: Path) -> str:
        """Return the digest of a file's content."""
        info = path.stat()
        key = f"{path.resolve()}|{info.st_size}|{info.st_mtime_ns}|{info.st_ino}"
        if self._known is None:
            self._known = {line["key"]: line["digest"] for line in read_lines(self._path) if isinstance(line, dict) and "key" in line}
        if key not in self._known:
            self._known[key] = content_digest(path)
            with contextlib.suppress(StoreError):
                append_line(self._path, {"key": key, "digest": self._known[key]}, sync=False)
        return self._known[key]


def file_digest(path: Path | str) -> str:
    """Return the content digest of a file, remembered in the cache folder."""
    return DigestMemo(cache_folder()).digest(Path(path))
