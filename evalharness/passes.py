"""One pass over a shard: read, shift and encode its rows in batches, for every view of a group at once."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from evalharness.costs import Measured, Meter, take_items
from evalharness.errors import DataError, EvalHarnessError, PluginError, VectorsError
from evalharness.plan import ViewPlan
from evalharness.registry import Registry
from evalharness.selection import draw_keys
from evalharness.stamp import EncoderUse, Sources
from evalharness.transforms import check_budget, resize_images
from evalharness.types import Array, AttackModel, AudioBatch, Encoder, EncoderSpec, Samples, ShiftSpec

LOG = logging.getLogger(__name__)
DEFAULT_BATCH = {"image": 128, "text": 256, "audio": 32, "vector": 1024}


@dataclass(slots=True, kw_only=True)
class PassSettings:
    """How to embed; nothing here can change a score beyond the stated tolerance."""

    device: str = "cpu"
    devices: tuple[str, ...] = ()
    dtype: str = "float32"
    batch_size: int | None = None
    plugins: tuple[str, ...] = ()
    live: Mapping[str, Encoder] = field(default_factory=dict)  # live modules by encoder label


@dataclass(slots=True, kw_only=True)
class Head:
    """The differentiable head of an attacked fit, and the labels of rows in its vocabulary."""

    logits: Callable[[torch.Tensor], torch.Tensor]
    labels: Callable[[Array], Array]  # rows of the source -> codes (B,)


def build_encoder(registry: Registry, use: EncoderUse, settings: PassSettings) -> Encoder:
    """Build an encoder on the settings' device.

    Raises:
        PluginError: the plugin raised, or gave something that cannot encode.
    """
    spec: EncoderSpec = registry.get("encoder", use.reference)
    owner = registry.owner("encoder", use.reference)
    try:
        encoder = spec.build(device=torch.device(settings.device), dtype=getattr(torch, settings.dtype), **use.params)
    except EvalHarnessError:
        raise
    except Exception as error:
        raise PluginError(
            f"encoder `{use.label}` (plugin `{owner.name}`) raised while being built: {type(error).__name__}: {error}"
        ) from error
    if not callable(getattr(encoder, "lookup" if spec.precomputed else "encode", None)):
        raise PluginError(
            f"encoder `{use.label}` (plugin `{owner.name}`): what `build` gave has no `{'lookup' if spec.precomputed else 'encode'}`"
        )
    return encoder


def build_meter(registry: Registry, use: EncoderUse, settings: PassSettings, encoder: Encoder) -> Meter:
    """Make what measures an encoder; the peak memory of a caller's own program, where a live module runs, is not reset."""
    precomputed = registry.get("encoder", use.reference).precomputed
    live = use.label in settings.live
    return Meter(encoder, device=settings.device, dtype=settings.dtype, precomputed=precomputed, reset_peak=not live)


class ShardRunner:
    """Embed one shard of rows for all severities and layers of a group."""

    def __init__(
        self,
        registry: Registry,
        sources: Sources,
        encoder: Encoder,
        use: EncoderUse,
        group: list[ViewPlan],
        settings: PassSettings,
        head: Head | None,
        meter: Meter | None = None,
    ) -> None:
        first = group[0]
        self._sources = sources
        self._encoder = encoder
        self._use = use
        self.view = first
        self._group = group
        self._settings = settings
        self._head = head
        self._meter = meter
        self._sample: Any = None
        self._samples: Samples = sources.load(first.source).parts[first.part]
        self._stamp = sources.stamp(first.source).parts[first.part]
        self._severities = list(dict.fromkeys(view.shift.severity for view in group if view.shift))
        self._layers = list(dict.fromkeys(view.layer for view in group))
        self._shift: ShiftSpec | None = registry.get("shift", str(first.shift.plugin)) if first.shift else None
        self._dim: int | None = None
        self._precomputed = registry.get("encoder", use.reference).precomputed
        self.batch_size = settings.batch_size or DEFAULT_BATCH.get(first.modality, 128)
        shift = f" under {first.shift.name}" if first.shift else ""
        self.title = f"{use.label}: {first.source.dataset} {first.source.split}{'' if first.part == 'items' else ' ' + first.part}{shift}"

    def run(self, rows: Array, advance: Callable[[int], None]) -> tuple[list[torch.Tensor], dict[str, Any], list[dict[str, Any]]]:
        """Return vectors (N, D) float32 on the CPU for each view of the group, facts on the batches, and extra tensors.

        Memory that does not suffice halves the batch and starts the shard again.
        """
        while True:
            try:
                return self._attempt(rows, advance)
            except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
                if not _is_out_of_memory(error) or self.batch_size == 1:
                    raise
                self.batch_size = max(1, self.batch_size // 2)
                if self._meter is not None:
                    self._meter.restart()
                LOG.warning("out of memory: trying again with batches of %d", self.batch_size)
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()

    def _attempt(self, rows: Array, advance: Callable[[int], None]) -> tuple[list[torch.Tensor], dict[str, Any], list[dict[str, Any]]]:
        order = self._order(rows)
        chunks = [order[start : start + self.batch_size] for start in range(0, len(order), self.batch_size)]
        pieces: list[list[torch.Tensor]] = [[] for _ in self._group]
        extras: list[list[torch.Tensor]] = [[] for _ in self._group]
        for number, (chunk, batch) in enumerate(self._batches(rows, chunks)):
            if number == len(chunks) // 2:
                self._keep_sample(batch)
            for at, (vectors, delta) in enumerate(self._encode_batch(batch, rows[chunk], number)):
                pieces[at].append(vectors)
                if delta is not None:
                    extras[at].append(delta)
            advance(len(chunk))
        back = torch.from_numpy(np.argsort(order, kind="stable"))
        whole = [torch.cat(piece)[back] for piece in pieces]
        facts = {"batch_size": self.batch_size, "sorted": self.view.modality == "text"}
        return whole, facts, [{"inputs_delta": torch.cat(extra)[back]} if extra else {} for extra in extras]

    def begin(self) -> None:
        """Start the meter, if there is one."""
        if self._meter is not None:
            self._meter.start()

    def measured(self) -> Measured | None:
        """Return what was seen since the meter was started, None without a meter."""
        if self._meter is None:
            return None
        varies = self.view.modality in ("text", "audio")
        about = (self.view.source.dataset, self.view.part) if varies else tuple(getattr(self._sample, "shape", ()))[1:]
        return self._meter.finish(self._sample, self._encode_sample, (self.view.modality, *about), self.batch_size)

    def _keep_sample(self, batch: Any) -> None:
        """Keep a few items of a middle batch, where texts sorted by length are of median length."""
        if self._meter is not None and self._sample is None and not self._precomputed:
            with contextlib.suppress(Exception):  # then no operations are counted
                self._sample = take_items(batch)

    def _encode_sample(self, sample: Any) -> Any:
        return self._call(self._prompted(self._to_device(sample)))

    def _order(self, rows: Array) -> Array:
        if self.view.modality != "text" or self._precomputed or self._shift is not None:
            return np.arange(len(rows))
        texts = self._samples.read(rows)
        return np.argsort([-len(text) for text in texts], kind="stable")

    def _batches(self, rows: Array, chunks: list[Array]) -> Iterator[tuple[Array, Any]]:
        """Read one batch ahead of the encoder."""
        with ThreadPoolExecutor(max_workers=1) as pool:
            ahead: Future[Any] | None = pool.submit(self._read, rows[chunks[0]]) if chunks else None
            for at, chunk in enumerate(chunks):
                assert ahead is not None
                batch = ahead.result()
                ahead = pool.submit(self._read, rows[chunks[at + 1]]) if at + 1 < len(chunks) else None
                yield chunk, batch

    def _read(self, rows: Array) -> Any:
        if self._precomputed or (self._shift is not None and self._shift.mechanism == "render"):
            return None
        try:
            batch = self._samples.read(rows)
        except EvalHarnessError:
            raise
        except Exception as error:
            raise DataError(
                f"data set `{self.view.source.dataset}` cannot be read at {_some(self._stamp.ids[rows])}: {type(error).__name__}: {error}"
            ) from error
        return resize_images(batch, self.view.image_size) if self.view.modality == "image" else batch

    def _encode_batch(self, batch: Any, rows: Array, number: int) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]:
        ids = self._stamp.ids[rows]
        if self._precomputed:
            # Ids are unique within a part only, so that parts are told apart by name.
            names = ids if self.view.part == "items" else np.array([f"{self.view.part}/{name}" for name in ids])
            yield self._checked(self._encoder.lookup(names, role=self.view.role), rows, number), None  # type: ignore[attr-defined]
            return
        inputs = self._to_device(batch)
        shifted = self._shifted(inputs, rows)
        for view in self._group:
            at = self._severities.index(view.shift.severity) if view.shift else 0
            vectors = self._encode(shifted[at], rows, number)
            delta = None
            if view.shift is not None and view.shift.mechanism == "attack" and isinstance(inputs, torch.Tensor):
                delta = (shifted[at] - inputs).to(torch.float16).cpu()
            yield self._checked(vectors[view.layer] if isinstance(vectors, dict) else vectors, rows, number), delta

    def _encode(self, batch: Any, rows: Array, number: int) -> Any:
        batch = self._prompted(batch)
        shape = self.view.modality, *tuple(getattr(batch, "shape", ()))[1:]
        try:
            with contextlib.nullcontext() if self._meter is None else self._meter.encoding(len(rows), shape):
                return self._call(batch)
        except EvalHarnessError:
            raise
        except (Exception, SystemExit) as error:
            if _is_out_of_memory(error):
                raise
            raise PluginError(
                f"encoder `{self._use.label}` raised on batch {number + 1} of data set `{self.view.source.dataset}`, split `{self.view.source.split}` ({_some(self._stamp.ids[rows])}): {type(error).__name__}: {error}"
            ) from error

    def _call(self, batch: Any) -> Any:
        layers = [layer for layer in self._layers if layer is not None]
        with torch.no_grad():
            return self._encoder.encode(batch, role=self.view.role, **({"layers": layers} if layers else {}))

    def _prompted(self, batch: Any) -> Any:
        return [self.view.prompt + text for text in batch] if self.view.prompt and isinstance(batch, list) else batch

    def _checked(self, vectors: Any, rows: Array, number: int) -> torch.Tensor:
        where = f"encoder `{self._use.label}`, data set `{self.view.source.dataset}`, split `{self.view.source.split}`"
        if not isinstance(vectors, torch.Tensor) or vectors.ndim != 2 or len(vectors) != len(rows):
            got = tuple(vectors.shape) if isinstance(vectors, torch.Tensor) else type(vectors).__name__
            raise VectorsError(f"{where}: expected vectors of shape (B, D) = ({len(rows)}, D) on batch {number + 1}, got {got}")
        if vectors.is_complex() or vectors.shape[1] == 0 or vectors.shape[1] != (self._dim or vectors.shape[1]):
            raise VectorsError(
                f"{where}: expected real vectors of {self._dim or 'one or more'} dimensions, got {vectors.shape[1]} {vectors.dtype} on batch {number + 1}"
            )
        self._dim = vectors.shape[1] if len(self._layers) == 1 else None
        vectors = vectors.detach().to("cpu", torch.float32)
        bad = ~torch.isfinite(vectors).all(dim=1)
        if bad.any():
            raise VectorsError(f"{where}: vectors are NaN or infinite at {_some(self._stamp.ids[rows][bad.numpy()])}")
        return vectors

    def _to_device(self, batch: Any) -> Any:
        device = self._settings.device
        if isinstance(batch, torch.Tensor):
            return batch.to(device, non_blocking=True)
        if isinstance(batch, AudioBatch):
            return AudioBatch(waveforms=batch.waveforms.to(device), lengths=batch.lengths.to(device), sample_rate=batch.sample_rate)
        return batch

    # --- shifts ---------------------------------------------------------------------------------------------------

    def _shifted(self, inputs: Any, rows: Array) -> list[Any]:
        use, spec = self.view.shift, self._shift
        if use is None or spec is None:
            return [inputs]
        severities = list(use.severities) if spec.mechanism == "attack" else self._severities
        keys = torch.from_numpy(np.stack([self._keys(rows, severity) for severity in severities]))
        try:
            if spec.mechanism == "render":
                return self._rendered(rows, severities, keys)
            if spec.mechanism == "attack":
                return self._attacked(inputs, rows, severities, keys)
            with torch.no_grad():
                return self._same_count(spec.apply(inputs, severities, keys, **use.params), severities)
        except EvalHarnessError:
            raise
        except Exception as error:
            if _is_out_of_memory(error):
                raise
            raise PluginError(
                f"shift `{spec.name}` raised on data set `{self.view.source.dataset}` ({_some(self._stamp.ids[rows])}): {type(error).__name__}: {error}"
            ) from error

    def _keys(self, rows: Array, severity: float) -> Array:
        """Return the keys of items at a severity: about seed, data, family and severity, never about the encoder."""
        use = self.view.shift
        assert use is not None
        about = ("shift", self.view.shift_seed, self._stamp.fingerprint, use.plugin, severity)
        return draw_keys(self._stamp.hashes[rows], *about).view(np.int64)

    def _same_count(self, batches: list[Any], severities: list[float]) -> list[Any]:
        if len(batches) != len(severities):
            raise PluginError(
                f"shift `{self._shift.name if self._shift else ''}` gave {len(batches)} batches for {len(severities)} severities"
            )
        return batches

    def _rendered(self, rows: Array, severities: list[float], keys: torch.Tensor) -> list[Any]:
        assert self.view.shift is not None
        assert self._shift is not None
        factors = {name: column.values[rows] for name, column in self._stamp.columns.items() if column.kind == "class"}
        names = {name: column.names for name, column in self._stamp.columns.items() if column.kind == "class"}
        changed = self._shift.apply(factors, severities, keys, labels=names, **self.view.shift.params)
        ids = self._stamp.ids[rows]
        batches = [self._sources.render(self.view.source, ids, each) for each in self._same_count(changed, severities)]
        return [self._to_device(resize_images(batch, self.view.image_size)) for batch in batches]

    def _attacked(self, inputs: torch.Tensor, rows: Array, severities: list[float], keys: torch.Tensor) -> list[Any]:
        assert self.view.shift is not None
        assert self._shift is not None
        encoder, role, head = self._encoder, self.view.role, self._head

        def encode(batch: torch.Tensor) -> torch.Tensor:
            vectors = encoder.encode(batch, role=role)
            assert isinstance(vectors, torch.Tensor)
            return vectors

        with torch.no_grad():
            clean = encode(inputs)
        model = AttackModel(encode=encode, clean=clean, logits=None if head is None else lambda batch: head.logits(encode(batch)))
        labels = None if head is None else torch.from_numpy(head.labels(rows)).to(inputs.device)
        with torch.enable_grad():
            batches = self._shift.apply(inputs, severities, keys, model=model, labels=labels, **self.view.shift.params)
        budgets = dict(zip(severities, self._same_count(batches, severities), strict=True))
        for budget, batch in budgets.items():
            check_budget(batch.detach(), inputs, budget, self.view.shift.params.get("norm", "linf"), model.bounds, self._shift.name)
        return [budgets[severity].detach() for severity in self._severities]


def _some(ids: Sequence[str] | Array, limit: int = 5) -> str:
    shown = ", ".join(f"`{item}`" for item in ids[:limit])
    return f"rows {shown}" + (f" and {len(ids) - limit} more" if len(ids) > limit else "")


def _is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or (
        isinstance(error, RuntimeError) and "out of memory" in str(error).lower()
    )
