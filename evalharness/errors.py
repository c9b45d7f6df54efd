"""Exceptions that a user can cause, each with its exit code.

Whatever derives from :class:`EvalHarnessError` is printed by the command line as one line; anything else is a bug and shows its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class EvalHarnessError(Exception):
    """Report a mistake that the user can mend."""

    exit_code = 1


class UsageError(EvalHarnessError):
    """Report a wrong argument, parameter or combination of options."""

    exit_code = 2


class UnknownNameError(UsageError):
    """Report a name that nothing is registered under."""


class TaskFileError(EvalHarnessError):
    """Report a task or suite file that cannot be used; the message names file and line."""

    exit_code = 3


class PluginError(EvalHarnessError):
    """Report a plugin that clashes, is broken or raised; the message names the plugin."""

    exit_code = 4


class MissingExtraError(EvalHarnessError):
    """Report an optional package that is not installed; the message names the extra."""

    exit_code = 5


class DataError(EvalHarnessError):
    """Report data that cannot answer the question asked of it."""

    exit_code = 6


class VectorsError(DataError):
    """Report embeddings of a wrong shape, or that are not finite; the message names the row ids."""


class StoreError(EvalHarnessError):
    """Report a folder or file of the store that cannot be written or read."""

    exit_code = 7


class NotVerifiedError(EvalHarnessError):
    """Results do not hold what they claim."""

    exit_code = 9


class UnitsFailedError(EvalHarnessError):
    """Report that a run ended with failed units."""

    exit_code = 8


def near_matches(name: str, known: Iterable[str], limit: int = 3) -> list[str]:
    """Return the known names closest to ``name``, best first."""
    return difflib.get_close_matches(name, sorted(known), n=limit, cutoff=0.5)


def unknown_name(kind: str, name: str, known: Iterable[str]) -> str:
    """Word the message for an unknown name, with near matches and a bounded list of known names.

    >>> unknown_name("encoder", "pixel", ["pixels", "identity"])
    "unknown encoder `pixel`; did you mean `pixels`?"
    """
    names = sorted(known)
    near = near_matches(name, names)
    if near:
        return f"unknown {kind} `{name}`; did you mean {' or '.join(f'`{match}`' for match in near)}?"
    shown = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
    return f"unknown {kind} `{name}`; known: {shown or 'none'}"


def import_extra(module: str, extra: str) -> object:
    """Import an optional module, or name the extra that brings it.

    Raises:
        MissingExtraError: the module cannot be imported.
    """
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"`{module.partition('.')[0]}` is needed here and cannot be imported ({error}); install it with `pip install 'evalharness[{extra}]'`"
        ) from error


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, in the plural but for one.

    >>> counted(1, "task"), counted(1200, "view")
    ('1 task', '1,200 views')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
