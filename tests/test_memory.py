"""Peak memory follows the largest task, not their number."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TASK = """
data: {dataset: toy, params: {size: 40}, target: [label, parity]}
fits: {all: {}, half: {budget: 0.5}}
evaluators:
"""
CODE = """
import resource, sys
from pathlib import Path
from evalharness.cli import prepare_process
prepare_process()
from evalharness.registry import load_registry
from evalharness.session import Session, Settings, Silent
from evalharness.suites import Library
toys, out, *tasks = sys.argv[1:]
session = Session(load_registry([toys]), Settings(out=Path(out)), Silent())
outcome = session.run(Library([]).select(tasks), ["random-projection?dim=600"])
assert not outcome.report.failures, outcome.report.failures
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def peak(tmp_path, name, tasks):
    command = [sys.executable, "-c", CODE, str(Path(__file__).parent / "toys.py"), str(tmp_path / name), *map(str, tasks)]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    return int(result.stdout) / 1024


@pytest.mark.slow
def test_peak_memory_does_not_grow_with_evaluators_or_tasks(write_task, tmp_path):
    def task(name, evaluators):
        lines = "".join(f"  c{at}: {{use: centroid, fits: [{('all', 'half')[at]}]}}\n" for at in range(evaluators))
        return write_task(f"{TASK}{lines}codecs: [float32, int8]\nmain: c0.accuracy\n", name)

    one = peak(tmp_path, "one", [task("one", 2)])  # enough to fill the few coded tables that are kept
    many = peak(tmp_path, "many", [task(f"many-{at}", 2) for at in range(8)])

    vectors = 40 * 500 * 600 * 4 / 2**20  # MiB of one task's vectors
    # Freed blocks come back in the order of the system's choice; a table that stayed for each task would cost 7 times its size.
    assert many < one + 3 * vectors
