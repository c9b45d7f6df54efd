"""Heads of few-shot episodes, all fitted in batches: each is a linear map from vectors to scores of the classes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from evalharness.errors import UsageError, VectorsError, unknown_name
from evalharness.numerics._arrays import as_float, as_kind, as_tensor, require_directions, require_finite, require_matrix, row_norms
from evalharness.numerics._logistic import logistic_path

if TYPE_CHECKING:
    import numpy as np

    from evalharness.numerics._episodes import Episodes

METRICS = ("l2", "cosine")
# Squares of what lies within 2^±20, and of what rounding leaves of their differences, are ordinary float32 numbers, and so are their sums.
_SAFE_EXPONENT = 20
_LOW_EXPONENT = 40
_CUDA_BLOCK_BYTES = 512 * 2**20
_BLOCK_BYTES = 16 * 2**20
_CACHE_BYTES = 2**20


class EpisodeScores(NamedTuple):
    """Hold the ``accuracy`` (E,) float64 of E episodes, and whether the head of each ``converged`` (E,) bool."""

    accuracy: Any
    converged: Any


def score_episodes(
    vectors: Any,
    episodes: Episodes,
    *,
    head: str = "nearest-centroid",
    metric: str = "l2",
    penalty: float = 1.0,
    base_mean: Any | None = None,
    ids: Sequence[Any] | np.ndarray | None = None,
    block_bytes: int | None = None,
) -> EpisodeScores:
    """Fit a head on the support of every episode, and return the share of its queries that are given their own class.

    ``nearest-centroid`` takes the class whose mean is nearest by ``metric``: with ``cosine`` unit vectors are averaged and compared by angle.
    ``simpleshot-un`` is the same as ``l2``; ``simpleshot-l2n`` makes unit vectors first, ``simpleshot-cl2n`` subtracts ``base_mean`` before that; centroids are not made unit again.
    ``ridge`` minimises ‖Y - Z W - b‖² + penalty · ‖W‖² over indicators Y, ``logistic`` ΣCE + penalty / 2 · ‖W‖²; both see unit vectors, and no bias is penalised.
    A tie goes to the class drawn first, so that equal vectors score 1 / way.

    Args:
        vectors: (N, D) tensor or array, finite; half precision is raised to float32. Their scale does not matter.
        episodes: as :func:`sample_episodes` gives them.
        head: one of ``HEADS``.
        metric: ``l2`` or ``cosine``, of ``nearest-centroid`` alone.
        penalty: positive, of ``ridge`` and ``logistic``.
        base_mean: (D,), the mean of base-training vectors, of ``simpleshot-cl2n``; a vector that equals it has no direction and stays 0.
        ids: (N,) names of the vectors, for messages.
        block_bytes: bounds what one block of episodes holds; default 16 MiB, on a GPU 512 MiB.

    Returns:
        The scores, of the vectors' kind and device; every head but ``logistic`` always converges.

    Raises:
        UsageError: ``head``, ``metric``, ``penalty`` or ``base_mean`` is wrong.
        VectorsError: the vectors have a wrong shape or are not finite, or one of norm 0 must become a unit vector.

    Source:
        METRICS.md 3. Snell et al. 2017; SimpleShot, Wang et al. 2019; ridge in closed form, Bertinetto et al. 2019;
        logistic regression on unit vectors with C = 1, Tian et al. 2020.
    """
    if head not in HEADS:
        raise UsageError(unknown_name("head", head, HEADS))
    if metric not in METRICS:
        raise UsageError(unknown_name("metric", metric, METRICS))
    if not (math.isfinite(penalty) and penalty > 0):
        raise UsageError(f"`penalty` must be positive, got {penalty}")
    given = as_float(as_tensor(vectors))
    require_matrix(given, "vectors")
    chosen = _COSINE if head == "nearest-centroid" and metric == "cosine" else HEADS[head]
    blocks = _blocks(given, episodes, chosen, block_bytes)
    ready = chosen.prepare(*_rescale(given, base_mean, ids), ids)
    parts = [_score_block(ready, *block, chosen.fit, penalty) for block in blocks]
    return EpisodeScores(*(as_kind(torch.cat(part), vectors) for part in zip(*parts, strict=True)))


def _blocks(vectors: torch.Tensor, episodes: Episodes, head: _Head, block_bytes: int | None) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield support and query of as many episodes as fit a block."""
    support, query = as_tensor(episodes.support, vectors.device), as_tensor(episodes.query, vectors.device)
    if not len(vectors) or int(max(support.max(), query.max())) >= len(vectors):
        raise UsageError(f"`episodes` point beyond the {len(vectors)} rows of `vectors`: draw them from labels of the same rows")
    limit = block_bytes or (_CUDA_BLOCK_BYTES if vectors.is_cuda else _BLOCK_BYTES)
    way, num_queries, shot = *query.shape[1:], support.shape[2]
    rows = way * (2 + head.copies * shot + (num_queries if vectors.is_cuda else 0))
    step = max(1, limit // (vectors.element_size() * (vectors.shape[1] * rows + way * way * num_queries)))
    yield from zip(torch.split(support, step), torch.split(query, step), strict=True)


# --- what a head sees -----------------------------------------------------------------------------------------------


def _rescale(vectors: torch.Tensor, base_mean: Any | None, ids: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Check both and, where squares could overflow or vanish, divide both by a power of two: exact, and no order of distances changes."""
    mean = None
    if base_mean is None:
        # The norm of everything bounds the largest entry from both sides, in half the time of finding it.
        norm = float(torch.linalg.vector_norm(vectors))
        if 2.0**-_SAFE_EXPONENT * vectors.numel() ** 0.5 <= norm <= 2.0**_SAFE_EXPONENT:
            return vectors, mean
    bounds = [*torch.aminmax(vectors)]
    if base_mean is not None:
        mean = as_float(as_tensor(base_mean, vectors.device)).to(vectors.dtype)
        if mean.shape != vectors.shape[1:]:
            raise UsageError(f"`base_mean` must have shape ({vectors.shape[1]},), got {tuple(mean.shape)}")
        if not bool(mean.isfinite().all()):
            raise VectorsError("`base_mean` must be finite, got NaN or infinity")
        bounds += torch.aminmax(mean)
    largest = torch.stack(bounds).abs().amax()
    if not bool(largest.isfinite()):
        require_finite(vectors, "vectors", ids)  # a slower pass, which names rows
    exponent = int(torch.frexp(largest).exponent)
    if abs(exponent) <= _SAFE_EXPONENT:
        return vectors, mean
    # In two steps, since a float cannot hold every such factor.
    half = -exponent // 2
    first, second = 2.0**half, 2.0 ** (-exponent - half)
    return vectors * first * second, None if mean is None else mean * first * second


def _centre(vectors: torch.Tensor) -> torch.Tensor:
    """Subtract the mean where it is longer than the rest: no distance changes, but less of each is lost in rounding."""
    mean = vectors.mean(dim=0)
    return vectors - mean if 2 * len(vectors) * mean.square().sum() > torch.linalg.vector_norm(vectors).square() else vectors


def _normalise(vectors: torch.Tensor, norms: torch.Tensor) -> torch.Tensor:
    """Return unit rows; those of norm 0 stay 0."""
    return vectors / norms.where(norms > 0, 1.0)[:, None]


def _norms(vectors: torch.Tensor) -> torch.Tensor:
    """Return Euclidean norms (N,), those of rows whose squares vanish beside the largest by way of float64."""
    norms = torch.linalg.vector_norm(vectors, dim=1)
    low = (norms < 2.0**-_LOW_EXPONENT).nonzero().flatten()
    if len(low):
        norms[low] = row_norms(vectors[low]).to(norms.dtype)
    return norms


def _plain(vectors: torch.Tensor, base_mean: torch.Tensor | None, ids: Any) -> torch.Tensor:
    del base_mean, ids
    return _centre(vectors)


def _unit(vectors: torch.Tensor, base_mean: torch.Tensor | None, ids: Any) -> torch.Tensor:
    """Return unit vectors."""
    del base_mean
    norms = _norms(vectors)
    require_directions(norms, "vectors", ids)
    return _normalise(vectors, norms)


def _centred_unit(vectors: torch.Tensor, base_mean: torch.Tensor | None, ids: Any) -> torch.Tensor:
    """Return unit vectors less their mean, which no distance and no unpenalised bias can tell from unit vectors."""
    return _centre(_unit(vectors, base_mean, ids))


def _unit_from_base(vectors: torch.Tensor, base_mean: torch.Tensor | None, ids: Any) -> torch.Tensor:
    """Return unit vectors of the differences to the base mean, less their mean."""
    del ids
    if base_mean is None:
        raise UsageError(
            "the head `simpleshot-cl2n` subtracts the mean of base-training vectors: give `base_mean`, or use `simpleshot-l2n`"
        )
    centred = vectors - base_mean
    return _centre(_normalise(centred, _norms(centred)))


# --- how a head is fitted -------------------------------------------------------------------------------------------


class _Linear(NamedTuple):
    """Hold maps of e episodes from vectors to scores: ``weights`` (e, way, D), ``bias`` (e, way), ``converged`` (e,) bool."""

    weights: torch.Tensor
    bias: torch.Tensor
    converged: torch.Tensor


def _score_block(
    vectors: torch.Tensor, support: torch.Tensor, query: torch.Tensor, fit: _Fit, penalty: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return accuracies (e,) float64 and convergence (e,) of episodes with support (e, way, shot) and query (e, way, Q)."""
    count, way, num_queries = query.shape
    weights, bias, converged = fit(vectors, support, penalty)
    scores = _apply(vectors, query.reshape(count, -1), weights).add_(bias.unsqueeze(2))
    # torch.max promises the first of several maxima, as argmax does, and is seven times as fast across rows.
    hits = torch.max(scores, dim=1).indices.view(query.shape) == torch.arange(way, device=vectors.device)[:, None]
    return hits.sum(dim=(1, 2)).double() / (way * num_queries), converged


def _apply(vectors: torch.Tensor, query: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return products (e, way, q) of weights (e, way, D) and queries (e, q), gathered a few episodes at a time, so that they are still in the cache."""
    count, size = query.shape
    dimensions = vectors.shape[1]
    scores = vectors.new_empty((count, weights.shape[1], size))
    step = count if vectors.is_cuda else max(1, _CACHE_BYTES // (vectors.element_size() * size * dimensions))
    workspace = vectors.new_empty((min(step, count) * size, dimensions))
    for first in range(0, count, step):
        rows = query[first : first + step].flatten()
        gathered = torch.index_select(vectors, 0, rows, out=workspace[: len(rows)]).view(-1, size, dimensions)
        # Classes times queries, not the reverse, which takes half as long again.
        torch.bmm(weights[first : first + step], gathered.mT, out=scores[first : first + step])
    return scores


def _centroids(vectors: torch.Tensor, support: torch.Tensor) -> torch.Tensor:
    """Return means (e, way, D), without a copy of the support."""
    means = torch.nn.functional.embedding_bag(support.flatten(0, 1), vectors, mode="mean")
    return means.view(*support.shape[:2], -1)


def _sure(support: torch.Tensor) -> torch.Tensor:
    return torch.ones(len(support), dtype=torch.bool, device=support.device)


def _fit_distances(vectors: torch.Tensor, support: torch.Tensor, penalty: float) -> _Linear:
    """Score by minus half the squared distance to the centroid, less the term of the query alone, which changes no order."""
    del penalty
    centroids = _centroids(vectors, support)
    return _Linear(centroids, centroids.square().sum(dim=2) / -2, _sure(support))


def _fit_angles(vectors: torch.Tensor, support: torch.Tensor, penalty: float) -> _Linear:
    """Score by the cosine to the centroid; opposite vectors can cancel, and a centroid without direction scores 0."""
    del penalty
    centroids = _centroids(vectors, support)
    tiny = 16 * torch.finfo(vectors.dtype).eps
    norms = centroids.norm(dim=2, keepdim=True)
    directions = torch.where(norms > tiny, centroids / norms.clamp_min(tiny), 0.0)
    return _Linear(directions, directions.new_zeros(directions.shape[:2]), _sure(support))


def _gather(vectors: torch.Tensor, support: torch.Tensor) -> torch.Tensor:
    """Return the support (e, way · shot, D), class by class."""
    return vectors.index_select(0, support.flatten()).view(len(support), support.shape[1] * support.shape[2], -1)


def _fit_ridge(vectors: torch.Tensor, support: torch.Tensor, penalty: float) -> _Linear:
    """Solve the dual, (K + penalty) A = Y of the centred support, in float64: it has as few unknowns as there are support items."""
    _, way, shot = support.shape
    rows = _gather(vectors, support)
    mean = rows.mean(dim=1, keepdim=True)
    rows = (rows - mean).to(torch.float64)
    targets = torch.eye(way, dtype=torch.float64, device=vectors.device).repeat_interleave(shot, dim=0) - 1 / way
    kernel = rows @ rows.mT
    kernel.diagonal(dim1=1, dim2=2).add_(penalty)
    factor, failed = torch.linalg.cholesky_ex(kernel)
    if bool(failed.any()):
        raise UsageError(f"`penalty` = {penalty:g} is too small for the head `ridge` on these vectors: rounding outweighs it")
    duals = torch.cholesky_solve(targets.expand(len(rows), -1, -1), factor)
    weights = (duals.mT @ rows).to(vectors.dtype)
    return _Linear(weights, -(weights @ mean.mT).squeeze(2), _sure(support))


def _fit_logistic(vectors: torch.Tensor, support: torch.Tensor, penalty: float) -> _Linear:
    _, way, shot = support.shape
    if way < 2:
        return _Linear(*_fit_distances(vectors, support, penalty))
    labels = torch.arange(way, device=vectors.device).repeat_interleave(shot).expand(len(support), -1)
    path = logistic_path(_gather(vectors, support), labels, [1 / penalty])
    return _Linear(path.weights[:, 0].mT, path.bias[:, 0], path.converged[:, 0])


_Prepare = Callable[[torch.Tensor, torch.Tensor | None, Any], torch.Tensor]
_Fit = Callable[[torch.Tensor, torch.Tensor, float], _Linear]


@dataclass(frozen=True, slots=True)
class _Head:
    """Hold what a head sees, how it is fitted, and how many float32 copies of the support that takes."""

    prepare: _Prepare
    fit: _Fit
    copies: int = 0


_COSINE = _Head(_unit, _fit_angles)
HEADS = {
    "nearest-centroid": _Head(_plain, _fit_distances),
    "simpleshot-un": _Head(_plain, _fit_distances),
    "simpleshot-l2n": _Head(_centred_unit, _fit_distances),
    "simpleshot-cl2n": _Head(_unit_from_base, _fit_distances),
    "ridge": _Head(_centred_unit, _fit_ridge, copies=4),
    "logistic": _Head(_centred_unit, _fit_logistic, copies=4),
}
