"""Truncation to the first dimensions, re-normalised: the reference `truncate-128` keeps 128."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from evalharness import CodecSpec, hookimpl
from evalharness.errors import DataError, UsageError, VectorsError

if TYPE_CHECKING:
    import torch

REFERENCE = re.compile(r"truncate-(\d+)")


class TruncateCodec:
    """Keep the first ``dim`` dimensions as unit float32 vectors."""

    def __init__(self, dim: int) -> None:
        self.dim = dim

    def encode(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return unit rows (N, dim) float32 of vectors (N, D).

        Raises:
            DataError: the vectors have fewer dimensions than are to be kept.
            VectorsError: a row is not finite, or has norm 0 in the kept dimensions.
        """
        from evalharness.numerics import normalise_rows

        _check_dim(self.dim, vectors)
        kept = vectors[:, : self.dim].float()
        empty = (kept == 0).all(dim=1).nonzero().flatten().tolist()
        if empty:
            raise VectorsError(
                f"codec `truncate-{self.dim}`: {len(empty)} of {len(kept)} vectors have norm 0 in their first {self.dim} dimensions, row {empty[0]} first; keep more dimensions"
            )
        unit: torch.Tensor = normalise_rows(kept, what="truncated vectors")
        return unit

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        """Return the codes, which are vectors (N, dim) already."""
        return codes

    def project(self, queries: torch.Tensor) -> torch.Tensor:
        """Bring queries (Q, D) into the space of the codes, (Q, dim)."""
        return self.encode(queries)

    def bytes_per_vector(self, n: int) -> float:
        """Return four bytes for each kept dimension."""
        del n
        return 4.0 * self.dim


def fit(vectors: torch.Tensor, *, dim: int) -> TruncateCodec:
    """Check that vectors (N, D) have ``dim`` dimensions to keep; nothing is learned.

    Raises:
        DataError: D is smaller than ``dim``.
        UsageError: ``dim`` is not a positive number.

    Source:
        Kusupati et al. 2022 (Matryoshka): the first M dimensions, re-normalised.
    """
    if dim < 1:
        raise UsageError(f"expected `dim` of codec `truncate` to be at least 1, got {dim}")
    _check_dim(dim, vectors)
    return TruncateCodec(dim)


def _check_dim(dim: int, vectors: torch.Tensor) -> None:
    size = vectors.shape[1]
    if dim > size:
        raise DataError(
            f"codec `truncate-{dim}` keeps {dim} dimensions, the encoder gives {size}; use `truncate-{size}` or a smaller number"
        )


@hookimpl
def evalharness_resolve(kind: str, reference: str) -> CodecSpec | None:
    """Resolve `truncate-M`."""
    match = REFERENCE.fullmatch(reference) if kind == "codec" else None
    if match is None:
        return None
    return CodecSpec(
        name=reference,
        summary=f"The first {int(match[1])} dimensions, re-normalised",
        source="Kusupati et al. 2022",
        params={"dim": int(match[1])},
        fit=fit,
    )
