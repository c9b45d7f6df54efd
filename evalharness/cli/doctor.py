"""``evalharness doctor``: what works on this machine, and whether an encoder is fit to be measured."""

from __future__ import annotations

from typing import Annotated

import typer

from evalharness.cli.options import Mirror, Plugins, open_registry
from evalharness.errors import DataError


def doctor(
    encoders: Annotated[
        list[str] | None, typer.Option("-e", "--encoder", metavar="ENCODER", help="Check an encoder; may be repeated.")
    ] = None,
    plugins: Plugins = None,
    device: Annotated[str, typer.Option(help="cpu, cuda:0, mps, or auto.")] = "auto",
    mirror: Mirror = None,
) -> None:
    """Check packages, folders and plugins; with -e also that an encoder's vectors do not depend on batch size or order."""
    from evalharness.checkup import check_machine, examine_encoder

    registry = open_registry(plugins, mirror)
    bad = 0
    for line, good in check_machine(registry):
        typer.echo(f"{'ok  ' if good else 'BAD '} {line}")
        bad += not good
    for encoder in encoders or []:
        for line, good in examine_encoder(registry, encoder, device):
            typer.echo(f"{'ok  ' if good else 'BAD '} {encoder}: {line}")
            bad += not good
    if bad:
        raise DataError(f"{bad} checks failed")
