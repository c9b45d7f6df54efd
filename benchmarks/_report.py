"""One way to run a benchmark: quality asserted first, both sides in turn, one table, one section of RESULTS.md."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks._timing import Comparison, compare, machine, num_threads, peak_mebibytes, seconds, table, write_section

SHARE_OF_TARGET = 0.9
HEADER = ["what", "against", "ours", "theirs", "times faster (95 %)", "target", "met", "our peak beyond inputs", "their peak"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Hold one comparison; ``check`` raises where ours is worse, and may return words on how the two compare.

    ``scale`` is what the peer's seconds are multiplied by, where it does a part of the work.
    """

    name: str
    peer: str
    target: float | None
    check: Callable[[], str | None]
    ours: Callable[[], Any]
    theirs: Callable[[], Any]
    scale: float = 1.0
    turns: int = 7


def row_of(case: Case, found: Comparison, peaks: Sequence[float]) -> list[str]:
    """Return a row of the table."""
    target = "" if case.target is None else f"{case.target:g}"
    met = "" if case.target is None else "yes" if found.low >= SHARE_OF_TARGET * case.target else "no"
    mine, others = (seconds(float(np.median(side))) for side in (found.ours, found.theirs))
    ratio = f"{found.ratio:.3g} ({found.low:.3g} to {found.high:.3g})"
    return [case.name, case.peer, mine, others, ratio, target, met, *(f"{peak:.0f} MiB" for peak in peaks)]


def run_cases(cases: Sequence[Case], turns: int | None) -> tuple[list[list[str]], list[str]]:
    """Check, measure and time all cases; return rows of the table, and what the checks say."""
    rows, said = [], []
    for case in cases:
        words = case.check()
        peaks = peak_mebibytes(case.ours), peak_mebibytes(case.theirs)
        rows.append(row_of(case, compare(case.ours, case.theirs, turns=turns or case.turns, theirs_scale=case.scale), peaks))
        said += [f"{case.name}: {words}."] if words else []
        print(*rows[-1], sep=" | ", flush=True)
    return rows, said


def section_name(name: str) -> str:
    """Return the section of the file of results: one a number of threads."""
    return name if num_threads() == 1 else f"{name}-{num_threads()}-threads"


def run(
    name: str,
    description: str | None,
    make_cases: Callable[[], Sequence[Case]],
    notes: Sequence[str],
    more: Callable[[], Sequence[str]] | None = None,
) -> None:
    """Run a script's cases as the command line asks, print its section and write it; ``more`` gives lines that follow the table."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--turns", type=int, help="how often each side runs, instead of each case's own number")
    parser.add_argument("--only", help="part of the names of the cases to run; with one thread the section is then not written")
    parser.add_argument("--no-write", action="store_true", help="print only")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    beyond = [] if more is None or options.only else more()
    cases = [case for case in make_cases() if options.only is None or options.only in case.name]
    rows, said = run_cases(cases, options.turns)
    timed = "the processor" if num_threads() == 1 else f"the wall, {num_threads()} threads a side"
    lines = [
        f"## {section_name(name)}",
        "",
        f"`python benchmarks/{name}.py` on {machine()}",
        "",
        f"Both sides take turns in one process, quality is asserted first, times are of {timed}.",
        "A target is met where the lower end of the interval of the ratio of medians reaches 0.9 of it.",
        *notes,
        "",
        table(HEADER, rows),
        *(["", *said] if said else []),
        *(["", *beyond] if beyond else []),
    ]
    text = "\n".join(lines)
    print(text)
    if not options.no_write and (options.only is None or num_threads() > 1):
        write_section(section_name(name), text)
