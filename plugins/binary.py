"""Binary codes: one bit a dimension, searched by Hamming distance, with or without a second ranking by the float query."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evalharness import CodecSpec, hookimpl
from evalharness.errors import DataError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

BLOCK_BYTES = 32 * 2**20
NONE = -(2**62)  # below every key, for excluded rows


class BinaryCodec:
    """Store the sign of each dimension, packed into bytes, the first dimension in the highest bit.

    ``centre``: (D,) float32 to subtract before, or None; ``rescore``: how many times k candidates are ranked a second time, 0 for none.
    """

    def __init__(self, dim: int, centre: torch.Tensor | None, rescore: int) -> None:
        self.dim = dim
        self.centre = centre
        self.rescore = rescore

    def encode(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return uint8 codes (N, ceil(D / 8)) of vectors (N, D); a bit is set where the value is above 0, and 0 gives 0.

        Raises:
            VectorsError: a row is not finite.
        """
        from evalharness.numerics import check_finite

        check_finite(vectors)
        return _pack(self.project(vectors) > 0)

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        """Return -1 or 1 in the D dimensions of the input, (N, D) float32."""
        return _unpack(codes, self.dim)

    def project(self, queries: torch.Tensor) -> torch.Tensor:
        """Subtract the centre from queries (Q, D), where there is one."""
        return queries if self.centre is None else queries - self.centre

    def bytes_per_vector(self, n: int) -> float:
        """Return one bit a dimension, padded to whole bytes, and the share that ``n`` vectors have in a centre."""
        return -(-self.dim // 8) + (0.0 if self.centre is None else 4 * self.dim / max(1, n))

    def search(
        self, queries: torch.Tensor, gallery_codes: torch.Tensor, k: int, *, exclude: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the k nearest rows of packed codes, nearest first, ties by position.

        Args:
            queries: (Q, D) float32, projected.
            gallery_codes: (N, ceil(D / 8)) uint8.
            k: neighbours a query.
            exclude: (Q, X) int64 positions that a query must not find, -1 for none.

        Returns:
            Values (Q, k) float32 and positions (Q, k) int64.
            Values are cosines: of the two sign vectors, 1 - 2 · Hamming / D; with ``rescore`` of the float query and the document's sign vector.

        Raises:
            DataError: fewer than k rows remain after exclusion.
            VectorsError: a query is not finite, or has norm 0 where it is scored again.

        Source:
            METRICS.md 10; rescoring after Yamada et al. 2021, with decoded documents.
        """
        from evalharness.numerics import check_finite

        check_finite(queries, what="queries")
        left = _count_candidates(len(gallery_codes), exclude)
        if k < 1 or k > left:
            raise DataError(
                f"`k` = {k} is not among the candidates that a query has after exclusion: the largest possible k is {left} of {len(gallery_codes)} rows"
            )
        wanted = k if self.rescore == 0 else min(left, k * self.rescore)
        signs = _unpack(_pack(queries > 0), self.dim)
        products, found = _nearest_signs(signs, gallery_codes, wanted, exclude)
        if self.rescore == 0:
            return products.float() / self.dim, found
        return _rescore(queries, gallery_codes, found, k)


def _pack(bits: torch.Tensor) -> torch.Tensor:
    """Return bits (N, D) as bytes (N, ceil(D / 8)), the first in the highest place."""
    import torch

    padded = torch.nn.functional.pad(bits.to(torch.uint8), (0, -bits.shape[1] % 8))
    places = torch.tensor([128, 64, 32, 16, 8, 4, 2, 1], dtype=torch.uint8, device=bits.device)
    return (padded.view(len(bits), -1, 8) * places).sum(dim=-1, dtype=torch.uint8)


def _unpack(codes: torch.Tensor, dim: int) -> torch.Tensor:
    """Return -1 or 1 (..., D) float32 of bytes (..., ceil(D / 8))."""
    import torch

    shifts = torch.arange(7, -1, -1, dtype=torch.uint8, device=codes.device)
    bits = (codes.unsqueeze(-1) >> shifts) & 1
    return bits.flatten(-2)[..., :dim].float().mul_(2).sub_(1)


def _count_candidates(size: int, exclude: torch.Tensor | None) -> int:
    """Return the number of rows that every query has left; a position listed twice counts once."""
    if exclude is None or not exclude.numel():
        return size
    barred = exclude.sort(dim=1).values
    first = barred.new_ones(barred.shape).bool()
    first[:, 1:] = barred[:, 1:] != barred[:, :-1]
    return size - int((first & (barred >= 0)).sum(dim=1).max())


def _nearest_signs(signs: torch.Tensor, codes: torch.Tensor, k: int, exclude: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return products of sign vectors (Q, k), D - 2 · Hamming, and positions, best first.

    Products of -1 and 1 are whole numbers, exact in any order of summation, and faster than counting bits in torch.
    A key joins product and position, so that equal products follow their position wherever blocks are cut.
    """
    import torch

    size, dim, num_queries = len(codes), signs.shape[1], len(signs)
    width = max(1, min(size, BLOCK_BYTES // (8 * dim)))
    height = max(1, BLOCK_BYTES // (16 * width))
    best = torch.full((num_queries, k), NONE, dtype=torch.int64, device=signs.device)
    for start in range(0, size, width):
        block = _unpack(codes[start : start + width], dim).T
        places = size - 1 - torch.arange(start, start + block.shape[1], device=signs.device)
        for first in range(0, num_queries, height):
            keys = (signs[first : first + height] @ block).long() * size + places
            _bar(keys, None if exclude is None else exclude[first : first + height].to(keys.device), start)
            together = torch.cat([best[first : first + height], keys.topk(min(k, keys.shape[1]), dim=1).values], dim=1)
            best[first : first + height] = together.topk(k, dim=1).values
    products = best.div(size, rounding_mode="floor")
    return products, size - 1 - (best - products * size)


def _bar(keys: torch.Tensor, barred: torch.Tensor | None, start: int) -> None:
    if barred is None or not barred.numel():
        return
    columns = barred - start
    query, slot = ((columns >= 0) & (columns < keys.shape[1]) & (barred >= 0)).nonzero(as_tuple=True)
    keys[query, columns[query, slot]] = NONE


def _rescore(queries: torch.Tensor, codes: torch.Tensor, found: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rank candidates (Q, m · k) by the cosine of the float query and the document's signs; ties by position."""
    import torch

    from evalharness.numerics import normalise_rows

    unit = normalise_rows(queries, what="queries")
    found = found.sort(dim=1).values  # by position, which the stable sort below keeps for ties
    values = torch.empty(found.shape, dtype=torch.float64, device=queries.device)
    rows = max(1, BLOCK_BYTES // (8 * found.shape[1] * queries.shape[1]))
    for start in range(0, len(queries), rows):
        at = slice(start, start + rows)
        documents = _unpack(codes[found[at]], queries.shape[1]).double()
        values[at] = (documents * unit[at].double().unsqueeze(1)).sum(dim=-1)
    rounded, order = (values / queries.shape[1] ** 0.5).float().sort(dim=1, descending=True, stable=True)
    return rounded[:, :k].contiguous(), found.gather(1, order)[:, :k].contiguous()


def fit(vectors: torch.Tensor, *, rescore: int = 0, centre: bool = False) -> BinaryCodec:
    """Learn the mean of vectors (N, D) float32, if it is to be subtracted.

    Raises:
        DataError: there are no vectors to centre by.
        UsageError: ``rescore`` is negative.
        VectorsError: a row is not finite.
    """
    from evalharness.numerics import check_finite

    if rescore < 0:
        raise UsageError(f"expected `rescore` of codec `binary` to be 0 or a number of times k, got {rescore}")
    if centre and not len(vectors):
        raise DataError("codec `binary` needs at least one calibration vector to centre by, got none")
    check_finite(vectors, what="calibration vectors")
    return BinaryCodec(vectors.shape[1], vectors.double().mean(dim=0).float() if centre else None, rescore)


@hookimpl
def evalharness_codecs() -> Iterable[CodecSpec]:
    """Register `binary`."""
    yield CodecSpec(
        name="binary",
        summary="One bit a dimension, searched by Hamming distance; `rescore: 4` ranks 4k candidates again by the float query",
        source="sentence-transformers `quantize_embeddings`; rescoring after Yamada et al. 2021",
        params={"rescore": 0, "centre": False},
        fit=fit,
    )
