"""Share the shards of one view between several local devices, a process each."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from evalharness.plan import ViewPlan
from evalharness.stamp import EncoderUse
from evalharness.types import Array

if TYPE_CHECKING:
    from evalharness.embed import PassSettings, Progress

_state: dict[str, Any] = {}


def embed_shards(
    group: list[ViewPlan], rows: Array, missing: Sequence[int], use: EncoderUse, settings: PassSettings, progress: Progress
) -> int:
    """Embed the missing shards of a group of views on all devices; each worker writes its own shards.

    Returns:
        The number of rows embedded.

    Raises:
        EvalHarnessError: whatever a worker raised, unchanged.
    """
    context = multiprocessing.get_context("spawn")
    pools = [
        ProcessPoolExecutor(
            1, context, initializer=_prepare, initargs=(replace(settings, device=device, devices=()), use, len(settings.devices))
        )
        for device in settings.devices
    ]
    progress.start(f"{use.label}: {group[0].source.dataset} {group[0].source.split} on {len(pools)} devices", len(missing))
    try:
        futures = [pools[at % len(pools)].submit(_embed_shard, group, rows, shard) for at, shard in enumerate(missing)]
        count = 0
        for future in as_completed(futures):
            count += future.result()
            progress.advance(1)
        return count
    finally:
        for pool in pools:
            pool.shutdown(cancel_futures=True)
        progress.stop()


def _prepare(settings: PassSettings, use: EncoderUse, workers: int) -> None:
    """Build a registry and the encoder of this worker; the plan brings strings and numbers only."""
    import torch

    from evalharness.embed import build_encoder
    from evalharness.registry import load_registry
    from evalharness.stamp import Sources

    if settings.device == "cpu":
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))
    registry = load_registry(settings.plugins)
    _state.update(registry=registry, sources=Sources(registry), use=use, settings=settings, encoder=build_encoder(registry, use, settings))


def _embed_shard(group: list[ViewPlan], rows: Array, shard: int) -> int:
    from evalharness.embed import ShardRunner
    from evalharness.store.views import ViewCache

    cache = ViewCache()
    writers = [cache.writer(view.family, rows, {}) for view in group]
    start, stop = writers[0].bounds[shard]
    runner = ShardRunner(_state["registry"], _state["sources"], _state["encoder"], _state["use"], group, _state["settings"], None)
    results, facts, extras = runner.run(rows[start:stop], lambda _: None)
    for writer, vectors, extra in zip(writers, results, extras, strict=True):
        writer.write_shard(shard, vectors, facts, extra)
    return stop - start
