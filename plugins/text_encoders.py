"""Text encoders: `hashed-ngrams`, without weights, and `wordllama`, static vectors whose package carries them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalharness import EncoderSpec, Identity, hookimpl

if TYPE_CHECKING:
    import torch


class HashedNgrams:
    """Hash character n-grams within words into signed buckets, unit rows (B, dim); a text without any letters gets the first bucket."""

    def __init__(self, *, device: torch.device, dtype: torch.dtype, dim: int = 1024, low: int = 3, high: int = 5) -> None:
        from sklearn.feature_extraction.text import HashingVectorizer

        self._hash = HashingVectorizer(n_features=dim, analyzer="char_wb", ngram_range=(low, high), norm="l2")
        self._device, self._dtype = device, dtype
        self.dim = dim

    def encode(self, batch: Sequence[str], *, role: str = "document", layers: Sequence[str] | None = None) -> torch.Tensor:
        """Embed texts."""
        del role, layers
        import torch

        vectors = torch.from_numpy(self._hash.transform(batch).toarray()).to(self._device, self._dtype)
        vectors[vectors.abs().sum(dim=1) == 0, 0] = 1
        return vectors


class WordLlama:
    """Average static token vectors distilled from large language models, unit rows (B, dim); an empty text gets the first axis.

    Source: the `wordllama` package, model l2_supercat, 256 dimensions or a leading part of them (64, 128).
    """

    def __init__(self, *, device: torch.device, dtype: torch.dtype, dim: int = 256) -> None:
        from evalharness.errors import import_extra

        package: Any = import_extra("wordllama", "text")
        self._model = package.WordLlama.load(
            cache_dir=_package_folder(), dim=256, trunc_dim=dim if dim != 256 else None, disable_download=True
        )
        self._device, self._dtype = device, dtype
        self.dim = dim

    def encode(self, batch: Sequence[str], *, role: str = "document", layers: Sequence[str] | None = None) -> torch.Tensor:
        """Embed texts."""
        del role, layers
        import torch

        texts = list(batch)
        vectors = torch.from_numpy(self._model.embed([text or " " for text in texts], norm=True))
        # An empty text has no tokens to average: the package divides zero by zero.
        blank = torch.tensor([not text.strip() for text in texts])
        vectors[blank] = torch.eye(1, vectors.shape[1])
        return vectors.to(self._device, self._dtype)


def _package_folder() -> Path:
    import importlib.util

    from evalharness.errors import MissingExtraError

    spec = importlib.util.find_spec("wordllama")
    if spec is None or spec.origin is None:
        raise MissingExtraError("`wordllama` is needed here and is not installed; install it with `pip install 'evalharness[text]'`")
    return Path(spec.origin).parent


def identify_wordllama(*, dim: int = 256) -> Identity:
    """Return the digest of the packaged weights and of the dimensions kept."""
    from evalharness import file_digest

    weights = _package_folder() / "weights" / "l2_supercat_256.safetensors"
    return Identity(kind="weights", digest=f"{file_digest(weights)}-{dim}")


@hookimpl
def evalharness_encoders() -> Iterable[EncoderSpec]:
    """Register the text encoders."""
    yield EncoderSpec(
        name="hashed-ngrams",
        summary="Signed hashes of character n-grams",
        source="Weinberger et al. 2009",
        params={"dim": 1024, "low": 3, "high": 5},
        modalities=("text",),
        build=HashedNgrams,
    )
    yield EncoderSpec(
        name="wordllama",
        summary="Static token vectors, averaged",
        source="the wordllama package, l2_supercat",
        params={"dim": 256},
        extra="text",
        modalities=("text",),
        build=WordLlama,
        identity=identify_wordllama,
    )
