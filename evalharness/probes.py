"""Made-up items, the same on every machine, to try encoders and shifts on."""

from __future__ import annotations

import torch

from evalharness.errors import UsageError
from evalharness.numerics import keyed_normal, keyed_uniform
from evalharness.types import AudioBatch, Batch

WORDS = [
    "the",
    "a",
    "small",
    "red",
    "old",
    "quick",
    "house",
    "river",
    "sings",
    "walks",
    "never",
    "two",
    "seven",
    "blue",
    "over",
    "under",
    "because",
    "light",
]


def sample_batch(modality: str, rows: int = 9, *, size: int = 64, features: int = 16) -> Batch:
    """Return a batch of made-up items, the same on every machine: smooth images, sentences, tones or vectors."""
    keys = torch.arange(rows)
    if modality == "image":
        coarse = keyed_uniform(keys, (3, 6, 6))
        return torch.nn.functional.interpolate(coarse, (size, size), mode="bilinear", align_corners=False)
    if modality == "text":
        draws = (keyed_uniform(keys, (12,)) * len(WORDS)).long().tolist()
        return [" ".join(WORDS[at] for at in row[: 3 + number % 9]) for number, row in enumerate(draws)]
    if modality == "audio":
        time = torch.arange(8000) / 8000
        pitch = 100 + 400 * keyed_uniform(keys, (1,))
        return AudioBatch(waveforms=0.5 * torch.sin(2 * torch.pi * pitch * time), lengths=torch.full((rows,), 8000), sample_rate=8000)
    if modality == "vector":
        return keyed_normal(keys, (features,))
    raise UsageError(f"expected a modality image, text, audio or vector, got `{modality}`")
