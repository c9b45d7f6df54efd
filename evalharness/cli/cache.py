"""``evalharness cache``: list, verify and prune embeddings."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from evalharness.cli.options import AsJson
from evalharness.errors import StoreError, counted


def make_app() -> typer.Typer:
    """Return the sub-commands."""
    app = typer.Typer(help="List, verify and prune cached embeddings.", no_args_is_help=True, rich_markup_mode=None)
    app.command("list")(list_views)
    app.command("verify")(verify)
    app.command("prune")(prune)
    return app


def list_views(as_json: AsJson = False) -> None:
    """List the cached views: encoder, data, rows and bytes."""
    from tabulate import tabulate

    from evalharness.store.views import ViewCache

    entries = ViewCache().entries()
    if as_json:
        typer.echo(json.dumps(entries, ensure_ascii=False, indent=2))
        return
    rows = []
    for entry in entries:
        key = entry["key"]
        shift = key["shift"][0] if key.get("shift") else "clean"
        source = key.get("source") or ["?", {}, "?"]
        rows.append(
            [
                key.get("label", "?"),
                source[0],
                source[2],
                key.get("part"),
                f"{shift} {key.get('severity', 0):.3g}",
                entry["rows"],
                entry["bytes"],
                "complete" if entry["complete"] else "unfinished",
            ]
        )
    typer.echo(
        tabulate(sorted(rows, key=str), ["encoder", "data", "split", "part", "shift", "rows", "bytes", "state"], tablefmt="simple")
        if rows
        else "the cache is empty"
    )
    typer.echo(f"\n{counted(len(entries), 'view')}, {sum(entry['bytes'] for entry in entries):,} bytes")


def verify() -> None:
    """Hash every shard again and compare with its checksum."""
    from evalharness.store.views import ViewCache

    complete, faults = ViewCache().verify()
    for fault in faults:
        typer.echo(fault)
    typer.echo(f"{counted(complete, 'complete view')}, {counted(len(faults), 'fault')}")
    if faults:
        raise StoreError(f"{counted(len(faults), 'damaged view')}; the next run embeds them again, `evalharness cache prune` removes them")


def prune(
    older_than: Annotated[float | None, typer.Option(metavar="DAYS", help="Also remove views not read for so many days.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Remove every view.")] = False,
) -> None:
    """Remove unfinished and damaged views."""
    from evalharness.store.views import ViewCache

    views, freed = ViewCache().prune(older_than_days=older_than, everything=everything)
    typer.echo(f"removed {counted(views, 'view')}, {freed:,} bytes")
