"""Encoders of plain vectors: `identity`, and `random-projection` (of images too)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from evalharness import EncoderSpec, hookimpl

if TYPE_CHECKING:
    import torch

IMAGE_SIZE = 32


class IdentityEncoder:
    """Give vectors as they are, (B, F)."""

    dim = 0

    def __init__(self, *, device: torch.device, dtype: torch.dtype) -> None:
        del device, dtype

    def encode(self, batch: torch.Tensor, *, role: str = "document", layers: Sequence[str] | None = None) -> torch.Tensor:
        """Return vectors (B, F) unchanged."""
        del role, layers
        self.dim = batch.shape[1]
        return batch


class RandomProjection:
    """Project inputs with a fixed Gaussian matrix of variance 1 / dim, (B, dim); images are brought to 32 x 32 first.

    Source: Johnson & Lindenstrauss 1984.
    """

    def __init__(self, *, device: torch.device, dtype: torch.dtype, dim: int = 64, seed: int = 0) -> None:
        self.dim = dim
        self._seed = seed
        self._device = device
        self._dtype = dtype
        self._matrices: dict[int, torch.Tensor] = {}

    def _matrix(self, features: int) -> torch.Tensor:
        import torch

        from evalharness.numerics import keyed_normal

        if features not in self._matrices:
            rows: torch.Tensor = keyed_normal(torch.arange(features) + 7_368_787 * (self._seed + 1), (self.dim,))
            self._matrices[features] = (rows / self.dim**0.5).to(self._device, self._dtype)
        return self._matrices[features]

    def encode(self, batch: torch.Tensor, *, role: str = "document", layers: Sequence[str] | None = None) -> torch.Tensor:
        """Embed vectors (B, F) or images (B, 3, H, W)."""
        del role, layers
        from torch.nn.functional import interpolate

        if batch.ndim == 4:
            batch = interpolate(batch, (IMAGE_SIZE, IMAGE_SIZE), mode="bilinear", antialias=True, align_corners=False).flatten(1) - 0.5
        return batch.to(self._dtype) @ self._matrix(batch.shape[1])


@hookimpl
def evalharness_encoders() -> Iterable[EncoderSpec]:
    """Register the encoders of vectors."""
    yield EncoderSpec(name="identity", summary="Vectors as they are", modalities=("vector",), build=IdentityEncoder, differentiable=True)
    yield EncoderSpec(
        name="random-projection",
        summary="Fixed Gaussian projection of vectors or pixels",
        source="Johnson & Lindenstrauss 1984",
        params={"dim": 64, "seed": 0},
        modalities=("vector", "image"),
        build=RandomProjection,
        differentiable=True,
    )
