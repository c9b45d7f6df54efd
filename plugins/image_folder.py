"""Folders of images as data sets: ``folder:PATH`` with PATH/CLASS/IMAGE or PATH/SPLIT/CLASS/IMAGE."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evalharness import hookimpl
from evalharness.errors import DataError, UnknownNameError, unknown_name
from evalharness.types import Array, Dataset, DatasetSpec, Identity, Samples, class_column

if TYPE_CHECKING:
    from evalharness.types import Spec

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"})


@hookimpl
def evalharness_resolve(kind: str, reference: str) -> Spec | None:
    """Make the spec of a folder of images."""
    if kind != "dataset" or not reference.startswith("folder:") or reference == "folder:":
        return None
    folder = Path(reference.removeprefix("folder:")).expanduser()

    def load(split: str) -> Dataset:
        return _load(reference, folder, split)

    def identify(split: str) -> Identity:
        return _identify(reference, folder, split)

    return DatasetSpec(
        name=reference,
        summary=f"Images of {folder}, one class a sub-folder; target `label`",
        modalities=("image",),
        splits=find_splits(folder) if folder.is_dir() else (),
        load=load,
        identity=identify,
    )


def find_splits(folder: Path) -> tuple[str, ...]:
    """Return ("all",) where images lie directly in the sub-folders, which then are classes, and the names of the sub-folders otherwise."""
    folders = _list_folders(folder)
    if any(_is_image(path) for sub in folders for path in sub.iterdir()):
        return ("all",)
    return tuple(sub.name for sub in folders if any(_list_folders(sub)))


def _list_folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def _find_images(reference: str, folder: Path, split: str) -> tuple[list[Path], list[str]]:
    """Return the files of a split in the order of their names, and the class of each.

    Raises:
        DataError: there is no folder, or no image in a class folder.
        UnknownNameError: there is no such split.
    """
    if not folder.is_dir():
        raise DataError(f"`{reference}` names no folder; relative paths start at {Path.cwd()}")
    splits = find_splits(folder)
    if splits and split not in splits:
        raise UnknownNameError(unknown_name(f"split of `{reference}`", split, splits))
    base = folder if splits == ("all",) else folder / split
    found = [
        (path, label.name) for label in (_list_folders(base) if splits else []) for path in sorted(label.rglob("*")) if _is_image(path)
    ]
    if not found:
        raise DataError(
            f"`{reference}` holds no images in class sub-folders; lay it out as {folder}/CLASS/IMAGE.png or {folder}/SPLIT/CLASS/IMAGE.png"
        )
    return [path for path, _ in found], [label for _, label in found]


def _load(reference: str, folder: Path, split: str) -> Dataset:
    files, labels = _find_images(reference, folder, split)
    samples = Samples(
        modality="image",
        size=len(files),
        read=lambda at: _read([files[row] for row in np.asarray(at).tolist()]),
        # A file's name stays its own when others are added, a row number does not.
        ids=np.array([path.relative_to(folder).as_posix() for path in files], dtype=str),
        columns={"label": class_column(labels)},
        fingerprint=_digest_content(folder, files),
    )
    return Dataset(parts={"items": samples})


def _identify(reference: str, folder: Path, split: str) -> Identity:
    files, _ = _find_images(reference, folder, split)
    stats = [(path.relative_to(folder).as_posix(), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return Identity(kind="declared", digest=hashlib.blake2b(repr(stats).encode(), digest_size=16).hexdigest())


def _digest_content(folder: Path, files: list[Path]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for path in files:
        stat = path.stat()
        digest.update(f"{path.relative_to(folder).as_posix()}\n".encode() + _digest_file(path, stat.st_size, stat.st_mtime_ns))
    return digest.hexdigest()


@lru_cache(maxsize=1_000_000)
def _digest_file(path: Path, size: int, time: int) -> bytes:
    del size, time  # only part of the key
    return hashlib.blake2b(path.read_bytes(), digest_size=16).digest()


def _read(files: list[Path]) -> Any:
    """Return images as (B, 3, H, W) float32 in [0, 1], or a list of (3, H, W) when their sizes differ."""
    import torch

    images = [torch.from_numpy(_decode(path)) for path in files]
    same = len({image.shape for image in images}) <= 1
    return torch.stack(images) if images and same else images


def _decode(path: Path) -> Array:
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as image:
            # Cameras store the turn beside the pixels.
            pixels = _to_rgb(ImageOps.exif_transpose(image))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{path} cannot be read as an image: {error}") from error
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _to_rgb(image: Any) -> Array:
    if image.mode.startswith("I"):
        # PIL clips 16-bit grey to 255 when it converts it.
        grey = np.asarray(image, dtype=np.float32) / np.float32(65535.0)
        return np.repeat(grey[..., None], 3, axis=2)
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return np.asarray(image.convert("RGB"), dtype=np.float32) / np.float32(255.0)
