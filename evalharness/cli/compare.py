"""``evalharness compare``: two encoders item by item."""

from __future__ import annotations

import json
import math
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

    evidence = Evidence(folders or [DEFAULT_OUT], lambda: open_registry(plugins))
    table = compare_encoders(
        evidence, first, second, suite=suite, task=task, metric=metric, where=read_pairs(where, "--where"), items=items
    )
    typer.echo(_json(table) if as_json else _text(table))


def _text(table: ComparisonTable) -> str:
    from tabulate import tabulate

    headings = ["task", "metric", table.first, table.second, "difference", "p", "Holm", "n", "visible\nfrom"]
    rows = [_row(row) for row in table.rows]
    lines = [tabulate(rows, headings, tablefmt="simple", disable_numparse=True), ""]
    shown = [row for row in table.rows if row.refused is None]
    scopes = sorted({f"{row.difference.scope} ({row.difference.interval.method})" for row in shown if row.difference.scope})
    tests = sorted({row.test for row in shown if row.test})
    lines.append(
        f"difference: {table.first} less {table.second}; 95 % intervals over {'; '.join(scopes)}; p by {', '.join(tests) or 'no test'}."
    )
    lines.append("visible from: the smallest true difference that so many items show with 80 % power.")
    lines += [f"not compared: {row.task}: {row.refused}" for row in table.rows if row.refused is not None]
    lines += [f"not compared: {reason}" for reason in table.skipped]
    lines += ["", table.sentence] if table.sentence else []
    for row in shown:
        lines += _items(table, row)
    return "\n".join(lines)


def _row(row: Comparison) -> list[str]:
    from evalharness.shown import number

    if row.refused is not None:
        return [row.task, row.metric, number(row.first), number(row.second), "not compared", "", "", "", ""]
    low, high = row.difference.interval.low, row.difference.interval.high
    interval = f" [{_signed(low)}, {_signed(high)}]" if math.isfinite(low) else ""
    visible = number(row.detectable) if math.isfinite(row.detectable) else ""
    values = [number(row.first), number(row.second), _signed(row.difference.value) + interval]
    return [row.task, row.metric, *values, _p(row.p), _p(row.holm), str(row.difference.n), visible]


def _signed(value: float) -> str:
    from evalharness.shown import number

    return ("+" if value > 0 else "") + number(value)


def _p(value: float) -> str:
    if not math.isfinite(value):
        return ""
    return "<.001" if value < 0.001 else "1" if value >= 0.9995 else f"{value:.3f}".removeprefix("0")


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
    found = {"first": table.first, "second": table.second, "tasks": rows, "not_compared": table.skipped, "sentence": table.sentence}
    return json.dumps(found, ensure_ascii=False, allow_nan=False, indent=2)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
