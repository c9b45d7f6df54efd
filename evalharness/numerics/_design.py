"""Rows of one or several sets of features, centred and rotated to where probes are well conditioned, held or read block by block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from evalharness.numerics._arrays import as_float, as_tensor, require_finite

BLOCK_ROWS = 8192
_POWER_STEPS = 6
_FINE = 1e-7
_LEAST_VARIANCE = 1e-14  # of the largest: about what rounding of float32 features, and of a float64 decomposition, leaves of none


@dataclass(slots=True)
class Rows:
    """Read features of S sets, (S, N, D), or of one, (N, D) in a tensor, an array or a memory map, onto one device, ``step`` rows at a time."""

    values: Any
    device: torch.device
    step: int = BLOCK_ROWS

    def __post_init__(self) -> None:
        if isinstance(self.values, torch.Tensor):
            self.values = as_float(self.values)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return sets, rows and dimensions."""
        sets, rows, dimensions = (1, *self.values.shape) if self.values.ndim == 2 else self.values.shape
        return int(sets), int(rows), int(dimensions)

    @property
    def dtype(self) -> torch.dtype:
        """Return float64 for float64 features, else float32."""
        return torch.float64 if self.values.dtype in (torch.float64, "float64") else torch.float32

    def read(self, start: int, stop: int, sets: torch.Tensor | None = None) -> torch.Tensor:
        """Return rows (S, n, D) of all sets, or of the named ones."""
        if self.values.ndim == 2:
            return as_float(as_tensor(self.values[start:stop], self.device))[None]
        block = as_float(as_tensor(self.values[:, start:stop], self.device))
        return block if sets is None else block[sets]

    def check(self, what: str) -> None:
        """Refuse what is not finite, naming rows.

        Raises:
            VectorsError: such a row exists.
        """
        for start in range(0, self.shape[1], self.step):
            for block in self.read(start, start + self.step):
                require_finite(block, what, offset=start, bounded=True)


@dataclass(slots=True)
class Design:
    """Give blocks of design matrices: (features - ``mean``) @ ``basis``, and a last column of ones.

    ``mean``: (S, D); ``basis``: (S, D, r) with orthonormal columns, None for the identity;
    ``variances``: (S, r) float64, mean squares of the rotated columns; ``held``: (S, N, r + 1), None where blocks are made anew each time;
    ``turned``: (S, r + 1, N) the same on its side, which makes products with few columns of weights half as fast again; None where memory is short, or gains nothing.
    Directions in which the features do not vary are left out: no penalised fit has weight there.
    Where variances are very unequal the basis is float64, and so are the sums that make blocks.
    """

    rows: Rows
    mean: torch.Tensor
    basis: torch.Tensor | None
    variances: torch.Tensor
    held: torch.Tensor | None = None
    turned: torch.Tensor | None = None

    @property
    def width(self) -> int:
        """Return r + 1."""
        return int(self.variances.shape[1]) + 1

    def choose(self, sets: torch.Tensor | None) -> Design:
        """Return the design of the named sets; None names all."""
        if sets is None:
            return self
        held, turned = (None if each is None else each[sets] for each in (self.held, self.turned))
        return Design(self.rows, self.mean, self.basis, self.variances, held, turned)

    def block(self, start: int, stop: int, sets: torch.Tensor | None = None) -> torch.Tensor:
        """Return rows (B, n, r + 1) of what was chosen; ``sets`` names it where blocks are made anew."""
        return self.held[:, start:stop] if self.held is not None else self._make(start, stop, sets)

    def _make(self, start: int, stop: int, sets: torch.Tensor | None = None) -> torch.Tensor:
        at = slice(None) if sets is None else sets
        rows = self.rows.read(start, stop, sets)
        kind = torch.float64 if self.is_fine else rows.dtype
        centred = rows.to(kind) - self.mean[at, None].to(kind)
        block = rows.new_ones((*centred.shape[:2], self.width))
        block[..., :-1] = centred if self.basis is None else centred @ self.basis[at].to(kind)
        return block

    @property
    def is_fine(self) -> bool:
        """Say whether directions are so unequal that float32 sums along the small ones would be rounding of the large ones."""
        return bool((self.variances[:, -1] < _FINE * self.variances[:, 0]).any())

    def hold(self) -> None:
        """Keep all blocks."""
        sets, rows, _ = self.rows.shape
        self.held = torch.empty((sets, rows, self.width), dtype=self.rows.dtype, device=self.rows.device)
        step = self.rows.step
        for start in range(0, rows, step):
            self.held[:, start : start + step] = self._make(start, start + step)

    def turn(self) -> None:
        """Keep what is held on its side too."""
        assert self.held is not None
        self.turned = self.held.mT.contiguous()

    def restore(self, weights: torch.Tensor, bias: torch.Tensor, sets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return weights (F, C, D) and bias (F, C) for the features as given, of (F, C, r) and (F, C); fit f belongs to set ``sets`` (F,)."""
        original = weights if self.basis is None else _by_set(weights, self.basis.to(weights.dtype), sets)
        return original, bias - (original @ self.mean.to(weights.dtype)[sets, :, None])[..., 0]

    def raise_slopes(self, slopes: torch.Tensor, sets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return slopes (F, C, D) by weights and (F, C) by bias of the features as given, of slopes (F, C, r + 1) in this design."""
        by_bias = slopes[..., -1]
        inner = slopes[..., :-1]
        rotated = inner if self.basis is None else _by_set(inner, self.basis.to(slopes.dtype), sets)
        return rotated + self.mean.to(slopes.dtype)[sets, None] * by_bias[..., None], by_bias


def _by_set(values: torch.Tensor, basis: torch.Tensor, sets: torch.Tensor) -> torch.Tensor:
    """Return values (F, C, r) times the transposed basis (D, r) of their sets, without copies of one that all share."""
    return values @ (basis[0] if len(basis) == 1 else basis[sets]).mT


def make_design(rows: Rows, share: torch.Tensor | None, *, small: float, hold: bool, turn: bool = False) -> Design:
    """Centre and rotate S sets of features.

    Args:
        rows: the features.
        share: (S, N) float64 weights that sum to 1, None for equal ones.
        small: where no direction of one set has a variance above this, features are not rotated: it would gain nothing.
        hold: keep the matrices, of N x (r + 1) each.
        turn: keep them on their side too.
    """
    design = _make_design(rows, share, small=small, hold=hold)
    if turn and design.held is not None:
        design.turn()
    return design


def _make_design(rows: Rows, share: torch.Tensor | None, *, small: float, hold: bool) -> Design:
    sets, count, dimensions = rows.shape
    mean = _mean(rows, share)
    if count >= dimensions and hold:
        plain = Design(rows, mean, None, mean.new_zeros((sets, dimensions), dtype=torch.float64))
        plain.hold()
        assert plain.held is not None
        if _largest_variance(plain.held[..., :-1]) <= small:
            plain.variances = plain.held[..., :-1].square().mean(1, dtype=torch.float64)
            return plain
    variances, basis = _decompose(rows, mean, share)
    design = Design(rows, mean, basis, variances)
    if not design.is_fine:
        design.basis = basis.to(rows.dtype)
    if hold:
        design.hold()
    return design


def _mean(rows: Rows, share: torch.Tensor | None) -> torch.Tensor:
    sets, count, dimensions = rows.shape
    total = torch.zeros((sets, dimensions), dtype=torch.float64, device=rows.device)
    for start in range(0, count, rows.step):
        block = rows.read(start, start + rows.step)
        if share is None:
            total += block.sum(1, dtype=torch.float64) / count
        else:
            total += (share[:, None, start : start + rows.step].to(block.dtype) @ block)[:, 0]
    return total.to(rows.dtype)


def _largest_variance(centred: torch.Tensor) -> float:
    """Return about the largest variance of any direction of the first set (S, N, D), by a few power steps."""
    rows = centred[0]
    direction = rows.square().mean(0) + torch.finfo(rows.dtype).tiny
    for _ in range(_POWER_STEPS):
        direction = direction / torch.linalg.vector_norm(direction).clamp_min(torch.finfo(rows.dtype).tiny)
        direction = rows.T @ (rows @ direction) / len(rows)
    return 1.5 * float(torch.linalg.vector_norm(direction))


def _decompose(rows: Rows, mean: torch.Tensor, share: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return variances (S, r), descending and positive, and their directions (S, D, r), both float64.

    The smaller of covariance (D, D) and Gram matrix (N, N) is decomposed, in float64.
    """
    _, count, dimensions = rows.shape
    scaled = None
    if count < dimensions:
        root = 1 / count**0.5 if share is None else share.sqrt()[:, :, None]
        scaled = (rows.read(0, count).double() - mean[:, None]) * root
        product = scaled @ scaled.mT
    else:
        product = _covariance(rows, mean, share)
    variances, vectors = torch.linalg.eigh(product)
    variances, vectors = variances.flip(1).clamp_min(0), vectors.flip(2)
    kept = max(1, int((variances > variances[:, :1] * _LEAST_VARIANCE).sum(1).max()))
    variances, vectors = variances[:, :kept].clamp_min(torch.finfo(torch.float64).tiny), vectors[..., :kept]
    if scaled is not None:
        # Orthonormal up to rounding only, since each column is divided by its own singular value; QR repairs that.
        vectors = torch.linalg.qr(scaled.mT @ vectors / variances.sqrt()[:, None]).Q
    return variances, vectors


def _covariance(rows: Rows, mean: torch.Tensor, share: torch.Tensor | None) -> torch.Tensor:
    """Return weighted covariances (S, D, D) float64, without a copy of the features."""
    sets, count, dimensions = rows.shape
    total = torch.zeros((sets, dimensions, dimensions), dtype=torch.float64, device=rows.device)
    for start in range(0, count, rows.step):
        block = rows.read(start, start + rows.step).double() - mean[:, None]
        total += block.mT @ (block / count if share is None else block * share[:, start : start + rows.step, None])
    return (total + total.mT) / 2
