"""Evaluate embeddings: embed once, ask every question of the same vectors, put an honest interval on every answer.

Plugin authors need this module alone: the types, the hook marker, and the numeric kernels in ``evalharness.numerics`` and ``evalharness.stats``.
Names are loaded when first used, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evalharness.adapters import as_encoder as as_encoder
    from evalharness.api import Results as Results
    from evalharness.api import evaluate as evaluate
    from evalharness.errors import EvalHarnessError as EvalHarnessError
    from evalharness.hookspecs import hookimpl as hookimpl
    from evalharness.hookspecs import hookspec as hookspec
    from evalharness.identify import identify_live as identify_live
    from evalharness.store.files import file_digest as file_digest
    from evalharness.types import AttackModel as AttackModel
    from evalharness.types import AudioBatch as AudioBatch
    from evalharness.types import Codec as Codec
    from evalharness.types import CodecSpec as CodecSpec
    from evalharness.types import Column as Column
    from evalharness.types import Dataset as Dataset
    from evalharness.types import DatasetSpec as DatasetSpec
    from evalharness.types import Encoder as Encoder
    from evalharness.types import EncoderSpec as EncoderSpec
    from evalharness.types import EvaluatorSpec as EvaluatorSpec
    from evalharness.types import Identity as Identity
    from evalharness.types import Interval as Interval
    from evalharness.types import Links as Links
    from evalharness.types import MetricInfo as MetricInfo
    from evalharness.types import Outcome as Outcome
    from evalharness.types import ReporterSpec as ReporterSpec
    from evalharness.types import RunInfo as RunInfo
    from evalharness.types import Samples as Samples
    from evalharness.types import ShiftSpec as ShiftSpec
    from evalharness.types import Side as Side
    from evalharness.types import Spec as Spec
    from evalharness.types import Table as Table
    from evalharness.types import UnitInfo as UnitInfo
    from evalharness.types import Vectors as Vectors
    from evalharness.types import class_column as class_column
    from evalharness.types import number_column as number_column
    from evalharness.vectors import CodedVectors as CodedVectors

__version__ = "0.1.0"

_TYPES = [
    "AttackModel",
    "AudioBatch",
    "Codec",
    "CodecSpec",
    "Column",
    "Dataset",
    "DatasetSpec",
    "Encoder",
    "EncoderSpec",
    "EvaluatorSpec",
    "Identity",
    "Interval",
    "Links",
    "MetricInfo",
    "Outcome",
    "ReporterSpec",
    "RunInfo",
    "Samples",
    "ShiftSpec",
    "Side",
    "Spec",
    "Table",
    "UnitInfo",
    "Vectors",
    "class_column",
    "number_column",
]
_HOME = {
    **dict.fromkeys(_TYPES, "evalharness.types"),
    "CodedVectors": "evalharness.vectors",
    "EvalHarnessError": "evalharness.errors",
    "Results": "evalharness.api",
    "as_encoder": "evalharness.adapters",
    "evaluate": "evalharness.api",
    "file_digest": "evalharness.store.files",
    "identify_live": "evalharness.identify",
    "hookimpl": "evalharness.hookspecs",
    "hookspec": "evalharness.hookspecs",
}

__all__ = sorted([*_HOME, "__version__"])  # noqa: PLE0605 (one list of names, not two)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module `evalharness` has no attribute `{name}`")


def __dir__() -> list[str]:
    return __all__
