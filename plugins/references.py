"""References to encoders in code: ``torch:package.module:callable`` and ``python:FILE.py:callable``.

The callable takes no argument (or ``device`` and ``dtype``) and gives anything that ``as_encoder`` takes.
Its modality is the parameter ``modality`` of the reference: ``-e 'python:my.py:make?modality=text'``.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from evalharness import Encoder, EncoderSpec, Identity, Spec, as_encoder, hookimpl, identify_live
from evalharness.errors import UnknownNameError, UsageError, unknown_name


def _load_file(path: Path) -> Any:
    if not path.is_file():
        raise UsageError(f"`python:` names `{path}`, which is no file")
    spec = importlib.util.spec_from_file_location(f"evalharness_reference_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"`{path}` cannot be loaded as Python")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _find(reference: str) -> Callable[..., Any]:
    kind, _, rest = reference.partition(":")
    where, _, name = rest.rpartition(":")
    module = _load_file(Path(where)) if kind == "python" else importlib.import_module(where)
    if not hasattr(module, name):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise UnknownNameError(f"`{reference}`: {unknown_name('callable', name, known)}")
    return getattr(module, name)


def _make(reference: str, device: Any, dtype: Any = None) -> Any:
    make = _find(reference)
    accepted = inspect.signature(make).parameters if not inspect.isclass(make) else {}
    options = {name: value for name, value in (("device", device), ("dtype", dtype)) if name in accepted}
    model = make(**options)
    return model.to(device) if hasattr(model, "to") and "device" not in options else model


def _source(reference: str) -> Path:
    kind, _, rest = reference.partition(":")
    where, _, _ = rest.rpartition(":")
    if kind == "python":
        return Path(where)
    spec = importlib.util.find_spec(where)
    if spec is None or spec.origin is None:
        raise UsageError(f"module `{where}` of encoder `{reference}` cannot be found")
    return Path(spec.origin)


@hookimpl
def evalharness_resolve(kind: str, reference: str) -> Spec | None:
    """Make the spec of a callable in a module or file."""
    if kind != "encoder" or not reference.startswith(("torch:", "python:")) or reference.count(":") < 2:
        return None

    def build(*, device: Any, dtype: Any, modality: str) -> Encoder:
        del modality
        return as_encoder(_make(reference, device, dtype), device=device)

    def identity(*, modality: str) -> Identity:
        """Build the object and look: weights that its code loads are part of what it is."""
        path = _source(reference)
        if not path.is_file():
            raise UsageError(f"encoder `{reference}`: `{path}` is no file")
        source = hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()
        live = identify_live(_make(reference, "cpu"), modality)
        return Identity(kind="source" if live.kind == "none" else live.kind, digest=f"{source}-{live.digest}")

    return EncoderSpec(
        name=reference,
        summary=f"Callable {reference.partition(':')[2]}",
        params={"modality": "image"},
        modalities=(),
        build=build,
        differentiable=True,
        identity=identity,
    )
