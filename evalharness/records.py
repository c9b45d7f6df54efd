"""The record: one line of a result file, its key, and the score digest over many."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from typing import Any

from evalharness.keys import DIGEST_BYTES, canonical

KEY_FIELDS = (
    "suite",
    "task",
    "task_version",
    "encoder",
    "layer",
    "prompt",
    "dataset",
    "dataset_fingerprint",
    "split",
    "selection",
    "fit",
    "target",
    "shift",
    "shift_kind",
    "shift_type",
    "severity",
    "codec",
    "queries",
    "evaluator",
    "params",
    "metric",
    "statistic",
    "over",
    "reference",
    "group",
)
FIELDS = (
    *KEY_FIELDS[:1],
    "suite_version",
    *KEY_FIELDS[1:4],
    "encoder_identity",
    *KEY_FIELDS[4:16],
    "regime",
    "fit_regime",
    "made_on",
    *KEY_FIELDS[16:],
    "value",
    "low",
    "high",
    "level",
    "method",
    "scope",
    "n",
    "n_units",
    "p",
    "higher_is_better",
    "main",
    "status",
    "reason",
    "seed",
    "protocols",
    "outcome",
    "unit",
)
_OF_ESTIMATES = {"metric", "statistic", "over", "reference", "group", "params", "main", "higher_is_better", "fit_regime"}
CELL_FIELDS = tuple(  # what all records of one cell share
    name for name in (*FIELDS[: FIELDS.index("value")], "seed", "protocols") if name not in _OF_ESTIMATES
)
_NOT_SCORES = ("outcome", "unit")  # where things lie, not what they are


def record_key(record: Mapping[str, Any]) -> str:
    """Return the canonical text of the fields that set one record apart from another."""
    return canonical({field: record.get(field) for field in KEY_FIELDS})


_WITHIN_CELL = ("metric", "statistic", "over", "reference", "group")
_ACROSS = {"severity", "domain", "family", "draw", "attack"}


def is_across(record: Mapping[str, Any]) -> bool:
    """Say whether a record is made of several cells: a difference, or a statistic over severities, domains, families, draws or attacks."""
    return record.get("reference") is not None or str(record.get("over") or "").partition(":")[0] in _ACROSS


def own_params(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that a record's evaluator was given, its variant left out."""
    return {name: value for name, value in (record.get("params") or {}).items() if name != "variant"}


def cell_key(record: Mapping[str, Any]) -> str:
    """Return the canonical text of what sets the cell of a record apart: all its key fields but those that one unit writes several of."""
    fields = {field: record.get(field) for field in KEY_FIELDS if field not in _WITHIN_CELL}
    fields["across"] = is_across(record)
    fields["params"] = own_params(record)
    return canonical(fields)


def inside(selection: str | None) -> str:
    """Return the row filter of a selection, a limit being none.

    >>> inside("test[domain=photo][limit=100]")
    'domain=photo'
    """
    return next((part.rstrip("]") for part in (selection or "").split("[")[1:] if not part.startswith("limit=")), "")


def limit_of(record: Mapping[str, Any]) -> str:
    """Return the limit that a record's rows were drawn under, the empty string for none."""
    return str(record["selection"] or "").partition("[limit=")[2].rstrip("]")


def make_record(**fields: Any) -> dict[str, Any]:
    """Return a record with every field, in order; NaN becomes null.

    Raises:
        TypeError: a field is not one of :data:`FIELDS`.
    """
    if unknown := set(fields) - set(FIELDS):
        raise TypeError(f"unknown record fields: {sorted(unknown)}")
    return {field: _finite(fields.get(field)) for field in FIELDS}


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def score_digest(records: Iterable[Mapping[str, Any]]) -> str:
    """Return the digest of a set of scores: BLAKE2 over the sorted canonical record lines, less where outcomes lie."""
    lines = sorted(canonical({key: value for key, value in record.items() if key not in _NOT_SCORES}) for record in records)
    state = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for line in lines:
        state.update(line.encode() + b"\n")
    return state.hexdigest()
