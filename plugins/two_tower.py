"""A small encoder of images and texts: `colour-words` puts both into one space of named colours and places."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from evalharness import EncoderSpec, hookimpl

if TYPE_CHECKING:
    import torch

COLOURS = {
    "red": (0.85, 0.15, 0.15),
    "orange": (0.95, 0.55, 0.1),
    "yellow": (0.95, 0.85, 0.2),
    "green": (0.2, 0.65, 0.25),
    "teal": (0.1, 0.6, 0.6),
    "blue": (0.15, 0.35, 0.85),
    "purple": (0.55, 0.25, 0.7),
    "pink": (0.95, 0.5, 0.7),
}
PLACES = {
    "left": (("left",), (-1.0, 0.0)),
    "right": (("right",), (1.0, 0.0)),
    "top": (("top", "upper"), (0.0, -1.0)),
    "bottom": (("bottom", "lower"), (0.0, 1.0)),
    "centre": (("centre", "center", "middle"), (0.0, 0.0)),
}
SHARPNESS = 12.0
SIZE = 16


class ColourWords:
    """Give shares of named colours and places, (B, 13): of what stands out in an image, or of the words of a text.

    Nothing is learned: an image's pixels vote for the nearest named colour, weighted by how much they differ from the image's border; a text's words vote for their names.
    Image and text stand in one space, so that either finds the other; it is a floor for learned two-tower encoders.
    """

    dim = len(COLOURS) + len(PLACES)

    def __init__(self, *, device: torch.device, dtype: torch.dtype) -> None:
        import torch

        self._device, self._dtype = device, dtype
        self._palette = torch.tensor(list(COLOURS.values()), device=device, dtype=dtype)
        self._places = torch.tensor([place for _, place in PLACES.values()], device=device, dtype=dtype)
        line = torch.linspace(-1, 1, SIZE, device=device, dtype=dtype)
        self._grid = torch.stack(torch.meshgrid(line, line, indexing="xy"), dim=-1).reshape(-1, 2)

    def encode(self, batch: Any, *, role: str = "document", layers: Sequence[str] | None = None) -> torch.Tensor:
        """Embed images (B, 3, H, W) in [0, 1] or texts."""
        del role, layers
        return self._encode_texts(batch) if isinstance(batch, list) else self._encode_images(batch)

    def _encode_images(self, batch: torch.Tensor) -> torch.Tensor:
        import torch

        images = torch.nn.functional.interpolate(batch.to(self._dtype), (SIZE, SIZE), mode="bilinear", antialias=True, align_corners=False)
        pixels = images.flatten(2).transpose(1, 2)
        border = torch.cat([images[:, :, 0], images[:, :, -1], images[:, :, :, 0], images[:, :, :, -1]], dim=2).transpose(1, 2)
        apart = torch.cdist(pixels, border).quantile(0.25, dim=2)
        spread = pixels.amax(dim=2) - pixels.amin(dim=2)
        weight = (apart * spread).square() + 1e-9
        weight = weight / weight.sum(dim=1, keepdim=True)
        named = torch.softmax(-SHARPNESS * torch.cdist(_hue(pixels), _hue(self._palette)), dim=2)
        colours = torch.einsum("bp,bpc->bc", weight, named)
        centre = torch.einsum("bp,pd->bd", weight, self._grid) * 2
        places = torch.softmax(-4 * torch.cdist(centre, self._places), dim=1)
        return torch.cat([_unit(colours - 1 / len(COLOURS)), _unit(places - 1 / len(PLACES))], dim=1)

    def _encode_texts(self, batch: Sequence[str]) -> torch.Tensor:
        import torch

        words = [set("".join(c if c.isalpha() else " " for c in text.lower()).split()) for text in batch]
        colours = torch.tensor([[float(name in found) for name in COLOURS] for found in words])
        places = torch.tensor([[float(any(name in found for name in names)) for names, _ in PLACES.values()] for found in words])
        parts = [_unit(part - part.mean(dim=1, keepdim=True)) for part in (colours, places)]
        vectors = torch.cat(parts, dim=1).to(self._device, self._dtype)
        vectors[vectors.abs().sum(dim=1) == 0] = 1  # a text that names neither is equally near to all
        return vectors


def _hue(colours: torch.Tensor) -> torch.Tensor:
    """Return colours without their lightness, so that a dim red is still red."""
    centred = colours - colours.mean(dim=-1, keepdim=True)
    return centred / (centred.norm(dim=-1, keepdim=True) + 0.05)


def _unit(vectors: torch.Tensor) -> torch.Tensor:
    return vectors / vectors.norm(dim=1, keepdim=True).clamp_min(1e-6)


@hookimpl
def evalharness_encoders() -> Iterable[EncoderSpec]:
    """Register `colour-words`."""
    yield EncoderSpec(
        name="colour-words",
        summary="Named colours and places, of images and of texts",
        modalities=("image", "text"),
        build=ColourWords,
        differentiable=True,
    )
