"""Put the commands together."""

from __future__ import annotations

import logging
from typing import Annotated

import typer

from evalharness.cli import cache, compare, doctor, failures, leaderboard, listing, run, validate, verify


def _version(value: bool) -> None:
    if value:
        from evalharness import __version__

        typer.echo(__version__)
        raise typer.Exit


def make_app() -> typer.Typer:
    """Return the application with every command."""
    app = typer.Typer(
        name="evalharness",
        help="Evaluate embeddings: embed once, ask every question of the same vectors, put an honest interval on every answer.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )

    @app.callback()
    def options(
        version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
        verbose: Annotated[bool, typer.Option("--verbose", help="Log what happens, with tracebacks of failed units.")] = False,
    ) -> None:
        del version
        logging.basicConfig(level=logging.DEBUG if verbose else logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
        for noisy in ("urllib3", "filelock", "fsspec", "asyncio", "matplotlib"):
            logging.getLogger(noisy).setLevel(logging.WARNING)

    app.command("run")(run.run)
    app.command("list")(listing.list_things)
    app.command("show")(listing.show)
    app.command("validate")(validate.validate)
    app.command("doctor")(doctor.doctor)
    app.command("leaderboard")(leaderboard.leaderboard)
    app.command("compare")(compare.compare)
    app.command("verify")(verify.verify)
    app.command("failures")(failures.failures)
    app.add_typer(cache.make_app(), name="cache")
    return app
