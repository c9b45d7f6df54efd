"""A run that is killed at any moment goes on where it was."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from evalharness.records import score_digest
from evalharness.store import ResultsReader, ViewCache

TASKS = Path(__file__).parent / "tasks"
WIDE, SHIFTED = ((TASKS / f"{name}.yaml").read_text() for name in ("wide", "shifted"))

CHILD = """
import os, signal, sys
from pathlib import Path
from evalharness.registry import load_registry
from evalharness.session import Session, Settings, Silent
from evalharness.store import files
from evalharness.suites import Library

def work(toys, tasks, out, cache, stop):
    os.environ["EVALHARNESS_CACHE"] = cache
    count = 0
    def tick(what):
        nonlocal count
        count += 1
        if count == stop:
            os.kill(os.getpid(), signal.SIGKILL)
    files.set_operation_counter(tick)
    import torch
    torch.set_num_threads(1)
    session = Session(load_registry([toys]), Settings(out=Path(out)), Silent())
    session.run(Library([]).select(tasks), ["counting", "doubling"])
    return count

def child(*arguments):
    pid = os.fork()  # before torch has started a thread, so that each trial costs no import
    if pid == 0:
        read_end = None
        try:
            count = work(*arguments)
            Path(arguments[2]).with_suffix(".count").write_text(str(count))
            os._exit(0)
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

import evalharness.run, evalharness.embed, evalharness.numerics, pyarrow.parquet
toys, base, moments, *tasks = sys.argv[1:]
assert child(toys, tasks, base + "/whole", base + "/cache-whole", 0) == 0
total = int(Path(base + "/whole.count").read_text())
for at in range(int(moments)):
    stop = 1 + at * (total - 1) // (int(moments) - 1)
    out, cache = f"{base}/out-{at}", f"{base}/cache-{at}"
    assert child(toys, tasks, out, cache, stop) == -9, (at, stop, total)
    assert child(toys, tasks, out, cache, 0) == 0
print(total)
"""


@pytest.mark.slow
def test_a_run_killed_at_twenty_moments_resumes_to_the_same_digest(write_task, tmp_path):
    tasks = [write_task(WIDE, "one"), write_task(SHIFTED, "two")]
    command = [sys.executable, "-c", CHILD, str(Path(__file__).parent / "toys.py"), str(tmp_path), "20", *map(str, tasks)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)

    assert result.returncode == 0, result.stderr[-2000:]
    assert int(result.stdout) > 40
    whole = score_digest(ResultsReader([tmp_path / "whole"]).records())
    for at in range(20):
        assert score_digest(ResultsReader([tmp_path / f"out-{at}"]).records()) == whole
        complete, faults = ViewCache(tmp_path / f"cache-{at}").verify()
        assert faults == []
        assert complete >= 8
