"""Gauges of what an encoder costs: its parameters, its floating-point operations, the memory at its peak.

Importing this imports no torch; nothing here knows of passes or files.
"""

from __future__ import annotations

import contextlib
import random
import sys
import types
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evalharness.randomness import kept_random_states
from evalharness.types import AudioBatch, Batch

if TYPE_CHECKING:
    import torch

SAMPLE_ITEMS = 2
MOST_OBJECTS = 2000  # looked at in search of weights
MOST_ENTRIES = 256  # of a container that is looked into; vocabularies are larger
DEPTH = 3
PARAMETERS = ("parameters", "parameters_trainable", "parameters_embedding")
_PLAIN = (str, bytes, int, float, complex, type(None), type, types.ModuleType)

Facts = dict[str, Any]
Reasons = dict[str, str]


# --- weights --------------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Weights:
    """Hold what was found behind an encoder: torch modules, bare arrays or tensors, and the objects passed on the way."""

    modules: list[torch.nn.Module] = field(default_factory=list)
    arrays: list[Any] = field(default_factory=list)
    owners: list[Any] = field(default_factory=list)

    @property
    def computes_in_torch(self) -> bool:
        """Say whether there is a module or a tensor whose products could be counted."""
        return bool(self.modules) or any(not isinstance(array, np.ndarray) for array in self.arrays)


def find_weights(encoder: Any) -> Weights:
    """Look for modules and arrays in an encoder, its attributes, and what its functions close over, three objects deep."""
    import torch

    found = Weights()
    queue: deque[tuple[Any, int]] = deque([(encoder, 0), (getattr(encoder, "encode", None), 0)])
    seen: dict[int, Any] = {}  # holds the objects, so that no number is given twice
    while queue and len(seen) < MOST_OBJECTS:
        thing, depth = queue.popleft()
        if isinstance(thing, _PLAIN) or id(thing) in seen:
            continue
        seen[id(thing)] = thing
        if isinstance(thing, torch.nn.Module):
            found.modules.append(thing)
        elif isinstance(thing, (torch.Tensor, np.ndarray)):
            found.arrays.append(thing)
        else:
            parts, step = _parts(thing)
            if hasattr(thing, "__dict__"):
                found.owners.append(thing)
            if depth + step <= DEPTH:
                queue.extend((part, depth + step) for part in parts)
    return found


def _parts(thing: Any) -> tuple[list[Any], int]:
    """Return what a thing holds, and whether that lies one object deeper; containers and bound methods are looked through."""
    if isinstance(thing, (list, tuple, set, frozenset)):
        return (list(thing) if len(thing) <= MOST_ENTRIES else []), 0
    if isinstance(thing, Mapping):
        return (list(thing.values()) if len(thing) <= MOST_ENTRIES else []), 0
    if isinstance(thing, partial):
        return [thing.func, thing.args, thing.keywords], 0
    if isinstance(thing, types.MethodType):
        return [thing.__self__, thing.__func__], 0
    if isinstance(thing, types.FunctionType):
        return _captured(thing), 1
    return list(getattr(thing, "__dict__", {}).values()), 1


def _captured(function: types.FunctionType) -> list[Any]:
    """Return what a function closes over, its defaults, and the objects among the globals that it reads: no functions, no data."""
    import dis

    import torch

    data = (types.FunctionType, Mapping, torch.Tensor)
    captured = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # a cell that is still empty
            captured.append(cell.cell_contents)
    read = {step.argval for step in dis.get_instructions(function) if step.opname == "LOAD_GLOBAL"}
    known = [function.__globals__[name] for name in sorted(read) if name in function.__globals__]
    return [*captured, *(value for value in known if not isinstance(value, data) and hasattr(value, "__dict__"))]


def measure_parameters(weights: Weights) -> tuple[Facts, Reasons]:
    """Count parameters: all, those that can be trained, those of embedding tables; what shares storage counts once.

    Without a module, floating matrices that the encoder holds count as its parameters.
    """
    if weights.modules:
        return _module_parameters(weights.modules), {}
    matrices = [array for array in weights.arrays if array.ndim > 1 and _is_floating(array)]
    if not matrices:
        return unknown_parameters("neither a torch module nor arrays of weights were found behind the encoder")
    in_torch = all(not isinstance(array, np.ndarray) for array in matrices)
    facts: Facts = {
        "parameters": _count_once(matrices),
        "parameters_trainable": _count_once([array for array in matrices if array.requires_grad]) if in_torch else None,
        "parameters_embedding": None,
    }
    reasons = {"parameters_embedding": "the weights are bare arrays, whose use is not known"}
    return facts, reasons if in_torch else reasons | {"parameters_trainable": "the weights are numpy arrays, which torch cannot train"}


def _module_parameters(modules: Sequence[torch.nn.Module]) -> Facts:
    import torch

    every = [parameter for module in modules for parameter in module.parameters()]
    tables = [
        part.weight for module in modules for part in module.modules() if isinstance(part, (torch.nn.Embedding, torch.nn.EmbeddingBag))
    ]
    counts = _count_once(every), _count_once([each for each in every if each.requires_grad]), _count_once(tables)
    return dict(zip(PARAMETERS, counts, strict=True))


def unknown_parameters(reason: str) -> tuple[Facts, Reasons]:
    """Return no count of parameters, and why."""
    return dict.fromkeys(PARAMETERS), dict.fromkeys(PARAMETERS, reason)


def _is_floating(array: Any) -> bool:
    return array.dtype.kind == "f" if isinstance(array, np.ndarray) else array.is_floating_point()


def _count_once(arrays: Sequence[Any]) -> int:
    """Count numbers; arrays at one place in memory are one."""
    sizes = {_place(array): array.size if isinstance(array, np.ndarray) else array.numel() for array in arrays}
    return int(sum(sizes.values()))


def _place(array: Any) -> tuple[Any, ...]:
    if isinstance(array, np.ndarray):
        return array.__array_interface__["data"][0], array.size
    start = array.untyped_storage().data_ptr()
    return (str(array.device), start, array.storage_offset(), array.numel()) if start else (id(array),)


# --- floating-point operations --------------------------------------------------------------------------------------


def measure_flops(encode: Callable[[Batch], Any], batch: Batch) -> int:
    """Count the floating-point operations of encoding a batch once; a multiplication with its addition is two.

    Matrix products, convolutions and attention count, on kernels that the counter can see into; biases and element-wise operations do not.
    0 says that nothing was counted.

    Source: the formulas of ``torch.utils.flop_counter``, METRICS 16.
    """
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    counter = _operation_counter()
    with warnings.catch_warnings(), torch.no_grad(), sdpa_kernel(SDPBackend.MATH), _plain_kernels():
        warnings.simplefilter("ignore")
        with counter:
            encode(batch)
    return int(counter.total)


def _operation_counter() -> Any:
    """Return a mode that adds up operations; torch's own imports its compiler for this (2.13), which takes a second and 100 MB."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import flop_registry

    class Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
        total = 0

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            del types
            kwargs = kwargs or {}
            formula = flop_registry.get(func.overloadpacket)
            if formula is None and func is not torch.ops.prim.device.default:
                with self:
                    parts = func.decompose(*args, **kwargs)
                if parts is not NotImplemented:
                    return parts
            result = func(*args, **kwargs)
            if formula is not None:
                self.total += formula(*args, **kwargs, out_val=result)
            return result

    return Counter()  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def _plain_kernels() -> Iterator[None]:
    """Switch off fused recurrent and transformer kernels, which count as nothing."""
    import torch

    fast = torch.backends.mha.get_fastpath_enabled()
    with _switched_off(torch.backends.mkldnn), _switched_off(torch.backends.cudnn):
        torch.backends.mha.set_fastpath_enabled(value=False)
        try:
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)


@contextlib.contextmanager
def _switched_off(backend: Any) -> Iterator[None]:
    before = backend.enabled
    backend.enabled = False
    try:
        yield
    finally:
        backend.enabled = before


def count_items(batch: Batch) -> int:
    """Return the number of items in a batch."""
    return len(batch.lengths if isinstance(batch, AudioBatch) else batch)


def take_items(batch: Batch) -> Batch:
    """Return a copy of the middle items of a batch: a tensor, a list, or an :class:`AudioBatch`, padding kept."""
    if isinstance(batch, AudioBatch):
        return AudioBatch(waveforms=take_items(batch.waveforms), lengths=take_items(batch.lengths), sample_rate=batch.sample_rate)
    start = max(0, (len(batch) - SAMPLE_ITEMS) // 2)
    part = batch[start : start + SAMPLE_ITEMS]
    return part.clone() if hasattr(part, "clone") else part


@contextlib.contextmanager
def leaving_no_trace(weights: Weights) -> Iterator[None]:
    """Keep random states, buffers and attributes of an encoder as they are, so that one more call of it changes nothing later."""
    import torch

    owners = [*weights.owners, *(part for module in weights.modules for part in module.modules())]
    attributes = [(vars(owner), dict(vars(owner))) for owner in owners]
    sources = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
    draws = [_save_state(value) for _, saved in attributes for value in saved.values() if isinstance(value, sources)]
    buffers = [_save_buffer(each) for module in weights.modules for each in module.buffers() if not each.is_inference()]
    try:
        with kept_random_states(cuda=torch.cuda.is_initialized()):  # type: ignore[no-untyped-call]
            yield
    finally:
        for restore in [*draws, *buffers]:
            restore()
        for now, before in attributes:
            _put_back(now, before)


def _save_buffer(buffer: torch.Tensor) -> Callable[[], None]:
    import torch

    saved = buffer.clone()

    def restore() -> None:
        with torch.no_grad():
            if not torch.equal(buffer, saved):  # a needless write would spoil a graph that the caller holds
                buffer.copy_(saved)

    return restore


def _save_state(source: Any) -> Callable[[], Any]:
    """Return what restores a source of randomness."""
    if isinstance(source, np.random.Generator):
        return partial(setattr, source.bit_generator, "state", source.bit_generator.state)
    if isinstance(source, random.Random):
        return partial(source.setstate, source.getstate())
    return partial(source.set_state, source.get_state())


def _put_back(now: dict[str, Any], before: Mapping[str, Any]) -> None:
    for name in now.keys() - before.keys():
        del now[name]
    for name, value in before.items():
        if now.get(name, now) is not value:
            now[name] = value


# --- memory ---------------------------------------------------------------------------------------------------------


class PeakMemory:
    """Measure the peak between ``start`` and ``read``: memory allocated on a CUDA device, else resident memory of this process on Linux.

    Without ``reset`` the counter is left alone, as inside a caller's own program, and a peak is known only where it rose.
    """

    def __init__(self, device: torch.device, *, reset: bool = True) -> None:
        self._device = device
        self._reset = reset
        self._before: int | None = None
        self._fault: str | None = "was not started"
        self.kind = "cuda-allocated" if device.type == "cuda" else "process-resident" if device.type == "cpu" else None

    def start(self) -> None:
        """Begin; a fault is kept for ``read``."""
        try:
            if self._reset:
                self._clear()
            self._before, self._fault = self._peak(), None
        except Exception as error:  # noqa: BLE001 (measuring is never fatal)
            self._fault = error_text(error)

    def read(self) -> tuple[int | None, str | None]:
        """Return the peak in bytes, or None and the reason."""
        if self._fault is not None:
            return None, self._fault
        try:
            peak = self._peak()
        except Exception as error:  # noqa: BLE001 (measuring is never fatal)
            return None, error_text(error)
        if not self._reset and peak <= (self._before or 0):
            return None, "the program had a higher peak before, which is not reset"
        return peak, None

    def _clear(self) -> None:
        if self.kind == "cuda-allocated":
            import torch

            torch.cuda.reset_peak_memory_stats(self._device)
        elif self.kind == "process-resident":
            Path("/proc/self/clear_refs").write_text("5")
            peak, now = (_status(name) for name in ("VmHWM", "VmRSS"))
            if peak > 1.1 * now + (1 << 24):
                raise OSError("this system does not reset the peak of a process")

    def _peak(self) -> int:
        if self.kind == "cuda-allocated":
            import torch

            return int(torch.cuda.max_memory_allocated(self._device))
        if self.kind is None:
            raise OSError(f"devices of type `{self._device.type}` keep no peak")
        return _status("VmHWM")


def _status(name: str) -> int:
    """Return a size in ``/proc/self/status``, bytes."""
    if sys.platform != "linux":
        raise OSError(f"a process's peak memory cannot be reset on {sys.platform}")
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def error_text(error: BaseException) -> str:
    """Return an error as a reason: one line, not too long."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
