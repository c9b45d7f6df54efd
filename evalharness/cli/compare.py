"""``evalharness compare``: two encoders item by item."""

from __future__ import annotations

import json
import math
import re
import shutil
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evalharness.cli.options import DEFAULT_OUT, AsJson, Plugins, open_registry, read_pairs

if TYPE_CHECKING:
    from evalharness.compare import Comparison, ComparisonTable


def compare(
    first: Annotated[str, typer.Argument(metavar="ENCODER", help="An encoder as the leaderboard names it.")],
    second: Annotated[str, typer.Argument(metavar="ENCODER", help="The encoder that it is compared with.")],
    folders: Annotated[list[Path] | None, typer.Argument(metavar="[DIR ...]", help="Result folders; several are merged.")] = None,
    items: Annotated[int, typer.Option("--items", min=0, metavar="N", help="List the N items on which the two differ most.")] = 0,
    suite: Annotated[str | None, typer.Option(help="Compare on one suite.")] = None,
    task: Annotated[str | None, typer.Option(help="Compare on one task.")] = None,
    metric: Annotated[str | None, typer.Option(help="Compare another metric of the main cell, as macro_f1.")] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Compare another cell, as codec=int8; axes not named are the main cell's. May be repeated."),
    ] = None,
    as_json: AsJson = False,
    plugins: Plugins = None,
) -> None:
    """Compare two encoders on the same items: difference, interval, p with Holm's correction, and what may be claimed."""
    from evalharness.compare import compare as compare_encoders
    from evalharness.evidence import Evidence
    from evalharness.store.results import require_results

    folders = folders or [DEFAULT_OUT]
    require_results(folders)
    evidence = Evidence(folders, lambda: open_registry(plugins))
    table = compare_encoders(
        evidence, first, second, suite=suite, task=task, metric=metric, where=read_pairs(where, "--where"), items=items
    )
    typer.echo(_json(table) if as_json else _text(table))


def _text(table: ComparisonTable) -> str:
    from tabulate import tabulate

    width = shutil.get_terminal_size((160, 24)).columns
    headings = ["task", _fold(table.first), _fold(table.second), "difference", "p", "Holm", "n", "visible\nfrom"]
    lines = [f"cell: {table.cell}", ""] if table.cell else []
    lines += [tabulate([_row(row) for row in table.rows], headings, tablefmt="simple", disable_numparse=True), ""]
    for note in _notes(table):
        lines += textwrap.wrap(note, width, break_long_words=False, break_on_hyphens=False)
    lines += ["", *textwrap.wrap(table.sentence, width, break_long_words=False, break_on_hyphens=False)] if table.sentence else []
    for row in table.rows:
        lines += _items(table, row)
    return "\n".join(lines)


def _fold(label: str, width: int = 14) -> str:
    """Break a long label where its parts join."""
    parts = re.split(r"(?<=[-_/?&@:])", label)
    lines = [""]
    for part in parts:
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def _notes(table: ComparisonTable) -> list[str]:
    shown = [row for row in table.rows if row.refused is None]
    scopes = sorted({f"{row.difference.scope} ({row.difference.interval.method})" for row in shown if row.difference.scope})
    tests: dict[str, list[str]] = {}
    for row in shown:
        if row.test and row.test != "identical":
            tests.setdefault(row.test, []).append(row.task)
    several = len(tests) > 1
    how = "; ".join(f"{test} ({', '.join(tasks)})" if several else test for test, tasks in tests.items())
    notes = [f"difference: {table.first} less {table.second}; 95 % intervals, each for itself, over {'; '.join(scopes)}."]
    if how:
        correction = "; Holm: the same, corrected for the number of tasks" if len(shown) > 1 else ""
        notes.append(f"p: two-sided, by {how}{correction}.")
    notes.append("visible from: the smallest true difference that so many items show with 80 % power.")
    notes += [f"not compared: {row.task}: {row.refused}" for row in table.rows if row.refused is not None]
    notes += [f"not compared: {reason}" for reason in table.skipped]
    return notes + ([f"of another modality: {', '.join(table.others)}"] if table.others else [])


def _row(row: Comparison) -> list[str]:
    from evalharness.shown import number, p_text

    task = f"{row.task}\n{row.metric}"
    if row.refused is not None:
        return [task, number(row.first), number(row.second), "not compared", "", "", "", ""]
    low, high = row.difference.interval.low, row.difference.interval.high
    interval = f"\n[{_signed(low)}, {_signed(high)}]" if math.isfinite(low) else ""
    visible = number(row.detectable) if math.isfinite(row.detectable) else ""
    ps = [p_text(p) if math.isfinite(p) else "" for p in (row.p, row.holm)]
    return [task, number(row.first), number(row.second), _signed(row.difference.value) + interval, *ps, str(row.difference.n), visible]


def _signed(value: float) -> str:
    from evalharness.shown import number

    text = number(value)
    return text if value < 0 or not any(letter in "123456789" for letter in text) else f"+{text}"


def _items(table: ComparisonTable, row: Comparison) -> list[str]:
    from tabulate import tabulate

    if not row.items:
        return []
    rows = [[item.id, item.truth, item.first, item.second, _signed(item.gain)] for item in row.items]
    text = tabulate(rows, ["id", "truth", table.first, table.second, "gain"], tablefmt="simple", disable_numparse=True)
    return ["", f"{row.task}: the {len(row.items)} items on which they differ most", text]


def _json(table: ComparisonTable) -> str:
    rows: list[dict[str, Any]] = []
    for row in table.rows:
        interval = row.difference.interval
        facts = {
            "suite": row.suite,
            "task": row.task,
            "metric": row.metric,
            "first": row.first,
            "second": row.second,
            "difference": row.difference.value,
            "low": _finite(interval.low),
            "high": _finite(interval.high),
            "level": interval.level,
            "method": interval.method,
            "scope": row.difference.scope,
            "n": row.difference.n,
            "n_units": row.difference.n_units,
            "test": row.test or None,
            "p": _finite(row.p),
            "p_holm": _finite(row.holm),
            "detectable": _finite(row.detectable),
            "verdict": None if row.refused else row.verdict,
            "refused": row.refused,
            "items": [
                {"id": item.id, "truth": item.truth, "first": item.first, "second": item.second, "gain": item.gain} for item in row.items
            ],
        }
        rows.append(facts)
    found = {
        "first": table.first,
        "second": table.second,
        "tasks": rows,
        "not_compared": table.skipped,
        "other_modality": table.others,
        "cell": table.cell or None,
        "sentence": table.sentence,
    }
    return json.dumps(found, ensure_ascii=False, allow_nan=False, indent=2)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
