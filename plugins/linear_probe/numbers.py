"""Probes of number targets: ridge regression, its penalty chosen on validation rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from evalharness import Outcome, Table
from evalharness.errors import DataError

from .settings import LinearMap, Rows, choose_penalty, target_of

if TYPE_CHECKING:
    import torch


@dataclass(slots=True, kw_only=True)
class NumberProbe(LinearMap):
    """Hold a fitted probe, whose one output is the number less ``centre``, in units of ``spread``: float32 keeps those apart."""

    centre: float
    spread: float

    def score(self, table: Table) -> Outcome:
        """Return the true and the predicted number of every row."""
        found = self.outputs(table.vectors.dense())[:, 0].double()
        return number_outcome(found * self.spread + self.centre, table, self.details)


def number_outcome(predicted: torch.Tensor, table: Table, details: dict[str, Any]) -> Outcome:
    """Return the outcome of predictions (N,).

    Raises:
        DataError: the target is the same in all rows.
    """
    truth = target_of(table).values
    check_varies(truth, "test")
    columns = {"number": truth, "predicted_number": predicted.cpu()}
    return Outcome(item="sample", part="items", rows=table.rows, columns=columns, details=details)


def check_varies(values: Any, what: str) -> None:
    """Refuse a constant target (N,), of which R2 and correlation are undefined.

    Raises:
        DataError: it is constant.
    """
    if float(values.max()) == float(values.min()):
        raise DataError(
            f"the number target has the one value {float(values[0]):g} in all {len(values)} {what} rows: R2 and correlation are undefined"
        )


def fit_numbers(rows: tuple[Rows, Rows | None, Rows | None], penalties: Sequence[float], *, scale: str) -> NumberProbe:
    """Learn ridge regression at every penalty, and keep that of the least squared error on validation rows.

    An inverse penalty C is scikit-learn's ``alpha`` = 1 / C.

    Raises:
        DataError: the target is the same in all training rows, or there are several penalties and no validation rows.
    """
    from evalharness.numerics import ridge_path

    check_varies(rows[0].targets, "training")
    centre, spread = float(rows[0].targets.mean()), float(rows[0].targets.std(correction=0))
    learned, judged, both = (None if each is None else replace(each, targets=(each.targets - centre) / spread) for each in rows)
    assert learned is not None

    def solve(vectors: torch.Tensor, targets: torch.Tensor, grid: Sequence[float]) -> Any:
        return ridge_path(vectors, targets, [1 / each for each in grid])

    found = choose_penalty((learned, judged, both), penalties, scale, solve, _judge)
    loo = float(found.path.loo_error[found.place, 0]) * spread**2
    found.details |= {
        "solver": "eigendecomposition",
        "validation_squared_error": None if found.verdict is None else found.verdict * spread**2,
        "leave_one_out_squared_error": loo if np.isfinite(loo) else None,
    }
    return NumberProbe(**found.map, centre=centre, spread=spread)


def _judge(path: Any, vectors: torch.Tensor, truth: torch.Tensor) -> tuple[int, float]:
    errors = (path.predict(vectors)[..., 0].double() - truth).square().mean(dim=1)
    at = int(errors.argmin())
    return at, float(errors[at])
