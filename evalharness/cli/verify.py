"""``evalharness verify``: check results as a stranger would."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evalharness.cli.options import DEFAULT_OUT, AsJson, Plugins, open_registry
from evalharness.errors import NotVerifiedError, counted

if TYPE_CHECKING:
    from evalharness.verify import Report

SHOWN_FAULTS = 20


def verify(
    folders: Annotated[list[Path] | None, typer.Argument(metavar="[DIR ...]", help="Result folders; several are merged.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Print the verdict on every record, and all faults.")] = False,
    as_json: AsJson = False,
    plugins: Plugins = None,
) -> None:
    """Check every record: schema, ranges, completeness, digests, and each value and interval made again from the stored items."""
    from evalharness.verify import verify as verify_folders

    report = verify_folders(folders or [DEFAULT_OUT], lambda: open_registry(plugins))
    typer.echo(_json(report) if as_json else _text(report, everything=everything))
    if report.faults:
        raise NotVerifiedError(f"{counted(len(report.faults), 'fault')} in {counted(report.counts['fault'], 'record')} and their files")


def _text(report: Report, *, everything: bool) -> str:
    from evalharness.verify import place

    lines = []
    if everything:
        for verdict in report.verdicts:
            reason = "; ".join(fault.message for fault in verdict.faults) or (verdict.reason if verdict.outcome != "verified" else None)
            lines.append(f"{verdict.outcome:<10} {place(verdict.record)}{f': {reason}' if reason else ''}")
        lines.append("")
    shown = report.faults if everything else report.faults[:SHOWN_FAULTS]
    lines += [f"fault: {fault.check}: {fault.where}: {fault.message}" for fault in shown]
    if len(shown) < len(report.faults):
        lines.append(f"… and {len(report.faults) - len(shown)} more faults; `--all` prints them")
    counts = report.counts
    lines.append(
        f"{counted(len(report.verdicts), 'record')} of {counted(report.num_units, 'unit')} in {counted(report.num_runs, 'run')}: {counts['verified']} verified, "
        f"{counts['recorded']} claim no value, {counts['unchecked']} unchecked, {counts['fault']} at fault"
    )
    unchecked = sorted({str(verdict.reason) for verdict in report.verdicts if verdict.outcome == "unchecked"})
    lines += report.notes if report.faults else []
    return "\n".join([*lines, *[f"unchecked: {reason}" for reason in unchecked]])


def _json(report: Report) -> str:
    from evalharness.verify import place

    names = (
        "suite",
        "task",
        "encoder",
        "layer",
        "evaluator",
        "metric",
        "statistic",
        "over",
        "reference",
        "group",
        "shift",
        "severity",
        "codec",
        "fit",
        "value",
    )
    verdicts = [
        {
            "verdict": verdict.outcome,
            "record": place(verdict.record),
            **{name: verdict.record[name] for name in names},
            "reason": verdict.reason,
            "faults": [{"check": fault.check, "message": fault.message} for fault in verdict.faults],
        }
        for verdict in report.verdicts
    ]
    faults = [{"check": fault.check, "where": fault.where, "message": fault.message} for fault in report.faults]
    return json.dumps(
        {"counts": dict(report.counts), "faults": faults, "verdicts": verdicts}, ensure_ascii=False, allow_nan=False, indent=2
    )
