"""What a logistic regression is asked: features, penalties, and the labels and row weights of its tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from evalharness.errors import DataError, UsageError, VectorsError
from evalharness.numerics._arrays import as_tensor
from evalharness.numerics._design import BLOCK_ROWS, Rows

_LEAST_ROWS = 64
_COPIES = 16  # so many float64 copies of a block fit the memory; a few stand at once


@dataclass(slots=True)
class Tasks:
    """Hold T tasks: codes (T, N) among the ``classes`` that any has rows of, row weights (T, N) or None, whether T was an axis of what was given."""

    codes: torch.Tensor
    weight: torch.Tensor | None
    present: torch.Tensor
    classes: torch.Tensor
    size: int
    several: bool

    def take(self, at: slice) -> Tasks:
        """Return some of the tasks."""
        weight = None if self.weight is None else self.weight[at]
        return Tasks(self.codes[at], weight, self.present[at], self.classes, self.size, several=True)

    @property
    def totals(self) -> torch.Tensor:
        """Return the rows, or their weight, of each task (T,) float64."""
        if self.weight is None:
            return torch.full((len(self.codes),), float(self.codes.shape[1]), dtype=torch.float64, device=self.codes.device)
        return self.weight.sum(1)


def check_features(features: Any, memory_bytes: int = 2**30) -> Rows:
    """Return features (N, D) or (T, N, D), finite; a memory map is read in blocks, whose float64 copies stay within a share of the memory.

    Raises:
        VectorsError: they have a wrong shape or are not finite.
    """
    given = features if isinstance(features, np.memmap) else as_tensor(features)
    if given.ndim not in (2, 3) or not given.shape[-1]:
        raise VectorsError(f"`features` must have shape (rows, dimensions) or (tasks, rows, dimensions), got {tuple(given.shape)}")
    width = int(given.shape[-1]) * (int(given.shape[0]) if given.ndim == 3 else 1)
    step = min(BLOCK_ROWS, max(_LEAST_ROWS, memory_bytes // (_COPIES * 8 * max(1, width))))
    rows = Rows(given, given.device if isinstance(given, torch.Tensor) else torch.device("cpu"), step)
    rows.check("features")
    return rows


def check_grid(inverse_penalties: Any, tolerance: float, max_iterations: int) -> torch.Tensor:
    """Return inverse penalties (P,) float64.

    Raises:
        UsageError: one is not positive, or the tolerance or the most iterations make no sense.
    """
    given = inverse_penalties.detach().cpu() if isinstance(inverse_penalties, torch.Tensor) else inverse_penalties
    try:
        grid = torch.tensor(np.asarray(given, dtype=np.float64))
    except (TypeError, ValueError) as error:
        raise UsageError(f"`inverse_penalties` must be a list of positive numbers, got {inverse_penalties!r}") from error
    if grid.ndim != 1 or not len(grid) or not bool((grid.isfinite() & (grid > 0)).all()):
        raise UsageError(f"`inverse_penalties` must be a list of positive numbers, got {inverse_penalties!r}")
    if not tolerance > 0:
        raise UsageError(f"`tolerance` must be positive, got {tolerance}")
    if max_iterations < 0:
        raise UsageError(f"`max_iterations` must not be negative, got {max_iterations}")
    return grid


def check_tasks(rows: Rows, labels: Any, sample_weight: Any | None, class_weight: Any | None, num_classes: int | None) -> Tasks:
    """Return the tasks that labels and weights ask for.

    Raises:
        DataError: a task has fewer than two classes, or labels are negative or too large.
        UsageError: shapes do not agree, or a weight is negative.
    """
    codes = _check_labels(labels, rows)
    weight = _check_weight(sample_weight, rows)
    given = [value.ndim for value in (codes, *([] if weight is None else [weight]))]
    several = rows.values.ndim == 3 or 2 in given
    count = max(rows.shape[0], *(len(value) for value in (codes, weight) if value is not None and value.ndim == 2), 1)
    codes = codes.expand(count, -1) if codes.ndim == 1 else codes
    weight = None if weight is None else weight.expand(count, -1) if weight.ndim == 1 else weight
    for length, what in ((rows.shape[0], "features"), (len(codes), "labels"), (count if weight is None else len(weight), "sample_weight")):
        if length != count and not (what == "features" and rows.values.ndim == 2):
            raise UsageError(
                f"`features`, `labels` and `sample_weight` must have the same number of tasks, got {length} in `{what}` and {count}"
            )
    classes, inverse = torch.unique(codes, return_inverse=True)
    size = int(classes[-1]) + 1 if num_classes is None else num_classes
    if int(classes[-1]) >= size:
        raise DataError(f"`labels` holds code {int(classes[-1])}, but `num_classes` is {size}")
    weight = _weigh_classes(class_weight, inverse, weight, classes, size)
    held = inverse if weight is None else inverse.masked_fill(weight == 0, len(classes))
    present = torch.zeros((count, len(classes) + 1), dtype=torch.bool, device=rows.device).scatter_(1, held, True)[:, :-1]
    lonely = (present.sum(1) < 2).nonzero().flatten()
    if len(lonely):
        name = f"class {int(classes[present[lonely[0]]][0])}" if bool(present[lonely[0]].any()) else "no class"
        of = f" of task {int(lonely[0])}" if several else ""
        raise DataError(f"`labels`{of} holds only {name}: a probe needs at least two classes")
    used = present.any(0).nonzero().flatten()
    if len(used) < len(classes):
        place = torch.zeros(len(classes), dtype=torch.int64, device=rows.device).index_copy_(
            0, used, torch.arange(len(used), device=rows.device)
        )
        inverse, classes, present = place[inverse], classes[used], present[:, used]
    return Tasks(inverse, weight, present, classes, size, several)


def _check_labels(labels: Any, rows: Rows) -> torch.Tensor:
    codes = as_tensor(labels, rows.device)
    count = rows.shape[1]
    if codes.ndim not in (1, 2) or codes.shape[-1] != count or codes.is_floating_point():
        raise UsageError(f"`labels` must be ({count},) or (tasks, {count}) integer codes, got shape {tuple(codes.shape)} of {codes.dtype}")
    if not codes.numel():
        raise DataError("`labels` is empty: a probe needs rows of at least two classes")
    codes = codes.to(torch.int64)
    if int(codes.min()) < 0:
        raise DataError(f"`labels` holds {int((codes < 0).sum())} negative codes: drop unlabelled rows first")
    return codes


def _check_weight(sample_weight: Any | None, rows: Rows) -> torch.Tensor | None:
    if sample_weight is None:
        return None
    weight = as_tensor(sample_weight, rows.device).to(torch.float64)
    sound = weight.ndim in (1, 2) and weight.shape[-1] == rows.shape[1]
    if not sound or not bool((weight.isfinite() & (weight >= 0)).all()) or not bool((weight.sum(-1) > 0).all()):
        raise UsageError(f"`sample_weight` must be ({rows.shape[1]},) or (tasks, {rows.shape[1]}) numbers, not negative and not all 0")
    return weight


def _weigh_classes(
    class_weight: Any | None, codes: torch.Tensor, weight: torch.Tensor | None, classes: torch.Tensor, size: int
) -> torch.Tensor | None:
    if class_weight is None:
        return weight
    own = torch.ones(codes.shape, dtype=torch.float64, device=codes.device) if weight is None else weight
    if isinstance(class_weight, str):
        if class_weight != "balanced":
            raise UsageError(f"`class_weight` must be `balanced` or ({size},) numbers, got `{class_weight}`")
        mass = own.new_zeros((len(codes), len(classes))).scatter_add_(1, codes, own)
        factors = own.sum(1, keepdim=True) / ((mass > 0).sum(1, keepdim=True) * mass.masked_fill(mass == 0, torch.inf))
        return own * factors.gather(1, codes)
    factors = as_tensor(class_weight, codes.device).to(torch.float64)
    if factors.shape != (size,) or not bool((factors.isfinite() & (factors >= 0)).all()):
        raise UsageError(f"`class_weight` must be `balanced` or ({size},) numbers, not negative")
    return own * factors[classes][codes]
