"""Several devices share one view, and the result is the same."""

from __future__ import annotations

from evalharness.records import score_digest
from evalharness.store import ResultsReader, ViewCache

TASK = """
data: {dataset: scenes, params: {train: 60, validation: 20, test: 5000}, image_size: 32, target: colour}
evaluators:
  knn: {use: knn, k: 1}
main: knn.accuracy
"""


def test_two_workers_give_the_same_view_as_one(run_tasks, write_task, tmp_path, monkeypatch, cache):
    path = write_task(TASK.replace("\ndata", "task: shared\nversion: 1\nmodality: image\ndata", 1).lstrip())
    run_tasks(path, ["pixels"], out=tmp_path / "one")
    other = tmp_path / "other-cache"
    monkeypatch.setenv("EVALHARNESS_CACHE", str(other))
    outcome = run_tasks(path, ["pixels"], out=tmp_path / "two", devices=("cpu", "cpu"))

    assert outcome.report.counts == {"measured": 1}
    assert ViewCache(other).verify() == (2, [])
    shards = [{path.name: path.read_bytes() for path in folder.glob("views/*/*/shard-*")} for folder in (cache, other)]
    assert len(shards[0]) >= 2
    assert shards[0] == shards[1]
    assert score_digest(ResultsReader([tmp_path / "one"]).records()) == score_digest(ResultsReader([tmp_path / "two"]).records())


def test_a_worker_that_fails_fails_the_view_by_name(run_tasks, write_task, tmp_path):
    outcome = run_tasks(
        write_task("data: {dataset: toy, target: label}\nevaluators: {knn: {use: knn, k: 1}}\nmain: knn.accuracy\n"),
        ["bad-nan"],
        devices=("cpu", "cpu"),
    )

    assert outcome.report.counts == {"failed": 1}
    assert "vectors are NaN or infinite at rows" in outcome.report.failures[0]
