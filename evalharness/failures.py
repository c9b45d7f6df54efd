"""What went wrong in stored results, grouped by cause."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evalharness.shown import Record, label_of

KINDS = ("failed", "not_converged", "suspect", "not_measured", "undecided", "insufficient")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Hold one cause: the cells of a task and encoder that share status and reason."""

    suite: str | None
    task: str
    encoder: str
    status: str
    reason: str
    cells: tuple[str, ...]


def list_failures(records: Sequence[Record], kinds: Sequence[str] = KINDS[:3]) -> list[Failure]:
    """Return what is of one of these statuses, the cells of one cause together, in the order of the records."""
    found: dict[tuple[str | None, str, str, str, str], dict[str, None]] = {}
    targets: dict[str, set[str | None]] = {}
    for record in records:
        targets.setdefault(record["task"], set()).add(record["target"])
    for record in records:
        if record["status"] in kinds:
            key = (record["suite"], record["task"], label_of(record), record["status"], record["reason"] or "")
            found.setdefault(key, {})[cell_text(record, several_targets=len(targets[record["task"]]) > 1)] = None
    return [
        Failure(suite=suite, task=task, encoder=encoder, status=status, reason=reason, cells=tuple(cells))
        for (suite, task, encoder, status, reason), cells in found.items()
    ]


def cell_text(record: Record, *, several_targets: bool = False) -> str:
    """Return a record's cell in words: evaluator, metric, the target where its task has several, and the axes that are not at rest."""
    words = [f"{record['evaluator']} {record['metric']}"]
    if several_targets:
        words.append(f"of {record['target']}")
    if record["fit"] not in (None, "all"):
        words.append(f"fit {record['fit']}")
    if record["shift"] not in (None, "clean"):
        words.append(str(record["shift"]) + ("" if record["severity"] is None else f" {record['severity']:g}"))
    words += [str(record[name]) for name, rest in (("codec", "float32"), ("group", None), ("over", None)) if record[name] != rest]
    return ", ".join(words)
