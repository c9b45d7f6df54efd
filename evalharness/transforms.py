"""What is done to images before they are encoded, and what may be done to them by an attack; the one place that resizes."""

from __future__ import annotations

from typing import Any

import torch

from evalharness.errors import DataError, PluginError


def resize_images(batch: Any, size: int | None) -> Any:
    """Bring images to (B, 3, size, size): the short side to ``size`` (antialiased, bilinear), then a centre crop.

    Raises:
        DataError: images of several sizes and no ``size``.
    """
    if isinstance(batch, torch.Tensor) and (size is None or batch.shape[-2:] == (size, size)):
        return batch
    if size is None:
        raise DataError("images have different sizes; set `data.image_size` in the task")
    if isinstance(batch, torch.Tensor):
        return _resize(batch, size)
    return torch.cat([_resize(image[None], size) for image in batch])


def _resize(images: torch.Tensor, size: int) -> torch.Tensor:
    height, width = images.shape[-2:]
    scale = size / min(height, width)
    new = max(size, round(height * scale)), max(size, round(width * scale))
    if new != (height, width):
        images = torch.nn.functional.interpolate(images, new, mode="bilinear", antialias=True, align_corners=False).clamp(0, 1)
    top, left = (new[0] - size) // 2, (new[1] - size) // 2
    return images[..., top : top + size, left : left + size]


def check_budget(batch: torch.Tensor, inputs: torch.Tensor, budget: float, norm: str, bounds: tuple[float, float], name: str) -> None:
    """Trust no attack's own claim: the perturbation must lie in the ball and the result in the data range."""
    delta = (batch - inputs).flatten(1)
    size = delta.abs().amax(dim=1) if norm == "linf" else delta.norm(dim=1)
    if float(size.max()) > budget * (1 + 1e-6) + 1e-7 or float(batch.min()) < bounds[0] or float(batch.max()) > bounds[1]:
        raise PluginError(f"attack `{name}` left its budget of {budget:g} or the data range: largest perturbation {float(size.max()):g}")
