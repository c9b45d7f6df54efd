"""Write the help of every command to docs/cli.md; with ``--check`` only say whether it is there already."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

# Typer and click wrap by the width of the terminal; the page must not depend on it.
os.environ.update(COLUMNS="110", TERMINAL_WIDTH="110", NO_COLOR="1", _TYPER_FORCE_DISABLE_TERMINAL="1")

import typer.main

from evalharness.cli.app import make_app

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).with_name("cli.md")
HEAD = """# Commands

This page is written by `python docs/make_cli.py`: change the help of a command, not this page.
Results go to standard output, progress and errors to standard error.
A mistake of the user is one line, and an exit code of its own: the classes in `evalharness.errors` list them.
"""


def commands(group: object, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], object]]:
    """Yield every command below a group with the words that call it, the group itself first."""
    yield path, group
    for name, command in sorted(getattr(group, "commands", {}).items()):
        yield from commands(command, (*path, name))


def help_of(command: object, path: tuple[str, ...]) -> str:
    """Return what ``--help`` prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        command.main(["--help"], prog_name=" ".join(path))  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in printed.getvalue().strip().splitlines())


def make_page() -> str:
    """Return the page."""
    parts = [HEAD]
    for path, command in commands(typer.main.get_command(make_app()), ("evalharness",)):
        parts.append(f"## {' '.join(path)}\n\n```text\n{help_of(command, path)}\n```\n")
    return "\n".join(parts)


def main() -> int:
    """Write or check the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 where the page is not up to date")
    parser.add_argument("page", nargs="?", type=Path, default=PAGE)
    given = parser.parse_args()
    text = make_page()
    if not given.check:
        given.page.write_text(text)
    elif not given.page.exists() or given.page.read_text() != text:
        print(f"{given.page} is not what the commands print; run `python docs/make_cli.py`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
