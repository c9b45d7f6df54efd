"""``evalharness failures``: what went wrong, grouped by cause."""

from __future__ import annotations

import dataclasses
import json
import shutil
import textwrap
from pathlib import Path
from typing import Annotated

import typer

from evalharness.cli.options import DEFAULT_OUT, AsJson

SHOWN_CELLS = 3


def failures(
    folders: Annotated[list[Path] | None, typer.Argument(metavar="[DIR ...]", help="Result folders; several are merged.")] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="List what is insufficient, undecided or not measured, too; not only what failed.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List failed, not converged and suspect results with their reasons; the same run command tries failed ones again."""
    from evalharness.errors import counted
    from evalharness.failures import KINDS, list_failures
    from evalharness.store.results import ResultsReader, no_results, require_results

    folders = folders or [DEFAULT_OUT]
    require_results(folders)
    records = ResultsReader(folders).records()
    if not records:
        raise no_results(folders)
    kinds = KINDS if everything else KINDS[:3]
    found = list_failures(records, kinds)
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(failure) for failure in found], ensure_ascii=False, indent=2))
        return
    if not found:
        typer.echo(f"no failures among {counted(len(records), 'record')}")
    width = shutil.get_terminal_size((160, 24)).columns
    for failure in found:
        cells = "; ".join(failure.cells[:SHOWN_CELLS])
        more = f"; and {len(failure.cells) - SHOWN_CELLS} more cells" if len(failure.cells) > SHOWN_CELLS else ""
        typer.echo(f"{failure.suite or 'single task'} · {failure.task} · {failure.encoder}: {failure.status.replace('_', ' ')}")
        for text in (failure.reason, f"in {cells}{more}"):
            typer.echo(
                textwrap.fill(text, width, initial_indent="  ", subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
            )
    if found:
        bad = [record for record in records if record["status"] in kinds]
        units = len({(record["suite"], record["unit"]) for record in bad})
        typer.echo(f"\n{counted(len(bad), 'record')} of {counted(units, 'unit')}")
