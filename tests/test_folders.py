"""Results of several folders stand side by side, each with what its own run saw."""

from __future__ import annotations

from pathlib import Path

import torch

from evalharness.store import ResultsReader
from evalharness.verify import verify


def test_folders_that_hold_one_unit_with_other_items_are_each_checked_against_their_own(run_tasks, write_task, toys, tmp_path, monkeypatch):
    """A second machine may round otherwise; under two suites both records stand."""
    path = write_task((Path(__file__).parent / "tasks" / "basic.yaml").read_text())
    (tmp_path / "pack.yaml").write_text(f"suite: pack\nversion: 1\ntasks: [{path.name}]\n")
    run_tasks(path, out=tmp_path / "one")
    exact = torch.cdist
    monkeypatch.setattr(torch, "cdist", lambda first, second: exact(first, second) * (1 + 1e-3))
    run_tasks(tmp_path / "pack.yaml", out=tmp_path / "two")

    report = verify([tmp_path / "one", tmp_path / "two"])
    assert report.num_units == 2
    assert not report.faults
    first, second = (ResultsReader([tmp_path / name]).records()[0] for name in ("one", "two"))
    assert first["unit"] == second["unit"]
    assert first["outcome"].rpartition("#")[2] != second["outcome"].rpartition("#")[2]
