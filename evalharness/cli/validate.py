"""``evalharness validate``: check task and suite files as far as no data is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evalharness.cli.options import Plugins, open_registry
from evalharness.errors import EvalHarnessError, TaskFileError, counted


def validate(
    files: Annotated[list[Path], typer.Argument(metavar="FILE ...", help="Task or suite files.")],
    plugins: Plugins = None,
) -> None:
    """Check files: YAML, keys, values, and that every name and parameter is registered. No data is read."""
    from evalharness.session import open_library
    from evalharness.suites import is_suite, read_tasks
    from evalharness.taskcheck import check_registered

    registry = open_registry(plugins)
    library = open_library(registry)
    faults = 0
    for path in files:
        try:
            tasks = library.select([str(path)])[0].tasks if is_suite(path) else tuple(read_tasks(path))
            for task in tasks:
                check_registered(registry, task)
        except EvalHarnessError as error:
            typer.echo(str(error), err=True)
            faults += 1
            continue
        typer.echo(f"{path}: {len(tasks)} task{'s' if len(tasks) != 1 else ''}, no fault")
    if faults:
        raise TaskFileError(f"{faults} of {counted(len(files), 'file')} {'has' if faults == 1 else 'have'} faults")
