"""Minimum description length of labels given vectors, by the online code: each block of labels is coded by a probe of all blocks before it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from evalharness import EvaluatorSpec, MetricInfo, Outcome, Side, Table
from evalharness.errors import DataError

from .settings import check_choice, find_grid, make_scaling, target_of

if TYPE_CHECKING:
    import torch

SHARES = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.0625, 0.125, 0.25, 0.5, 1.0)
LEAST_ITEMS = 10
FLOOR = 1e-12  # of a probability
MOST_BITS = -math.log2(FLOOR)


def cut_points(n: int) -> list[int]:
    """Return where blocks of n items end, at .1, .2, .4, .8, 1.6, 3.2, 6.25, 12.5, 25, 50 and 100 % of them, each once.

    >>> cut_points(1000)
    [1, 2, 4, 8, 16, 32, 62, 125, 250, 500, 1000]
    """
    return sorted({max(1, math.floor(n * share + 1e-9)) for share in SHARES})


def code_bits(probabilities: np.ndarray, num_classes: int, first: int) -> np.ndarray:
    """Return the bits of every label (N,) from the probabilities given to the true ones, in order; those of the ``first`` block are coded uniformly."""
    bits: np.ndarray = -np.log2(np.maximum(np.asarray(probabilities, dtype=np.float64), FLOOR))
    bits[:first] = math.log2(num_classes)
    return bits


@dataclass(slots=True, kw_only=True)
class Coder:
    """Code block after block: ``spent`` (P,) are the bits that each penalty would have taken so far, by which the next block's is chosen."""

    vectors: torch.Tensor
    codes: torch.Tensor
    num_classes: int
    penalties: Sequence[float]
    scale: str
    limits: dict[str, Any]
    spent: np.ndarray
    unconverged: int = 0

    def code(self, start: int, stop: int) -> np.ndarray:
        """Return the probabilities (n,) of the true labels from ``start`` to ``stop``, by a probe of the labels before."""
        import torch

        prefix, truth = self.codes[:start], self.codes[start:stop]
        present = torch.unique(prefix)
        by_penalty, converged = self._probabilities(start, stop, present)
        # Labels not seen yet share what an escape leaves them, as many parts as there are of them, against one part a label seen.
        absent = self.num_classes - len(present)
        escape = absent / (start + absent)
        seen = torch.isin(truth, present)
        if absent:
            by_penalty = torch.where(seen, (1 - escape) * by_penalty, escape / absent)
        chances = by_penalty.cpu().numpy()
        # Of equal penalties the middle one, which the first block takes.
        order = np.argsort(np.abs(np.arange(len(self.spent)) - len(self.spent) // 2), kind="stable")
        at = int(order[self.spent[order].argmin()])
        self.unconverged += not bool(converged[at])
        self.spent += -np.log2(np.maximum(chances, FLOOR)).sum(axis=1)
        chosen: np.ndarray = chances[at]
        return chosen

    def _probabilities(self, start: int, stop: int, present: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what each penalty gives to the true labels (P, n), float64, and which fits converged."""
        import torch

        from evalharness.numerics import logistic_path

        truth = self.codes[start:stop]
        if len(present) == 1:
            alike = (truth == present).double().expand(len(self.penalties), -1)
            return alike, torch.ones(len(self.penalties), dtype=torch.bool)
        scaling = make_scaling(self.vectors[:start], self.scale)
        path = logistic_path(scaling(self.vectors[:start]), self.codes[:start], self.penalties, num_classes=self.num_classes, **self.limits)
        chances = path.logits(scaling(self.vectors[start:stop])).double().softmax(dim=-1)
        return chances.gather(2, truth[None, :, None].expand(len(chances), -1, 1))[..., 0], path.converged


def score(
    fitted: None,
    test: Side,
    *,
    generator: torch.Generator,
    clean: Side | None = None,
    exact: Side | None = None,
    base: Table | None = None,
    grid: str | float | Sequence[float] = "quick",
    scale: str = "standard",
    tolerance: float = 1e-4,
    max_iterations: int = 2000,
) -> list[Outcome]:
    """Return the bits of every item's label in the online code, items in an order drawn by the seed, the same for all encoders.

    Of the penalties that is taken for a block which would have coded the blocks before it best.
    Labels that no earlier block holds share the probability A / (t + A), of A such labels after t items.

    Raises:
        DataError: there are fewer than ten items, or one class only.
        UsageError: a parameter makes no sense.

    Source:
        Voita & Titov 2020; METRICS.md 1.5.
    """
    del fitted, clean, exact, base
    import torch

    check_choice("scale", scale, ("standard", "raw"))
    penalties, table = find_grid(grid), test.items
    classes, codes = np.unique(target_of(table).values, return_inverse=True)
    if len(table) < LEAST_ITEMS:
        raise DataError(f"the online code needs {LEAST_ITEMS} items or more, got {len(table)}")
    if len(classes) < 2:
        raise DataError("all items are of one class: there is nothing to code")
    order = torch.randperm(len(table), generator=generator)
    vectors = table.vectors.dense().float()
    coder = Coder(
        vectors=vectors[order.to(vectors.device)],
        codes=torch.from_numpy(codes)[order].to(vectors.device),
        num_classes=len(classes),
        penalties=penalties,
        scale=scale,
        limits={"tolerance": tolerance, "max_iterations": max_iterations},
        spent=np.zeros(len(penalties)),
    )
    cuts = cut_points(len(table))
    chances = np.ones(len(table))
    for start, stop in itertools.pairwise(cuts):
        chances[start:stop] = coder.code(start, stop)
    bits = np.empty(len(table))
    bits[order.numpy()] = code_bits(chances, len(classes), cuts[0])
    return [_outcome(table, bits, codes, chances, coder, cuts)]


def _outcome(table: Table, bits: np.ndarray, codes: np.ndarray, chances: np.ndarray, coder: Coder, cuts: list[int]) -> Outcome:
    shares = np.bincount(codes) / len(codes)
    uniform = math.log2(coder.num_classes)
    stuck = coder.unconverged
    return Outcome(
        item="sample",
        part="items",
        rows=table.rows,
        columns={"bits": bits, "uniform_bits": np.full(len(table), uniform)},
        details={
            "num_classes": coder.num_classes,
            "codelength_bits": float(bits.sum()),
            "uniform_codelength_bits": uniform * len(table),
            "label_entropy_codelength_bits": float(-(shares * np.log2(shares)).sum() * len(table)),
            "blocks_end_at": cuts,
            "clipped": int((chances < FLOOR).sum()),
            "scale": coder.scale,
            "trials": len(coder.penalties),
        },
        status="not_converged" if stuck else "measured",
        reason=f"the probes of {stuck} blocks had not converged after the last iteration" if stuck else None,
    )


ONLINE = EvaluatorSpec(
    name="mdl-probe",
    summary="How many bits the labels take given the vectors: the online code of a linear probe, against a uniform code",
    source="Voita & Titov 2020",
    params={"grid": "quick", "scale": "standard", "tolerance": 1e-4, "max_iterations": 2000},
    target_kinds=("class",),
    metrics=(
        MetricInfo(name="compression", columns=("uniform_bits", "bits"), reduce="ratio", high=float("inf"), unit="ratio"),
        MetricInfo(name="bits_per_label", columns=("bits",), high=MOST_BITS, unit="bits", higher_is_better=False),
    ),
    main="compression",
    score=score,
)
