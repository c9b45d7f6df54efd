"""Print again what documents show of commands on the published results.

A block below a line ``<!-- printed by: COMMAND -->`` holds that command's output, 160 columns wide.
Run ``python docs/make_output.py`` after the results or a command's output changed; ``--check`` changes nothing and says which pages are stale.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"(<!-- printed by: (?P<command>.+?) -->\n```(?P<form>\w+)\n)(?P<body>.*?)(?=```)", re.DOTALL)


def run(command: str) -> str:
    """Return what a command prints, in the repository's root."""
    environment = {**os.environ, "COLUMNS": "160"}
    done = subprocess.run(shlex.split(command), cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return "\n".join(line.rstrip() for line in done.stdout.rstrip().splitlines())


def refresh(text: str) -> str:
    """Return a page with every such block printed anew."""

    def printed(found: re.Match[str]) -> str:
        prompt = f"$ {found['command']}\n" if found["form"] == "console" else ""
        return f"{found[1]}{prompt}{run(found['command'])}\n"

    return BLOCK.sub(printed, text)


def main() -> int:
    """Write or check the pages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 where a page is not up to date")
    given = parser.parse_args()
    stale = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        fresh = refresh(text)
        if fresh != text:
            stale.append(str(page.relative_to(ROOT)))
            if not given.check:
                page.write_text(fresh, encoding="utf-8")
    if given.check and stale:
        print(f"{', '.join(stale)} show other output than the commands give; run `python docs/make_output.py`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
