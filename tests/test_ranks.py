"""Rank sets of stored results: ties, chance, few units, episodes, several tasks, and how often equal encoders are called different."""

from __future__ import annotations

import math

import numpy as np
import pytest

from evalharness.estimates import Items, Resampler
from evalharness.evidence import Basis, Evidence
from evalharness.leaderboard import make_board
from evalharness.ranks import rank_suite, rank_tasks, tell_apart
from evalharness.types import MetricInfo

ACCURACY = MetricInfo(name="accuracy", columns=("hit",), interval="wilson")


def basis(columns, metric=ACCURACY, **fields):
    given = {"variant": "", "item": "sample", "part": "items", "clusters": None} | fields
    rows = np.arange(len(next(iter(columns.values()))))
    return Basis(metric=metric, pieces=[Items(rows=rows, columns=columns, **given)], weights=[1.0])


def ranks_of(bases, seed=0, resampler=None, **options):
    return tell_apart([f"e{at}" for at in range(len(bases))], bases, resampler or Resampler(seed), **options)


def sets_of(bases, **options):
    return list(ranks_of(bases, **options).sets().values())


def test_equal_items_share_all_places_and_a_clearly_better_one_stands_alone():
    hits = np.random.default_rng(0).random(1000) < 0.6
    best = np.ones(1000, dtype=bool)

    assert sets_of([basis({"hit": hits}), basis({"hit": hits.copy()}), basis({"hit": best})]) == [(2, 3), (2, 3), (1, 1)]


def test_lower_is_better_turns_the_order():
    loss = MetricInfo(name="log_loss", columns=("loss",), higher_is_better=False, high=math.inf)
    draw = np.random.default_rng(0)
    small, large = draw.random(500), 1 + draw.random(500)

    assert sets_of([basis({"loss": large}, loss), basis({"loss": small}, loss)]) == [(2, 2), (1, 1)]


def test_few_units_decide_by_their_own_spread():
    draw = np.random.default_rng(0)
    first = draw.normal(0.5, 0.1, 12)
    metric = MetricInfo(name="score", columns=("score",), low=-math.inf, high=math.inf)
    found = ranks_of([basis({"score": first}, metric), basis({"score": first - 0.2 + draw.normal(0, 0.02, 12)}, metric)])

    assert found.degrees == 11
    assert not found.replicates.shape[1]
    assert list(found.sets().values()) == [(1, 1), (2, 2)]
    assert ranks_of([basis({"score": first[:4]}, metric)] * 2) is None


def test_episodes_are_told_apart_class_by_class():
    draw = np.random.default_rng(0)
    classes = np.stack([draw.choice(30, 5, replace=False) for _ in range(1000)])
    skill = draw.normal(0.7, 0.1, (2, 30))
    metric = MetricInfo(name="accuracy", columns=("score",))
    fields = {"item": "episode", "clusters": classes, "num_classes": 30}
    scores = [values[classes].mean(axis=1) for values in (skill[0], skill[0] - 0.1, skill[1])]
    found = ranks_of([basis({"score": each}, metric, **fields) for each in scores])

    assert found.degrees == 29
    assert found.sets()["e0"][1] < found.sets()["e1"][1]
    assert found.errors[0, 1] < found.errors[0, 2]


# --- several tasks ------------------------------------------------------------------------------------------------


def test_the_error_of_a_mean_over_tasks_is_the_root_of_the_summed_squares_over_their_number():
    draw = np.random.default_rng(0)
    tasks = {f"t{at}": ranks_of([basis({"hit": draw.random(500 + at) < share}) for share in (0.5, 0.7)], seed=at) for at in range(4)}
    found = rank_suite(tasks, list(tasks))
    errors = [ranks.errors[0, 1] for ranks in tasks.values()]
    wide = np.mean([ranks.replicates for ranks in tasks.values()], axis=0)

    assert found.sets == {"e0": (2, 2), "e1": (1, 1)}
    assert (wide[0] - wide[1]).std() == pytest.approx(np.sqrt(np.square(errors).sum()) / 4, rel=0.1)
    assert found.means["e0"][1] < found.means["e0"][0] < found.means["e0"][2]


def test_the_same_few_rows_asked_twice_are_no_more_evidence():
    draw = np.random.default_rng(0)
    bases = [basis({"hit": draw.random(20)}) for _ in range(3)]
    once = ranks_of(bases, shared="data")
    twice = rank_suite({"a": once, "b": ranks_of(bases, shared="data")}, ["a", "b"])

    assert twice.sets == once.sets()


def test_an_encoder_that_lacks_a_task_has_no_mean():
    hits = np.random.default_rng(0).random((3, 300)) < 0.5
    both = ranks_of([basis({"hit": hits[0]}), basis({"hit": hits[1]})])
    three = ranks_of([basis({"hit": each}) for each in hits])
    found = rank_suite({"a": three, "b": both}, ["a", "b"])

    assert set(found.means) == {"e0", "e1"}
    assert rank_suite({"a": three}, ["a", "b"]) is None


def test_tasks_over_the_same_rows_are_drawn_together(run_tasks, write_task, tmp_path):
    body = "data: {{dataset: toy, target: {target}}}\nevaluators: {{centroid: {{use: centroid}}}}\nmain: centroid.accuracy\n"
    paths = [write_task(body.format(target=target), f"toy-{at}") for at, target in enumerate(("label", "label", "parity"))]
    run_tasks(paths, ["counting", "random-projection?dim=3"])
    evidence = Evidence([tmp_path / "out"])
    mains = [record for record in evidence.reader.records() if record["main"]]
    by_task = {task: [record for record in mains if record["task"] == task] for task in ("toy-0", "toy-1", "toy-2")}
    found, reasons = rank_tasks(evidence, by_task)
    errors = [found[task].errors[0, 1] for task in found]
    suite = np.mean([found["toy-0"].replicates, found["toy-1"].replicates], axis=0)

    assert reasons == {}
    assert (found["toy-0"].replicates == found["toy-1"].replicates).all()
    assert (suite[0] - suite[1]).std(ddof=1) == pytest.approx(errors[0])  # one task asked twice is no more evidence


# --- boards -------------------------------------------------------------------------------------------------------


def test_a_board_shows_rank_sets_ties_and_failed_rows_unranked(run_tasks, write_task, tmp_path):
    body = "data: {dataset: toy, target: label}\nevaluators: {centroid: {use: centroid}}\nmain: centroid.accuracy\n"
    run_tasks(write_task(body), ["counting", "doubling", "random-projection?dim=3", "bad-nan"])
    (table,) = make_board([tmp_path / "out"]).tables

    assert [(row.encoder, row.rank_text) for row in table.rows] == [
        ("counting", "1–2"),
        ("doubling", "1–2"),
        ("random-projection?dim=3", "3"),
        ("bad-nan", "–"),
    ]
    assert "NaN" in table.rows[-1].reason


def test_vectors_that_are_all_equal_score_chance_with_ties_counted(tmp_path, write_task, cache):
    plugin = tmp_path / "flat.py"
    plugin.write_text(
        "import torch\n"
        "from evalharness import EncoderSpec, hookimpl\n"
        "class Flat:\n"
        "    dim = 4\n"
        "    def encode(self, batch, *, role='document', layers=None):\n"
        "        return torch.ones(len(batch), 4)\n"
        "@hookimpl\n"
        "def evalharness_encoders():\n"
        "    yield EncoderSpec(name='flat', summary='One vector for all', modalities=('vector',), build=lambda **_: Flat())\n"
    )
    import evalharness

    task = write_task(
        "data: {dataset: toy, target: label}\nevaluators: {probe: {use: linear-probe, grid: [1.0]}, knn: {use: knn, k: [5]}}\nmain: probe.accuracy\n"
    )
    toys = str(__import__("pathlib").Path(__file__).parent / "toys.py")
    records = evalharness.evaluate("flat", str(task), plugins=[toys, str(plugin)]).records
    values = {(record["evaluator"], record["metric"]): record["value"] for record in records if record["statistic"] == "value"}

    assert values["linear-probe", "accuracy"] == pytest.approx(0.2)
    assert values["linear-probe", "balanced_accuracy"] == pytest.approx(0.2)
    assert values["knn", "accuracy"] == pytest.approx(0.2, abs=0.05)


# --- calibration --------------------------------------------------------------------------------------------------


def share_called_different(make, boards=400):
    wrong = 0
    for at in range(boards):
        found = ranks_of(make(np.random.default_rng(at)), resampler=Resampler(at, resamples=500))
        count = len(found.labels)
        wrong += any(ranks != (1, count) for ranks in found.sets().values())
    return wrong / boards


@pytest.mark.slow
@pytest.mark.parametrize("encoders", [2, 6])
def test_encoders_equal_in_expectation_are_called_different_in_five_per_cent_of_boards(encoders):
    def make(draw):
        ease = draw.random(300)
        return [basis({"hit": draw.random(300) < ease}) for _ in range(encoders)]

    assert 0.02 <= share_called_different(make) <= 0.085


@pytest.mark.slow
def test_few_units_and_episodes_keep_the_level_too():
    metric = MetricInfo(name="score", columns=("score",), low=-math.inf, high=math.inf)

    def few(draw):
        return [basis({"score": draw.normal(size=12)}, metric) for _ in range(4)]

    def episodes(draw):
        classes = np.stack([draw.choice(40, 5, replace=False) for _ in range(400)])
        fields = {"item": "episode", "clusters": classes, "num_classes": 40}
        skills = [draw.normal(0.7, 0.1, 40) for _ in range(2)]
        return [basis({"score": skill[classes].mean(axis=1) + draw.normal(0, 0.1, 400)}, metric, **fields) for skill in skills]

    assert share_called_different(few) <= 0.085
    assert share_called_different(episodes) <= 0.10


@pytest.mark.slow
def test_means_over_tasks_keep_the_level():
    wrong = 0
    for at in range(400):
        draw = np.random.default_rng(at)
        tasks = {}
        for task in range(3):
            ease = draw.random(200 + task)
            bases = [basis({"hit": draw.random(200 + task) < ease}) for _ in range(3)]
            tasks[str(task)] = ranks_of(bases, resampler=Resampler(1000 * at + task, resamples=500))
        wrong += any(ranks != (1, 3) for ranks in rank_suite(tasks, list(tasks)).sets.values())

    assert 0.02 <= wrong / 400 <= 0.085
