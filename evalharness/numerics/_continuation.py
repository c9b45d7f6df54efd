"""The order in which a grid of penalties is solved, and where each fit starts from.

Weak penalties are slow from a cold start: the weights are long, and hundreds of steps go by until they are.
So penalties a decade apart are solved one after the other, from strong to weak, each from where the last ones point to;
then those in between, all of a level at once, from a polynomial in the logarithm of the penalty through the solutions around them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import torch

Solve = Callable[[list[int], torch.Tensor | None], torch.Tensor]
_ANCHOR_DISTANCE = 0.95 * math.log(10)
_INSIDE, _OUTSIDE = 4, 3
_MOST_AMPLIFICATION = 8.0


def order_penalties(logs: Sequence[float]) -> list[list[int]]:
    """Return groups of positions of ascending ``logs`` of inverse penalties, those of one group to be solved together.

    First come the anchors, alone, about a decade apart; each later group halves the gaps that are left.
    """
    last = len(logs) - 1
    anchors = [0]
    for at in range(1, last + 1):
        if at == last or logs[at] - logs[anchors[-1]] >= _ANCHOR_DISTANCE:
            anchors.append(at)
    groups = [[at] for at in anchors]
    known = anchors
    while len(known) <= last:
        between = [(low + high) // 2 for low, high in itertools.pairwise(known) if high - low > 1]
        groups.append(between)
        known = sorted([*known, *between])
    return groups


def combine_known(known: Sequence[float], at: float) -> dict[int, float]:
    """Return which known abscissae to combine for ``at``, and with what factors: Lagrange's polynomial, of a lower order where it would amplify errors."""
    inside = min(known) < at < max(known)
    near = sorted(range(len(known)), key=lambda index: (abs(known[index] - at), index))
    for order in range(min(len(near), _INSIDE if inside else _OUTSIDE), 0, -1):
        chosen = near[:order]
        factors = {one: math.prod((at - known[other]) / (known[one] - known[other]) for other in chosen if other != one) for one in chosen}
        if order == 1 or sum(map(abs, factors.values())) <= _MOST_AMPLIFICATION:
            return factors
    raise AssertionError("unreachable: one abscissa never amplifies")


def follow_path(logs: Sequence[float], solve: Solve) -> torch.Tensor:
    """Solve all penalties in order.

    Args:
        logs: (P,) logarithms of the inverse penalties, ascending; equal ones are solved once each.
        solve: (positions, start (T, m, ...) or None for a start at zero) to solutions (T, m, ...).

    Returns:
        The solutions (T, P, ...).
    """
    solved: dict[int, torch.Tensor] = {}
    for group in order_penalties(logs):
        start = None
        if solved:
            known = sorted(solved)
            start = torch.stack([_combine(solved, known, logs, at) for at in group], 1)
        solved |= zip(group, solve(group, start).unbind(1), strict=True)
    return torch.stack([solved[at] for at in range(len(logs))], 1)


def _combine(solved: dict[int, torch.Tensor], known: Sequence[int], logs: Sequence[float], at: int) -> torch.Tensor:
    same = next((one for one in known if logs[one] == logs[at]), None)
    if same is not None:
        return solved[same]
    distinct = [one for place, one in enumerate(known) if place == 0 or logs[one] != logs[known[place - 1]]]
    factors = combine_known([logs[one] for one in distinct], logs[at])
    return torch.stack([factor * solved[distinct[index]] for index, factor in factors.items()]).sum(0)
