"""Run every benchmark, one process each, and write RESULTS.md: ``python -m benchmarks [--turns N] [--no-write]``.

Peers are installed by ``pip install -c constraints.txt -r benchmarks/requirements.txt``.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
SCRIPTS = ("stats", "probes", "search", "clusters", "episodes", "devices")


def main() -> None:
    """Run the scripts in turn; the first that fails ends the run with its exit code."""
    for name in SCRIPTS:
        print(f"== {name}", flush=True)
        ended = subprocess.run([sys.executable, str(HERE / f"{name}.py"), *sys.argv[1:]], cwd=HERE.parent, check=False)
        if ended.returncode:
            raise SystemExit(ended.returncode)


if __name__ == "__main__":
    main()
