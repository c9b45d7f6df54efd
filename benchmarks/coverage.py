"""Simulate what the intervals of the product cover, and those that it does not use; write ``docs/coverage.md``.

Run ``python benchmarks/coverage.py``, or with ``--quick`` for a rough look that is printed only.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks._episodes import cloud_settings, episode_settings
from benchmarks._forms import USED, Setting, Simulated, simulate
from benchmarks._neighbourhoods import neighbourhood_settings
from benchmarks._settings import SECTIONS
from benchmarks._several import Line, difference_lines, group_lines, rank_lines, test_lines
from benchmarks._timing import table

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "coverage.md"
REPEATS = 1200
QUICK = 150
GOOD, BETTER, WIDEST = 0.94, 0.012, 1.35
HEADER = ["what", "size", "form", "role", "coverage", "width", "given"]
METHODS = {
    "wilson": "Wilson",
    "wilson-effective": "Wilson at effective n",
    "jackknife": "t on the jackknife",
    "jackknife-fisher": "t of Fisher's z",
    "class-jackknife": "jackknife of classes",
    "half-sample": "t · SD of halves",
    "bootstrap-percentile": "percentile",
    "bootstrap-basic": "basic",
    "bootstrap-bca": "BCa",
    "bootstrap-se": "t · SD",
    "bootstrap-t": "studentised",
    "bootstrap-percentile-expanded": "percentile expanded",
    "bootstrap-basic-expanded": "basic expanded",
    "bootstrap-bca-expanded": "BCa expanded",
}


def lines_of(found: Simulated) -> Iterator[Line]:
    """Yield the lines of one setting; a form that is the one used is not told twice."""
    setting = found.setting
    used = " or ".join(METHODS.get(method, method) for method in found.method.split(" or "))
    for form, tally in found.tallies.items():
        if form == used and form != USED:
            continue
        yield Line(
            what=setting.what,
            size=setting.size,
            form=used if form == USED else form,
            role=USED if form == USED else "rejected" if form in setting.rejected else "other",
            right=tally.coverage,
            width=f"{found.relative_width(form):.2f}",
            given=tally.given / tally.total,
        )


def from_settings(settings: Callable[[], list[Setting]]) -> Callable[[int], Iterator[Line]]:
    """Return the simulation of a list of settings."""

    def run(repeats: int) -> Iterator[Line]:
        for setting in settings():
            yield from lines_of(simulate(setting, max(50, int(repeats * setting.effort))))

    return run


def sections() -> dict[str, Callable[[int], Iterator[Line]]]:
    """Return everything that is simulated, by heading."""
    return {
        **{name: from_settings(settings) for name, settings in SECTIONS.items()},
        "Few-shot": from_settings(episode_settings),
        "Whole clouds": from_settings(cloud_settings),
        "Neighbourhoods and clusters": from_settings(neighbourhood_settings),
        "Differences": difference_lines,
        "Worst groups": group_lines,
        "Rank sets": rank_lines,
        "Tests and bands": test_lines,
    }


def row(line: Line, previous: Line | None) -> list[str]:
    """Return a row of a table; a setting is named once."""
    same = previous is not None and (previous.what, previous.size) == (line.what, line.size)
    right = "none given" if math.isnan(line.right) else f"{line.right:.3f}"
    form = f"**{line.form}**" if line.role == USED else line.form
    aim = "" if line.aim > 0.5 else f" (aim {line.aim:.2f})"
    given = "" if line.given > 0.9995 else f"{line.given:.2f}"
    return ["" if same else line.what, "" if same else line.size, form, line.role, right + aim, line.width, given]


def better_forms(lines: list[Line]) -> list[list[str]]:
    """Return settings in which what is used covers too little and another form clearly more, at little more width."""
    rows = []
    groups: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        groups.setdefault((line.what, line.size), []).append(line)
    for members in groups.values():
        used = next((line for line in members if line.role == USED and line.aim > 0.5), None)
        if used is None or used.right >= GOOD:
            continue
        others = [
            line
            for line in members
            if line.role == "other" and abs(line.right - line.aim) + BETTER <= used.aim - used.right and _moderate(line)
        ]
        if others:
            best = min(others, key=lambda line: abs(line.right - line.aim))
            rows.append([used.what, used.size, f"{used.form} {used.right:.3f}", f"{best.form} {best.right:.3f}", best.width])
    return rows


def _moderate(line: Line) -> bool:
    try:
        return float(line.width) <= WIDEST and line.given > 0.9
    except ValueError:
        return False


def write_page(found: dict[str, list[Line]], repeats: int) -> str:
    """Return the page."""
    half = 196 * math.sqrt(0.95 * 0.05 / repeats)
    parts = [
        "# Simulated coverage of intervals",
        "",
        "Generated by `python benchmarks/coverage.py`; do not edit.",
        "",
        f"Each line draws fresh data sets, most of them {repeats:,} times, and counts how often the 95 % interval holds the true value.",
        f"A coverage of .95 is known to ± {half:.1f} points.",
        "**Used** is what the product gives: the simulation calls `evalharness.estimates.estimate` and `evalharness.joint.Joint` themselves.",
        "**Rejected** forms are those that the design decided against, shown to fail or to be needlessly wide.",
        "*Width* is the mean width over that of value ± 1.96 true standard errors.",
        "*Given* is the share of data sets with an interval, where it is not all; coverage is among those.",
        "[Statistics](statistics.md) says what each form is for.",
    ]
    better = better_forms([line for lines in found.values() for line in lines])
    if better:
        parts += ["", "## Where another form covers better", "", table(["what", "size", "used", "better", "its width"], better)]
    parts += ["", *[section(name, lines) for name, lines in found.items()]]
    return "\n".join(parts).rstrip() + "\n"


def section(name: str, lines: list[Line]) -> str:
    """Return a section of the page, with an empty line behind it."""
    rows = [row(line, before) for line, before in zip(lines, [None, *lines[:-1]], strict=True)]
    return f"## {name}\n\n{table(HEADER, rows)}\n"


def replace_sections(page: str, found: dict[str, list[Line]]) -> str:
    """Return the page with some sections made anew, or added in their place; the summary at its top is kept."""
    head, *texts = re.split(r"(?m)^(?=## )", page)
    held = {text.partition("\n")[0].removeprefix("## "): text.rstrip() + "\n" for text in texts}
    held |= {name: section(name, lines) for name, lines in found.items()}
    order = [name for name in held if name not in sections()] + [name for name in sections() if name in held]
    return "\n".join([head.rstrip() + "\n", *[held[name] for name in order]]).rstrip() + "\n"


def main() -> None:
    """Simulate all, print, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} repetitions, printed and not written")
    parser.add_argument("--repeats", type=int, help=f"repetitions, instead of {REPEATS}")
    parser.add_argument("--only", help="part of a section's name; the other sections of the page stay")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    repeats = options.repeats or (QUICK if options.quick else REPEATS)
    found: dict[str, list[Line]] = {}
    for name, run in sections().items():
        if options.only and options.only.lower() not in name.lower():
            continue
        start = time.perf_counter()
        found[name] = list(run(repeats))
        print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    page = write_page(found, repeats)
    print(page)
    if not options.quick:
        PAGE.write_text(replace_sections(PAGE.read_text(), found) if options.only else page)


if __name__ == "__main__":
    main()
