"""Gaussian noise on images, with the severities of CIFAR-C for small images and of ImageNet-C for larger ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from evalharness import ShiftSpec, hookimpl
from evalharness.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch

SIGMAS = {"small": (0.0, 0.04, 0.06, 0.08, 0.09, 0.10), "large": (0.0, 0.08, 0.12, 0.18, 0.26, 0.38)}
LARGEST_SMALL = 64


def find_sigmas(scale: str, height: int, width: int) -> tuple[float, ...]:
    """Return the standard deviations of severities 0 to 5, in units of the data range [0, 1].

    ``auto`` takes the small scale where neither side is above 64 pixels.

    Raises:
        UsageError: the scale is unknown.
    """
    if scale not in ("auto", *SIGMAS):
        raise UsageError(f"expected `scale` of `gaussian-noise` to be `auto`, `small` or `large`, got `{scale}`")
    chosen = scale if scale != "auto" else "small" if max(height, width) <= LARGEST_SMALL else "large"
    return SIGMAS[chosen]


def add_noise(
    inputs: torch.Tensor,
    severities: Sequence[float],
    keys: torch.Tensor,
    *,
    model: Any = None,
    labels: Any = None,
    scale: str = "auto",
    round: bool = True,  # noqa: A002
) -> list[torch.Tensor]:
    """Return one noisy batch a severity; severity 0 gives the inputs themselves.

    Args:
        inputs: (B, channels, H, W) float in [0, 1].
        severities: whole numbers from 0 to 5.
        keys: (S, B) int64; the noise of an item depends on its key alone, in any batch.
        model: not used.
        labels: not used.
        scale: ``small``, ``large`` or ``auto``, see :func:`find_sigmas`.
        round: whether results are rounded to multiples of 1/255, as images in files are.

    Raises:
        UsageError: a severity is not in the table, or the scale is unknown.

    Source:
        Hendrycks & Dietterich 2019; its code truncates to uint8, here the nearest value is taken.
    """
    del model, labels
    from evalharness.numerics import keyed_normal

    sigmas = find_sigmas(scale, *inputs.shape[-2:])
    batches = []
    for at, severity in enumerate(severities):
        if severity not in range(len(sigmas)):
            raise UsageError(f"expected severities of `gaussian-noise` to be whole numbers from 0 to {len(sigmas) - 1}, got {severity:g}")
        if severity == 0:
            batches.append(inputs)
            continue
        noise = keyed_normal(keys[at].to(inputs.device), inputs.shape[1:]).to(inputs.dtype)
        noisy = (inputs + sigmas[int(severity)] * noise).clamp(0, 1)
        batches.append((noisy * 255).round() / 255 if round else noisy)
    return batches


@hookimpl
def evalharness_shifts() -> Iterable[ShiftSpec]:
    """Register `gaussian-noise`."""
    yield ShiftSpec(
        name="gaussian-noise",
        summary="Independent normal noise on every pixel and channel",
        source="Hendrycks & Dietterich 2019",
        params={"scale": "auto", "round": True},
        mechanism="apply",
        apply=add_noise,
        kind="corruption",
        shift_type="noise",
        modality="image",
        severities=(1, 2, 3, 4, 5),
    )
