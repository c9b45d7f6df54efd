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
    from evalharness.costs import Measured
    from evalharness.embed import PassSettings, Progress

_state: dict[str, Any] = {}


def embed_shards(
    group: list[ViewPlan], rows: Array, missing: Sequence[int], use: EncoderUse, settings: PassSettings, progress: Progress
) -> tuple[int, list[Measured]]:
    """Embed the missing shards of a group of views on all devices; each worker writes its own shards.

    Returns:
        The number of rows embedded, and what was measured shard by shard, nothing where the inputs are changed.

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
        for future in as_completed(futures):
            future.result()
            progress.advance(1)
        done = [future.result() for future in futures]
        return sum(count for count, _ in done), [measured for _, measured in done if measured is not None]
    finally:
        for pool in pools:
            pool.shutdown(cancel_futures=True)
        progress.stop()


def _prepare(settings: PassSettings, use: EncoderUse, workers: int) -> None:
    """Build a registry and the encoder of this worker; the plan brings strings and numbers only."""
    import torch

    from evalharness.passes import build_encoder, build_meter
    from evalharness.registry import load_registry
    from evalharness.stamp import Sources

    if settings.device == "cpu":
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))
    registry = load_registry(settings.plugins)
    encoder = build_encoder(registry, use, settings)
    meter = build_meter(registry, use, settings, encoder)
    _state.update(registry=registry, sources=Sources(registry), use=use, settings=settings, encoder=encoder, meter=meter)


def _embed_shard(group: list[ViewPlan], rows: Array, shard: int) -> tuple[int, Measured | None]:
    from evalharness.passes import ShardRunner
    from evalharness.store.views import ViewCache

    cache = ViewCache()
    writers = [cache.writer(view.family, rows, {}) for view in group]
    start, stop = writers[0].bounds[shard]
    meter = _state["meter"] if group[0].shift is None else None
    runner = ShardRunner(_state["registry"], _state["sources"], _state["encoder"], _state["use"], group, _state["settings"], None, meter)
    runner.begin()
    results, facts, extras = runner.run(rows[start:stop], lambda _: None)
    for writer, vectors, extra in zip(writers, results, extras, strict=True):
        writer.write_shard(shard, vectors, facts, extra)
    return stop - start, runner.measured()
