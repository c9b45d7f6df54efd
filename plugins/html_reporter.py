"""Leaderboard format `html`: one file that needs nothing else, with intervals drawn and columns that sort."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from typing import Any

from evalharness import ReporterSpec, hookimpl

STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #5b6673; --line: #d9dee5; --back: #ffffff; --stripe: #f6f8fa; --mark: #2563a8; --track: #e6ebf1; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e3e8ee; --soft: #9aa7b5; --line: #333d49; --back: #14191f; --stripe: #1a2129; --mark: #6fb1f2; --track: #2a333e; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 112rem; background: var(--back); color: var(--ink);
  font: 15px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; }
h2 { font-size: 1.1rem; margin: 2.5rem 0 .5rem; }
p.about { margin: 0; color: var(--soft); max-width: 60rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; min-width: 100%; }
th, td { padding: .45rem .8rem; text-align: left; white-space: nowrap; vertical-align: top; border-bottom: 1px solid var(--line); }
thead th { font-weight: 600; border-bottom: 2px solid var(--line); background: var(--back); }
thead th small, td small { display: block; font-weight: 400; color: var(--soft); font-size: .82em; }
thead button { all: unset; cursor: pointer; }
thead button:focus-visible { outline: 2px solid var(--mark); outline-offset: 2px; }
th[aria-sort=ascending] button::after { content: " ↑"; } th[aria-sort=descending] button::after { content: " ↓"; }
tbody tr:nth-child(even) { background: var(--stripe); }
tbody th { font-weight: 600; }
tr.unranked { color: var(--soft); }
td.rank { font-weight: 600; }
svg { display: block; margin-top: .3rem; }
svg .track { fill: var(--track); } svg .range { stroke: var(--mark); stroke-width: 2; } svg .value { fill: var(--mark); }
ul { margin: .6rem 0 0; padding-left: 1.1rem; color: var(--soft); font-size: .9em; max-width: 72rem; }
"""

SCRIPT = """
for (const table of document.querySelectorAll('table')) {
  table.querySelectorAll('thead th').forEach((head, at) => head.querySelector('button').addEventListener('click', () => {
    const down = head.getAttribute('aria-sort') !== 'descending';
    table.querySelectorAll('thead th').forEach(other => other.removeAttribute('aria-sort'));
    head.setAttribute('aria-sort', down ? 'descending' : 'ascending');
    const key = row => row.children[at].dataset.key ?? row.children[at].textContent;
    const body = table.tBodies[0], sign = down ? -1 : 1;
    [...body.rows].sort((one, other) => {
      const a = key(one), b = key(other), x = parseFloat(a), y = parseFloat(b);
      if (a === '' || b === '') return (a === '') - (b === '');
      return sign * (isNaN(x) || isNaN(y) ? a.localeCompare(b) : x - y);
    }).forEach(row => body.append(row));
  }));
}
"""

WIDTH, HEIGHT = 120, 8


def render_html(board: Any) -> str:
    """Render a page that holds its own style and script and loads nothing."""
    tables = "\n".join(_table(table) for table in board.tables)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>evalharness leaderboard</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>Leaderboard</h1>\n"
        '<p class="about">Every value has its interval; a bar shows both between the lowest and the highest of its column. '
        "Click a heading to sort.</p>\n"
        f"{tables}\n<script>{SCRIPT}</script>\n</body>\n</html>"
    )


def _table(table: Any) -> str:
    ranks = table.has_ranks
    headings = [*(["rank"] if ranks else []), "encoder", *table.columns.values()]
    spans = {key: _span([row.scores[key] for row in table.rows if key in row.scores]) for key in table.columns}
    head = "".join(f'<th scope="col"><button type="button">{_heading(heading)}</button></th>' for heading in headings)
    rows = "\n".join(_row(table, row, spans, ranks=ranks) for row in table.rows)
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in table.notes)
    return (
        f"<section>\n<h2>{html.escape(table.title)}</h2>\n"
        f'<div class="scroll"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>\n<ul>{notes}</ul>\n</section>'
    )


def _heading(text: str) -> str:
    first, *rest = html.escape(text).split("\n")
    return first + "".join(f"<small>{line}</small>" for line in rest)


def _row(table: Any, row: Any, spans: dict[str, tuple[float, float] | None], *, ranks: bool) -> str:
    cells = [f'<td class="rank" data-key="{row.rank[0] if row.rank else ""}">{html.escape(row.rank_text)}</td>'] if ranks else []
    cells.append(f'<th scope="row">{html.escape(row.encoder)}</th>')
    cells += [_cell(row.scores.get(key), spans[key]) for key in table.columns]
    state = "" if row.ranked else f' class="unranked" title="{html.escape(row.reason or "", quote=True)}"'
    return f"<tr{state}>{''.join(cells)}</tr>"


def _cell(score: Any, span: tuple[float, float] | None) -> str:
    if score is None:
        return '<td data-key="">–</td>'
    key = "" if score.value is None else f"{score.value!r}"
    about = [f"n = {score.n}" if score.n else "", score.reason or ""]
    title = html.escape("; ".join(text for text in about if text), quote=True)
    bar = _bar(score, span) if span is not None and score.value is not None and score.shown is None else ""
    return f'<td data-key="{key}" title="{title}">{html.escape(score.text)}{bar}</td>'


def _span(scores: Sequence[Any]) -> tuple[float, float] | None:
    """Return the lowest and the highest number of a column, None where there are not two."""
    ends = [end for score in scores for end in (score.value, score.low, score.high) if end is not None and score.shown is None]
    ends = [end for end in ends if math.isfinite(end)]
    return (min(ends), max(ends)) if ends and min(ends) < max(ends) else None


def _bar(score: Any, span: tuple[float, float]) -> str:
    def place(value: float) -> float:
        return round(4 + (WIDTH - 8) * (value - span[0]) / (span[1] - span[0]), 1)

    low, high = (score.value if end is None else end for end in (score.low, score.high))
    middle = HEIGHT / 2
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" aria-hidden="true"><rect class="track" width="{WIDTH}" height="2" y="{middle - 1:g}" rx="1"/>'
        f'<line class="range" x1="{place(low)}" x2="{place(high)}" y1="{middle:g}" y2="{middle:g}"/>'
        f'<circle class="value" cx="{place(score.value)}" cy="{middle:g}" r="3"/></svg>'
    )


@hookimpl
def evalharness_reporters() -> Iterable[ReporterSpec]:
    """Register the format."""
    yield ReporterSpec(name="html", summary="One page that needs nothing else, intervals drawn, columns that sort", render=render_html)
