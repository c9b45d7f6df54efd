"""The data sets `sentences` and `sentence-pairs`."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evalharness.errors import UnknownNameError, UsageError, unknown_name
from evalharness.types import Array, Column, Dataset, Identity, Links, Samples

from .frames import Draws, Frame, change_frame, draw_frame, word_frame
from .vocabulary import ENTITIES, NUMBERS, POLARITIES, REGISTERS, TOPICS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SPLITS = ("train", "validation", "test")
PARAMS: Mapping[str, Any] = {"train": 2000, "validation": 400, "test": 1000, "seed": 0}
KINDS = ("paraphrase", "negation", "entity-swap", "number-swap", "unrelated")
WORDINGS = ("seen", "unseen")


def load_sentences(split: str, **params: Any) -> Dataset:
    """Load a split of `sentences`: part "items" with a class column a factor; `label` is the topic."""
    given = _check(split, params)
    draws = [_draws("sentences", given["seed"], split, row) for row in range(given[split])]
    frames = [draw_frame(draw, is_test=split == "test") for draw in draws]
    texts = [word_frame(frame, draw) for frame, draw in zip(frames, draws, strict=True)]
    return Dataset(
        parts={"items": _make_samples(texts, _make_ids(split, len(texts)), _describe(frames), _digest("sentences", split, given))}
    )


def load_pairs(split: str, **params: Any) -> Dataset:
    """Load a split of `sentence-pairs`: parts "left" and "right", links "pairs" with columns `kind` and `score`."""
    given = _check(split, params)
    draws = [_draws("sentence-pairs", given["seed"], split, row) for row in range(given[split])]
    left = [draw_frame(draw, is_test=split == "test") for draw in draws]
    kinds = [str(draw.pick("kind", KINDS)) for draw in draws]
    changed = [change_frame(frame, kind, draw, is_test=split == "test") for frame, kind, draw in zip(left, kinds, draws, strict=True)]
    right, scores = [frame for frame, _ in changed], np.array([score for _, score in changed])
    texts = [_word_pair(*pair) for pair in zip(left, right, draws, strict=True)]
    ids, digest = _make_ids(split, len(texts)), _digest("sentence-pairs", split, given)
    shared = {"kind": _class(kinds, KINDS), "score": Column(kind="number", values=scores)}
    parts = {
        "left": _make_samples([one for one, _ in texts], ids, {**_describe(left), **shared}, digest),
        "right": _make_samples([two for _, two in texts], ids, {**_describe(right), **shared}, digest),
    }
    rows = np.repeat(np.arange(len(texts))[:, None], 2, axis=1)
    links = Links(source="left", target="right", rows=rows, grades=np.ones(len(rows)), ids=ids, columns=shared)
    return Dataset(parts=parts, links={"pairs": links})


def identify_sentences(split: str, **params: Any) -> Identity:
    """Return a digest of this folder's source and of what the split is made from."""
    return Identity(kind="source", digest=_digest("sentences", split, _check(split, params)))


def identify_pairs(split: str, **params: Any) -> Identity:
    """Return a digest of this folder's source and of what the split is made from."""
    return Identity(kind="source", digest=_digest("sentence-pairs", split, _check(split, params)))


def _word_pair(left: Frame, right: Frame, draws: Draws) -> tuple[str, str]:
    one = word_frame(left, draws)
    for attempt in range(20):
        two = word_frame(right, Draws(f"{draws.key}/right/{attempt}"))
        # A paraphrase that repeats the sentence would be no paraphrase.
        if two != one:
            break
    return one, two


def _check(split: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
    if split not in SPLITS:
        raise UnknownNameError(unknown_name("split of `sentences`", split, SPLITS))
    given = {**PARAMS, **params}
    for name in SPLITS:
        if not isinstance(given[name], int) or given[name] < 1:
            raise UsageError(f"`{name}` of `sentences` is a number of rows, at least 1, got {given[name]!r}")
    if not isinstance(given["seed"], int):
        raise UsageError(f"`seed` of `sentences` is a whole number, got {given['seed']!r}")
    return given


def _draws(name: str, seed: int, split: str, row: int) -> Draws:
    return Draws(f"{name}/{seed}/{split}/{row}")


def _make_ids(split: str, size: int) -> Array:
    return np.array([f"{split}/{row:06d}" for row in range(size)], dtype=str)


def _make_samples(texts: list[str], ids: Array, columns: Mapping[str, Column], fingerprint: str) -> Samples:
    def read(at: Array) -> list[str]:
        return [texts[row] for row in np.asarray(at).tolist()]

    return Samples(modality="text", size=len(texts), read=read, ids=ids, columns=columns, fingerprint=fingerprint)


def _describe(frames: Sequence[Frame]) -> dict[str, Column]:
    topic = _class([frame.topic for frame in frames], tuple(TOPICS))
    return {
        "label": topic,
        "topic": topic,
        "register": _class([frame.register for frame in frames], REGISTERS),
        "polarity": _class([frame.polarity for frame in frames], POLARITIES),
        "number": _class([frame.number for frame in frames], tuple(NUMBERS)),
        "entity": _class([frame.entity for frame in frames], ENTITIES),
        "wording": _class([WORDINGS[frame.is_held_out] for frame in frames], WORDINGS),
    }


def _class(values: Sequence[str], names: tuple[str, ...]) -> Column:
    # All names, drawn or not, so that every split has the same codes.
    code = {name: at for at, name in enumerate(names)}
    return Column(kind="class", values=np.array([code[value] for value in values], dtype=np.int64), names=names)


def _digest(name: str, split: str, given: Mapping[str, Any]) -> str:
    return hashlib.blake2b(_read_source() + repr((name, split, given[split], given["seed"])).encode(), digest_size=16).hexdigest()


@lru_cache(maxsize=1)
def _read_source() -> bytes:
    return b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
