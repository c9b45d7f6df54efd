"""``evalharness run``: do what is not done yet, and end with the leaderboard."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evalharness.cli.options import DEFAULT_OUT, Mirror, Plugins, open_registry
from evalharness.cli.progress import Bars
from evalharness.errors import UnitsFailedError, UsageError, counted

if TYPE_CHECKING:
    from evalharness.plan import Plan
    from evalharness.registry import Registry
    from evalharness.session import Outcome, Session
    from evalharness.suites import Selection


def run(
    targets: Annotated[
        list[str] | None, typer.Argument(metavar="[SUITE or TASK or FILE.yaml ...]", help="What to run; default the suite `quick`.")
    ] = None,
    encoders: Annotated[
        list[str] | None, typer.Option("-e", "--encoder", metavar="ENCODER[?param=value]", help="An encoder; may be repeated.")
    ] = None,
    plugins: Plugins = None,
    device: Annotated[str, typer.Option(help="cpu, cuda:0, mps, or auto.")] = "auto",
    devices: Annotated[str | None, typer.Option(help="Several local devices to share one view, comma-separated.")] = None,
    dtype: Annotated[str, typer.Option(help="float32, float16 or bfloat16: what encoders compute in.")] = "float32",
    batch_size: Annotated[int | None, typer.Option(min=1, help="Items a batch; halved when memory does not suffice.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of results.")] = DEFAULT_OUT,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Learn from and score at most so many rows each, drawn by hash; never ranked with full rows.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of every draw; default the task's own.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Do finished units again.")] = False,
    mirror: Mirror = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan: views, fits, units, bytes and estimated time.")] = False,
) -> None:
    """Embed, fit, score and store; a second run of the same command computes nothing."""
    from evalharness.session import Session, Settings, open_library

    if dtype not in ("float32", "float16", "bfloat16"):
        raise UsageError(f"expected `--dtype` to be float32, float16 or bfloat16, got `{dtype}`")
    registry = open_registry(plugins, mirror)
    selections = open_library(registry).select(targets or ["quick"])
    settings = Settings(
        out=out,
        device=device,
        devices=tuple(filter(None, (devices or "").split(","))),
        dtype=dtype,
        batch_size=batch_size,
        limit=limit,
        seed=seed,
        force=force,
        command=shlex.join(["evalharness", *sys.argv[1:]]),
    )
    session = Session(registry, settings, Bars())
    if dry_run:
        _print_plan(registry, session, selections, encoders)
        return
    _run_all(session, selections, encoders, out)


def choose_encoders(registry: Registry, selections: list[Selection], named: list[str] | None) -> list[str]:
    """Return the encoders named, or those that the suites name.

    Raises:
        UsageError: nobody names one.
    """
    chosen = named or [encoder for selection in selections for encoder in selection.encoders]
    if not chosen:
        known = ", ".join(registry.specs("encoder"))
        raise UsageError(f"name an encoder with `-e`; known: {known}")
    return list(dict.fromkeys(chosen))


def _run_all(session: Session, selections: list[Selection], encoders: list[str] | None, out: Path) -> None:
    started = time.monotonic()
    chosen = choose_encoders(session.registry, selections, encoders)
    outcome = session.run(selections, chosen)
    _print_end(outcome, time.monotonic() - started)
    _print_board(session.registry, selections, out, session.settings.limit)
    if outcome.report is not None and outcome.report.counts["failed"]:
        failed = outcome.report.counts["failed"]
        raise UnitsFailedError(f"{counted(failed, 'unit')} failed; the same command tries {'it' if failed == 1 else 'them'} again")


def _print_end(outcome: Outcome, seconds: float) -> None:
    if outcome.report is None:
        print(f"nothing to do: {counted(outcome.reused, 'unit')}, all done", file=sys.stderr)
        return
    report = outcome.report
    counts = ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in sorted(report.counts.items()))
    reused = f", {outcome.reused} reused" if outcome.reused else ""
    print(
        f"{counted(outcome.pending, 'unit')} in {seconds:.1f} s: {counts}{reused}; {counted(report.rows_embedded, 'row')} embedded, {counted(report.fits, 'fit')}; results in {outcome.folder}",
        file=sys.stderr,
    )
    for failure in list(dict.fromkeys(report.failures))[:10]:
        print(f"failed: {failure}", file=sys.stderr)


def _print_board(registry: Registry, selections: list[Selection], out: Path, limit: int | None) -> None:
    from evalharness.leaderboard import make_board
    from evalharness.records import limit_of

    asked = {(selection.suite, task.name) for selection in selections for task in selection.tasks}
    board = make_board([out], keep=lambda record: (record["suite"], record["task"]) in asked and limit_of(record) == str(limit or ""))
    print(registry.get("reporter", "table").render(board))


# --- the plan -----------------------------------------------------------------------------------------------------


def _print_plan(registry: Registry, session: Session, selections: list[Selection], encoders: list[str] | None) -> None:
    from tabulate import tabulate

    from evalharness.estimate import estimate_plan

    plan: Plan = session.plan(selections, choose_encoders(registry, selections, encoders))
    todo = session.pending(plan).units
    rows = estimate_plan(plan, todo)
    print(tabulate(rows.table, rows.headings, tablefmt="simple", disable_numparse=True))
    print()
    for line in rows.lines:
        print(line)
