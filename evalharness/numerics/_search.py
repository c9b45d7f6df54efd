"""Exact nearest neighbours by blocked products, with ties broken by position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from evalharness.errors import DataError, UsageError, VectorsError, unknown_name
from evalharness.numerics._arrays import as_float, as_kind, as_tensor, require_finite, require_matrix, row_norms
from evalharness.numerics._scores import METRICS, Gallery, Scorer, make_scorer, spans
from evalharness.numerics._threads import share_out

if TYPE_CHECKING:
    from collections.abc import Iterator

_FIRST_WIDTH = 1024
_WIDTH = 8192
_FOLD = 16
_FEW = 8
_SPARE = 16
_LEAST_SHARE = 64
_FLOAT32_BYTES = 4
_CACHE_BYTES = 2**24


def top_k(
    queries: Any,
    gallery: Any,
    k: int,
    *,
    metric: str = "cosine",
    exclude: Any | None = None,
    block_bytes: int | None = None,
    query_ids: Any | None = None,
    gallery_ids: Any | None = None,
) -> tuple[Any, Any]:
    """Return the k nearest gallery rows of each query, nearest first.

    Products are scanned in float32; the winners' values are computed again in float64 and rounded to float32.
    Rows of equal value follow their position, wherever blocks are cut, and memory does not grow with the gallery.
    A query whose winners a bound on rounding cannot tell from the rest is searched again with exact values.

    >>> top_k(torch.eye(2), torch.eye(2), 1)[1].tolist()
    [[0], [1]]

    Args:
        queries: (Q, D) tensor or array; half precision is raised to float32.
        gallery: (N, D) tensor, array or memory map.
        k: neighbours a query, at least 1.
        metric: ``cosine``, ``dot``, or ``l2`` for Euclidean distances.
        exclude: (Q, X) int64 positions in the gallery that a query must not find; -1 for none.
        block_bytes: memory for one block of scores; default 32 MiB, on a GPU 512 MiB.
        query_ids: (Q,) names of the queries for messages; None names positions.
        gallery_ids: (N,) names of the gallery's rows.

    Returns:
        Values (Q, k) float32 and positions (Q, k) int64, of the queries' kind and device.

    Raises:
        UsageError: the metric is unknown, or ``k`` or ``exclude`` has a wrong value or shape.
        VectorsError: shapes do not fit, a row is not finite, or a row has norm 0 under cosine.
        DataError: fewer than k rows remain after exclusion.
    """
    gallery = gallery if hasattr(gallery, "shape") else as_tensor(gallery)
    if metric not in METRICS:
        raise UsageError(unknown_name("metric", metric, METRICS))
    own = as_float(
        as_tensor(queries, gallery.device if isinstance(gallery, torch.Tensor) and not isinstance(queries, torch.Tensor) else None)
    )
    require_matrix(own, "queries")
    if len(gallery.shape) != 2 or gallery.shape[1] != own.shape[1]:
        raise VectorsError(f"`gallery` must have shape (rows, {own.shape[1]}) like `queries`, got {tuple(gallery.shape)}")
    for ids, size, what in ((query_ids, len(own), "query_ids"), (gallery_ids, len(gallery), "gallery_ids")):
        if ids is not None and len(ids) != size:
            raise UsageError(f"`{what}` must name {size} rows, got {len(ids)}")
    require_finite(own, "queries", query_ids, bounded=metric != "cosine")
    barred = _check_candidates(exclude, len(own), len(gallery), k, own.device)
    rows = Gallery(gallery, own.device, gallery_ids)
    if not len(own):
        return as_kind(own.new_empty((0, k), dtype=torch.float32), queries), as_kind(own.new_empty((0, k), dtype=torch.int64), queries)
    scorer = make_scorer(own, rows, metric, query_ids)
    bytes_a_block = block_bytes or (512 if own.is_cuda else 32) * 2**20
    scores, found = _scan(scorer, rows, min(len(rows), k + max(_SPARE, k // 16)), barred, bytes_a_block)
    values, order = _rescore(scorer, rows, scores, found, k, bytes_a_block)
    unsure = _uncertain(scorer, scores, values, k, len(rows))
    if len(unsure):
        _search_again(scorer, rows, unsure, values, order, barred, bytes_a_block)
    nearest = -values if metric == "l2" else values
    return as_kind(nearest[:, :k].to(torch.float32), queries), as_kind(order[:, :k].contiguous(), queries)


def _check_candidates(exclude: Any | None, num_queries: int, size: int, k: int, device: torch.device) -> torch.Tensor | None:
    """Return ``exclude`` as (Q, X) int64 without repetitions, after checking that k candidates remain."""
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or k < 1:
        raise UsageError(f"`k` must be a whole number of at least 1, got {k!r}")
    left, barred = size, None
    if exclude is not None:
        barred = as_tensor(exclude, device)
        if barred.ndim != 2 or len(barred) != num_queries or barred.is_floating_point():
            raise UsageError(f"`exclude` must be ({num_queries}, X) integers, got shape {tuple(barred.shape)} of {barred.dtype}")
        if barred.numel() and not (int(barred.min()) >= -1 and int(barred.max()) < size):
            raise UsageError(f"`exclude` must hold positions in [0, {size}) or -1, got {int(barred.min())} to {int(barred.max())}")
        barred = barred.to(torch.int64).sort(dim=1).values
        repeated = torch.zeros_like(barred, dtype=torch.bool)
        repeated[:, 1:] = barred[:, 1:] == barred[:, :-1]
        barred = barred.masked_fill(repeated, -1)
        if barred.numel():
            left = size - int((barred >= 0).sum(1).max())
    if k > left:
        raise DataError(
            f"`k` = {k} is more than the candidates that a query has after exclusion: the largest possible k is {left} of {size} rows"
        )
    return barred


def _bar(scores: torch.Tensor, barred: torch.Tensor | None, start: int) -> None:
    """Set the scores (q, w) of excluded rows to minus infinity; column 0 is gallery row ``start``."""
    if barred is None or not barred.numel():
        return
    columns = barred - start
    query, slot = ((columns >= 0) & (columns < scores.shape[1]) & (barred >= 0)).nonzero(as_tuple=True)
    scores[query, columns[query, slot]] = -torch.inf


def _scan(scorer: Scorer, rows: Gallery, keep: int, barred: torch.Tensor | None, block_bytes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the ``keep`` best float32 scores (Q, keep) and their positions, unordered; the gallery is read once."""
    shares = _shares(len(scorer.scan), scorer.scan.device)
    block_bytes = max(1, block_bytes // len(shares))
    width = max(1, min(_WIDTH, len(rows), block_bytes // (_FLOAT32_BYTES * min(shares[0][1], 64))))
    size = max(width, block_bytes // _FLOAT32_BYTES)
    lists = [
        _Lists.begin(scorer.scan[first:last], None if barred is None else barred[first:last], keep, min((last - first) * width, size))
        for first, last in shares
    ]
    for start, stop in _growing_spans(len(rows), max(_FIRST_WIDTH, 2 * keep), width):
        block, half_norms = scorer.prepare(rows.read(start, stop), start, rows.ids)

        def take_in(share: _Lists, block: torch.Tensor = block, half_norms: torch.Tensor | None = half_norms, start: int = start) -> None:
            share.take_in(block, half_norms, start)

        share_out(take_in, lists)
    return torch.cat([share.scores for share in lists]), torch.cat([share.found for share in lists])


def _shares(num_queries: int, device: torch.device) -> list[tuple[int, int]]:
    """Return spans of queries for the threads of a CPU; few queries, and a GPU, are one share."""
    threads = 1 if device.type == "cuda" else min(torch.get_num_threads(), max(1, num_queries // _LEAST_SHARE))
    return list(spans(num_queries, -(-num_queries // threads)))


@dataclass(slots=True)
class _Lists:
    """Hold running lists of the ``keep`` best scores (q, ≤ keep) of a share of the queries, and the positions found; ``workspace`` takes its products."""

    queries: torch.Tensor
    barred: torch.Tensor | None
    keep: int
    workspace: torch.Tensor
    scores: torch.Tensor
    found: torch.Tensor

    @classmethod
    def begin(cls, queries: torch.Tensor, barred: torch.Tensor | None, keep: int, size: int) -> _Lists:
        """Return empty lists; products hold at most ``size`` scores at once, in memory that is used again: fresh one would take a fifth of their time."""
        none = queries.new_empty((len(queries), 0))
        return cls(queries, barred, keep, queries.new_empty(size), none, none.to(torch.int64))

    def take_in(self, block: torch.Tensor, half_norms: torch.Tensor | None, start: int) -> None:
        """Merge the scores of gallery rows (w, D) from position ``start`` on."""
        parts, width = [], len(block)
        for first, last in spans(len(self.queries), max(1, len(self.workspace) // width)):
            product = self.workspace[: (last - first) * width].view(last - first, width)
            torch.mm(self.queries[first:last], block.T, out=product)
            if half_norms is not None:
                product -= half_norms
            _bar(product, None if self.barred is None else self.barred[first:last], start)
            parts.append(_merge(self.scores[first:last], self.found[first:last], product, start, self.keep))
        self.scores, self.found = torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])


def _growing_spans(total: int, first: int, widest: int) -> Iterator[tuple[int, int]]:
    """Yield consecutive (start, stop) that cover ``total``, each as wide as all before it: about as many rows enter a list as it holds."""
    start = 0
    while start < total:
        stop = min(total, start + min(widest, max(first, start)))
        yield start, stop
        start = stop


def _merge(scores: torch.Tensor, found: torch.Tensor, block: torch.Tensor, start: int, keep: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Merge a block of scores (q, w) into running lists of at most ``keep``."""
    best, columns = _block_best(block, keep, scores.amin(1, keepdim=True) if scores.shape[1] == keep else None)
    together, where = torch.cat([scores, best], 1), torch.cat([found, columns + start], 1)
    if together.shape[1] <= keep:
        return together, where
    at = _largest(together, keep)
    return together.gather(1, at), where.gather(1, at)


def _largest(scores: torch.Tensor, keep: int) -> torch.Tensor:
    """Return the columns (q, keep) of the largest scores (q, w), in any order."""
    if scores.is_cuda:
        return scores.topk(keep, dim=1, sorted=False).indices
    # NumPy parts rows three times as fast as torch does.
    return torch.from_numpy(np.argpartition(scores.numpy(), scores.shape[1] - keep, axis=1)[:, scores.shape[1] - keep :])


def _block_best(block: torch.Tensor, keep: int, threshold: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what may belong to the ``keep`` best of a block, with its columns.

    On a CPU, what exceeds the threshold is taken where that is little.
    Otherwise columns are folded into groups: the best ``keep`` lie within the ``keep`` groups of largest maximum.
    """
    height, width = block.shape
    groups = width // _FOLD
    if width <= keep:
        return block, torch.arange(width, device=block.device).expand(height, -1)
    if threshold is not None and not block.is_cuda:
        few = _above(block, threshold, max(width // _FEW, 4 * keep))
        if few is not None:
            return few
    if groups <= 2 * keep:
        columns = _largest(block, keep)
        return block.gather(1, columns), columns
    folded = block[:, : groups * _FOLD].reshape(height, _FOLD, groups)
    chosen = _largest(folded.amax(1), min(keep, groups))
    values = folded.gather(2, chosen.unsqueeze(1).expand(-1, _FOLD, -1)).flatten(1)
    columns = (torch.arange(_FOLD, device=block.device)[:, None] * groups + chosen.unsqueeze(1)).flatten(1)
    tail = torch.arange(groups * _FOLD, width, device=block.device).expand(height, -1)
    return torch.cat([values, block[:, groups * _FOLD :]], 1), torch.cat([columns, tail], 1)


def _above(block: torch.Tensor, threshold: torch.Tensor, most: int) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return the scores of a block (q, w) that exceed their row's threshold (q, 1), and their columns, filled up with minus infinity; None where a row has more than ``most``."""
    # NumPy compares and finds places several times faster than torch does.
    scores, (height, width) = block.numpy(), block.shape
    at = np.flatnonzero(scores > threshold.numpy())
    counts = np.diff(np.searchsorted(at, np.arange(height + 1) * width))
    longest = int(counts.max())
    if longest > most:
        return None
    filled = np.arange(longest) < counts[:, None]
    values = np.full((height, longest), -np.inf, dtype=np.float32)
    columns = np.zeros((height, longest), dtype=np.int64)
    values[filled], columns[filled] = scores.ravel().take(at), at - np.repeat(np.arange(height) * width, counts)
    return torch.from_numpy(values), torch.from_numpy(columns)


def _order(values: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
    """Return the order (Q, K) by descending value in float32, then ascending position."""
    by_position = found.argsort(dim=1)
    rounded = values.to(torch.float32).gather(1, by_position)
    return by_position.gather(1, rounded.sort(dim=1, descending=True, stable=True).indices)


def _rescore(
    scorer: Scorer, rows: Gallery, scores: torch.Tensor, found: torch.Tensor, k: int, block_bytes: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return exact values (Q, k) float64 and positions of the kept rows, in order; excluded rows are at minus infinity."""
    values = torch.empty(found.shape, dtype=torch.float64, device=found.device)
    shares = _shares(len(found), found.device)
    step = block_bytes // len(shares) if found.is_cuda else min(_CACHE_BYTES, block_bytes // len(shares))
    kept, dimensions = found.shape[1], scorer.scan.shape[1]

    def fill(share: tuple[int, int]) -> None:
        for start, stop in spans(share[1], max(1, step // (8 * kept * dimensions)), share[0]):
            taken = rows.take(found[start:stop].flatten()).view(stop - start, kept, -1)
            values[start:stop] = scorer.pair_values(torch.arange(start, stop, device=found.device), taken)

    share_out(fill, shares)
    values.masked_fill_(scores == -torch.inf, -torch.inf)
    order = _order(values, found)[:, :k]
    return values.gather(1, order), found.gather(1, order)


def _uncertain(scorer: Scorer, scores: torch.Tensor, values: torch.Tensor, k: int, size: int) -> torch.Tensor:
    """Return the queries for which a row that the scan dropped could be as near as the k-th kept one."""
    if scores.shape[1] == size:
        return torch.empty(0, dtype=torch.int64, device=scores.device)
    worst = values[:, k - 1]
    reach = scorer.as_scores(worst[:, None])[:, 0]
    ulp = 2.0**-23 * (worst.square() if scorer.metric == "l2" else worst.abs())
    dropped = scores.amin(1).to(torch.float64) + scorer.bound() + ulp
    return (reach <= dropped).nonzero().flatten()


def _search_again(
    scorer: Scorer,
    rows: Gallery,
    unsure: torch.Tensor,
    values: torch.Tensor,
    found: torch.Tensor,
    barred: torch.Tensor | None,
    block_bytes: int,
) -> None:
    """Search for the ``unsure`` queries with exact values throughout, and write their rows of ``values`` and ``found``.

    Blocks come in order of position, so a later row must be strictly nearer than the k-th so far, and at least as near as the k-th of the first search.
    A float64 product rules out nearly all of them; what remains is scored pair by pair.
    """
    k, dimensions = values.shape[1], scorer.scan.shape[1]
    for first, last in spans(len(unsure), max(1, block_bytes // (24 * max(k, 1024)))):
        at = unsure[first:last]
        least = values[at, k - 1].to(torch.float32)
        best = torch.full((len(at), k), -torch.inf, dtype=torch.float64, device=values.device)
        where = torch.full((len(at), k), len(rows), dtype=torch.int64, device=values.device)
        for start, stop in spans(len(rows), max(k, 1024)):
            block = rows.read(start, stop)
            upper = _upper_values(scorer, at, block)
            _bar(upper, None if barred is None else barred[at], start)
            upper = upper.to(torch.float32)
            query, column = ((upper >= least[:, None]) & (upper > best[:, -1:].to(torch.float32))).nonzero(as_tuple=True)
            exact = torch.full_like(upper, -torch.inf, dtype=torch.float64)
            for low, high in spans(len(query), max(1, block_bytes // (32 * dimensions))):
                pairs = scorer.pair_values(at[query[low:high]], block[column[low:high]].unsqueeze(1))
                exact[query[low:high], column[low:high]] = pairs[:, 0]
            together = torch.cat([best, exact], 1)
            positions = torch.cat([where, torch.arange(start, stop, device=where.device).expand(len(at), -1)], 1)
            order = _order(together, positions)[:, :k]
            best, where = together.gather(1, order), positions.gather(1, order)
        values[at], found[at] = best, where


def _upper_values(scorer: Scorer, at: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
    """Return values (n, w) in float64 that no exact value exceeds by more than its own rounding."""
    others = block.to(torch.float64)
    slack = 2.0**-50 * (scorer.scan.shape[1] ** 0.5 + 8)
    if scorer.metric == "l2":
        assert scorer.centre is not None
        others = others - scorer.centre
        norms = row_norms(others).square()
        own = scorer.norms[at].square()[:, None]
        squared = own - 2 * ((scorer.exact[at] - scorer.centre) @ others.T) + norms
        return squared.sub_(slack * (own + norms)).clamp_min_(0).sqrt_().neg_()
    norms = row_norms(others)
    products = scorer.exact[at] @ others.T
    if scorer.metric == "cosine":
        return products.div_(norms).add_(slack)
    return products.add_(slack * scorer.norms[at][:, None] * norms)
