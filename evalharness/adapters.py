"""Make an encoder of what a user has: a torch module, a callable, an object with ``.encode(list[str])``, or an ``.npz`` of vectors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalharness.errors import UsageError
from evalharness.types import AudioBatch, Batch, Encoder

if TYPE_CHECKING:
    import torch


def as_encoder(model: Any, *, device: Any = "cpu") -> Encoder:
    """Return an encoder that wraps a model.

    Args:
        model: an encoder already; a ``torch.nn.Module`` or callable from a batch to (B, D);
            an object whose ``encode`` takes a list of texts, as SentenceTransformer's does;
            or the path of an ``.npz`` with ``ids`` and ``vectors``, whose ``lookup`` gives vectors by id.
        device: where tensors are sent for a module.

    Raises:
        UsageError: the model is none of these.
    """
    import torch

    if isinstance(model, (str, Path)) and str(model).endswith(".npz"):
        from evalharness.registry import load_registry

        return load_registry().get("encoder", f"npz:{model}").build(device=device, dtype=torch.float32)
    if isinstance(model, torch.nn.Module) and not _speaks(model):
        return ModuleEncoder(model) if not callable(getattr(model, "encode", None)) else TextEncoder(model, device)
    if _speaks(model):
        return model
    if callable(getattr(model, "encode", None)):
        return TextEncoder(model, device)
    if callable(model):
        return CallableEncoder(model)
    raise UsageError(f"expected a torch module, a callable or an object with `encode`, got {type(model).__name__}")


def _speaks(model: Any) -> bool:
    """Say whether a model has the harness' own ``encode``, which takes a role."""
    encode = getattr(model, "encode", None)
    if not callable(encode):
        return False
    try:
        parameters = inspect.signature(encode).parameters
    except (TypeError, ValueError):
        return False
    return "role" in parameters and "layers" in parameters


def _tensor(result: Any) -> torch.Tensor:
    """Find the vectors in what a model gave: a tensor, an array, or a model output with pooled vectors."""
    import numpy as np
    import torch

    for name in ("pooler_output", "embeddings", "last_hidden_state"):
        if getattr(result, name, None) is not None and not isinstance(result, torch.Tensor):
            result = getattr(result, name)
            break
    if isinstance(result, (tuple, list)) and result and isinstance(result[0], torch.Tensor) and result[0].ndim > 1:
        result = result[0]
    if isinstance(result, np.ndarray):
        return torch.from_numpy(np.ascontiguousarray(result))
    return result if isinstance(result, torch.Tensor) else torch.as_tensor(np.asarray(result))


class CallableEncoder:
    """Call a function on every batch."""

    dim = 0

    def __init__(self, function: Callable[[Batch], Any]) -> None:
        self._function = function

    def encode(self, batch: Batch, *, role: str = "document", layers: Sequence[str] | None = None) -> torch.Tensor:
        """Embed one batch."""
        del role, layers
        vectors = _tensor(self._function(batch))
        self.dim = int(vectors.shape[-1])
        return vectors


class ModuleEncoder:
    """Run a torch module in evaluation mode on its own device, and leave it as it was found."""

    dim = 0

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module

    def encode(self, batch: Batch, *, role: str = "document", layers: Sequence[str] | None = None) -> torch.Tensor:
        """Embed one batch."""
        del role, layers
        device = next((value.device for value in self.module.parameters()), None)
        with evaluating(self.module):
            vectors = _tensor(self.module(_move(batch, device)))
        self.dim = int(vectors.shape[-1])
        return vectors


class TextEncoder:
    """Call ``encode(list of texts)`` of a sentence encoder."""

    dim = 0

    def __init__(self, model: Any, device: Any) -> None:
        self._model = model
        self._device = device
        self._options = self._silence()

    def _silence(self) -> dict[str, Any]:
        try:
            parameters = inspect.signature(self._model.encode).parameters
        except (TypeError, ValueError):
            return {}
        return {"show_progress_bar": False} if "show_progress_bar" in parameters else {}

    def encode(self, batch: Batch, *, role: str = "document", layers: Sequence[str] | None = None) -> torch.Tensor:
        """Embed texts."""
        del role, layers
        vectors = _tensor(self._model.encode(list(batch), **self._options)).to(self._device)
        self.dim = int(vectors.shape[-1])
        return vectors


def _move(batch: Batch, device: Any) -> Batch:
    import torch

    if device is None:
        return batch
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, AudioBatch):
        return AudioBatch(waveforms=batch.waveforms.to(device), lengths=batch.lengths.to(device), sample_rate=batch.sample_rate)
    return batch


@contextmanager
def evaluating(module: torch.nn.Module) -> Iterator[None]:
    """Switch a module and its children to evaluation mode, and restore each one's own flag."""
    flags = [(each, each.training) for each in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for each, training in flags:
            each.training = training
