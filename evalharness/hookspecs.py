"""The hooks that a plugin may implement, and the markers for both sides.

A plugin is a module.
It decorates functions named like the ones below with :data:`hookimpl` and yields specs; nothing is computed until a spec is used.
Collecting hooks take no arguments; observers are told what happened, their results are ignored and their exceptions logged.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from evalharness.types import (
        CodecSpec,
        DatasetSpec,
        EncoderSpec,
        EvaluatorSpec,
        ReporterSpec,
        RunInfo,
        ShiftSpec,
        Spec,
        UnitInfo,
    )

PROJECT = "evalharness"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class HookSpecs:
    """The hook specifications; see each for a complete example."""

    # --- collecting hooks -----------------------------------------------------------------------------------------

    @hookspec
    def evalharness_encoders(self) -> Iterable[EncoderSpec]:  # type: ignore[empty-body]
        """Register encoders.

        Example::

            from evalharness import EncoderSpec, hookimpl

            class MeanColour:
                dim = 3
                def encode(self, batch, *, role="document", layers=None):
                    return batch.mean(dim=(2, 3))

            @hookimpl
            def evalharness_encoders():
                yield EncoderSpec(name="mean-colour", summary="Mean of each colour channel",
                                  modalities=("image",), build=lambda *, device, dtype: MeanColour())

        Returns:
            An iterable of encoder specs.
        """

    @hookspec
    def evalharness_datasets(self) -> Iterable[DatasetSpec]:  # type: ignore[empty-body]
        """Register data sets.

        Example::

            import numpy as np, torch
            from evalharness import Dataset, DatasetSpec, Samples, class_column, hookimpl

            def load(split):
                x = torch.linspace(-1, 1, 100)[:, None].repeat(1, 4)
                return Dataset(parts={"items": Samples(
                    modality="vector", size=100, read=lambda at: x[torch.as_tensor(at)],
                    ids=np.array([f"{split}/{i}" for i in range(100)]),
                    columns={"label": class_column((x[:, 0] > 0).int().tolist())}, fingerprint="ramp-1")})

            @hookimpl
            def evalharness_datasets():
                yield DatasetSpec(name="ramp", summary="A ramp", modalities=("vector",), splits=("train", "test"), load=load)

        Returns:
            An iterable of data set specs.
        """

    @hookspec
    def evalharness_shifts(self) -> Iterable[ShiftSpec]:  # type: ignore[empty-body]
        """Register shifts.

        Example::

            from evalharness import ShiftSpec, hookimpl

            def darken(inputs, severities, keys, *, model=None, labels=None):
                return [inputs * (1 - 0.15 * severity) for severity in severities]

            @hookimpl
            def evalharness_shifts():
                yield ShiftSpec(name="darken", summary="Scale brightness down", mechanism="apply", apply=darken,
                                kind="corruption", shift_type="lighting", modality="image", severities=(1, 2, 3))

        Returns:
            An iterable of shift specs.
        """

    @hookspec
    def evalharness_codecs(self) -> Iterable[CodecSpec]:  # type: ignore[empty-body]
        """Register codecs.

        Example::

            import torch
            from evalharness import CodecSpec, hookimpl

            class Half:
                def encode(self, vectors): return vectors.half()
                def decode(self, codes): return codes.float()
                def bytes_per_vector(self, n): return 2.0 * self.dim
                def __init__(self, vectors): self.dim = vectors.shape[1]

            @hookimpl
            def evalharness_codecs():
                yield CodecSpec(name="half", summary="IEEE half precision", fit=Half)

        Returns:
            An iterable of codec specs.
        """

    @hookspec
    def evalharness_evaluators(self) -> Iterable[EvaluatorSpec]:  # type: ignore[empty-body]
        """Register evaluators.

        Example::

            from evalharness import EvaluatorSpec, MetricInfo, Outcome, hookimpl

            def score(fitted, test, *, generator, clean=None, exact=None, base=None):
                norms = test.items.vectors.dense().norm(dim=1)
                return [Outcome(item="sample", part="items", rows=test.items.rows, columns={"norm": norms})]

            @hookimpl
            def evalharness_evaluators():
                norm = MetricInfo(name="mean_norm", columns=("norm",), low=0, high=float("inf"), unit="length", higher_is_better=None)
                yield EvaluatorSpec(name="norms", summary="Length of vectors", target_kinds=(), metrics=(norm,), main="mean_norm", score=score)

        Returns:
            An iterable of evaluator specs.
        """

    @hookspec
    def evalharness_reporters(self) -> Iterable[ReporterSpec]:  # type: ignore[empty-body]
        r"""Register leaderboard formats.

        Example::

            from evalharness import ReporterSpec, hookimpl

            @hookimpl
            def evalharness_reporters():
                yield ReporterSpec(name="names", summary="Encoder names, best first",
                                   render=lambda board: "\n".join(row.encoder for table in board.tables for row in table.rows))

        Returns:
            An iterable of reporter specs.
        """

    @hookspec
    def evalharness_task_paths(self) -> Iterable[Path]:  # type: ignore[empty-body]
        """Add folders of task files.

        Example::

            from pathlib import Path
            from evalharness import hookimpl

            @hookimpl
            def evalharness_task_paths():
                yield Path(__file__).parent / "tasks"

        Returns:
            An iterable of folders; suites are looked for in their ``suites`` sub-folders.
        """

    @hookspec(firstresult=True)
    def evalharness_resolve(self, kind: str, reference: str) -> Spec | None:
        """Make a spec for a reference such as ``hf:mteb/banking77``; stops at the first result that is not None.

        Example::

            from evalharness import EncoderSpec, hookimpl

            @hookimpl
            def evalharness_resolve(kind, reference):
                if kind == "encoder" and reference.startswith("constant:"):
                    return make_spec(float(reference.removeprefix("constant:")))

        Returns:
            A spec whose name is the reference, or None for a reference of somebody else.
        """

    # --- observers ------------------------------------------------------------------------------------------------

    @hookspec
    def evalharness_run_started(self, run: RunInfo) -> None:
        """Learn that a run starts.

        Example::

            @hookimpl
            def evalharness_run_started(run):
                print(f"{run.num_units} units to do", file=sys.stderr)
        """

    @hookspec
    def evalharness_unit_finished(self, unit: UnitInfo) -> None:
        """Learn that a unit is stored.

        Example::

            @hookimpl
            def evalharness_unit_finished(unit):
                tracker.log({f"{unit.task}/{unit.evaluator}": unit.seconds})
        """

    @hookspec
    def evalharness_run_finished(self, run: RunInfo) -> None:
        """Learn that a run ended.

        Example::

            @hookimpl
            def evalharness_run_finished(run):
                tracker.close()
        """
