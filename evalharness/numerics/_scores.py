"""What the metrics of a search mean: a fast float32 score for scanning, an exact one for ordering, and a bound between the two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from evalharness.numerics._arrays import as_float, as_tensor, require_directions, require_finite, row_norms

if TYPE_CHECKING:
    from collections.abc import Iterator

METRICS = ("cosine", "dot", "l2")
_ROUNDING = {"highest": 2.0**-24, "high": 2.0**-10, "medium": 2.0**-7}


@dataclass(slots=True)
class Gallery:
    """Read rows of a tensor, an array or a memory map, block by block, onto one device; ``ids`` name them in messages."""

    rows: Any
    device: torch.device
    ids: Any | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, start: int, stop: int) -> torch.Tensor:
        """Return a block of rows, float32 or float64."""
        return as_float(as_tensor(self.rows[start:stop], self.device))

    def take(self, at: torch.Tensor) -> torch.Tensor:
        """Return the rows at positions (n,), float32 or float64."""
        if isinstance(self.rows, torch.Tensor):
            return as_float(as_tensor(self.rows.index_select(0, at.to(self.rows.device)), self.device))
        return as_float(as_tensor(np.asarray(self.rows[at.cpu().numpy()]), self.device))


@dataclass(slots=True)
class Scorer:
    """Score queries against a gallery; higher is nearer, and for l2 a score is q·g - |g|²/2 about ``centre``.

    ``scan``: (Q, D) float32 holds the queries, normalised or centred as the metric asks; ``exact``: (Q, D) float64 the same, but not centred.
    ``norms``: (Q,) float64 are those of ``scan``.
    ``largest`` is the largest row norm of the gallery seen by ``prepare``, 0 before.
    """

    metric: str
    scan: torch.Tensor
    exact: torch.Tensor
    norms: torch.Tensor
    centre: torch.Tensor | None
    largest: torch.Tensor

    def prepare(self, block: torch.Tensor, offset: int, ids: Any | None = None) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Check gallery rows and return them ready for the product, float32, with half their squared norms for l2; ``ids`` are those of the gallery."""
        own = None if ids is None else ids[offset : offset + len(block)]
        require_finite(block, "gallery", own, offset, bounded=self.metric != "cosine")
        if self.metric == "cosine":
            norms = row_norms(block)
            require_directions(norms, "gallery", own, offset)
            self.largest = torch.ones_like(self.largest)
            return block.to(torch.float32) * (1 / norms).to(torch.float32)[:, None], None
        moved = block if self.centre is None else block - self.centre.to(block.dtype)
        norms = row_norms(moved)
        self.largest = torch.maximum(self.largest, norms.max())
        return moved.to(torch.float32), (norms.square() / 2).to(torch.float32) if self.metric == "l2" else None

    def bound(self) -> torch.Tensor:
        """Return by how much a scanned score may be off, (Q,) float64.

        Sequential float32 accumulation over D terms errs by at most D roundings of |q||g|; eight deviations of a random walk are less for large D.
        Where the process lets products use fewer bits (TF32), the bound grows and more queries are searched again.
        """
        dimensions = self.scan.shape[1]
        terms = min(dimensions, 8 * dimensions**0.5 + 16) + 6
        reach = self.norms * self.largest
        rounding = _ROUNDING[torch.get_float32_matmul_precision()]
        return (reach + self.largest.square() if self.metric == "l2" else reach).mul(terms * rounding)

    def pair_values(self, queries: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Return exact values in float64: ``queries`` (n,) positions, ``rows`` (n, K, D) to (n, K); distances are negative.

        Each product is summed alone and not in that of matrices, whose order of summation depends on the position in the block:
        only so do equal rows tie.
        """
        own, others = self.exact[queries].unsqueeze(1), rows.to(torch.float64, copy=True)
        if self.metric == "l2":
            others.sub_(own)
            return _inner(others, others).sqrt_().neg_()
        products = _inner(others, own)
        return products / _inner(others, others).sqrt_() if self.metric == "cosine" else products

    def as_scores(self, values: torch.Tensor) -> torch.Tensor:
        """Return the scores that exact values (Q, K) belong to, in the scale of the scan."""
        return (self.norms.square()[:, None] - values.square()) / 2 if self.metric == "l2" else values


def make_scorer(queries: torch.Tensor, gallery: Gallery, metric: str, ids: Any | None = None) -> Scorer:
    """Prepare queries (Q, D), finite and float32 or float64, for a metric; ``ids`` name them in messages.

    Raises:
        VectorsError: a query has norm 0 under cosine.
    """
    exact = queries.to(torch.float64)
    norms = row_norms(queries)
    centre = None
    if metric == "cosine":
        require_directions(norms, "queries", ids)
        exact = exact / norms[:, None]
        norms = torch.ones_like(norms)
    if metric == "l2":
        # Distances do not change when both sides move, and cancellation is least about the middle.
        centre = gallery.read(0, min(len(gallery), 1024)).to(torch.float64).nan_to_num(0.0, 0.0, 0.0).mean(0)
        norms = row_norms(exact - centre)
    largest = torch.zeros((), dtype=torch.float64, device=queries.device)
    scan = exact if centre is None else exact - centre
    return Scorer(metric, scan.to(torch.float32), exact, norms, centre, largest)


def _inner(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return inner products of rows (..., D) float64, in one pass on a CPU."""
    if first.is_cuda:
        return (first * second).sum(-1)
    return torch.from_numpy(np.vecdot(first.numpy(), second.numpy()))


def spans(total: int, size: int, first: int = 0) -> Iterator[tuple[int, int]]:
    """Yield consecutive (start, stop) that cover what lies from ``first`` to ``total``."""
    for start in range(first, total, size):
        yield start, min(start + size, total)
