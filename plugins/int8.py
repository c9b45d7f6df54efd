"""int8 scalar quantisation: 256 buckets a dimension between the smallest and the largest value of calibration vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evalharness import CodecSpec, hookimpl
from evalharness.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

LEVELS = 255
BLOCK_ENTRIES = 2**22


class Int8Codec:
    """Store each dimension as one of 256 buckets.

    ``minimum`` and ``maximum``: (D,) float32, the range of the calibration vectors; values outside it clip to its ends.
    """

    def __init__(self, minimum: torch.Tensor, maximum: torch.Tensor) -> None:
        import torch

        self.minimum = minimum
        self.maximum = maximum
        width = maximum.double() - minimum.double()
        constant = width == 0
        # A constant dimension gets steps of 1, and decodes to the lower edge of its bucket: the constant itself.
        self._width = torch.where(constant, float(LEVELS), width)
        self._step = (self._width / LEVELS).float()
        self._centre = torch.where(constant, 0.0, 0.5).float()

    def encode(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return int8 codes (N, D) of vectors (N, D) float32.

        Raises:
            VectorsError: a row is not finite.
        """
        import torch

        from evalharness.numerics import check_finite

        check_finite(vectors)
        codes = torch.empty(vectors.shape, dtype=torch.int8, device=vectors.device)
        rows = max(1, BLOCK_ENTRIES // max(1, vectors.shape[1]))
        for start in range(0, len(vectors), rows):
            # Multiplied before divided, in float64: only so does the maximum itself give exactly 255.
            scaled = (vectors[start : start + rows].double() - self.minimum) * LEVELS / self._width
            codes[start : start + rows] = (scaled.floor().clamp(0, LEVELS) - 128).to(torch.int8)
        return codes

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        """Return the bucket centres (N, D) float32 of codes (N, D)."""
        return (codes.float() + 128 + self._centre) * self._step + self.minimum

    def bytes_per_vector(self, n: int) -> float:
        """Return one byte a dimension, and the share of the two float32 ranges that ``n`` vectors have in common."""
        size = len(self.minimum)
        return size + 8 * size / max(1, n)

    def clip_rate(self, vectors: torch.Tensor) -> float:
        """Return the share of the entries of vectors (N, D) that lie outside the range, in [0, 1]; NaN without entries."""
        return float(((vectors < self.minimum) | (vectors > self.maximum)).double().mean())


def fit(vectors: torch.Tensor) -> Int8Codec:
    """Learn the range of each dimension from calibration vectors (N, D) float32.

    Raises:
        DataError: there are no vectors.
        VectorsError: a row is not finite.

    Source:
        METRICS.md 10; sentence-transformers `quantize_embeddings`, with the floor and clip of its releases from 2024 on.
    """
    from evalharness.numerics import check_finite

    if not len(vectors):
        raise DataError("codec `int8` needs at least one calibration vector, got none")
    check_finite(vectors, what="calibration vectors")
    return Int8Codec(vectors.amin(dim=0).float(), vectors.amax(dim=0).float())


@hookimpl
def evalharness_codecs() -> Iterable[CodecSpec]:
    """Register `int8`."""
    yield CodecSpec(
        name="int8",
        summary="One byte a dimension, between the smallest and largest calibration value",
        source="sentence-transformers `quantize_embeddings`, decoded at bucket centres",
        fit=fit,
    )
