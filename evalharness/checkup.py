"""Checks of a machine and of an encoder, as lines with a verdict."""

from __future__ import annotations

import importlib.util
import os
import platform
from collections.abc import Iterator
from pathlib import Path

from evalharness.errors import EvalHarnessError, StoreError
from evalharness.registry import Registry
from evalharness.store.files import cache_folder
from evalharness.store.results import check_writable

OPTIONAL = {"faiss": "cpu", "sentence_transformers": "text", "wordllama": "text", "timm": "image", "onnxruntime": "onnx", "ray": "ray"}


def check_machine(registry: Registry) -> Iterator[tuple[str, bool]]:
    """Yield what works here: Python, torch and its devices, optional packages, folders, plugins."""
    import torch

    devices = [f"cuda:{at} ({torch.cuda.get_device_name(at)})" for at in range(torch.cuda.device_count())]
    yield (
        f"Python {platform.python_version()}, torch {torch.__version__}, {torch.get_num_threads()} threads, devices: {', '.join(['cpu', *devices])}",
        True,
    )
    for module, extra in OPTIONAL.items():
        there = importlib.util.find_spec(module) is not None
        yield (f"{module}: installed" if there else f"{module}: not installed (optional, extra `{extra}`)"), True
    try:
        check_writable(cache_folder())
        yield f"cache {cache_folder()}: writable", True
    except StoreError as error:
        yield str(error), False
    mirror = os.environ.get("EVALHARNESS_MIRROR")
    if mirror:
        yield f"mirror {mirror}: {'a folder' if Path(mirror).is_dir() else 'no such folder'}", Path(mirror).is_dir()
    for name, plugin in sorted(registry.plugins.items()):
        if plugin.error:
            yield f"plugin {name} ({plugin.origin}) is broken: {plugin.error}", False
    yield f"{len(registry.plugins)} plugins", True


def examine_encoder(registry: Registry, text: str, device: str) -> Iterator[tuple[str, bool]]:
    """Yield the checks of one encoder: it builds, its vectors are finite, and depend on neither batch size nor order."""
    from evalharness.planner import modalities_of
    from evalharness.session import choose_device
    from evalharness.stamp import use_encoder
    from evalharness.testing import encoder_deviations

    try:
        use = use_encoder(registry, text)
        spec = registry.get("encoder", use.reference)
        yield f"identity {use.identity.kind} {use.identity.digest[:16]}", use.identity.kind != "none"
        if spec.precomputed:
            yield "precomputed vectors, nothing to encode", True
            return
        modality = modalities_of(spec, use)[0]
        found = encoder_deviations(registry, use, modality, choose_device(device))
    except EvalHarnessError as error:
        yield str(error), False
        return
    yield f"dimension {found.dim}, {found.rows} {modality} items", True
    yield f"batch size 1 against {found.rows}: largest deviation {found.batch:.2g} of the row norm (at most 1e-5)", found.batch <= 1e-5
    yield f"reversed order: largest deviation {found.order:.2g} of the row norm (at most 1e-5)", found.order <= 1e-5
    yield f"encoding again: largest deviation {found.again:.2g} (must be 0)", found.again == 0
