"""English sentences from templates, and pairs of them with a known similarity."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evalharness import hookimpl
from evalharness.types import DatasetSpec

from .data import PARAMS, SPLITS, identify_pairs, identify_sentences, load_pairs, load_sentences

if TYPE_CHECKING:
    from collections.abc import Iterable


@hookimpl
def evalharness_datasets() -> Iterable[DatasetSpec]:
    """Register `sentences` and `sentence-pairs`."""
    yield DatasetSpec(
        name="sentences",
        summary="Templated sentences of 8 topics with register, polarity, number and entity; target `label`",
        source="generated",
        params=dict(PARAMS),
        modalities=("text",),
        splits=SPLITS,
        load=load_sentences,
        identity=identify_sentences,
    )
    yield DatasetSpec(
        name="sentence-pairs",
        summary="Pairs of sentences by kind (paraphrase, negation, swaps, unrelated), similarity 0 to 5 in `score`",
        source="generated",
        params=dict(PARAMS),
        modalities=("text",),
        splits=SPLITS,
        load=load_pairs,
        identity=identify_pairs,
    )
