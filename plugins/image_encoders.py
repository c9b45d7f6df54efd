"""Image encoders without learned weights: `pixels`, `colour-histogram` and `random-conv`; the floors that a trained encoder must beat."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from evalharness import EncoderSpec, hookimpl

if TYPE_CHECKING:
    import torch


def _resized(batch: torch.Tensor, size: int) -> torch.Tensor:
    import torch

    if batch.shape[-2:] == (size, size):
        return batch
    return torch.nn.functional.interpolate(batch, (size, size), mode="bilinear", antialias=True, align_corners=False)


class Pixels:
    """Give the pixels of a small copy of the image, (B, 3 · size²)."""

    def __init__(self, *, device: torch.device, dtype: torch.dtype, size: int = 8) -> None:
        del device, dtype
        self._size = size
        self.dim = 3 * size * size

    def encode(self, batch: torch.Tensor, *, role: str = "document", layers: Sequence[str] | None = None) -> torch.Tensor:
        """Embed images (B, 3, H, W) in [0, 1]."""
        del role, layers
        return _resized(batch, self._size).flatten(1)


class ColourHistogram:
    """Give the joint histogram of colours, soft-binned so that it is differentiable, (B, bins³)."""

    def __init__(self, *, device: torch.device, dtype: torch.dtype, bins: int = 4) -> None:
        import torch

        self._centres = (torch.arange(bins, device=device, dtype=dtype) + 0.5) / bins
        self._bins = bins
        self.dim = bins**3

    def encode(self, batch: torch.Tensor, *, role: str = "document", layers: Sequence[str] | None = None) -> torch.Tensor:
        """Embed images (B, 3, H, W) in [0, 1]; entries are shares of pixels and sum to 1."""
        del role, layers
        import torch

        pixels = _resized(batch, 32).flatten(2)[..., None]
        near = (1 - (pixels - self._centres).abs() * self._bins).clamp_min(0)
        near = near / near.sum(dim=-1, keepdim=True)
        red, green, blue = near.unbind(dim=1)
        joint = torch.einsum("bpr,bpg,bpc->brgc", red, green, blue) / pixels.shape[2]
        return joint.flatten(1)


class RandomConv:
    """Give pooled responses of fixed random filters, (B, dim); differentiable.

    Two layers of whitened random 5 x 5 filters with rectification, average-pooled on a grid of 2 x 2; after Saxe et al. 2011.
    """

    def __init__(self, *, device: torch.device, dtype: torch.dtype, dim: int = 256, size: int = 64, seed: int = 0) -> None:
        self._size = size
        self.dim = dim
        self._first = self._filters((32, 3, 5, 5), seed).to(device, dtype)
        self._second = self._filters((max(1, dim // 4), 32, 3, 3), seed + 1).to(device, dtype)
        self.dim = 4 * len(self._second)

    @staticmethod
    def _filters(shape: tuple[int, ...], seed: int) -> torch.Tensor:
        import torch

        from evalharness.numerics import keyed_normal

        filters: torch.Tensor = keyed_normal(torch.arange(shape[0]) + 1_000_003 * (seed + 1), shape[1:])
        filters = filters - filters.mean(dim=(2, 3), keepdim=True)  # a filter without a mean ignores brightness
        return filters / filters.flatten(1).norm(dim=1)[:, None, None, None]

    def encode(self, batch: torch.Tensor, *, role: str = "document", layers: Sequence[str] | None = None) -> torch.Tensor:
        """Embed images (B, 3, H, W) in [0, 1]."""
        del role, layers
        from torch.nn.functional import adaptive_avg_pool2d, avg_pool2d, conv2d, relu

        images = _resized(batch.to(self._first.dtype), self._size) * 2 - 1
        first = avg_pool2d(relu(conv2d(images, self._first, stride=2, padding=2)), 2)
        second = relu(conv2d(first, self._second, padding=1))
        return adaptive_avg_pool2d(second, 2).flatten(1)


@hookimpl
def evalharness_encoders() -> Iterable[EncoderSpec]:
    """Register the image encoders."""
    shared: dict[str, Any] = {"modalities": ("image",), "differentiable": True}
    yield EncoderSpec(name="pixels", summary="Pixels of a small copy of the image", params={"size": 8}, build=Pixels, **shared)
    yield EncoderSpec(name="colour-histogram", summary="Joint histogram of colours", params={"bins": 4}, build=ColourHistogram, **shared)
    yield EncoderSpec(
        name="random-conv",
        summary="Pooled responses of fixed random filters",
        source="Saxe et al. 2011",
        params={"dim": 256, "size": 64, "seed": 0},
        build=RandomConv,
        **shared,
    )
