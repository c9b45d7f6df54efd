"""The command line: a module a command, each of which parses, calls one function and prints."""

from __future__ import annotations

import contextlib
import os
import sys

M_MMAP_THRESHOLD = -3  # of glibc's mallopt


def main() -> None:
    """Run the command line; a user's mistake is one line and an exit code, a bug shows its traceback."""
    prepare_process()
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


def prepare_process() -> None:
    """Set what must be set before torch is loaded: how threads wait, and how large blocks of memory are given back."""
    # Threads that spin at barriers make small steps ten times slower on a busy machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # glibc raises this threshold by itself and then keeps freed vectors in a heap that only grows, task by task.
    with contextlib.suppress(OSError, AttributeError):
        import ctypes

        ctypes.CDLL("libc.so.6").mallopt(M_MMAP_THRESHOLD, 1 << 20)


__all__ = ["main", "prepare_process"]
