"""Small real data sets that scikit-learn carries: digits, wine, breast cancer, iris."""

from __future__ import annotations

import hashlib
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from evalharness import hookimpl
from evalharness.errors import UnknownNameError, UsageError, unknown_name
from evalharness.types import Array, Dataset, DatasetSpec, Identity, Samples, class_column

if TYPE_CHECKING:
    from collections.abc import Iterable

SPLITS = ("train", "test", "all")
TEST_SHARE = 0.4
RULE = 1  # raised when rows move between train and test


@hookimpl
def evalharness_datasets() -> Iterable[DatasetSpec]:
    """Register the data sets of scikit-learn that need no download."""
    yield _spec("digits", "load_digits", "image", "1,797 handwritten digits, 8x8 grey, 10 classes", "Alpaydin and Kaynak, UCI 1998")
    yield _spec("wine", "load_wine", "vector", "178 wines, 13 chemical measures, 3 cultivars", "Aeberhard and Forina, UCI 1991")
    yield _spec(
        "breast-cancer", "load_breast_cancer", "vector", "569 tumours, 30 measures of nuclei, 2 classes", "Wolberg et al., UCI 1995"
    )
    yield _spec("iris", "load_iris", "vector", "150 flowers, 4 measures, 3 species", "Fisher 1936")


def _spec(name: str, loader: str, modality: str, summary: str, source: str) -> DatasetSpec:
    return DatasetSpec(
        name=name,
        summary=f"{summary}; target `label`",
        source=f"{source}; scikit-learn",
        params={"test_share": TEST_SHARE},
        modalities=(modality,),
        splits=("train", "test"),
        load=partial(_load, name, loader),
        identity=partial(_identify, name, loader),
    )


def _load(name: str, loader: str, split: str, *, test_share: float = TEST_SHARE) -> Dataset:
    features, labels, names = _read(loader)
    rows = split_rows(labels, split, test_share, name)
    inputs = features[rows]
    column = class_column(_name_labels(labels[rows], names))
    samples = Samples(
        modality="image" if features.ndim == 4 else "vector",
        size=len(rows),
        read=lambda at: _as_tensor(inputs[at]),
        ids=np.array([f"row/{row}" for row in rows.tolist()]),
        columns={"label": column},
        fingerprint=_digest(name, inputs.tobytes(), rows.tobytes(), labels[rows].tobytes()),
    )
    return Dataset(parts={"items": samples})


def _identify(name: str, loader: str, split: str, *, test_share: float = TEST_SHARE) -> Identity:
    from importlib.metadata import version

    # The package version stands for its data files: reading them would import scikit-learn while planning.
    return Identity(kind="source", digest=_digest(name, loader, split, str(test_share), version("scikit-learn"), str(RULE)))


def split_rows(labels: Array, split: str, test_share: float, name: str = "data set") -> Array:
    """Return the rows (N,) int64 of a split, ascending.

    Rows of each class are put in the fixed order of a hash of their index, and the last ``test_share`` of them, rounded, are test rows.
    So a larger share only adds rows to the test split, and no seed moves a row.

    Raises:
        UnknownNameError: the split is none of train, test and all.
        UsageError: the share leaves a split empty.
    """
    if split not in SPLITS:
        raise UnknownNameError(unknown_name(f"split of `{name}`", split, SPLITS))
    if not 0.0 < test_share < 1.0:
        raise UsageError(f"`test_share` of `{name}` must lie between 0 and 1, got {test_share}; leave it out for {TEST_SHARE}")
    rows = np.arange(len(labels))
    if split == "all":
        return rows
    order = np.array([int(_digest("row", str(row)), 16) >> 65 for row in rows.tolist()], dtype=np.int64)
    is_test = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        members = members[np.argsort(order[members], kind="stable")]
        is_test[members[len(members) - round(test_share * len(members)) :]] = True
    return np.flatnonzero(is_test == (split == "test"))


@lru_cache(maxsize=4)
def _read(loader: str) -> tuple[Array, Array, tuple[str, ...]]:
    from sklearn import datasets

    bunch = getattr(datasets, loader)()
    names = tuple(str(name) for name in bunch.target_names)
    if loader != "load_digits":
        return bunch.data.astype(np.float32), bunch.target.astype(np.int64), names
    grey = (bunch.images / 16.0).astype(np.float32)
    return np.repeat(grey[:, None], 3, axis=1), bunch.target.astype(np.int64), names


def _name_labels(labels: Array, names: tuple[str, ...]) -> list[Any]:
    return [names[label] for label in labels.tolist()]


def _as_tensor(values: Array) -> Any:
    import torch

    return torch.from_numpy(np.ascontiguousarray(values))


def _digest(*parts: str | bytes) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        content = part if isinstance(part, bytes) else part.encode()
        # The length keeps ("ab", "c") apart from ("a", "bc").
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()
