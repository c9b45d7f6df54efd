"""Conversions at the border: arrays or tensors in, the same kind out; half precision and integers are raised to float32."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from evalharness.errors import VectorsError

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_NAMED = 10
_LARGEST, _SMALLEST = 1e17, 1e-17


def as_tensor(values: Any, device: torch.device | None = None) -> torch.Tensor:
    """Return ``values`` as a tensor without a gradient, sharing memory where it can; read-only arrays are copied.

    Raises:
        VectorsError: they are no real numbers, or rows are of unequal length.
    """
    if isinstance(values, torch.Tensor):
        if values.is_complex():
            raise VectorsError(f"expected real numbers, got a tensor of {values.dtype} of shape {tuple(values.shape)}")
        return values.detach() if device is None else values.detach().to(device)
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise VectorsError(f"expected rows of equal length, got {type(values).__name__}: {error}") from error
    if array.dtype.kind not in "biuf":
        raise VectorsError(f"expected real numbers, got an array of {array.dtype} of shape {array.shape}")
    if array.dtype.itemsize > 8:  # an extended precision that torch does not know
        array = array.astype(np.float64)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    return torch.from_numpy(array).to(device)


def as_kind(result: torch.Tensor, like: Any) -> Any:
    """Return ``result`` as a tensor where ``like`` is one, else as an array (a numpy scalar without dimensions)."""
    return result if isinstance(like, torch.Tensor) else result.cpu().numpy()[()]


def as_float(values: torch.Tensor) -> torch.Tensor:
    """Return float32 or float64; what has less than float32 precision is raised."""
    return values if values.dtype in (torch.float32, torch.float64) else values.to(torch.float32)


def name_rows(rows: torch.Tensor, ids: Sequence[Any] | np.ndarray | None, offset: int = 0) -> str:
    """Word a list of row positions, or of their ids, cut after ten."""
    at = rows[:MAX_NAMED].tolist()
    named = ", ".join(str(position + offset if ids is None else ids[position]) for position in at)
    more = f" and {len(rows) - MAX_NAMED} more" if len(rows) > MAX_NAMED else ""
    return f"{'row' if ids is None else 'id'}{'s' if len(rows) > 1 else ''} {named}{more}"


def require_matrix(vectors: torch.Tensor, what: str) -> None:
    """Refuse what is not (N, D).

    Raises:
        VectorsError: it has another number of dimensions, or none in D.
    """
    if vectors.ndim != 2 or vectors.shape[1] == 0:
        raise VectorsError(f"`{what}` must have shape (rows, dimensions), got {tuple(vectors.shape)}")


def require_finite(
    vectors: torch.Tensor, what: str, ids: Sequence[Any] | np.ndarray | None = None, offset: int = 0, *, bounded: bool = False
) -> None:
    """Refuse rows that hold NaN or infinity, naming them; ``bounded`` refuses magnitudes too, whose squares float32 cannot hold.

    Raises:
        VectorsError: there are such rows.
    """
    # One pass over the data: a row's sum of magnitudes in float64 is finite exactly where all its entries are.
    sums = torch.linalg.vector_norm(vectors, ord=1, dim=-1, dtype=torch.float64)
    sound = sums.isfinite()
    if bounded and len(sums) and bool(sound.all()):
        size = float(sums.max()) / vectors.shape[-1]
        if size > _LARGEST or (offset == 0 and 0 < size < _SMALLEST):
            raise VectorsError(
                f"`{what}` has values about {size:.0e}, whose squares float32 cannot hold: multiply all vectors by one factor that brings them near 1"
            )
    if not bool(sound.all()):
        bad = (~sound).nonzero().flatten()
        raise VectorsError(f"`{what}` must be finite, got NaN or infinity in {name_rows(bad, ids, offset)}")


def row_norms(vectors: torch.Tensor) -> torch.Tensor:
    """Return Euclidean norms (N,) in float64."""
    norms: torch.Tensor = torch.linalg.vector_norm(vectors, dim=-1, dtype=torch.float64)
    return norms


def require_directions(norms: torch.Tensor, what: str, ids: Sequence[Any] | np.ndarray | None = None, offset: int = 0) -> None:
    """Refuse rows of norm 0, naming them.

    Raises:
        VectorsError: such a row exists.
    """
    if not bool((norms > 0).all()):
        bad = (norms <= 0).nonzero().flatten()
        raise VectorsError(
            f"`{what}` cannot be normalised, got norm 0 in {name_rows(bad, ids, offset)}; drop them or use the metric `dot` or `l2`"
        )


def check_finite(vectors: Any, ids: Sequence[Any] | np.ndarray | None = None, what: str = "vectors") -> None:
    """Refuse vectors that hold NaN or infinity.

    Args:
        vectors: (N, D) tensor or array of any float type.
        ids: (N,) names for the message; None names positions.
        what: what to call the vectors.

    Raises:
        VectorsError: the shape is not (N, D), or a row is not finite; at most ten rows are named.
    """
    tensor = as_tensor(vectors)
    require_matrix(tensor, what)
    require_finite(tensor if tensor.is_floating_point() else as_float(tensor), what, ids)


def check_directions(vectors: Any, ids: Sequence[Any] | np.ndarray | None = None, what: str = "vectors") -> None:
    """Refuse vectors that are not finite, or have norm 0 and so no direction.

    Args:
        vectors: (N, D) tensor or array of any float type.
        ids: (N,) names for the message; None names positions.
        what: what to call the vectors.

    Raises:
        VectorsError: the shape is not (N, D), or there is such a row; at most ten are named.
    """
    check_finite(vectors, ids, what)
    require_directions(row_norms(as_tensor(vectors)), what, ids)


def normalise_rows(vectors: Any, ids: Sequence[Any] | np.ndarray | None = None, what: str = "vectors") -> Any:
    """Scale rows to unit length.

    Args:
        vectors: (N, D) tensor or array; half precision is raised to float32.
        ids: (N,) names for messages; None names positions.
        what: what to call the vectors in messages.

    Returns:
        (N, D) float32 or float64 of the same kind, on the same device.

    Raises:
        VectorsError: the shape is not (N, D), or a row has norm 0 or is not finite.
    """
    tensor = as_float(as_tensor(vectors))
    require_matrix(tensor, what)
    require_finite(tensor, what, ids)
    norms = row_norms(tensor)
    require_directions(norms, what, ids)
    return as_kind((tensor.to(torch.float64) / norms[:, None]).to(tensor.dtype), vectors)
