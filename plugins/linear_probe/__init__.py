"""Probes on frozen vectors: linear ones for classes, labels and numbers, and one with a hidden layer."""

from __future__ import annotations

from collections.abc import Iterable

from evalharness import EvaluatorSpec, hookimpl

from .evaluators import HIDDEN, LINEAR


@hookimpl
def evalharness_evaluators() -> Iterable[EvaluatorSpec]:
    """Register `linear-probe` and `mlp-probe`."""
    yield LINEAR
    yield HIDDEN
