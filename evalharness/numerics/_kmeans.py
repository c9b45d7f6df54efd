"""K-means from several seeds at once: one product for all centres, and only centres that moved are compared again."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from evalharness.errors import DataError, UsageError
from evalharness.numerics._arrays import as_float, as_kind, as_tensor, require_finite, require_matrix

_CACHE_BYTES = 512 * 2**20


@dataclass(frozen=True, slots=True)
class KMeans:
    """Hold S clusterings, tensors or arrays as the features were.

    ``labels``: (S, N) int64; ``centres``: (S, K, D); ``inertia``: (S,) float64, summed squared distances to the own centre;
    ``iterations``: (S,) int64; ``converged``: (S,) bool.
    """

    labels: Any
    centres: Any
    inertia: Any
    iterations: Any
    converged: Any


def k_means(
    features: Any,
    num_clusters: int,
    *,
    num_seeds: int = 10,
    generator: torch.Generator,
    tolerance: float = 1e-4,
    max_iterations: int = 300,
) -> KMeans:
    """Cluster rows by Lloyd's iterations from several greedy k-means++ starts at once.

    A seed is done when no label changes, or when its centres move by less than ``tolerance`` times the mean variance of a feature, squared and summed.
    A cluster that runs empty takes the row farthest from its centre.

    >>> rows = torch.tensor([[0.0], [0.1], [5.0], [5.1]])
    >>> found = k_means(rows, 2, num_seeds=3, generator=torch.Generator().manual_seed(0))
    >>> [round(float(value), 4) for value in found.inertia]
    [0.01, 0.01, 0.01]

    Args:
        features: (N, D) tensor or array, finite.
        num_clusters: K, at most N.
        num_seeds: S, at least 1.
        generator: the source of randomness, on the CPU.
        tolerance: not negative.
        max_iterations: the most iterations of a seed, at least 1.

    Returns:
        The clusterings in the order drawn; the one of least inertia is the usual choice.

    Raises:
        VectorsError: the features have a wrong shape or are not finite.
        DataError: there are fewer rows than clusters.
        UsageError: an argument is out of range.

    Source:
        Lloyd 1982; Arthur & Vassilvitskii 2007 with the greedy choice among 2 + ln K candidates.
    """
    rows = as_float(as_tensor(features))
    require_matrix(rows, "features")
    require_finite(rows, "features", bounded=True)
    if num_clusters < 1 or num_seeds < 1 or max_iterations < 1 or tolerance < 0:
        raise UsageError(
            f"`num_clusters`, `num_seeds` and `max_iterations` must be positive, got {num_clusters}, {num_seeds} and {max_iterations}"
        )
    if len(rows) < num_clusters:
        raise DataError(f"{num_clusters} clusters need as many rows, got {len(rows)}")
    mean = rows.mean(dim=0)
    centred = rows - mean  # distances do not change, rounding does
    run = _Lloyd(centred, _draw_centres(centred, num_clusters, num_seeds, generator))
    threshold = tolerance * float(centred.double().square().mean())
    iterations, converged = run.iterate(threshold, max_iterations)
    labels, inertia = run.finish()
    return KMeans(
        labels=as_kind(labels, features),
        centres=as_kind(run.centres + mean, features),
        inertia=as_kind(inertia, features),
        iterations=as_kind(iterations.to(rows.device), features),
        converged=as_kind(converged.to(rows.device), features),
    )


def _draw_centres(rows: torch.Tensor, num_clusters: int, num_seeds: int, generator: torch.Generator) -> torch.Tensor:
    """Return greedy k-means++ starts (S, K, D): each centre is the best of a few rows drawn by squared distance."""
    trials = 2 + int(math.log(num_clusters))
    norms = rows.square().sum(dim=1)
    first = torch.randint(len(rows), (num_seeds,), generator=generator).to(rows.device)
    chosen = [first]
    nearest = _squared(rows, norms, first)  # (S, N)
    for _ in range(1, num_clusters):
        reached = nearest.double().cumsum(dim=1)
        draws = torch.rand((num_seeds, trials), generator=generator, dtype=torch.float64).to(rows.device) * reached[:, -1:]
        candidates = torch.searchsorted(reached, draws).clamp_max(len(rows) - 1)
        distances = torch.minimum(_squared(rows, norms, candidates.flatten()).view(num_seeds, trials, -1), nearest[:, None])
        best = distances.sum(dim=2, dtype=torch.float64).argmin(dim=1)
        seeds = torch.arange(num_seeds, device=rows.device)
        nearest = distances[seeds, best]
        chosen.append(candidates[seeds, best])
    return rows[torch.stack(chosen, dim=1)]


def _squared(rows: torch.Tensor, norms: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """Return squared distances (C, N) of the rows at some positions to all rows."""
    distances = torch.addmm(norms[None, :] + norms[at, None], rows[at], rows.T, alpha=-2)
    distances.clamp_min_(0)
    distances[torch.arange(len(at), device=rows.device), at] = 0
    return distances


class _Lloyd:
    """Hold the state of all seeds.

    ``scores`` (S, K, N) are |c|² - 2 x·c, kept between iterations where memory allows, so that only centres that moved need a product.
    ``sums`` and ``counts`` change only by the rows that changed sides.
    """

    def __init__(self, rows: torch.Tensor, centres: torch.Tensor) -> None:
        self.rows, self.centres = rows, centres
        seeds, clusters, _ = centres.shape
        self.labels = torch.full((seeds, len(rows)), -1, dtype=torch.int64, device=rows.device)
        self.sums = torch.zeros_like(centres, dtype=torch.float64)
        self.counts = torch.zeros((seeds, clusters), dtype=torch.int64, device=rows.device)
        kept = 4 * seeds * clusters * len(rows) <= _CACHE_BYTES
        self.scores = rows.new_empty((seeds, clusters, len(rows))) if kept else None
        self.moved = torch.ones((seeds, clusters), dtype=torch.bool, device=rows.device)

    def iterate(self, threshold: float, max_iterations: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Run until every seed is done; return iterations (S,) and whether each converged (S,)."""
        seeds = len(self.centres)
        iterations = torch.full((seeds,), max_iterations, dtype=torch.int64)
        converged = torch.zeros(seeds, dtype=torch.bool)
        active = list(range(seeds))
        for step in range(1, max_iterations + 1):
            self._score(active)
            left = []
            for seed in active:
                changed = self._assign(seed)
                shift = self._update(seed)
                if not changed or shift <= threshold:
                    iterations[seed], converged[seed] = step, True
                else:
                    left.append(seed)
            active = left
            if not active:
                break
        return iterations, converged

    def _score(self, seeds: list[int]) -> None:
        """Compare all rows with the centres that moved since they were last compared."""
        if self.scores is None:
            return
        moved = torch.zeros_like(self.moved)
        moved[seeds] = self.moved[seeds]
        at = moved.flatten().nonzero().flatten()
        if len(at):
            centres = self.centres.flatten(0, 1)[at]
            product = torch.addmm(centres.square().sum(dim=1, keepdim=True), centres, self.rows.T, alpha=-2)
            self.scores.view(-1, len(self.rows))[at] = product
        self.moved[seeds] = False

    def _nearest(self, seed: int) -> torch.Tensor:
        if self.scores is not None:
            return self.scores[seed].argmin(dim=0)
        centres = self.centres[seed]
        return torch.addmm(centres.square().sum(dim=1), self.rows, centres.T, alpha=-2).argmin(dim=1)

    def _assign(self, seed: int) -> int:
        """Give every row to its nearest centre and return how many changed sides."""
        labels, before = self._nearest(seed), self.labels[seed]
        at = (labels != before).nonzero().flatten()
        if len(at):
            clusters = self.centres.shape[1]
            old, new = before[at], labels[at]
            was = old >= 0
            change = torch.zeros((clusters, len(at)), dtype=self.rows.dtype, device=self.rows.device)
            columns = torch.arange(len(at), device=self.rows.device)
            change[new, columns] = 1
            change[old[was], columns[was]] -= 1
            self.sums[seed] += (change @ self.rows[at]).double()
            self.counts[seed] += torch.bincount(new, minlength=clusters) - torch.bincount(old[was], minlength=clusters)
            self.labels[seed] = labels
        if not bool(self.counts[seed].all()):
            self._refill(seed)
        return len(at)

    def _refill(self, seed: int) -> None:
        """Give each empty cluster the row that lies farthest from its own centre."""
        distances = (self.rows - self.centres[seed][self.labels[seed]]).square().sum(dim=1)
        for cluster in (self.counts[seed] == 0).nonzero().flatten().tolist():
            distances[self.counts[seed][self.labels[seed]] <= 1] = -1  # the last row of a cluster stays
            row = int(distances.argmax())
            old = int(self.labels[seed, row])
            for part, sign in ((old, -1), (cluster, 1)):
                self.sums[seed, part] += sign * self.rows[row].double()
                self.counts[seed, part] += sign
            self.labels[seed, row] = cluster
            distances[row] = -1

    def _update(self, seed: int) -> float:
        """Move centres to the means of their rows and return how far they went, squared and summed."""
        means = (self.sums[seed] / self.counts[seed].clamp_min(1)[:, None]).to(self.rows.dtype)
        steps = (means - self.centres[seed]).square().sum(dim=1)
        self.moved[seed] |= steps > 0
        self.centres[seed] = means
        return float(steps.sum())

    def finish(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the labels that the last centres give (S, N), and their inertia (S,)."""
        self._score(list(range(len(self.centres))))
        for seed in range(len(self.centres)):
            self.labels[seed] = self._nearest(seed)
        inertia = [(self.rows - self.centres[seed][self.labels[seed]]).double().square().sum() for seed in range(len(self.centres))]
        return self.labels, torch.stack(inertia)
