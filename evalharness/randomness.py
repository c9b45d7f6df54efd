"""The random states of a program, kept as they are."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


@contextmanager
def kept_random_states(*, cuda: bool) -> Iterator[None]:
    """Put the states of Python's, numpy's and torch's own generators back after the block; ``cuda`` says whether those of GPUs are among them."""
    import torch

    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002 (the legacy state belongs to the caller)
    devices = torch.cuda.get_rng_state_all() if cuda else None
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        torch.set_rng_state(states[2])
        if devices is not None:
            torch.cuda.set_rng_state_all(devices)
