"""Tables as data sets: ``hf:ORG/NAME[/CONFIG]``, ``csv:PATH`` and ``parquet:PATH``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evalharness import hookimpl

from .data import make_file_spec, make_hub_spec

if TYPE_CHECKING:
    from evalharness.types import Spec


@hookimpl
def evalharness_resolve(kind: str, reference: str) -> Spec | None:
    """Make the spec of a table."""
    form, colon, rest = reference.partition(":")
    if kind != "dataset" or not colon or not rest:
        return None
    if form == "hf":
        return make_hub_spec(reference)
    return make_file_spec(form, reference) if form in {"csv", "parquet"} else None
