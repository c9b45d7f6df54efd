"""The Python side: evaluate an encoder, also a live module inside a training loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalharness.board import Board
from evalharness.errors import UsageError
from evalharness.leaderboard import board_from_records
from evalharness.randomness import kept_random_states
from evalharness.records import record_key, score_digest
from evalharness.registry import Registry, load_registry
from evalharness.session import Session, Settings, Silent, open_library
from evalharness.stamp import EncoderUse
from evalharness.store.results import ResultsReader
from evalharness.types import Encoder, EncoderSpec

if TYPE_CHECKING:
    import pandas as pd


@dataclass(slots=True, kw_only=True)
class Results:
    """Hold the records of an evaluation: plain mappings with the fields of a result file."""

    records: list[dict[str, Any]] = field(repr=False)
    modalities: Mapping[str, str] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    costs: list[dict[str, Any]] = field(default_factory=list, repr=False)  # a line a view, as ``evalharness.costs`` reads them
    registry: Registry | None = field(default=None, repr=False)

    def board(self, **options: Any) -> Board:
        """Return the leaderboard of these records; options as of ``evalharness leaderboard``: ``suite``, ``by``, ``where``."""
        newest = {record_key(record): record for record in self.records}
        return board_from_records(list(newest.values()), self.modalities, **options)

    def table(self, style: str = "table", **options: Any) -> str:
        """Return the leaderboard as text in one of the registered formats."""
        registry = self.registry or load_registry()
        text = str(registry.get("reporter", style).render(self.board(**options)))
        failed = [f"failed: {failure}" for failure in dict.fromkeys(self.failures)]
        return "\n".join([text, *failed]) if style == "table" else text

    def to_pandas(self) -> pd.DataFrame:
        """Return all records as a data frame."""
        import pandas as pd

        return pd.DataFrame(self.records)

    def main(self) -> dict[str, float]:
        """Return the main value of every task, by ``task`` (or ``encoder/task`` where there are several encoders)."""
        rows = [record for record in self.records if record["main"] and record["value"] is not None]
        several = len({record["encoder"] for record in rows}) > 1
        return {f"{row['encoder']}/{row['task']}" if several else row["task"]: row["value"] for row in rows}

    def digest(self) -> str:
        """Return the score digest of these records."""
        return score_digest(self.records)


def evaluate(
    model: Any,
    suite: str | Sequence[str] = "quick",
    *,
    modality: str | Sequence[str] | None = None,
    name: str | None = None,
    out: str | Path | None = None,
    device: str | None = None,
    batch_size: int | None = None,
    limit: int | None = None,
    seed: int | None = None,
    plugins: Sequence[str] = (),
    registry: Registry | None = None,
    progress: Any = None,
) -> Results:
    """Evaluate an encoder on suites, tasks or task files.

    Args:
        model: a name or reference as ``-e`` takes it, the path of an ``.npz``, a list of names, an :class:`EncoderSpec`, or a live object:
            a torch module, a callable, an encoder, or an object with ``encode(list of texts)``.
        suite: the name of a suite or task, a YAML file, or a list of them; those of another modality are left out.
        modality: what a live object takes: ``image``, ``text``, ``audio`` or ``vector``.
        name: how tables name a live object; default its class.
        out: a results folder; without it nothing at all is written.
        device: where to compute; a live module stays where it is.
        batch_size: items a batch.
        limit: take at most so many rows of each role: training, validation and test rows alike; such results are kept apart.
        seed: the seed of every draw; default the task's own.
        plugins: plugins to load, as ``-p`` takes them.
        registry: a registry to use instead of loading one.
        progress: an object with ``start``, ``advance``, ``stop`` and ``say``; default silent.

    Returns:
        The records of all units asked for, those that were finished before included where ``out`` is given.

    Raises:
        EvalHarnessError: a mistake of the caller.

    A live module is run in evaluation mode; training flags, gradients and random states are as before when this returns.
    """
    registry = registry or load_registry(plugins)
    selections = open_library(registry).select([suite] if isinstance(suite, str) else list(suite))
    with undisturbed():
        uses, live = _resolve(registry, model, modality, name)
    settings = Settings(
        out=None if out is None else Path(out),
        device=device or _device_of(live) or "auto",
        batch_size=batch_size,
        limit=limit,
        seed=seed,
        live=live,
        command="evalharness.evaluate",
    )
    session = Session(registry, settings, progress or Silent())
    with undisturbed():
        outcome = session.run(selections, uses)
    modalities = {task.task.name: "+".join(task.task.file.modalities) for task in outcome.plan.tasks.values()}
    report = outcome.report
    return Results(
        records=_records(settings, outcome),
        modalities=modalities,
        counts=report.counts if report else Counter(),
        failures=report.failures if report else [],
        costs=list(report.costs) if report else [],
        registry=registry,
    )


def _records(settings: Settings, outcome: Any) -> list[dict[str, Any]]:
    if settings.out is None:
        found = [record for result in outcome.report.results for record in result.records]
        return [{key: value for key, value in record.items() if key != "_variant"} for record in found]
    wanted = {unit.key for unit in [*outcome.plan.units, *outcome.plan.across]}
    return [record for record in ResultsReader([settings.out]).records() if record["unit"] in wanted]


def _resolve(
    registry: Registry, model: Any, modality: str | Sequence[str] | None, name: str | None
) -> tuple[list[str | EncoderUse], dict[str, Encoder]]:
    if isinstance(model, (str, Path)):
        text = str(model)
        return [f"npz:{text}" if text.endswith(".npz") and not text.startswith("npz:") else text], {}
    if isinstance(model, (list, tuple)) and all(isinstance(item, str) for item in model):
        return list(model), {}
    if isinstance(model, EncoderSpec):
        _register(registry, model)
        return [model.name], {}
    return _resolve_live(registry, model, modality, name)


def _resolve_live(
    registry: Registry, model: Any, modality: str | Sequence[str] | None, name: str | None
) -> tuple[list[str | EncoderUse], dict[str, Encoder]]:
    from evalharness.adapters import as_encoder
    from evalharness.identify import identify_live

    modalities = (modality,) if isinstance(modality, str) else tuple(modality or getattr(model, "modalities", None) or ())
    known = ("image", "text", "audio", "vector")
    if any(each not in known for each in modalities):
        raise UsageError(f"expected `modality` to be one of {', '.join(known)}, got `{', '.join(modalities)}`")
    if not modalities:
        raise UsageError("expected `modality` of a live object: image, text, audio or vector")
    encoder = as_encoder(model)
    label = name or type(model).__name__
    spec = EncoderSpec(
        name=label,
        summary=f"live {type(model).__name__}",
        modalities=modalities,
        build=lambda **_: encoder,
        similarity=getattr(model, "similarity_fn_name", None) or "cosine",
        differentiable=_is_module(model),
    )
    _register(registry, spec)
    identity = identify_live(model, modalities[0])
    use = EncoderUse(label=label, reference=label, params={}, layer=None, identity=identity, stamp="1", cached=False)
    return [use], {label: encoder}


class _Holder:
    """Hold a spec as a plugin does."""

    def __init__(self, spec: EncoderSpec) -> None:
        from evalharness.hookspecs import hookimpl

        self.evalharness_encoders = hookimpl(lambda: [spec])


def _register(registry: Registry, spec: EncoderSpec) -> None:
    key = f"session:{spec.name}"
    if key in registry.plugins:
        registry.unregister(key)
    registry.register(_Holder(spec), key)


def _is_module(model: Any) -> bool:
    import torch

    return isinstance(model, torch.nn.Module)


def _device_of(live: Mapping[str, Encoder]) -> str | None:
    for encoder in live.values():
        module = getattr(encoder, "module", None)
        first = next(module.parameters(), None) if module is not None else None
        if first is not None:
            return str(first.device)
    return "cpu" if live else None


@contextmanager
def undisturbed() -> Iterator[None]:
    """Keep the random states and backend flags of the surrounding program as they are."""
    import torch

    flags = torch.is_grad_enabled(), torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic, torch.get_default_dtype()
    try:
        with kept_random_states(cuda=torch.cuda.is_available()):
            yield
    finally:
        torch.set_grad_enabled(flags[0])
        torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = flags[1], flags[2]
        torch.set_default_dtype(flags[3])
