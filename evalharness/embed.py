"""Make sure that views exist: each missing one is embedded in one pass, shard by shard, and stored with what the pass cost."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from evalharness.costs import Facts, Meter, pass_cost
from evalharness.errors import EvalHarnessError, StoreError
from evalharness.keys import digest_bytes, plain
from evalharness.passes import DEFAULT_BATCH, Head, PassSettings, ShardRunner, build_encoder, build_meter
from evalharness.plan import ViewPlan
from evalharness.registry import Registry
from evalharness.stamp import EncoderUse, Sources
from evalharness.store.files import append_line, cache_folder
from evalharness.store.views import MemoryViews, StoredView, ViewCache
from evalharness.types import Array, Encoder, Identity

LOG = logging.getLogger(__name__)
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
        self._meter: Meter | None = None  # of the built encoder
        self._open: dict[str, StoredView] = {}
        self.failed: dict[str, str] = {}
        self.rows_embedded = 0
        self.costs: dict[tuple[str, str], dict[str, Any]] = {}  # by encoder label and view, of clean views used, embedded or found

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
        self._built = self._meter = None
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
        for view in views:
            self._note_cost(view, use)

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
            cost = self._fill(group, writers, rows, missing, use, present, head) if missing else None
            facts = {"batch_size": self._settings.batch_size or DEFAULT_BATCH.get(first.modality, 128), "device": self._settings.device}
            for writer in writers:
                writer.finish(facts if cost is None else {**facts, "cost": cost})

    def _fill(
        self,
        group: list[ViewPlan],
        writers: list[Any],
        rows: Array,
        missing: list[int],
        use: EncoderUse,
        present: list[ViewPlan],
        head: Head | None,
    ) -> Facts | None:
        """Write the missing shards; return what that cost, None where the inputs are changed: the cost of shifts is not the encoder's."""
        if self._parallel(group[0], use):
            from evalharness.devices import embed_shards

            count, parts = embed_shards(group, rows, missing, use, self._settings, self._progress)
            self.rows_embedded += count
            return pass_cost(parts, rows=count, workers=min(len(self._settings.devices), len(missing))) if parts else None
        encoder = self.encoder(use)
        self._check_probe(encoder, use, present)
        meter = self._meter if group[0].shift is None else None
        runner = ShardRunner(self._registry, self._sources, encoder, use, group, self._settings, head, meter)
        return self._run_shards(runner, writers, rows, missing)

    def _parallel(self, view: ViewPlan, use: EncoderUse) -> bool:
        return len(self._settings.devices) > 1 and view.attacked is None and view.cached and use.label not in self._settings.live

    def _run_shards(self, runner: ShardRunner, writers: list[Any], rows: Array, missing: list[int]) -> Facts | None:
        bounds = writers[0].bounds
        count, started = sum(bounds[shard][1] - bounds[shard][0] for shard in missing), time.monotonic()
        self._progress.start(runner.title, count)
        runner.begin()
        try:
            for shard in missing:
                start, stop = bounds[shard]
                results, facts, extras = runner.run(rows[start:stop], self._progress.advance)
                for writer, vectors, extra in zip(writers, results, extras, strict=True):
                    writer.write_shard(shard, vectors, facts, extra)
                self.rows_embedded += stop - start
            if runner.view.cached:
                note_throughput(runner.view.encoder, count, time.monotonic() - started, int(results[0].shape[1]))
            measured = runner.measured()
            return None if measured is None else pass_cost([measured], rows=count)
        finally:
            self._progress.stop()

    def encoder(self, use: EncoderUse) -> Encoder:
        """Return the built encoder, building it when another one was held."""
        if self._built is None or self._built[0] != use.label:
            self._built = self._meter = None
            encoder = self._settings.live.get(use.label) or build_encoder(self._registry, use, self._settings)
            self._meter = build_meter(self._registry, use, self._settings, encoder)
            self._built = use.label, encoder
        return self._built[1]

    def _note_cost(self, view: ViewPlan, use: EncoderUse) -> None:
        """Keep the line about a clean view; views of older versions have no cost."""
        stored = self.find(view) if view.shift is None and view.family not in self.failed else None
        if stored is None or not stored.facts.get("cost"):
            return
        about = {
            "encoder": use.label,
            "encoder_identity": f"{use.identity.kind}:{use.identity.digest}",
            "layer": view.layer,
            "dataset": view.source.dataset,
            "dataset_params": plain(view.source.params),
            "split": view.source.split,
            "part": view.part,
            "modality": view.modality,
            "image_size": view.image_size,
            "dim": stored.dim,
            "bytes_per_vector": stored.bytes_per_vector,
        }
        self.costs[use.label, view.family] = about | dict(stored.facts["cost"])

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


def _failure(error: BaseException, use: EncoderUse, view: ViewPlan) -> str:
    if isinstance(error, EvalHarnessError):
        return str(error)
    return f"embedding `{view.source.dataset}` with `{use.label}` failed: {type(error).__name__}: {error}"


__all__ = [
    "Embedder",
    "Head",
    "IdentityChangedError",
    "PassSettings",
    "Progress",
    "build_encoder",
]
