"""Work for one thread each: many small decompositions, and what torch does not share out itself."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let the CPU compute with one thread within the block, and with as many as before after it.

    Decompositions of matrices of some hundred rows wait at more barriers than they compute: with two threads that sleep there,
    fifty eigenvalue problems of 256 rows took eleven times as long as with one.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def share_out(function: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
    """Apply a function to items on the CPU, as many at once as torch has threads, each with one; results come in the order of the items.

    NumPy, and torch between its own parallel parts, would leave all but one core idle.
    """
    workers = min(torch.get_num_threads(), len(items))
    if workers <= 1:
        return [function(item) for item in items]
    with one_thread(), ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return list(pool.map(function, items))
