"""Few-shot episodes, all drawn at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from evalharness.errors import DataError, UsageError
from evalharness.numerics._arrays import as_kind, as_tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np


class Episodes(NamedTuple):
    """Hold E episodes as positions in the labels: ``support`` (E, way, shot), ``query`` (E, way, query), and ``classes`` (E, way), codes; all int64."""

    support: Any
    query: Any
    classes: Any


def sample_episodes(
    labels: Any,
    *,
    way: int,
    shot: int,
    query: int,
    episodes: int,
    generator: torch.Generator,
    names: Sequence[str] | np.ndarray | None = None,
) -> Episodes:
    """Draw few-shot episodes: classes without replacement, and items of each without replacement or overlap.

    Args:
        labels: (N,) integer codes; -1 marks rows to leave out.
        way: classes an episode.
        shot: support items a class.
        query: query items a class.
        episodes: E.
        generator: on the CPU, so that devices agree.
        names: names of the codes, for messages.

    Returns:
        The episodes, of the labels' kind and device.

    Raises:
        DataError: there are fewer classes than ``way``, or a class has fewer than shot + query items; the message names it.
        UsageError: a size is below 1 or the labels are not (N,) integers.

    Source:
        METRICS.md 3; Vinyals et al. 2016.
    """
    codes = as_tensor(labels)
    if codes.ndim != 1 or codes.is_floating_point():
        raise UsageError(f"`labels` must be (N,) integer codes, got shape {tuple(codes.shape)} of {codes.dtype}")
    for size, what in ((way, "way"), (shot, "shot"), (query, "query"), (episodes, "episodes")):
        if size < 1:
            raise UsageError(f"`{what}` must be at least 1, got {size}")
    host = codes.to("cpu", torch.int64)
    order = host.argsort(stable=True)[int((host < 0).sum()) :]
    present, sizes = torch.unique_consecutive(host[order], return_counts=True)
    _check_sizes(present, sizes, way, shot, query, names)
    starts = sizes.cumsum(0) - sizes
    chosen = _draw(torch.tensor(len(present)).expand(episodes), way, generator)
    items = _draw(sizes[chosen], shot + query, generator) + starts[chosen].unsqueeze(-1)
    rows = order[items].to(codes.device)
    parts = (rows[..., :shot].contiguous(), rows[..., shot:].contiguous(), present[chosen].to(codes.device))
    return Episodes(*(as_kind(part, labels) for part in parts))


def _check_sizes(
    present: torch.Tensor, sizes: torch.Tensor, way: int, shot: int, query: int, names: Sequence[str] | np.ndarray | None
) -> None:
    if way > len(present):
        raise DataError(f"`way` = {way} is more than the {len(present)} classes that have items")
    small = int(sizes.argmin())
    size, code = int(sizes[small]), int(present[small])
    if size < shot + query:
        name = f"{code}" if names is None else f"{code} ({names[code]})"
        largest = (
            f"the largest possible `shot` is {size - query}"
            if size > query
            else f"no `shot` is possible; the largest possible `query` is {size - shot}"
        )
        raise DataError(
            f"class {name} has {size} items, but `shot` + `query` = {shot + query}: with `query` = {query} {largest};"
            " ask for less or leave the class out by label -1"
        )


def _draw(sizes: torch.Tensor, count: int, generator: torch.Generator) -> torch.Tensor:
    """Return ``count`` distinct numbers below each size, (*sizes.shape, count), in random order.

    Floyd's algorithm (Bentley & Floyd 1987) loops over draws, never over episodes or items, and a shuffle follows,
    since its order is not random.
    """
    drawn = torch.empty((*sizes.shape, count), dtype=torch.int64)
    for at in range(count):
        top = sizes - count + at
        uniform = torch.rand(sizes.shape, dtype=torch.float64, generator=generator)
        pick = (uniform * (top + 1)).to(torch.int64)
        taken = (drawn[..., :at] == pick.unsqueeze(-1)).any(-1)
        drawn[..., at] = torch.where(taken, top, pick)
    shuffle = torch.rand(drawn.shape, dtype=torch.float64, generator=generator).argsort(-1)
    return drawn.gather(-1, shuffle)
