"""The command line: a module a command, each of which parses, calls one function and prints."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line; a user's mistake is one line and an exit code, a bug shows its traceback."""
    # Read when torch loads its OpenMP: threads that spin at barriers make small steps ten times slower on a busy machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from evalharness.cli.app import make_app
    from evalharness.errors import EvalHarnessError

    try:
        make_app()(standalone_mode=True)
    except EvalHarnessError as error:
        print(f"evalharness: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("evalharness: interrupted; what was finished is stored, run the same command to go on", file=sys.stderr)
        sys.exit(130)


__all__ = ["main"]
