"""``evalharness leaderboard``: tables from result folders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evalharness.cli.options import DEFAULT_OUT, Plugins, open_registry
from evalharness.errors import UsageError


def leaderboard(
    folders: Annotated[list[Path] | None, typer.Argument(metavar="[DIR ...]", help="Result folders; several are merged.")] = None,
    style: Annotated[str, typer.Option("--format", help="table, markdown, csv, json, or a plugin's format.")] = "table",
    suite: Annotated[str | None, typer.Option(help="Show one suite.")] = None,
    by: Annotated[str | None, typer.Option(help="Show one axis: shift, codec, group, fit or layer.")] = None,
    where: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Keep matching records; may be repeated.")] = None,
    plugins: Plugins = None,
) -> None:
    """Print the leaderboard of result folders."""
    from evalharness.leaderboard import make_board

    registry = open_registry(plugins)
    reporter = registry.get("reporter", style)
    pairs = [entry.partition("=") for entry in where or []]
    if any(not equals for _, equals, _ in pairs):
        raise UsageError("expected `--where KEY=VALUE`")
    board = make_board(folders or [DEFAULT_OUT], suite=suite, by=by, where={key: value for key, _, value in pairs})
    typer.echo(reporter.render(board))
