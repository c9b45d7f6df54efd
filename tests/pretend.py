"""A pretended GPU: tensors that lie on the CPU and say that they lie on `cuda`, and refuse what a GPU would refuse.

Under :func:`pretended_gpu` every operation on a pretended tensor and one of the CPU raises, as do ``numpy()`` and ``np.asarray``;
only what goes through ``.cpu()`` comes back. It finds tensors made on the wrong device where no GPU is at hand; it says nothing of speed or rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._pytree import tree_leaves, tree_map

CUDA = torch.device("cuda", 0)
_HOST = {torch.Tensor.numpy, torch.Tensor.__array__}
# A GPU takes indices that lie on the CPU.
_INDEXED = {torch.Tensor.__getitem__, torch.Tensor.__setitem__, torch.Tensor.index_put_}
_DEVICE, _IS_CUDA = torch.Tensor.device.__get__, torch.Tensor.is_cuda.__get__
_MOVES = {torch.Tensor.to, torch.Tensor.cpu, torch.Tensor.cuda}


class Pretended(torch.Tensor):
    """A tensor that says it is on a GPU."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return _call(function, args, kwargs or {})


class _Factories(TorchFunctionMode):
    """Make what is asked for on the GPU a pretended tensor."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        return _call(function, args, kwargs or {})


def _device_asked(function, args, kwargs):
    """Return the device that a call names, or None."""
    given = [kwargs.get("device"), *(args[1:] if function in _MOVES else ())]
    found = [value for value in given if isinstance(value, (torch.device, str)) and value is not None]
    found += [value.device for value in given if isinstance(value, torch.Tensor)]
    return torch.device(found[0]) if found else None


def _pretend(value):
    return value.as_subclass(Pretended) if isinstance(value, torch.Tensor) and not isinstance(value, Pretended) else value


def _plain(value):
    return value.as_subclass(torch.Tensor) if isinstance(value, Pretended) else value


def _call(function, args, kwargs):
    leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    pretended = any(isinstance(leaf, Pretended) for leaf in leaves)
    asked = _device_asked(function, args, kwargs)
    with torch._C.DisableTorchFunction():
        if pretended and function == _DEVICE:
            return CUDA
        if pretended and function == _IS_CUDA:
            return True
        if pretended and function in _HOST:
            raise TypeError("can't convert cuda:0 device type tensor to numpy")
        if function is torch.Tensor.cpu or (function in _MOVES and asked is not None and asked.type == "cpu"):
            return _plain(function(*tree_map(_host_device, tree_map(_plain, args)), **tree_map(_host_device, kwargs)))
        on_gpu = (asked is not None and asked.type == "cuda") or function is torch.Tensor.cuda
        moved = function in _MOVES or function in (torch.as_tensor, torch.tensor)
        if pretended and not moved:
            _check_devices(function, args, leaves)
        if on_gpu and kwargs.get("generator") is not None:
            raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
        if asked is not None and asked.type == "cpu" and pretended and not moved:
            raise RuntimeError(f"{resolve_name(function)}: asked for the CPU with tensors of a GPU")
        if function is torch.Tensor.cuda:
            return _pretend(args[0].clone())
        result = function(*tree_map(_host_device, args), **tree_map(_host_device, kwargs))
    return tree_map(_pretend, result) if pretended or on_gpu else result


def _host_device(value):
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("cpu")
    return "cpu" if isinstance(value, str) and value.startswith("cuda") else value


def _check_devices(function, args, leaves):
    mixed = [leaf for leaf in leaves if not isinstance(leaf, Pretended) and leaf.ndim > 0]
    if function in _INDEXED and isinstance(args[0], Pretended):
        mixed = [leaf for leaf in mixed if leaf.dtype not in (torch.int64, torch.bool)]
    if mixed:
        raise RuntimeError(f"{resolve_name(function) or function}: expected all tensors to be on the same device, got cuda:0 and cpu")


@contextmanager
def pretended_gpu() -> Iterator[torch.device]:
    """Let tensors pretend to lie on a GPU, which is given."""
    with _Factories():
        yield CUDA
