"""Probes on frozen vectors: linear ones for classes, labels and numbers, one with a hidden layer, and the online code of a linear one."""

from __future__ import annotations

from collections.abc import Iterable

from evalharness import EvaluatorSpec, hookimpl

from .evaluators import HIDDEN, LINEAR
from .online import ONLINE


@hookimpl
def evalharness_evaluators() -> Iterable[EvaluatorSpec]:
    """Register `linear-probe`, `mlp-probe` and `mdl-probe`."""
    yield LINEAR
    yield HIDDEN
    yield ONLINE
