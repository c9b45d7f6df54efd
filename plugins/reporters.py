"""Leaderboard formats: `table`, `markdown`, `csv` and `json`."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from typing import Any

from evalharness import ReporterSpec, hookimpl


def _cells(table: Any) -> tuple[list[str], list[list[str]]]:
    headings = ["encoder", *table.columns.values()]
    rows = [[row.encoder, *[row.scores[key].text if key in row.scores else "–" for key in table.columns]] for row in table.rows]
    return headings, rows


def render_table(board: Any) -> str:
    """Render for a terminal."""
    from tabulate import tabulate

    parts = []
    for table in board.tables:
        headings, rows = _cells(table)
        body = tabulate(rows, headings, tablefmt="simple", disable_numparse=True)
        parts.append("\n".join([table.title, "", body, *[f"  {note}" for note in table.notes]]))
    return "\n\n".join(parts)


def render_markdown(board: Any) -> str:
    """Render for a page of markdown."""
    from tabulate import tabulate

    parts = []
    for table in board.tables:
        headings, rows = _cells(table)
        body = tabulate(
            [[_escape(cell) for cell in row] for row in rows], [_escape(name) for name in headings], tablefmt="pipe", disable_numparse=True
        )
        parts.append("\n".join([f"### {table.title}", "", body, "", *[f"- {note}" for note in table.notes]]))
    return "\n\n".join(parts)


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", "<br>")


def render_csv(board: Any) -> str:
    """Render one line a score, for spreadsheets."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["table", "encoder", "column", "value", "low", "high", "n", "status", "name", "ranked"])
    for table in board.tables:
        for row in table.rows:
            for key, score in row.scores.items():
                values = [score.value, score.low, score.high, score.n]
                writer.writerow(
                    [table.title, row.encoder, key, *["" if v is None else v for v in values], score.status, score.name or "", row.ranked]
                )
    return stream.getvalue().rstrip("\n")


def render_json(board: Any) -> str:
    """Render everything that the tables show, strictly."""
    tables = [
        {
            "title": table.title,
            "notes": table.notes,
            "rows": [
                {
                    "encoder": row.encoder,
                    "ranked": row.ranked,
                    "reason": row.reason,
                    "scores": {
                        key: {
                            "value": score.value,
                            "low": score.low,
                            "high": score.high,
                            "n": score.n,
                            "status": score.status,
                            "name": score.name,
                        }
                        for key, score in row.scores.items()
                    },
                }
                for row in table.rows
            ],
        }
        for table in board.tables
    ]
    return json.dumps(tables, ensure_ascii=False, allow_nan=False, indent=2)


@hookimpl
def evalharness_reporters() -> Iterable[ReporterSpec]:
    """Register the formats."""
    yield ReporterSpec(name="table", summary="Plain text for a terminal", render=render_table)
    yield ReporterSpec(name="markdown", summary="Pipe tables", render=render_markdown)
    yield ReporterSpec(name="csv", summary="One line a score", render=render_csv)
    yield ReporterSpec(name="json", summary="Everything, strictly", render=render_json)
