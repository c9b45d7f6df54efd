"""Decode cells into batches: texts, vectors, images, audio."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evalharness.errors import DataError, import_extra
from evalharness.types import Array, AudioBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Cells = tuple[Sequence[Any], Sequence[str]]  # values, and the row names for messages


def decode_texts(values: Sequence[Any], names: Sequence[str]) -> list[str]:
    """Return texts; a missing one is an error that names its row."""
    for value, name in zip(values, names, strict=True):
        if not isinstance(value, str):
            raise DataError(f"row {name} has no text (got {value!r}); drop such rows with `missing: drop`")
    return list(values)


def decode_vectors(values: Sequence[Any], names: Sequence[str]) -> Any:
    """Return (B, F) float32 from lists of numbers of one length.

    Raises:
        DataError: lengths differ or a value is missing; the message names the row.
    """
    import torch

    lengths = {len(value) if value is not None else None for value in values}
    if len(lengths) > 1 or None in lengths:
        odd = next(at for at, value in enumerate(values) if value is None or len(value) != len(values[0] or ()))
        raise DataError(f"row {names[odd]} has no vector, or one of another length than row {names[0]}")
    array = np.array([list(value) for value in values], dtype=np.float32)
    bad = np.flatnonzero(np.isnan(array).any(axis=1)) if array.size else np.empty(0, dtype=np.int64)
    if len(bad):
        raise DataError(f"the vector of row {names[bad[0]]} has a missing value")
    return torch.from_numpy(array)


def decode_images(values: Sequence[Any], names: Sequence[str], folder: Path | None) -> Any:
    """Return images as (B, 3, H, W) float32 in [0, 1], or a list of (3, H, W) when their sizes differ."""
    import torch

    images = [torch.from_numpy(_decode_image(value, name, folder)) for value, name in zip(values, names, strict=True)]
    same = len({image.shape for image in images}) <= 1
    return torch.stack(images) if images and same else images


def _decode_image(value: Any, name: str, folder: Path | None) -> Array:
    from PIL import Image, ImageOps

    try:
        with Image.open(io.BytesIO(_read_bytes(value, name, folder))) as image:
            # Cameras store the turn beside the pixels.
            pixels = _to_rgb(ImageOps.exif_transpose(image))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"the image of row {name} cannot be read: {error}") from error
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _to_rgb(image: Any) -> Array:
    if image.mode.startswith("I"):
        # PIL clips 16-bit grey to 255 when it converts it.
        grey = np.asarray(image, dtype=np.float32) / np.float32(65535.0)
        return np.repeat(grey[..., None], 3, axis=2)
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return np.asarray(image.convert("RGB"), dtype=np.float32) / np.float32(255.0)


def decode_audio(values: Sequence[Any], names: Sequence[str], folder: Path | None) -> AudioBatch:
    """Return waveforms, padded with silence to the longest; channels are averaged.

    Raises:
        DataError: a file cannot be read, or sample rates differ.
    """
    import torch

    waves, rates = zip(*(_decode_wave(value, name, folder) for value, name in zip(values, names, strict=True)), strict=True)
    if len(set(rates)) > 1:
        odd = next(at for at, rate in enumerate(rates) if rate != rates[0])
        raise DataError(f"row {names[odd]} is sampled at {rates[odd]} Hz, row {names[0]} at {rates[0]} Hz; resample them to one rate")
    lengths = np.array([len(wave) for wave in waves], dtype=np.int64)
    padded = np.zeros((len(waves), int(lengths.max())), dtype=np.float32)
    for row, wave in zip(padded, waves, strict=True):
        row[: len(wave)] = wave
    return AudioBatch(waveforms=torch.from_numpy(padded), lengths=torch.from_numpy(lengths), sample_rate=int(rates[0]))


def _decode_wave(value: Any, name: str, folder: Path | None) -> tuple[Array, int]:
    content = _read_bytes(value, name, folder)
    try:
        wave, rate = _read_wav(content) if content[:4] == b"RIFF" else _read_other(content)
    except (OSError, ValueError, RuntimeError) as error:
        raise DataError(f"the audio of row {name} cannot be read: {error}") from error
    return (wave.mean(axis=1) if wave.ndim == 2 else wave), rate


def _read_wav(content: bytes) -> tuple[Array, int]:
    import warnings

    from scipy.io import wavfile

    with warnings.catch_warnings():
        # Chunks that scipy does not know (tags of editors) are no fault.
        warnings.simplefilter("ignore", wavfile.WavFileWarning)
        rate, wave = wavfile.read(io.BytesIO(content))
    if wave.dtype == np.uint8:
        return (wave.astype(np.float32) - 128.0) / np.float32(128.0), rate
    full = np.float32(1.0) if wave.dtype.kind == "f" else np.float32(-float(np.iinfo(wave.dtype).min))
    return wave.astype(np.float32) / full, rate


def _read_other(content: bytes) -> tuple[Array, int]:
    soundfile: Any = import_extra("soundfile", "audio")
    wave, rate = soundfile.read(io.BytesIO(content), dtype="float32")
    return wave, rate


def _read_bytes(value: Any, name: str, folder: Path | None) -> bytes:
    """Return the content of a cell: bytes, a struct of bytes and path, or a path relative to the table's folder."""
    if isinstance(value, bytes):
        return value
    content, path = (value.get("bytes"), value.get("path")) if isinstance(value, dict) else (None, value)
    if content is not None:
        return bytes(content)
    if not isinstance(path, str):
        raise DataError(f"row {name} holds no file (got {value!r})")
    file = (folder or Path()) / path
    try:
        return file.read_bytes()
    except OSError as error:
        raise DataError(f"{file}, named by row {name}, cannot be read: {error.strerror or error}") from error


def make_decoder(modality: str, folder: Path | None) -> Callable[[Sequence[Any], Sequence[str]], Any]:
    """Return the decoder of a modality, from values and row names to a batch."""
    if modality == "image":
        return lambda values, names: decode_images(values, names, folder)
    if modality == "audio":
        return lambda values, names: decode_audio(values, names, folder)
    return decode_texts if modality == "text" else decode_vectors
