"""Many small decompositions: each by one thread."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


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
