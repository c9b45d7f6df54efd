"""Read YAML 1.2 with line marks; duplicate keys are errors and fractions such as ``8/255`` are numbers."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from evalharness.errors import TaskFileError

_FRACTION = re.compile(r"^-?\d+/[1-9]\d*$")


class Document:
    """Hold one document of a file: plain data, and the line of every key."""

    __slots__ = ("data", "lines", "path")

    def __init__(self, path: Path, raw: Any) -> None:
        self.path = path
        self.lines: dict[tuple[str | int, ...], int] = {}
        self.data = self._convert(raw, ())

    def line(self, place: tuple[str | int, ...]) -> int:
        """Return the 1-based line of a place in the document, or of the nearest place that encloses it."""
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place, 1)

    def where(self, place: tuple[str | int, ...] = ()) -> str:
        """Return ``file:line`` of a place."""
        return f"{self.path}:{self.line(place)}"

    def _convert(self, raw: Any, place: tuple[str | int, ...]) -> Any:
        marks: Any = getattr(raw, "lc", None)
        if isinstance(raw, dict):
            self.lines.setdefault(place, marks.line + 1)
            for key in raw:
                self.lines[(*place, str(key))] = _line_of(marks, key)
            return {str(key): self._convert(value, (*place, str(key))) for key, value in raw.items()}
        if isinstance(raw, list):
            for at in range(len(raw)):
                self.lines[(*place, at)] = marks.item(at)[0] + 1
            return [self._convert(value, (*place, at)) for at, value in enumerate(raw)]
        value = _scalar(raw)
        if isinstance(value, float) and not math.isfinite(value):
            raise TaskFileError(f"{self.where(place)}: `{'.'.join(map(str, place))}`: expected a finite number, got {value}")
        return value


def _line_of(marks: Any, key: Any) -> int:
    """Return the line of a key; one that a merge key brought in stands where the mapping does."""
    try:
        return int(marks.key(key)[0]) + 1
    except (KeyError, TypeError):
        return int(marks.line) + 1


def _scalar(raw: Any) -> Any:
    if isinstance(raw, bool) or raw is None:
        return None if raw is None else bool(raw)
    if isinstance(raw, int):
        return int(raw)
    if isinstance(raw, float):
        return float(raw)
    text = str(raw)
    if _FRACTION.match(text):
        above, below = text.split("/")
        return int(above) / int(below)
    return text


def read_documents(path: Path) -> list[Document]:
    """Read all documents of a YAML file.

    Raises:
        TaskFileError: the file cannot be read or parsed, or a key stands twice; the message names file and line.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TaskFileError(f"{path}: cannot be read: {error}") from error
    try:
        documents = [raw for raw in YAML(typ="rt").load_all(text) if raw is not None]
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        problem = (error.problem or "not valid YAML").splitlines()[0]
        raise TaskFileError(f"{path}:{line}: {problem}") from error
    except YAMLError as error:
        raise TaskFileError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    if not documents or not all(isinstance(raw, dict) for raw in documents):
        raise TaskFileError(f"{path}:1: expected a mapping of keys to values")
    return [Document(path, raw) for raw in documents]
