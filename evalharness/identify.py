"""What a live object is: its parameters and buffers, its code and settings, and what it makes of a probe batch."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from evalharness.errors import UsageError
from evalharness.keys import digest
from evalharness.types import Identity

if TYPE_CHECKING:
    import torch


def identify_live(model: Any, modality: str | None = None) -> Identity:
    """Return the identity of a live object.

    A torch module: all parameters and buffers, hashed where they lie, its text, the source of its classes, and the plain settings of its parts.
    Where a ``modality`` is given and a made-up batch of it can be encoded, the vectors count too: code that is reached in no other way.
    Anything else has the identity of what it makes of that batch, kind ``probe``, or ``none``.

    Raises:
        UsageError: a lazy module has no values yet.
    """
    import torch

    if not isinstance(model, torch.nn.Module):
        probe = None if modality is None else _probe(model, modality)
        return Identity(kind="none", digest="live") if probe is None else Identity(kind="probe", digest=probe)
    tensors = [*model.named_parameters(), *model.named_buffers()]
    lazy = [name for name, tensor in tensors if torch.nn.parameter.is_lazy(tensor)]
    if lazy:
        raise UsageError(f"parameter `{lazy[0]}` of the module has no values yet; run one batch through it first")
    probe = None if modality is None else _probe(model, modality)
    parts = [[name, str(tensor.dtype), list(tensor.shape), hash_tensor(tensor)] for name, tensor in tensors]
    return Identity(kind="weights", digest=digest([parts, repr(model), _sources(model), _settings(model), probe]))


def _sources(model: torch.nn.Module) -> list[str]:
    """Return the source of every class among the parts that is not torch's own."""
    found = {}
    for part in model.modules():
        kind = type(part)
        if not kind.__module__.startswith("torch.") and kind not in found:
            try:
                found[kind] = inspect.getsource(kind)
            except (OSError, TypeError):
                found[kind] = f"{kind.__module__}.{kind.__qualname__}"
    return sorted(found.values())


def _settings(model: torch.nn.Module) -> list[Any]:
    """Return the plain attributes of every part, but for the training flag, which evaluation sets itself."""
    plain = (str, int, float, bool)
    return [
        [
            name,
            {
                key: str(value)
                for key, value in sorted(vars(part).items())
                if isinstance(value, plain) and key != "training" and key[0] != "_"
            },
        ]
        for name, part in model.named_modules()
    ]


def _probe(model: Any, modality: str) -> str | None:
    """Return a digest of the vectors of a made-up batch, None where the model cannot take it."""
    import torch

    from evalharness.adapters import as_encoder
    from evalharness.probes import sample_batch

    try:
        with torch.no_grad():
            vectors = as_encoder(model).encode(sample_batch(modality, 4), role="document")
        assert isinstance(vectors, torch.Tensor)
        return f"{hash_tensor(vectors.detach().to(torch.float32)):x}"
    except Exception:  # noqa: BLE001 (a model may refuse any batch that is not its own)
        return None


def hash_tensor(tensor: torch.Tensor) -> int:
    """Return a 64-bit hash of a tensor's bytes, computed on its device by a position-dependent mix and a wrapping sum."""
    import torch

    raw = tensor.detach().contiguous().flatten().view(torch.uint8)
    short = -len(raw) % 8
    if short:
        raw = torch.cat([raw, raw.new_zeros(short)])
    total = 0
    for start in range(0, len(raw), 1 << 26):
        words = raw[start : start + (1 << 26)].view(torch.int64)
        at = torch.arange(start // 8, start // 8 + len(words), device=words.device)
        mixed = (words ^ (at * -7046029254386353131)) * -4658895280553007687
        mixed = (mixed ^ (mixed >> 29)) * -7723592293110705685
        total += int((mixed ^ (mixed >> 32)).sum())
    return total % 2**63
