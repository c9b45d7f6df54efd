"""What all probes share: grids of penalties, the rows they learn from and their scaling, the choice of a penalty, and the linear map that comes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from evalharness import Column, Table
from evalharness.errors import DataError, UsageError

if TYPE_CHECKING:
    import torch

GRIDS = {
    "quick": tuple(10.0**power for power in np.linspace(-6, 6, 9)),
    "kornblith-45": tuple(10.0**power for power in np.linspace(-6, 5, 45)),
    "clip-96": tuple(10.0**power for power in np.linspace(-6, 6, 96)),
}


def find_grid(grid: str | float | Sequence[float]) -> tuple[float, ...]:
    """Return the inverse penalties of a named or given grid, ascending.

    Raises:
        UsageError: the name is unknown, or a value is not positive.
    """
    if isinstance(grid, str):
        if grid not in GRIDS:
            raise UsageError(f"unknown grid `{grid}`; expected one of {', '.join(GRIDS)}, or a list of inverse penalties")
        return GRIDS[grid]
    values = tuple(sorted({float(value) for value in (grid if isinstance(grid, Sequence) else [grid])}))
    if not values or not values[0] > 0:
        raise UsageError(f"expected positive inverse penalties in `grid`, got {grid}")
    return values


def check_choice(name: str, given: Any, known: Sequence[Any]) -> None:
    """Refuse a parameter that is none of the known values.

    Raises:
        UsageError: it is not.
    """
    if given not in known:
        words = [f"`{each}`" for each in known]
        raise UsageError(f"expected `{name}` to be {', '.join(words[:-1])} or {words[-1]}, got `{given}`")


# --- rows -----------------------------------------------------------------------------------------------------------


def target_of(table: Table) -> Column:
    """Return the target that the core promises to an evaluator of this kind."""
    assert table.target is not None
    return table.target


@dataclass(slots=True, kw_only=True)
class Rows:
    """Hold rows to learn from or to judge by: ``vectors`` (N, D) float32, ``targets`` (N,) or (N, L) on their device, and the names of the target's classes or labels."""

    vectors: torch.Tensor
    targets: torch.Tensor
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.targets)


def rows_of(table: Table) -> Rows:
    """Return the rows of a table."""
    import torch

    vectors, target = table.vectors.dense().float(), target_of(table)
    targets = torch.from_numpy(np.ascontiguousarray(target.values)).to(vectors.device)
    return Rows(vectors=vectors, targets=targets, names=target.names)


def learn_rows(train: Table, validation: Table | None, generator: torch.Generator, control: str) -> tuple[Rows, Rows | None, Rows | None]:
    """Return rows to learn from, rows to judge by (None where there are none), and both together where the latter were carved out of the fit's own.

    With the control ``shuffled`` targets are permuted among the rows of each: what is learned from them is chance, or a leak.
    Classes that the fit does not know are not learned from validation rows.
    """
    import torch

    learned = rows_of(train)
    judged = None if validation is None or not len(validation) else rows_of(validation)
    if control == "shuffled":
        for rows in (learned, judged):
            if rows is not None:
                order = torch.randperm(len(rows), generator=generator).to(rows.targets.device)
                rows.targets = rows.targets[order]
    if judged is None or validation is None or not validation.carved:
        return learned, judged, None
    known = torch.ones(len(judged), dtype=torch.bool, device=judged.targets.device)
    if target_of(train).kind == "class":
        known = judged.targets < len(learned.names)
    vectors, targets = (torch.cat([getattr(learned, name), getattr(judged, name)[known]]) for name in ("vectors", "targets"))
    return learned, judged, Rows(vectors=vectors, targets=targets, names=learned.names)


# --- scaling and maps -----------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Scaling:
    """Hold ``mean`` and ``scale`` (D,) of the rows a probe learned from; (vectors - mean) / scale is what it sees."""

    mean: torch.Tensor
    scale: torch.Tensor

    def __call__(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return scaled vectors (N, D)."""
        return (vectors.float() - self.mean) / self.scale


def make_scaling(features: torch.Tensor, scale: str) -> Scaling:
    """Return the training rows' own standardisation, or that which changes nothing for ``raw``; constant columns keep their scale."""
    import torch

    if scale == "raw":
        return Scaling(mean=torch.zeros_like(features[0]), scale=torch.ones_like(features[0]))
    spread, centre = torch.std_mean(features.double(), dim=0, correction=0)
    # A column whose spread is rounding noise is constant: dividing by it would blow noise up.
    constant = spread <= 1e-6 * centre.abs()
    return Scaling(mean=centre.to(features), scale=torch.where(constant, 1.0, spread).to(features))


@dataclass(slots=True, kw_only=True)
class LinearMap:
    """Hold a fitted readout: ``scaling(vectors) @ weights + bias``, weights (D, K) and bias (K,), and the report of its fit."""

    scaling: Scaling
    weights: torch.Tensor
    bias: torch.Tensor
    details: dict[str, Any]

    def outputs(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return (B, K) outputs of vectors (B, D)."""
        return self.scaling(vectors) @ self.weights + self.bias


# --- the choice of a penalty ----------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Chosen:
    """Hold the fit that is scored: one place of a path, the scaling and rows it was learned with, and what the validation rows said."""

    path: Any
    place: int
    scaling: Scaling
    rows: Rows
    verdict: Any
    details: dict[str, Any]

    @property
    def map(self) -> dict[str, Any]:
        """Return the fields of a :class:`LinearMap`."""
        return {
            "scaling": self.scaling,
            "weights": self.path.weights[self.place],
            "bias": self.path.bias[self.place],
            "details": self.details,
        }


Solve = Callable[[Any, Any, Sequence[float]], Any]  # scaled vectors, targets, penalties -> path
Judge = Callable[[Any, Any, Any], tuple[int, Any]]  # path, scaled vectors, targets -> the best place and what it scores


def choose_penalty(
    rows: tuple[Rows, Rows | None, Rows | None], penalties: Sequence[float], scale: str, solve: Solve, judge: Judge, *, always: bool = False
) -> Chosen:
    """Solve every penalty, keep what validation rows judge best, and fit it again on both where those were carved out of the fit.

    Args:
        rows: as :func:`learn_rows` gives them.
        penalties: inverse penalties, ascending.
        scale: ``standard`` or ``raw``.
        solve: fits a path.
        judge: chooses a place of it.
        always: judge a single penalty too, for what else the verdict tells.

    Raises:
        DataError: there are several penalties and no rows to choose by.
    """
    learned, judged, joined = rows
    if len(penalties) > 1 and judged is None:
        raise DataError(
            f"`grid` has {len(penalties)} penalties, but no validation rows are left to choose by: name a validation split, or a `grid` of one value"
        )
    at, verdict = 0, None
    searched = judged is not None and (always or len(penalties) > 1)
    last = learned if joined is None else joined
    if searched or joined is None:
        scaling = make_scaling(learned.vectors, scale)
        path = solve(scaling(learned.vectors), learned.targets, penalties)
        if searched and judged is not None:
            at, verdict = judge(path, scaling(judged.vectors), judged.targets)
    place, chosen = at, penalties[at]
    if joined is not None:
        scaling, place = make_scaling(joined.vectors, scale), 0
        path = solve(scaling(joined.vectors), joined.targets, [chosen])
    details = {
        "penalty": "l2",
        "inverse_penalty": chosen,
        **place_in_grid(penalties, chosen),
        "scale": scale,
        "train_n": len(last),
        "validation_n": 0 if judged is None else len(judged),
        "refit_on_validation": joined is not None,
    }
    return Chosen(path=path, place=place, scaling=scaling, rows=last, verdict=verdict, details=details)


def place_in_grid(values: Sequence[float], chosen: float) -> dict[str, Any]:
    """Return the size of a grid, its ends, and whether the chosen value stands at one."""
    return {
        "trials": len(values),
        "grid_from": values[0],
        "grid_to": values[-1],
        "grid_edge": len(values) > 1 and chosen in (values[0], values[-1]),
    }
