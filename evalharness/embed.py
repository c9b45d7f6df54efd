"""The one batched pass: read, shift, encode and store every view of a group once, shard by shard."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from evalharness.errors import DataError, EvalHarnessError, PluginError, StoreError, VectorsError
from evalharness.keys import digest_bytes
from evalharness.plan import ViewPlan
from evalharness.registry import Registry
from evalharness.selection import draw_keys
from evalharness.stamp import EncoderUse, Sources
from evalharness.store.files import append_line, cache_folder
from evalharness.store.views import ROWS_PER_SHARD, MemoryViews, StoredView, ViewCache
from evalharness.transforms import check_budget, resize_images
from evalharness.types import Array, AttackModel, AudioBatch, Encoder, EncoderSpec, Identity, Samples, ShiftSpec

LOG = logging.getLogger(__name__)
DEFAULT_BATCH = {"image": 128, "text": 256, "audio": 32, "vector": 1024}
PROBE_ROWS = 4
PROBE_TOLERANCE = 1e-3


class Progress(Protocol):
    """What the pass tells about its progress."""

    def start(self, what: str, total: int) -> None:
        """Begin a bar of ``total`` rows."""

    def advance(self, count: int) -> None:
        """Move on by ``count`` rows."""

    def stop(self) -> None:
        """End the bar."""

    def say(self, text: str) -> None:
        """Print a line."""


class IdentityChangedError(Exception):
    """Tell the run that an encoder no longer gives the vectors stored under its identity."""

    def __init__(self, label: str, identity: Identity) -> None:
        super().__init__(label)
        self.label = label
        self.identity = identity


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


class Embedder:
    """Make sure that views exist, and read rows from them; holds at most one built encoder."""

    def __init__(self, registry: Registry, sources: Sources, cache: ViewCache, settings: PassSettings, progress: Progress) -> None:
        self._registry = registry
        self._sources = sources
        self._disk = cache
        self._memory = MemoryViews()
        self._settings = settings
        self._progress = progress
        self._built: tuple[str, Encoder] | None = None
        self._open: dict[str, StoredView] = {}
        self.failed: dict[str, str] = {}
        self.rows_embedded = 0
        self.facts: dict[str, dict[str, Any]] = {}

    # --- reading --------------------------------------------------------------------------------------------------

    def find(self, view: ViewPlan) -> StoredView | None:
        """Return the complete view that serves a plan's rows, or None."""
        known = self._open.get(view.family)
        if known is None:
            known = self._cache(view).find(view.family, view.rows)
            if known is not None:
                self._open[view.family] = known
        return known

    def read(self, view: ViewPlan, rows: Array) -> torch.Tensor:
        """Return vectors of rows of the source, (N, D) float32 on the settings' device."""
        stored = self.find(view)
        if stored is None:
            raise StoreError(f"view `{view.family}` is not embedded")
        return torch.from_numpy(stored.gather(rows)).to(self._settings.device, torch.float32)

    def close(self) -> None:
        """Forget the built encoder and open views."""
        self._built = None
        self._open.clear()

    def _cache(self, view: ViewPlan) -> Any:
        return self._disk if view.cached else self._memory

    # --- embedding ------------------------------------------------------------------------------------------------

    def ensure(self, views: Sequence[ViewPlan], use: EncoderUse, heads: Mapping[str, Head] | None = None) -> None:
        """Embed the views that are missing, each group in one pass; a group that fails is noted in ``failed``.

        Raises:
            IdentityChangedError: the built encoder does not give the vectors stored under its identity.
            StoreError: the cache cannot be written.
        """
        groups: dict[str, list[ViewPlan]] = {}
        present = []
        for view in views:
            if view.family in self.failed:
                continue
            if self.find(view) is not None:
                present.append(view)
            else:
                groups.setdefault(view.group, []).append(view)
        for fault in self._disk.damaged:
            self._progress.say(f"damaged view found and dropped: {fault}")
        self._disk.damaged.clear()
        for group in groups.values():
            try:
                self._embed_group(group, use, present, (heads or {}).get(group[0].attacked or ""))
            except (StoreError, IdentityChangedError):
                raise
            except (Exception, SystemExit) as error:
                for view in group:
                    self.failed[view.family] = _failure(error, use, view)
                if not isinstance(error, EvalHarnessError):
                    LOG.debug("embedding failed", exc_info=True)

    def _embed_group(self, group: list[ViewPlan], use: EncoderUse, present: list[ViewPlan], head: Head | None) -> None:
        rows = np.unique(np.concatenate([view.rows for view in group]))
        writers = [self._cache(view).writer(view.family, rows, {**view.key, "label": use.label}) for view in group]
        first = group[0]
        with writers[0].lock():
            if all(self.find(view) is not None for view in group):
                return  # another process was faster
            for writer in writers:
                writer.start()
            missing = sorted({shard for writer in writers for shard in writer.missing()})
            if missing and self._parallel(first, use):
                from evalharness.devices import embed_shards

                self.rows_embedded += embed_shards(group, rows, missing, use, self._settings, self._progress)
            elif missing:
                encoder = self.encoder(use)
                self._check_probe(encoder, use, present)
                runner = ShardRunner(self._registry, self._sources, encoder, use, group, self._settings, head)
                self._run_shards(runner, writers, rows, missing)
            for writer in writers:
                writer.finish(
                    {"batch_size": self._settings.batch_size or DEFAULT_BATCH.get(first.modality, 128), "device": self._settings.device}
                )

    def _parallel(self, view: ViewPlan, use: EncoderUse) -> bool:
        return len(self._settings.devices) > 1 and view.attacked is None and view.cached and use.label not in self._settings.live

    def _run_shards(self, runner: ShardRunner, writers: list[Any], rows: Array, missing: list[int]) -> None:
        bounds = writers[0].bounds
        count, started = sum(bounds[shard][1] - bounds[shard][0] for shard in missing), time.monotonic()
        self._progress.start(runner.title, count)
        try:
            for shard in missing:
                start, stop = bounds[shard]
                results, facts, extras = runner.run(rows[start:stop], self._progress.advance)
                for writer, vectors, extra in zip(writers, results, extras, strict=True):
                    writer.write_shard(shard, vectors, facts, extra)
                self.rows_embedded += stop - start
            if runner.view.cached:
                note_throughput(runner.view.encoder, count, time.monotonic() - started, int(results[0].shape[1]))
        finally:
            self._progress.stop()

    def encoder(self, use: EncoderUse) -> Encoder:
        """Return the built encoder, building it when another one was held."""
        if self._built is None or self._built[0] != use.label:
            self._built = None
            self._built = use.label, self._settings.live.get(use.label) or build_encoder(self._registry, use, self._settings)
        return self._built[1]

    def _check_probe(self, encoder: Encoder, use: EncoderUse, present: list[ViewPlan]) -> None:
        """Encode a few rows of a stored view again; a difference means that the identity lies."""
        view = next((view for view in present if view.shift is None and view.cached), None)
        if view is None or use.identity.kind in ("none", "probe"):
            return
        rows = view.rows[:PROBE_ROWS]
        stored = self.read(view, rows).cpu()
        runner = ShardRunner(self._registry, self._sources, encoder, use, [view], self._settings, None)
        (again,), _, _ = runner.run(rows, lambda _: None)
        if again.shape == stored.shape and (again - stored).norm() <= PROBE_TOLERANCE * max(float(stored.norm()), 1e-12):
            return
        probe = digest_bytes(again.round(decimals=3).numpy().tobytes())
        raise IdentityChangedError(use.label, Identity(kind="probe", digest=probe))


def note_throughput(encoder: str, rows: int, seconds: float, dim: int) -> None:
    """Note how fast a pass was, for the estimates of ``--dry-run``; it is no loss where this cannot be written."""
    with contextlib.suppress(StoreError):
        append_line(
            cache_folder() / "throughput.jsonl", {"encoder": encoder, "rows": rows, "seconds": round(seconds, 4), "dim": dim}, sync=False
        )


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
    ) -> None:
        first = group[0]
        self._sources = sources
        self._encoder = encoder
        self._use = use
        self.view = first
        self._group = group
        self._settings = settings
        self._head = head
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
                LOG.warning("out of memory: trying again with batches of %d", self.batch_size)
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()

    def _attempt(self, rows: Array, advance: Callable[[int], None]) -> tuple[list[torch.Tensor], dict[str, Any], list[dict[str, Any]]]:
        order = self._order(rows)
        chunks = [order[start : start + self.batch_size] for start in range(0, len(order), self.batch_size)]
        pieces: list[list[torch.Tensor]] = [[] for _ in self._group]
        extras: list[list[torch.Tensor]] = [[] for _ in self._group]
        for number, (chunk, batch) in enumerate(self._batches(rows, chunks)):
            for at, (vectors, delta) in enumerate(self._encode_batch(batch, rows[chunk], number)):
                pieces[at].append(vectors)
                if delta is not None:
                    extras[at].append(delta)
            advance(len(chunk))
        back = torch.from_numpy(np.argsort(order, kind="stable"))
        whole = [torch.cat(piece)[back] for piece in pieces]
        facts = {"batch_size": self.batch_size, "sorted": self.view.modality == "text"}
        return whole, facts, [{"inputs_delta": torch.cat(extra)[back]} if extra else {} for extra in extras]

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
        layers = [layer for layer in self._layers if layer is not None]
        try:
            with torch.no_grad():
                return self._encoder.encode(batch, role=self.view.role, **({"layers": layers} if layers else {}))
        except EvalHarnessError:
            raise
        except (Exception, SystemExit) as error:
            if _is_out_of_memory(error):
                raise
            raise PluginError(
                f"encoder `{self._use.label}` raised on batch {number + 1} of data set `{self.view.source.dataset}`, split `{self.view.source.split}` ({_some(self._stamp.ids[rows])}): {type(error).__name__}: {error}"
            ) from error

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


def _failure(error: BaseException, use: EncoderUse, view: ViewPlan) -> str:
    if isinstance(error, EvalHarnessError):
        return str(error)
    return f"embedding `{view.source.dataset}` with `{use.label}` failed: {type(error).__name__}: {error}"


def _is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or (
        isinstance(error, RuntimeError) and "out of memory" in str(error).lower()
    )


__all__ = [
    "DEFAULT_BATCH",
    "ROWS_PER_SHARD",
    "Embedder",
    "Head",
    "IdentityChangedError",
    "PassSettings",
    "Progress",
    "ShardRunner",
    "build_encoder",
]
