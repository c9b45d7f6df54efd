"""``evalharness leaderboard``: tables from result folders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evalharness.cli.options import DEFAULT_OUT, Plugins, open_registry, read_pairs


def leaderboard(
    folders: Annotated[list[Path] | None, typer.Argument(metavar="[DIR ...]", help="Result folders; several are merged.")] = None,
    style: Annotated[str, typer.Option("--format", help="table, markdown, html, latex, csv, json, or a plugin's format.")] = "table",
    suite: Annotated[str | None, typer.Option(help="Show one suite.")] = None,
    by: Annotated[str | None, typer.Option(help="Show one axis: shift, codec, group, fit, layer, target or cost.")] = None,
    where: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Keep matching records; may be repeated.")] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="Show the mean of an encoder that lacks tasks over those it has; it stays unranked.")
    ] = False,
    reference: Annotated[
        str | None, typer.Option(metavar="ENCODER", help="With --by target: show the differences of the other encoders to this one.")
    ] = None,
    plugins: Plugins = None,
) -> None:
    """Print the leaderboard of result folders."""
    from evalharness.leaderboard import make_board

    registry = open_registry(plugins)
    reporter = registry.get("reporter", style)
    board = make_board(
        folders or [DEFAULT_OUT],
        suite=suite,
        by=by,
        where=read_pairs(where, "--where"),
        partial=partial,
        reference=reference,
        registry=lambda: registry,
    )
    typer.echo(reporter.render(board))
