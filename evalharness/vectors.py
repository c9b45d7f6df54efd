"""What evaluators see instead of a tensor: vectors stored as codes, decoded or searched on demand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evalharness.errors import EvalHarnessError, PluginError, UsageError
from evalharness.types import Array, Codec, Vectors

if TYPE_CHECKING:
    import torch

    from evalharness.registry import Registry


class CodedVectors:
    """Hold N vectors as codes of a codec, or as float32 when ``codec`` is None; implements :class:`evalharness.types.Vectors`.

    ``original`` keeps the float32 vectors that were coded, for float32 queries; ``ids`` (N,) name rows in messages.
    """

    __slots__ = ("codec", "codes", "ids", "original", "similarity")

    def __init__(
        self,
        codes: torch.Tensor,
        codec: Codec | None = None,
        similarity: str = "cosine",
        original: torch.Tensor | None = None,
        ids: Array | None = None,
    ) -> None:
        self.codes = codes
        self.codec = codec
        self.similarity = similarity
        self.original = original
        self.ids = ids

    def __len__(self) -> int:
        return len(self.codes)

    def dense(self) -> torch.Tensor:
        """Return (N, M) float32, decoded, in the codec's own dimension."""
        return self.codes if self.codec is None else self.codec.decode(self.codes)

    def take(self, rows: Array) -> Vectors:
        """Return the vectors at the given positions."""
        import torch

        at = torch.as_tensor(rows, device=self.codes.device)
        original, ids = None if self.original is None else self.original[at], None if self.ids is None else self.ids[rows]
        return CodedVectors(self.codes[at], self.codec, self.similarity, original, ids)

    def queries(self, mode: str = "float32") -> torch.Tensor:
        """Return (N, M) float32 vectors to search with.

        Raises:
            UsageError: ``mode`` is neither ``float32`` nor ``coded``.
        """
        if mode not in ("float32", "coded"):
            raise UsageError(f"expected `queries` to be `float32` or `coded`, got `{mode}`")
        if self.codec is None or mode == "coded" or self.original is None:
            return self.dense()
        return project(self.codec, self.original)

    def search(
        self, queries: torch.Tensor, k: int, *, metric: str | None = None, exclude: Any = None, query_ids: Array | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return values and indices (Q, k) of the nearest rows, nearest first.

        A codec with a search of its own answers for cosine and dot; otherwise the rows are decoded.

        Raises:
            VectorsError: a row or a query is not finite, or has norm 0 under cosine.
        """
        from evalharness.numerics import check_directions, top_k

        metric = metric or self.similarity
        own = getattr(self.codec, "search", None)
        if own is not None and metric in ("cosine", "dot"):
            if metric == "cosine":
                check_directions(queries, query_ids, "queries")
            found: tuple[torch.Tensor, torch.Tensor] = own(queries, self.codes, k, exclude=exclude)
            return found
        values, indices = top_k(queries, self.dense(), k, metric=metric, exclude=exclude, query_ids=query_ids, gallery_ids=self.ids)
        return values, indices


def project(codec: Codec, queries: torch.Tensor) -> torch.Tensor:
    """Bring float32 queries into a codec's space without storing them as codes.

    A codec that changes the space offers ``project``; one that keeps the dimension needs none.
    """
    own: Callable[[torch.Tensor], torch.Tensor] | None = getattr(codec, "project", None)
    if own is not None:
        return own(queries)
    decoded = codec.decode(codec.encode(queries[:1]))
    return queries if decoded.shape[1] == queries.shape[1] else codec.decode(codec.encode(queries))


class ChainCodec:
    """Apply codecs one after another: each is learned on what the one before decodes."""

    def __init__(self, links: Sequence[Codec]) -> None:
        self._links = tuple(links)
        if hasattr(self._links[-1], "search"):
            self.search = self._links[-1].search

    def encode(self, vectors: torch.Tensor) -> torch.Tensor:
        """Code with every link in turn; what is stored is the last link's codes."""
        for link in self._links[:-1]:
            vectors = link.decode(link.encode(vectors))
        return self._links[-1].encode(vectors)

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        """Decode the last link's codes; earlier links stay lossy, so that is the stored space."""
        return self._links[-1].decode(codes)

    def project(self, queries: torch.Tensor) -> torch.Tensor:
        """Bring queries into the space of the last link."""
        for link in self._links:
            queries = project(link, queries)
        return queries

    def bytes_per_vector(self, n: int) -> float:
        """Return the last link's bytes; earlier links are stored as functions, not per vector."""
        return self._links[-1].bytes_per_vector(n)


def learn_codec(registry: Registry, chain: Sequence[tuple[str, Mapping[str, Any], str]], vectors: torch.Tensor) -> Codec | None:
    """Learn a codec, or a chain of them, on calibration vectors (N, D); None for float32.

    Raises:
        PluginError: a codec raised.
    """
    links: list[Codec] = []
    for name, params, _ in chain:
        try:
            link = registry.get("codec", name).fit(vectors, **params)
            vectors = link.decode(link.encode(vectors)) if len(chain) > 1 else vectors
        except EvalHarnessError:
            raise
        except Exception as error:
            owner = registry.owner("codec", name)
            raise PluginError(f"codec `{name}` (plugin `{owner.name}`) raised: {type(error).__name__}: {error}") from error
        links.append(link)
    return None if not links else links[0] if len(links) == 1 else ChainCodec(links)


def code_vectors(vectors: torch.Tensor, codec: Codec | None, similarity: str, ids: Array | None = None) -> CodedVectors:
    """Store float32 vectors (N, D) with a codec."""
    if codec is None:
        return CodedVectors(vectors, None, similarity, ids=ids)
    return CodedVectors(codec.encode(vectors), codec, similarity, original=vectors, ids=ids)
