"""Which rows are learned from and scored: folds, clusters, overlaps, other data sets, limits, and states that come back."""

from __future__ import annotations

import numpy as np
import pytest

from evalharness.errors import DataError, TaskFileError, UsageError
from evalharness.selection import assign_folds, draw_keys, hash_ids, take_cluster_share
from evalharness.store import ResultsReader

FOLDS = """data: {dataset: toy, target: label, splits: {folds: 5}}
evaluators: {centroid: {use: centroid}}
main: centroid.accuracy
"""


def main_of(tmp_path):
    (record,) = [record for record in ResultsReader([tmp_path / "out"]).records() if record["main"]]
    return record


@pytest.mark.parametrize(("sizes", "folds"), [([50, 50, 50], 3), ([40] * 10, 5), ([30, 30], 2), ([59, 71, 48], 5), ([7] * 6, 3)])
def test_every_class_is_spread_over_all_folds(sizes, folds):
    codes = np.repeat(np.arange(len(sizes)), sizes)
    keys = draw_keys(hash_ids(np.array([f"r{at}" for at in range(len(codes))])), "folds")
    table = np.zeros((folds, len(sizes)), dtype=int)
    np.add.at(table, (assign_folds(keys, codes, folds), codes), 1)

    assert np.ptp(table, axis=0).max() <= 1
    assert np.ptp(table.sum(axis=1)) <= 1


def test_folds_of_equal_classes_give_a_real_score(registry, run_tasks, write_task, tmp_path):
    body = "data: {dataset: iris, target: label, splits: {folds: 3}}\nevaluators: {knn: {use: knn, k: 1}}\nmain: knn.accuracy\n"
    run_tasks(write_task(body), ["identity"], registry=registry)

    assert main_of(tmp_path)["value"] > 0.9
    assert main_of(tmp_path)["n"] == 150


def test_whole_clusters_are_taken_into_a_share():
    clusters = np.repeat(np.arange(30), 4)
    keys = draw_keys(hash_ids(np.array([f"r{at}" for at in range(120)])), "share")
    chosen = take_cluster_share(keys, np.zeros(120, dtype=np.int64), 0.25, clusters)

    assert len(chosen) == 28
    assert set(np.bincount(clusters[chosen], minlength=30)) == {0, 4}


def test_a_carved_split_and_validation_keep_clusters_whole(run_tasks, write_task, tmp_path):
    body = """data: {dataset: toy, target: label, cluster: person, splits: {train: train, test: {from: train, share: 0.3}}}
evaluators: {probe: {use: linear-probe, grid: [0.1, 1.0]}}
main: probe.accuracy
"""
    plan = run_tasks(write_task(body)).plan
    person = plan.tasks["toy-task"].data.pools["items"].columns["person"].values
    (fit,) = plan.fits.values()
    test = plan.units[0].jobs[0].test["items"].positions
    parts = [set(person[rows]) for rows in (fit.train.positions, fit.validation.positions, test)]

    assert not parts[0] & parts[1]
    assert not parts[0] & parts[2]
    assert not parts[1] & parts[2]


def test_every_role_may_be_carved_out_of_one_split(run_tasks, write_task):
    body = FOLDS.replace("{folds: 5}", "{train: {from: train, share: 0.7}, test: {from: train, share: 0.3}}")
    outcome = run_tasks(write_task(body))
    data = outcome.plan.tasks["toy-task"].data

    assert (len(data.roles["train"]), len(data.roles["test"])) == (210, 90)
    assert not set(data.roles["train"]) & set(data.roles["test"])
    with pytest.raises(TaskFileError, match="the shares of split `train` add up to more than 1"):
        run_tasks(write_task(body.replace("0.3", "0.5")))


@pytest.mark.parametrize("splits", ["{train: train, test: train}", "{train: train, test: train, validation: train}"])
def test_test_rows_that_a_fit_has_seen_are_refused(run_tasks, write_task, splits):
    with pytest.raises(
        DataError, match=r"toy-task.yaml:4: 300 test rows of task `toy-task` stand in the training rows of fit `all`, `train/0` first"
    ):
        run_tasks(write_task(FOLDS.replace("{folds: 5}", splits)))


def test_one_evaluators_leave_one_out_is_no_licence_for_another(run_tasks, write_task):
    body = "data: {dataset: toy, target: label, splits: {train: test, test: test}}\nevaluators:\n  knn: {use: knn, k: 1, leave_one_out: true}\n  centroid: {use: centroid}\nmain: knn.accuracy\n"
    with pytest.raises(DataError, match="200 test rows of task `toy-task` stand in the training rows of fit `all`"):
        run_tasks(write_task(body))


def test_leave_one_out_may_share_its_rows(run_tasks, write_task, tmp_path):
    body = "data: {dataset: toy, target: label, splits: {train: test, test: test}}\nevaluators: {knn: {use: knn, k: 1, leave_one_out: true}}\nmain: knn.accuracy\n"
    run_tasks(write_task(body))

    assert main_of(tmp_path)["n"] == 200


SHIFTS = """shifts:
  one: {data: {dataset: toy-twin, params: {size: 0.5}, split: test}}
  two: {data: {dataset: toy-twin, params: {size: 0.25}, split: test}}
"""


def test_two_shifts_by_other_data_are_scored_on_their_own_rows(run_tasks, write_task, tmp_path):
    run_tasks(write_task(FOLDS.replace(", splits: {folds: 5}", "").replace("evaluators", SHIFTS + "evaluators")), seed=1)
    sizes = {
        row["shift"]: row["n"]
        for row in ResultsReader([tmp_path / "out"]).records()
        if row["metric"] == "accuracy" and row["statistic"] == "value"
    }

    assert sizes == {"clean": 200, "one": 100, "two": 50}


def test_rows_of_another_data_set_are_scored_once_under_folds(run_tasks, write_task, tmp_path):
    run_tasks(write_task(FOLDS.replace("dataset: toy,", "dataset: toy, params: {size: 0.9},").replace("evaluators", SHIFTS + "evaluators")))
    sizes = {
        row["shift"]: row["n"]
        for row in ResultsReader([tmp_path / "out"]).records()
        if row["metric"] == "accuracy" and row["statistic"] == "value"
    }

    assert (sizes["one"], sizes["two"]) == (100, 50)


def test_a_limit_holds_over_all_folds(run_tasks, write_task, tmp_path):
    run_tasks(write_task(FOLDS), limit=100)

    assert main_of(tmp_path)["n"] == 100


def test_of_several_draws_the_mean_is_the_main_one(run_tasks, write_task, tmp_path):
    body = "data: {dataset: toy, target: label}\nfits: {few: {budget: 4/class, draws: 3}}\nevaluators: {centroid: {use: centroid}}\nmain: centroid.accuracy\n"
    run_tasks(write_task(body))

    main = main_of(tmp_path)
    assert (main["fit"], main["statistic"], main["over"]) == ("few", "mean", "draw")


def test_of_several_severities_the_first_is_the_main_one(run_tasks, write_task, tmp_path):
    body = "data: {dataset: toy, target: label}\nevaluators: {centroid: {use: centroid}}\nshifts: {jitter: {use: jitter}}\nmain: centroid.accuracy @ shift=jitter\n"
    run_tasks(write_task(body))

    assert (main_of(tmp_path)["shift"], main_of(tmp_path)["severity"]) == ("jitter", 1)


def test_a_codec_with_parameters_can_be_the_main_one(run_tasks, write_task, tmp_path):
    body = "data: {dataset: toy, target: label}\nevaluators: {knn: {use: knn, k: 1}}\ncodecs: [{use: binary, rescore: 4}]\nmain: knn.accuracy @ codec=binary?rescore=4\n"
    run_tasks(write_task(body))

    assert main_of(tmp_path)["codec"] == "binary?rescore=4"


def test_equal_evaluators_under_two_names_are_refused(run_tasks, write_task):
    body = "data: {dataset: toy, target: label}\nevaluators:\n  a: {use: centroid}\n  b: {use: centroid}\nmain: a.accuracy\n"
    with pytest.raises(TaskFileError, match="toy-task.yaml:7: evaluators `a` and `b` are the same; remove one"):
        run_tasks(write_task(body))


def test_a_state_that_comes_back_is_shown_again(run_tasks, write_task, tmp_path):
    path = write_task(FOLDS.replace(", splits: {folds: 5}", ""))
    values = []
    for scale in ("1.0", "0.0", "1.0"):
        ids = [f"{split}/{row}" for split, count in (("train", 300), ("test", 200)) for row in range(count)]
        vectors = (
            np.random.default_rng(0).normal(size=(500, 4)) + float(scale) * np.eye(5, 4)[np.r_[np.arange(300) % 5, np.arange(200) % 5]]
        )
        np.savez(tmp_path / "v.npz", ids=np.array(ids), vectors=vectors)
        outcome = run_tasks(path, [f"npz:{tmp_path}/v.npz"])
        values.append(main_of(tmp_path)["value"])

    assert outcome.report is None  # nothing was computed the third time
    assert values[0] == values[2] != values[1]


def test_asking_for_the_default_seed_again_shows_its_number(run_tasks, write_task, tmp_path):
    path = write_task(FOLDS)
    values = []
    for seed in (None, 5, None):
        run_tasks(path, seed=seed)
        values.append((main_of(tmp_path)["value"], main_of(tmp_path)["seed"]))

    assert values[0] == values[2]
    assert [seed for _, seed in values] == [0, 5, 0]


def test_rows_without_a_cluster_are_units_of_their_own(run_tasks, write_task, tmp_path):
    run_tasks(
        write_task(
            FOLDS.replace("target: label", "target: label, params: {gaps: true}, cluster: label").replace(
                "target: label, params", "target: parity, params"
            )
        )
    )
    record = main_of(tmp_path)

    assert record["n"] == 500
    assert record["n_units"] == 5 + int(np.ceil(300 / 7)) + int(np.ceil(200 / 7))


def test_groups_of_queries_come_from_their_own_part(registry, run_tasks, write_task, tmp_path):
    body = """task: captions
version: 1
modality: [image, text]
data: {dataset: scene-captions, params: {train: 5, validation: 5, test: 300}, image_size: 32}
evaluators: {find: {use: retrieval, k: 10}}
groups: [camera]
main: find.ndcg_at_10
"""
    run_tasks(write_task(body), ["colour-words"], registry=registry)
    rows = [row for row in ResultsReader([tmp_path / "out"]).records() if row["group"] and row["statistic"] == "value"]

    assert len(rows) == 5
    assert sum(row["n"] for row in rows) == 300


def test_a_group_that_a_part_does_not_have_is_said(run_tasks, write_task, tmp_path, registry):
    body = """task: pairs
version: 1
modality: text
data: {dataset: sentence-pairs, params: {train: 5, validation: 5, test: 60}, target: score}
evaluators: {similarity: {use: similarity}}
groups: [[kind, score]]
main: similarity.spearman
"""
    run_tasks(write_task(body), ["hashed-ngrams"], registry=registry)
    rows = [row for row in ResultsReader([tmp_path / "out"]).records() if row["over"] == "group:kind x score"]

    assert [row["status"] for row in rows] == ["not_applicable"]


def test_a_shift_of_another_modality_is_refused_while_planning(run_tasks, write_task):
    body = FOLDS + "shifts: {noise: {use: gaussian-noise}}\n"
    with pytest.raises(TaskFileError, match="shift `gaussian-noise` changes image inputs, the task's are vector"):
        run_tasks(write_task(body))


def test_single_tasks_of_several_modalities_run_together(cli, tmp_path):
    result = cli("run", "wine", "sentence-pairs", "-e", "identity", "--out", tmp_path / "out", "--limit", "40")

    assert result.code == 0, result.err
    assert "identity" in result.out


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("random-projection?dim=abc", "expected `dim` to be a number, got `abc`"),
        ("pixels?size=true", "expected `size` to be a number, got `True`"),
    ],
)
def test_a_parameter_of_another_kind_is_refused(registry, reference, message):
    from evalharness.stamp import use_encoder

    with pytest.raises(UsageError, match=message):
        use_encoder(registry, reference)


def test_a_misspelt_main_metric_is_refused_by_run_too(run_tasks, write_task):
    with pytest.raises(TaskFileError, match="unknown metric `acuracy`; did you mean `accuracy`"):
        run_tasks(write_task(FOLDS.replace("centroid.accuracy", "centroid.acuracy")))


def test_precomputed_vectors_of_parts_are_told_apart(run_tasks, write_task, tmp_path, registry):
    base = tmp_path / "beir"
    (base / "qrels").mkdir(parents=True)
    (base / "corpus.jsonl").write_text("".join(f'{{"_id": "{at}", "title": "", "text": "d{at}"}}\n' for at in range(30)))
    (base / "queries.jsonl").write_text("".join(f'{{"_id": "{at}", "text": "q{at}"}}\n' for at in range(10)))
    (base / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(f"{at}\t{at}\t1\n" for at in range(10)))
    vectors = np.random.default_rng(0).normal(size=(30, 8))
    body = f"task: find\nversion: 1\nmodality: text\ndata: {{dataset: 'beir:{base}', splits: {{test: test}}}}\nevaluators: {{find: {{use: retrieval, k: 10}}}}\nmain: find.ndcg_at_10\n"
    np.savez(tmp_path / "bare.npz", ids=np.array([str(at) for at in range(30)]), vectors=vectors)
    outcome = run_tasks(write_task(body), [f"npz:{tmp_path}/bare.npz"], registry=registry)
    assert "has no vectors of" in outcome.report.failures[0]
    ids = [f"corpus/{at}" for at in range(30)] + [f"queries/{at}" for at in range(10)]
    np.savez(tmp_path / "parts.npz", ids=np.array(ids), vectors=np.r_[vectors, vectors[:10]])
    run_tasks(write_task(body), [f"npz:{tmp_path}/parts.npz"], registry=registry, out=tmp_path / "two")

    (record,) = [row for row in ResultsReader([tmp_path / "two"]).records() if row["main"]]
    assert record["value"] == 1
