"""Leaderboard formats: `table`, `markdown`, `latex`, `csv` and `json`."""

from __future__ import annotations

import csv
import io
import json
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from evalharness import ReporterSpec, hookimpl

WIDTH_WHERE_UNKNOWN = 160  # a file or a pipe has none


def list_cells(table: Any) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows of a table as text: rank where there is one, encoder, columns."""
    ranks = table.has_ranks
    headings = [*(["rank"] if ranks else []), "encoder", *table.columns.values()]
    rows = [
        [*([row.rank_text] if ranks else []), row.encoder, *[row.scores[key].text if key in row.scores else "–" for key in table.columns]]
        for row in table.rows
    ]
    return headings, rows


# --- plain text ---------------------------------------------------------------------------------------------------


def render_table(board: Any) -> str:
    """Render for a terminal; columns that do not fit its width stand in a further block below."""
    width = shutil.get_terminal_size((WIDTH_WHERE_UNKNOWN, 24)).columns
    parts = []
    for table in board.tables:
        headings, rows = list_cells(table)
        fixed = 1 + table.has_ranks
        blocks = [_plain(block) for block in _split([headings, *rows], fixed, width)]
        notes = [line for note in table.notes for line in textwrap.wrap(note, width - 2, break_long_words=False, break_on_hyphens=False)]
        parts.append("\n\n".join([table.title, *blocks]) + "".join(f"\n  {line}" for line in notes))
    return "\n\n".join(parts)


def _split(rows: Sequence[Sequence[str]], fixed: int, width: int) -> list[list[list[str]]]:
    """Split columns into blocks that fit a width, the first ``fixed`` columns standing in each."""
    # `tabulate` gives a heading two columns more than its text, and puts two between columns.
    sizes = [max([_longest(rows[0][at]) + 2, *(_longest(row[at]) for row in rows[1:])]) + 2 for at in range(len(rows[0]))]
    blocks: list[list[int]] = [[]]
    for at in range(fixed, len(sizes)):
        if blocks[-1] and sum(sizes[:fixed]) + sum(sizes[column] for column in blocks[-1]) + sizes[at] - 2 > width:
            blocks.append([])
        blocks[-1].append(at)
    return [[[row[at] for at in [*range(fixed), *block]] for row in rows] for block in blocks]


def _longest(text: str) -> int:
    return max(len(line) for line in text.split("\n"))


def _plain(rows: Sequence[Sequence[str]]) -> str:
    from tabulate import tabulate

    return tabulate(rows[1:], rows[0], tablefmt="simple", disable_numparse=True)


# --- markdown and LaTeX -------------------------------------------------------------------------------------------


def render_markdown(board: Any) -> str:
    """Render for a page of markdown."""
    from tabulate import tabulate

    parts = []
    for table in board.tables:
        headings, rows = list_cells(table)
        body = tabulate(
            [[_escape(cell) for cell in row] for row in rows], [_escape(name) for name in headings], tablefmt="pipe", disable_numparse=True
        )
        parts.append("\n".join([f"### {table.title}", "", body, "", *[f"- {note}" for note in table.notes]]))
    return "\n\n".join(parts)


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", "<br>")


_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "–": "--",
    "·": r"$\cdot$",
    "×": r"$\times$",
    "|": r"\textbar{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    '"': r"\textquotedbl{}",
}


def render_latex(board: Any) -> str:
    r"""Render ``tabular`` environments with the rules of the package booktabs, notes below as text."""
    return "\n\n".join(_latex_table(table) for table in board.tables)


def _latex_table(table: Any) -> str:
    headings, rows = list_cells(table)
    depth = max(heading.count("\n") for heading in headings) + 1
    lines = [heading.split("\n") for heading in headings]
    head = [" & ".join(_latex(line[at] if at < len(line) else "") for line in lines) + r" \\" for at in range(depth)]
    body = [" & ".join(_latex(cell) for cell in row) + r" \\" for row in rows]
    notes = [rf"{_latex(note)}\par" for note in table.notes]
    return "\n".join(
        [
            rf"\paragraph{{{_latex(table.title)}}}",
            rf"\begin{{tabular}}{{{'l' * len(headings)}}}",
            r"\toprule",
            *head,
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            "",
            r"{\footnotesize",
            *notes,
            "}",
        ]
    )


def _latex(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)


# --- data ---------------------------------------------------------------------------------------------------------


def render_csv(board: Any) -> str:
    """Render one line a score, for spreadsheets."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["table", "encoder", "column", "value", "low", "high", "n", "status", "name", "rank", "ranked"])
    for table in board.tables:
        for row in table.rows:
            for key, score in row.scores.items():
                values = ["" if value is None else value for value in (score.value, score.low, score.high, score.n)]
                rank = score.rank or (row.rank_text if row.rank and len(table.columns) and key == next(iter(table.columns)) else "")
                writer.writerow([table.title, row.encoder, key, *values, score.status, score.name or "", rank, row.ranked])
    return stream.getvalue().rstrip("\n")


def render_json(board: Any) -> str:
    """Render everything as strict JSON."""
    return json.dumps([_json_table(table) for table in board.tables], ensure_ascii=False, allow_nan=False, indent=2)


def _json_table(table: Any) -> dict[str, Any]:
    fields = ("value", "low", "high", "n", "status", "reason", "name", "rank")
    return {
        "title": table.title,
        "columns": table.columns,
        "notes": table.notes,
        "rows": [
            {
                "encoder": row.encoder,
                "ranked": row.ranked,
                "reason": row.reason,
                "rank": row.rank,
                "scores": {key: {name: getattr(score, name) for name in fields} for key, score in row.scores.items()},
            }
            for row in table.rows
        ],
    }


@hookimpl
def evalharness_reporters() -> Iterable[ReporterSpec]:
    """Register the formats."""
    yield ReporterSpec(name="table", summary="Plain text for a terminal, as wide as it is", render=render_table)
    yield ReporterSpec(name="markdown", summary="Pipe tables", render=render_markdown)
    yield ReporterSpec(name="latex", summary="Tabular environments with booktabs rules", render=render_latex)
    yield ReporterSpec(name="csv", summary="One line a score", render=render_csv)
    yield ReporterSpec(name="json", summary="Everything, strictly", render=render_json)
