"""What all probes share: grids of penalties, scaling, the control of shuffled labels, and the rows they learn from."""

from __future__ import annotations

from collections.abc import Sequence
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


def check_validation(penalties: Sequence[float], validation: Table | None) -> bool:
    """Say whether there is something to choose, and refuse a choice without rows to choose by.

    Raises:
        DataError: there are several penalties and no validation rows.
    """
    held = validation is not None and len(validation) > 0
    if len(penalties) > 1 and not held:
        raise DataError(
            f"`grid` has {len(penalties)} penalties, but no validation rows are left to choose by: name a validation split, or a `grid` of one value"
        )
    return held and len(penalties) > 1


def target_of(table: Table) -> Column:
    """Return the target that the core promises to an evaluator of this kind."""
    assert table.target is not None
    return table.target


def target_tensor(table: Table, device: torch.device | None = None) -> torch.Tensor:
    """Return the target's values on a device, by default that of the vectors."""
    import torch

    values = torch.from_numpy(np.ascontiguousarray(target_of(table).values))
    return values.to(table.vectors.dense().device if device is None else device)


def shuffle_targets(table: Table | None, generator: torch.Generator) -> Table | None:
    """Return the table with its targets permuted among its rows: what is learned from it is chance, or a leak."""
    import torch

    if table is None:
        return None
    order = torch.randperm(len(table), generator=generator).numpy()
    return Table(
        vectors=table.vectors,
        ids=table.ids,
        rows=table.rows,
        target=target_of(table).take(order),
        columns=table.columns,
        carved=table.carved,
    )


def report_path(path: Any, at: tuple[int, ...], penalties: Sequence[float], chosen: float) -> dict[str, Any]:
    """Return what a report says of the solver: convergence of one fit of a path, relative to zero weights, and the place in the grid."""
    start = path.gradient_at_zero
    return {
        "solver": "L-BFGS in the eigenbasis, along the path of penalties",
        "penalty": "l2",
        "inverse_penalty": chosen,
        "converged": bool(path.converged[at]),
        "relative_gradient": float(path.gradient[at]) / float(start if isinstance(start, float) else start[at[1:]]),
        "iterations": int(path.iterations[at]),
    } | place_in_grid(penalties, chosen)


def place_in_grid(penalties: Sequence[float], chosen: float) -> dict[str, Any]:
    """Return the size of a grid, its ends, and whether the chosen value stands at one."""
    return {
        "trials": len(penalties),
        "grid_from": penalties[0],
        "grid_to": penalties[-1],
        "grid_edge": len(penalties) > 1 and chosen in (penalties[0], penalties[-1]),
    }
