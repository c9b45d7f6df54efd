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
    groups: Any | None = None,
    group_names: Sequence[str] | np.ndarray | None = None,
) -> Episodes:
    """Draw few-shot episodes: classes without replacement, and items of each without replacement or overlap.

    With ``groups`` an episode first draws a superclass, all that have ``way`` classes being as likely, and all its classes out of that one.

    Args:
        labels: (N,) integer codes; -1 marks rows to leave out.
        way: classes an episode.
        shot: support items a class.
        query: query items a class.
        episodes: E.
        generator: on the CPU, so that devices agree.
        names: names of the codes, for messages.
        groups: (N,) integer codes of superclasses, -1 for none; None draws from all classes. Rows of a class must agree.
        group_names: names of the superclasses, for messages.

    Returns:
        The episodes, of the labels' kind and device.

    Raises:
        DataError: there are fewer classes than ``way``, in all or in every superclass, a class that can be drawn has fewer than shot + query items,
            or a class is of several superclasses or of none; the message names it.
        UsageError: a size is below 1, or labels or groups are not (N,) integers.

    Source:
        METRICS.md 3; Vinyals et al. 2016. Classes of one alphabet: Lake et al. 2015.
    """
    codes = _check_codes(labels, "labels")
    for size, what in ((way, "way"), (shot, "shot"), (query, "query"), (episodes, "episodes")):
        if size < 1:
            raise UsageError(f"`{what}` must be at least 1, got {size}")
    host = codes.to("cpu", torch.int64)
    order = host.argsort(stable=True)[int((host < 0).sum()) :]
    present, sizes = torch.unique_consecutive(host[order], return_counts=True)
    starts = sizes.cumsum(0) - sizes
    if way > len(present):
        raise DataError(f"`way` = {way} is more than the {len(present)} classes that have items")
    if groups is None:
        pool, spans = torch.arange(len(present)), torch.tensor([[0, len(present)]])
        at = torch.zeros(episodes, dtype=torch.int64)
    else:
        held = _check_codes(groups, "groups", len(host)).to("cpu", torch.int64)[order]
        pool, spans = _pool_by_superclass(_superclasses(held, present, sizes, names, group_names), way, group_names)
        at = (torch.rand(episodes, dtype=torch.float64, generator=generator) * len(spans)).to(torch.int64)
    _check_sizes(present[pool], sizes[pool], shot, query, names)
    chosen = pool[_draw(spans[at, 1], way, generator) + spans[at, :1]]
    items = _draw(sizes[chosen], shot + query, generator) + starts[chosen].unsqueeze(-1)
    rows = order[items].to(codes.device)
    parts = (rows[..., :shot].contiguous(), rows[..., shot:].contiguous(), present[chosen].to(codes.device))
    return Episodes(*(as_kind(part, labels) for part in parts))


def _check_codes(given: Any, what: str, size: int | None = None) -> torch.Tensor:
    codes = as_tensor(given)
    if codes.ndim != 1 or codes.is_floating_point() or (size is not None and len(codes) != size):
        raise UsageError(
            f"`{what}` must be ({'N' if size is None else size},) integer codes, got shape {tuple(codes.shape)} of {codes.dtype}"
        )
    return codes


def _word(code: int, names: Sequence[str] | np.ndarray | None) -> str:
    return f"{code}" if names is None else f"{code} ({names[code]})"


def _superclasses(
    held: torch.Tensor,
    present: torch.Tensor,
    sizes: torch.Tensor,
    names: Sequence[str] | np.ndarray | None,
    group_names: Sequence[str] | np.ndarray | None,
) -> torch.Tensor:
    """Return the superclass (C,) of each class; ``held`` are those of rows in the order of their classes."""
    own = held[sizes.cumsum(0) - sizes]
    of_row = torch.arange(len(present)).repeat_interleave(sizes)
    torn = own < 0
    torn[of_row[held != own[of_row]]] = True
    if bool(torn.any()):
        at = int(torn.nonzero()[0])
        found = torch.unique(held[of_row == at]).tolist()
        worded = " and ".join("none" if code < 0 else _word(code, group_names) for code in found)
        raise DataError(f"class {_word(int(present[at]), names)} must belong to exactly one superclass, got {worded}")
    return own


def _pool_by_superclass(own: torch.Tensor, way: int, group_names: Sequence[str] | np.ndarray | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return positions of classes (P,), those of one superclass together, and start and number (S, 2) of each superclass that has ``way`` of them."""
    found, counts = torch.unique(own, return_counts=True)
    enough = counts >= way
    if not bool(enough.any()):
        largest = int(counts.argmax())
        most = f"the largest, {_word(int(found[largest]), group_names)}, has {int(counts[largest])}"
        raise DataError(f"no superclass has `way` = {way} classes that have items: {most}")
    pool = own.argsort(stable=True)
    kept = counts[enough]
    return pool[torch.isin(own[pool], found[enough])], torch.stack([kept.cumsum(0) - kept, kept], dim=1)


def _check_sizes(present: torch.Tensor, sizes: torch.Tensor, shot: int, query: int, names: Sequence[str] | np.ndarray | None) -> None:
    small = int(sizes.argmin())
    size, code = int(sizes[small]), int(present[small])
    if size < shot + query:
        largest = (
            f"the largest possible `shot` is {size - query}"
            if size > query
            else f"no `shot` is possible; the largest possible `query` is {size - shot}"
            if size > shot
            else "no `shot` is possible, and with this `shot` no `query`"
        )
        raise DataError(
            f"class {_word(code, names)} has {size} items, but `shot` + `query` = {shot + query}: with `query` = {query} {largest};"
            " ask for less or leave the class out by label -1"
        )


def _draw(sizes: torch.Tensor, count: int, generator: torch.Generator) -> torch.Tensor:
    """Return ``count`` distinct numbers below each size, (*sizes.shape, count), in random order.

    Floyd's algorithm (Bentley & Floyd 1987) loops over draws, never over episodes or items, and a shuffle follows,
    since its order is not random.
    """
    drawn = torch.empty((count, *sizes.shape), dtype=torch.int64)  # draws first: each is then one stretch of memory
    for at in range(count):
        top = sizes - count + at
        uniform = torch.rand(sizes.shape, dtype=torch.float64, generator=generator)
        pick = (uniform * (top + 1)).to(torch.int64)
        taken = (drawn[:at] == pick).any(0)
        drawn[at] = torch.where(taken, top, pick)
    keys = torch.rand((*sizes.shape, count), dtype=torch.float64, generator=generator)
    shuffle = torch.from_numpy(keys.numpy().argsort(-1))  # NumPy sorts short rows three times as fast as torch
    return drawn.movedim(0, -1).gather(-1, shuffle)
