"""Probes of number targets: ridge regression, its penalty chosen on validation rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from evalharness import Outcome, Table
from evalharness.errors import DataError

from .classes import join_tables
from .settings import Scaling, check_validation, make_scaling, place_in_grid, target_of, target_tensor

if TYPE_CHECKING:
    import torch


@dataclass(slots=True, kw_only=True)
class NumberProbe:
    """Hold a fitted probe: predictions are ``scaling(vectors) @ weights + bias``."""

    scaling: Scaling
    weights: torch.Tensor
    bias: torch.Tensor
    details: dict[str, Any]

    def score(self, table: Table) -> Outcome:
        """Return the true and the predicted number of every row."""
        return number_outcome(
            self.scaling(table.vectors.dense()).double() @ self.weights.double() + self.bias.double(), table, self.details
        )


def number_outcome(predicted: torch.Tensor, table: Table, details: dict[str, Any]) -> Outcome:
    """Return the outcome of predictions (N,).

    Raises:
        DataError: the target is the same in all rows.
    """
    check_varies(table, "test")
    truth = target_of(table).values
    return Outcome(
        item="sample", part="items", rows=table.rows, columns={"number": truth, "predicted_number": predicted.cpu()}, details=dict(details)
    )


def check_varies(table: Table, what: str) -> None:
    """Refuse a constant target, of which R2 and correlation are undefined.

    Raises:
        DataError: it is constant.
    """
    values = target_of(table).values
    if np.ptp(values) == 0:
        raise DataError(
            f"the number target has the one value {values[0]:g} in all {len(values)} {what} rows: R2 and correlation are undefined"
        )


def fit_numbers(train: Table, validation: Table | None, penalties: Sequence[float], *, scale: str) -> NumberProbe:
    """Learn ridge regression at every penalty, keep that of the least squared error on validation rows, and refit on both where those were carved out.

    An inverse penalty C is scikit-learn's ``alpha`` = 1 / C.

    Raises:
        DataError: the target is the same in all training rows.
    """
    check_varies(train, "training")
    check_validation(penalties, validation)
    judged = validation is not None and len(validation) > 0
    path, scaling = _follow(train, penalties, scale)
    at, error = 0, None
    if judged and validation is not None:
        truth = target_tensor(validation).double()
        predicted = path.predict(scaling(validation.vectors.dense()))[..., 0].double()
        errors = (predicted - truth).square().mean(dim=1)
        at = int(errors.argmin())
        error = float(errors[at])
    learned, place = train, at
    if judged and validation is not None and validation.carved:
        learned, place = join_tables(train, validation), 0
        path, scaling = _follow(learned, [penalties[at]], scale)
    details = {
        "solver": "eigendecomposition",
        "penalty": "l2",
        "inverse_penalty": penalties[at],
        **place_in_grid(penalties, penalties[at]),
        "validation_squared_error": error,
        "leave_one_out_squared_error": float(path.loo_error[place, 0]),
        "train_n": len(learned),
        "validation_n": 0 if validation is None else len(validation),
        "refit_on_validation": learned is not train,
        "converged": True,
    }
    return NumberProbe(scaling=scaling, weights=path.weights[place, :, 0], bias=path.bias[place, 0], details=details)


def _follow(table: Table, penalties: Sequence[float], scale: str) -> tuple[Any, Scaling]:
    from evalharness.numerics import ridge_path

    vectors = table.vectors.dense().float()
    scaling = make_scaling(vectors, scale)
    return ridge_path(scaling(vectors), target_tensor(table), [1 / each for each in penalties]), scaling
