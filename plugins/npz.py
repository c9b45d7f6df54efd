"""Vectors computed elsewhere: the encoder ``npz:PATH``, joined by id to a data set."""

from __future__ import annotations

import hashlib
import zipfile
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evalharness import hookimpl
from evalharness.errors import DataError, VectorsError
from evalharness.types import Array, EncoderSpec, Identity

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from evalharness.types import Spec


class StoredVectors:
    """Look vectors up by id; there is nothing to encode with."""

    def __init__(self, path: Path, *, device: Any = "cpu", dtype: Any = None) -> None:
        ids, vectors = _read(path)
        self._path, self._device, self._dtype = path, device, _find_dtype(dtype)
        self._rows = {name: row for row, name in enumerate(ids)}
        self._vectors = vectors
        self.dim = vectors.shape[1]

    def lookup(self, ids: Sequence[str], *, role: str = "document") -> torch.Tensor:
        """Return the vectors (B, D) of the given ids, the same for every role.

        Raises:
            DataError: the file holds no vector of some ids; the message names a few and counts them.
        """
        del role
        import torch

        names = [str(name) for name in ids]
        unknown = [name for name in names if name not in self._rows]
        if unknown:
            shown = ", ".join(f"`{name}`" for name in unknown[:3]) + (", …" if len(unknown) > 3 else "")
            raise DataError(
                f"{self._path} has no vectors of {len(unknown)} of {len(names)} ids ({shown}); its ids look like `{next(iter(self._rows))}`"
            )
        rows = np.array([self._rows[name] for name in names], dtype=np.int64)
        return torch.from_numpy(np.ascontiguousarray(self._vectors[rows])).to(device=self._device, dtype=self._dtype)

    def encode(self, batch: Any, *, role: str = "document", layers: Sequence[str] | None = None) -> torch.Tensor:
        """Refuse: stored vectors exist for given ids only."""
        del batch, role, layers
        raise DataError(f"{self._path} holds vectors of given ids and cannot encode anything new")


@hookimpl
def evalharness_resolve(kind: str, reference: str) -> Spec | None:
    """Make the spec of a file of vectors."""
    if kind != "encoder" or not reference.startswith("npz:") or reference == "npz:":
        return None
    path = Path(reference.removeprefix("npz:")).expanduser()

    def build(*, device: Any = "cpu", dtype: Any = None) -> StoredVectors:
        return StoredVectors(path, device=device, dtype=dtype)

    def identify() -> Identity:
        return Identity(kind="weights", digest=_digest(path))

    return EncoderSpec(
        name=reference,
        summary=f"Vectors stored in {path}",
        modalities=("image", "text", "audio", "vector"),
        build=build,
        identity=identify,
        precomputed=True,
    )


def _find_dtype(dtype: Any) -> Any:
    import torch

    return torch.float32 if dtype is None else getattr(torch, dtype) if isinstance(dtype, str) else dtype


def _read(path: Path) -> tuple[list[str], Array]:
    """Return ids and vectors (N, D), checked.

    Raises:
        DataError: the file cannot be read, lacks an array, repeats an id, or shapes disagree.
        VectorsError: vectors are not finite; the message names ids.
    """
    arrays = _open(path)
    lacking = [name for name in ("ids", "vectors") if name not in arrays]
    if lacking:
        raise DataError(
            f"{path} lacks the array `{lacking[0]}` (it has {', '.join(sorted(arrays)) or 'none'}); save `ids` (N,) and `vectors` (N, D)"
        )
    ids, vectors = arrays["ids"], arrays["vectors"]
    if vectors.ndim != 2 or ids.ndim != 1 or len(ids) != len(vectors) or not vectors.size or vectors.dtype.kind not in "fiu":
        raise DataError(
            f"{path}: expected `ids` (N,) and `vectors` (N, D) of numbers, got ids {ids.shape} and vectors {vectors.shape} {vectors.dtype}"
        )
    names = [str(name) for name in ids.tolist()]
    known, counts = np.unique(np.array(names, dtype=str), return_counts=True)
    if len(known) < len(names):
        raise DataError(f"{path}: id `{known[counts.argmax()]}` stands {counts.max()} times in `ids`; ids are unique")
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(bad):
        raise VectorsError(f"{path}: vectors of {len(bad)} ids are not finite ({', '.join(names[row] for row in bad[:5].tolist())})")
    return names, vectors if vectors.dtype == np.float32 else vectors.astype(np.float32)


def _open(path: Path) -> dict[str, Array]:
    if not path.is_file():
        raise DataError(f"`npz:{path}` names no file; relative paths start at {Path.cwd()}")
    try:
        # Opened here, since numpy leaves a broken archive open.
        with path.open("rb") as stream:
            file = np.load(stream, allow_pickle=False)
            if isinstance(file, np.ndarray):
                raise DataError(f"{path} is one array, not an archive; save it with `numpy.savez(path, ids=ids, vectors=vectors)`")
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        # Ids saved as Python objects would need unpickling, which runs code.
        raise DataError(f"{path} cannot be read ({str(error).splitlines()[0]}); save ids as text: `numpy.array(ids, dtype=str)`") from error


def _digest(path: Path) -> str:
    if not path.is_file():
        raise DataError(f"`npz:{path}` names no file; relative paths start at {Path.cwd()}")
    stat = path.stat()
    return _digest_file(path, stat.st_size, stat.st_mtime_ns, stat.st_ino)


@lru_cache(maxsize=64)
def _digest_file(path: Path, *stat: int) -> str:
    del stat  # only part of the key
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
