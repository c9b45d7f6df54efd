"""Turn Arrow columns into class, number and multi-label columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from evalharness.errors import DataError
from evalharness.types import Array, Column

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .readers import Reader

# A list column with more different values than this holds tokens, not labels, and would take N times as many bytes.
MAX_LABELS = 4096


def read_column(reader: Reader, name: str, *, as_number: bool = False) -> Column | None:
    """Read one column, or return None for what is neither label nor number (images, audio, vectors, nested tables).

    Strings, booleans, integers and dictionaries become classes, floats numbers, lists of strings or integers multi-label.
    Missing values are -1 and NaN; a missing list has no label.

    Raises:
        DataError: the column was to be read as numbers and holds something else.
    """
    import pyarrow as pa
    import pyarrow.types as kinds

    kind = reader.schema.field(name).type
    if as_number and describe_kind(kind) != "number":
        raise DataError(f"column `{name}` was to be read as numbers (`number`) but holds {kind}")
    listed = kinds.is_list(kind) or kinds.is_large_list(kind)
    inner = kind.value_type if listed else kind
    if not (as_number or kinds.is_floating(kind) or kinds.is_decimal(kind) or _is_label(inner)):
        return None
    values = pa.chunked_array(list(reader.stream(name)), type=kind)
    if as_number or kinds.is_floating(kind) or kinds.is_decimal(kind):
        return _make_number(values)
    if listed:
        return _make_multilabel(values, _find_names(reader.features.get(name), listed=True))
    names = _find_names(reader.features.get(name))
    return _make_class(values) if names is None else _make_named(values, names, name)


def describe_kind(kind: Any) -> str:
    """Return what an Arrow type can serve as: text, bytes, number, list (of numbers), file (bytes and path), or other."""
    import pyarrow.types as kinds

    if kinds.is_dictionary(kind):
        kind = kind.value_type
    if kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind):
        return "text"
    if kinds.is_binary(kind) or kinds.is_large_binary(kind) or kinds.is_binary_view(kind):
        return "bytes"
    if kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_decimal(kind) or kinds.is_boolean(kind):
        return "number"
    if kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind):
        return "list" if describe_kind(kind.value_type) == "number" else "other"
    return "file" if kinds.is_struct(kind) else "other"


def _is_label(kind: Any) -> bool:
    import pyarrow.types as kinds

    label = kind.value_type if kinds.is_dictionary(kind) else kind
    return bool(describe_kind(label) == "text" or kinds.is_boolean(label) or kinds.is_integer(label) or kinds.is_null(label))


def _find_names(feature: Any, *, listed: bool = False) -> tuple[str, ...] | None:
    """Return the class names of a `ClassLabel`, or of a list of them, in any of the notations that `datasets` has used."""
    if listed:
        feature = feature[0] if isinstance(feature, list) else (feature or {}).get("feature")
    if not isinstance(feature, dict) or feature.get("_type") != "ClassLabel":
        return None
    return tuple(str(name) for name in feature["names"])


def _make_number(values: Any) -> Column:
    import pyarrow as pa

    numbers = np.concatenate([chunk.cast(pa.float64()).to_numpy(zero_copy_only=False) for chunk in values.chunks] or [np.empty(0)])
    return Column(kind="number", values=numbers.astype(np.float64))


def _make_class(values: Any) -> Column:
    known, codes = _encode(values)
    return Column(kind="class", values=codes, names=known)


def _make_named(values: Any, names: tuple[str, ...], column: str) -> Column:
    import pyarrow.types as kinds

    if not kinds.is_integer(values.type):
        return _make_class(values)
    codes = _to_array(values, missing=-1)
    if len(codes) and not -1 <= codes.min() <= codes.max() < len(names):
        raise DataError(f"column `{column}` names {len(names)} classes but holds codes from {codes.min()} to {codes.max()}")
    return Column(kind="class", values=codes, names=names)


def _make_multilabel(values: Any, names: tuple[str, ...] | None) -> Column | None:
    import pyarrow as pa
    import pyarrow.compute as pc

    lists = pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], type=values.type)
    items, rows = pa.chunked_array([pc.list_flatten(lists)]), pc.list_parent_indices(lists).to_numpy(zero_copy_only=False)
    if names is None:
        names, codes = _encode(items)
    else:
        codes = _to_array(items, missing=-1)
    if len(names) > MAX_LABELS:
        return None
    held = np.zeros((len(lists), len(names)), dtype=bool)
    held[rows[codes >= 0], codes[codes >= 0]] = True
    return Column(kind="multilabel", values=held, names=names)


def _encode(values: Any) -> tuple[tuple[str, ...], Array]:
    """Return names and codes as :func:`evalharness.class_column` would, without a Python object a row."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as kinds

    if kinds.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if kinds.is_boolean(values.type):
        values = values.cast(pa.string())  # "false" and "true"
    known = [value for value in pc.unique(values).to_pylist() if value is not None]
    order = sorted(known)
    codes = pc.index_in(values, value_set=pa.array(order, type=values.type)) if order else pa.nulls(len(values), pa.int32())
    return tuple(str(value) for value in order), _to_array(codes, missing=-1)


def _to_array(values: Any, *, missing: int) -> Array:
    import pyarrow.compute as pc

    filled = pc.fill_null(values, missing)
    numbers: Array = np.asarray(filled.to_numpy(zero_copy_only=False) if hasattr(filled, "to_numpy") else filled).astype(np.int64)
    return numbers


def take_columns(columns: Mapping[str, Column], rows: Array) -> dict[str, Column]:
    """Return all columns at the given rows."""
    return {name: column.take(rows) for name, column in columns.items()}
