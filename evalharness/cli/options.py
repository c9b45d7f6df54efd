"""Options that several commands share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from evalharness.errors import UsageError
from evalharness.registry import Registry, load_registry

DEFAULT_OUT = Path("evalharness-results")

Plugins = Annotated[
    list[str] | None,
    typer.Option("-p", "--plugin", metavar="PLUGIN", help="Load a plugin: FILE.py or package.module; no:NAME blocks one. May be repeated."),
]
Mirror = Annotated[
    Path | None,
    typer.Option(
        "--mirror", metavar="DIR", help="Read hf: and beir: data from this folder instead of the network; default $EVALHARNESS_MIRROR."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def open_registry(plugins: list[str] | None, mirror: Path | None = None) -> Registry:
    """Load the registry that a command works with.

    Raises:
        UsageError: the mirror is no folder.
    """
    if mirror is not None:
        if not mirror.is_dir():
            raise UsageError(f"`--mirror {mirror}` is no folder")
        os.environ["EVALHARNESS_MIRROR"] = str(mirror.resolve())
    return load_registry(plugins or [])


def read_pairs(entries: list[str] | None, option: str) -> dict[str, str]:
    """Return the pairs of a repeated ``KEY=VALUE`` option.

    Raises:
        UsageError: an entry has no equals sign.
    """
    pairs = [entry.partition("=") for entry in entries or []]
    if any(not equals for _, equals, _ in pairs):
        raise UsageError(f"expected `{option} KEY=VALUE`")
    return {key: value for key, _, value in pairs}
