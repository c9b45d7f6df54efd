"""The leaderboard reads files and keeps apart what does not belong together."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from builders import record

from evalharness.board import Board
from evalharness.errors import DataError, UsageError
from evalharness.headline import Facts
from evalharness.leaderboard import board_from_records, make_board
from evalharness.shown import number
from evalharness.store.results import ResultsReader


def table(*records, **options):
    (found,) = board_from_records(records, {"t": "image"}, **options).tables
    return found


def names(found):
    return [row.encoder for row in found.rows]


def test_rows_are_ordered_by_value_with_interval_in_one_string():
    found = table(record("a", 0.5), record("b", 0.7))

    assert names(found) == ["b", "a"]
    assert found.rows[0].scores["t"].text == ".700 [.600, .800]"
    assert found.title == "s · image"
    assert found.columns["t"] == "t\naccuracy\nn = 100"


def test_lower_is_better_turns_the_order():
    assert names(table(record("a", 0.5, higher_is_better=False), record("b", 0.7, higher_is_better=False))) == ["a", "b"]


def test_rows_without_a_valid_value_stand_unranked_at_the_end_with_their_reason():
    found = table(
        record("a", None, low=None, high=None, status="failed", reason="it broke"),
        record("b", 0.1),
        record("c", 0.9, status="not_converged"),
    )

    assert names(found) == ["b", "c", "a"]
    assert [row.ranked for row in found.rows] == [True, False, False]
    assert "a is not ranked: t: it broke" in found.notes
    assert found.rows[1].scores["t"].text.endswith("not converged")


def test_a_missing_task_is_said():
    board = board_from_records([record("a"), record("a", task="u"), record("b")], {"t": "image", "u": "image"})

    assert "b is not ranked: not run: u" in board.tables[0].notes


def test_encoders_of_another_modality_are_one_line():
    found = table(record("a"), record("b", None, low=None, high=None, status="not_applicable", reason="takes text"))

    assert names(found) == ["a"]
    assert "Of another modality: b." in found.notes


@pytest.mark.parametrize("field", [{"task_version": 2}, {"dataset_fingerprint": "g"}, {"seed": 1}, {"protocols": {"evaluator": "2"}}])
def test_rows_of_another_version_or_data_are_not_ranked_together(field):
    found = table(record("a"), record("b", **field))

    assert names(found) == ["b"]
    assert "t: 1 row of another version, data or selection is not shown" in found.notes


def test_limited_rows_have_a_table_of_their_own():
    board = board_from_records([record("a"), record("a", selection="test[limit=10]")], {"t": "image"})

    assert [found.title for found in board.tables] == ["s · image", "s · image · limited to 10 rows"]


def test_the_worst_group_and_domain_are_named():
    worst = record("a", 0.2, statistic="worst", over="group:colour", group="colour=red", high=None, main=False)
    domains = [
        record("a", value, shift="domains", severity=1, shift_kind="domain", selection=f"test[domain={name}]", main=False)
        for name, value in (("photo", 0.4), ("sketch", 0.3))
    ]
    found = table(record("a"), worst, *domains)

    assert found.rows[0].scores["t/colour"].text == "red: .200 (≥ .100)"
    assert found.rows[0].scores["t/domain"].text == "sketch: .300 [.200, .400]"


def test_tables_have_at_most_eight_columns():
    records = [record("a", task=f"t{at}") for at in range(7)]
    records += [record("a", task=f"t{at}", statistic="worst", over=f"group:g{at}", group=f"g{at}=x", main=False) for at in range(7)]
    board = board_from_records(records, {})

    assert all(len(found.columns) + 1 <= 8 for found in board.tables)
    assert sum(len([key for key in found.columns if "/" not in key and key != "mean"]) for found in board.tables) == 7


def test_one_axis_at_a_time():
    shifted = [record("a", 0.5 - 0.1 * at, shift="noise", severity=at, shift_kind="corruption", main=False) for at in (1, 2)]
    coded = record("a", 0.4, codec="int8", main=False)
    groups = [record("a", 0.3, group="colour=red", main=False)]
    everything = [record("a"), *shifted, coded, *groups]

    assert list(table(*everything, by="shift").columns) == ["clean", "noise 1", "noise 2"]
    assert list(table(*everything, by="codec").columns) == ["float32", "int8"]
    assert list(table(*everything, by="group").columns) == ["colour=red"]
    with pytest.raises(DataError, match="expected `by` to be one of shift, codec, group, fit, layer, target, cost, got `size`"):
        board_from_records(everything, {}, by="size")


def test_filters_that_match_nothing_say_what_there_is():
    with pytest.raises(DataError, match="no results match suite `other`; suites here: s"):
        board_from_records([record()], {}, suite="other")
    assert names(table(record("a"), record("b"), where={"encoder": "a"})) == ["a"]


def test_an_empty_folder_is_one_line(tmp_path):
    with pytest.raises(DataError, match="no results in `.*`; run `evalharness run` first"):
        make_board([tmp_path])


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.8123, ".812"), (1.0, "1.000"), (0.99996, "1.000"), (-0.25, "-.250"), (0.0, ".000"), (123.456, "123.5"), (2.5, "2.500")],
)
def test_numbers_are_short(value, text):
    assert number(value) == text


@pytest.mark.parametrize("style", ["table", "markdown", "csv", "json"])
def test_every_format_shows_every_row(registry, style):
    board = Board(tables=[table(record("enc|ode", 0.5), record("ünï", None, low=None, high=None, status="failed", reason="broke"))])
    text = registry.get("reporter", style).render(board)

    assert "ünï" in text
    if style == "json":
        assert json.loads(text)[0]["rows"][0]["scores"]["t"]["value"] == 0.5
    elif style == "csv":
        rows = list(csv.DictReader(io.StringIO(text)))
        assert [row["encoder"] for row in rows] == ["enc|ode", "ünï"]
    else:
        assert ".500 [.400, .600]" in text
    if style == "markdown":
        assert "enc\\|ode" in text


def test_where_shows_another_cell_than_the_main_one():
    shifted = [
        record(name, value, shift="noise", severity=3.0, shift_kind="corruption", main=False) for name, value in (("a", 0.2), ("b", 0.4))
    ]
    found = table(record("a", 0.9), record("b", 0.8), *shifted, where={"shift": "noise", "severity": "3"})

    assert [(row.encoder, row.scores["t"].value) for row in found.rows] == [("b", 0.4), ("a", 0.2)]
    assert found.title == "s · image · shift=noise, severity=3"
    with pytest.raises(DataError, match="no cell matches codec=int8"):
        table(record("a"), where={"codec": "int8"})


def test_an_axis_can_be_that_of_another_evaluator_and_metric():
    params = {"k": 5, "variant": "k=5"}
    others = [
        record("a", value, evaluator="knn", params=params, metric=metric, fit=fit, main=False)
        for fit, values in (("few", (0.2, 0.1)), ("all", (0.6, 0.5)))
        for metric, value in zip(("accuracy", "macro_f1"), values, strict=True)
    ]
    mains = [record("a", 0.3, fit="few", main=False), record("a", 0.9, fit="all")]

    def values(**where):
        (found,) = board_from_records([*mains, *others], {"t": "image"}, by="fit", where=where).tables
        return found.title, {name: score.value for name, score in found.rows[0].scores.items()}

    assert values() == ("s · t · accuracy by fit", {"few": 0.3, "all": 0.9})
    assert values(evaluator="knn") == ("s · t · accuracy by fit · evaluator=knn", {"few": 0.2, "all": 0.6})
    assert values(evaluator="knn", metric="macro_f1")[1] == {"few": 0.1, "all": 0.5}
    with pytest.raises(DataError, match="nothing here varies along `fit`"):
        values(fit="few")


def test_the_first_variant_of_another_evaluator_is_shown():
    variants = [record("a", value, evaluator="knn", params={"variant": f"k={k}"}, main=False) for k, value in ((20, 0.3), (1, 0.7))]
    found = table(record("a", 0.9), *variants, where={"evaluator": "knn"})

    assert found.rows[0].scores["t"].value == 0.3


def test_the_last_main_record_of_an_encoder_is_its_main_one(run_tasks, write_task, tmp_path):
    body = "data: {{dataset: toy, target: label}}\nevaluators: {{knn: {{use: knn, k: {k}, main_k: {main}}}}}\nmain: knn.accuracy\n"
    run_tasks(write_task(body.format(k=[1, 5], main=1)), ["counting", "random-projection?dim=3"])
    run_tasks(write_task(body.format(k=[3, 5], main=3)), ["counting", "random-projection?dim=3"])
    (table,) = make_board([tmp_path / "out"]).tables

    assert [row.rank_text for row in table.rows] == ["1", "2"]
    assert len(table.rows) == 2


def test_the_row_that_was_written_last_decides_which_version_is_shown(run_tasks, write_task, tmp_path):
    body = "data: {dataset: toy, target: label}\nevaluators: {centroid: {use: centroid}}\nmain: centroid.accuracy\n"
    run_tasks(write_task(body), ["counting", "doubling"])
    run_tasks(write_task(body), ["counting"], seed=3)
    (table,) = make_board([tmp_path / "out"]).tables

    assert names(table) == ["counting"]
    assert "toy-task: 1 row of another version, data or selection is not shown" in table.notes


def test_a_statistic_over_groups_has_no_rank_sets_and_says_so(run_tasks, write_task, tmp_path):
    body = "data: {dataset: toy, target: label}\nevaluators: {centroid: {use: centroid}}\ngroups: [colour]\nmain: centroid.accuracy\n"
    run_tasks(write_task(body), ["counting", "doubling"])
    (table,) = make_board([tmp_path / "out"], where={"statistic": "gap"}).tables

    assert not table.has_ranks
    assert any("a gap over group:colour is not compared item by item" in note for note in table.notes)


def test_a_folder_without_results_is_named_even_beside_one_with(tmp_path, cli, root):
    for command in (["leaderboard"], ["verify"], ["failures"], ["compare", "pixels", "random-conv"]):
        done = cli(*command, root / "results" / "quick", tmp_path / "typo")
        assert done.code != 0
        assert f"no results in `{tmp_path / 'typo'}`" in done.err


VARIANTS = """task: few
version: 1
modality: vector
data: {dataset: wine, target: label}
fits:
  ten: {budget: 10/class}
  all: {}
  five: {budget: 5/class}
evaluators:
  few: {use: few-shot, way: 2, shot: [1, 5], query: 5, episodes: 40, head: [nearest-centroid, ridge]}
  knn: {use: knn, k: [1, 5], fits: [ten, all, five]}
  groups: {use: clustering, seeds: 2, replicates: 4}
main: few.accuracy @ variant=head=ridge,shot=1
"""


def test_variants_and_other_evaluators_are_asked_for_by_name(tmp_path, cli):
    (tmp_path / "few.yaml").write_text(VARIANTS)
    done = cli("run", tmp_path / "few.yaml", "-e", "identity", "-e", "random-projection?dim=4", "--out", tmp_path / "out")
    assert done.code == 0, done.err
    records = ResultsReader([tmp_path / "out"]).records()
    (main,) = [record for record in records if record["main"] and record["encoder"] == "identity"]
    assert main["params"]["variant"] == "head=ridge,shot=1"

    def value(**where):
        words = [word for name, text in where.items() for word in ("--where", f"{name}={text}")]
        shown = cli("leaderboard", tmp_path / "out", *words, "--format", "json")
        assert shown.code == 0, shown.err
        (table,) = json.loads(shown.out)
        (row,) = [row for row in table["rows"] if row["encoder"] == "identity"]
        (score,) = row["scores"].values()
        return score["value"]

    def recorded(**wanted):
        (found,) = [
            record
            for record in records
            if record["encoder"] == "identity"
            and (record["statistic"], record["over"]) == ("value", None)
            and all((record["params"]["variant"] if name == "variant" else record[name]) == text for name, text in wanted.items())
        ]
        return found["value"]

    assert value(variant="head=ridge,shot=5") == recorded(evaluator="few-shot", variant="head=ridge,shot=5")
    assert value(evaluator="knn", variant="k=1", fit="all") == recorded(evaluator="knn", metric="accuracy", variant="k=1", fit="all")
    assert value(evaluator="clustering") == recorded(evaluator="clustering", metric="v_measure")
    assert cli("compare", "identity", "random-projection?dim=4", tmp_path / "out", "--where", "variant=head=ridge,shot=5").code == 0

    (tmp_path / "few.yaml").write_text(VARIANTS.replace("few.accuracy @ variant=head=ridge,shot=1", "knn.accuracy @ fit=all"))
    cli("run", tmp_path / "few.yaml", "-e", "identity", "--out", tmp_path / "by")
    (table,) = make_board([tmp_path / "by"], by="fit").tables
    assert list(table.columns)[:3] == ["five", "ten", "all"]
    assert [table.columns[name].splitlines()[1] for name in ("five", "ten", "all")] == ["15 labels", "30 labels", "107 labels"]


@pytest.mark.parametrize(
    ("folder", "where", "size", "pairing"),
    [
        ("few-shot-omniglot", {}, "n = 600 episodes, 169 classes", "from the classes of the same episodes"),
        ("text-basic", {"evaluator": "clustering"}, "n = 3080", "from halves of the same items"),
        ("text-basic", {"task": "banking77"}, "n = 3080", "from paired resamples of the same items"),
    ],
)
def test_a_table_says_how_many_units_and_what_encoders_are_told_apart_by(folder, where, size, pairing):
    (found,) = make_board([Path(__file__).parents[1] / "results" / folder], where=where).tables

    assert any(heading.endswith(f"\n{size}") for heading in found.columns.values())
    assert any(note.endswith(f"{pairing}.") for note in found.notes)


def test_a_fit_has_the_labels_of_the_target_shown():
    records = [
        record("a", value, target=target, fit=fit, unit=f"{target} {fit}", main=target == "kind" and fit == "all")
        for target in ("kind", "site")
        for fit, value in (("few", 0.3), ("all", 0.6))
    ]
    facts = Facts(modalities={"t": "image"}, labels_of={"kind few": 15, "kind all": 120, "site few": 10, "site all": 110})

    def columns(**where):
        (found,) = board_from_records(records, facts, by="fit", where=where).tables
        return [heading.split("\n")[1] for heading in found.columns.values()]

    assert columns() == ["15 labels", "120 labels"]
    assert columns(target="site") == ["10 labels", "110 labels"]


def test_a_filter_that_leaves_nothing_is_named():
    with pytest.raises(DataError, match="no main value matches value=0.4"):
        table(record("a", 0.5), record("a", 0.4, metric="macro_f1", main=False), where={"value": "0.4"})


def test_a_probe_is_shown_before_its_control_and_a_parameter_picks_one():
    def probes(encoder, *order):
        shown = {"none": 0.8, "shuffled": 0.1}
        return [
            record(encoder, shown[control], evaluator="probe", params={"control": control}, target="x", main=False) for control in order
        ]

    records = [
        record("a", 0.9, evaluator="knn", params={"k": 1}),
        record("b", 0.7, evaluator="knn", params={"k": 1}),
        *probes("a", "shuffled", "none"),
        *probes("b", "none", "shuffled"),
    ]

    def values(**where):
        return {row.encoder: row.scores["t"].value for row in table(*records, where=where).rows}

    assert values(evaluator="probe", target="x") == {"a": 0.8, "b": 0.8}
    assert values(evaluator="probe", target="x", control="shuffled") == {"a": 0.1, "b": 0.1}
    with pytest.raises(DataError, match="no cell matches evaluator=prob: unknown evaluator `prob`; did you mean `probe`"):
        values(evaluator="prob")
    with pytest.raises(DataError, match="unknown control `shufled`; did you mean `shuffled`"):
        values(evaluator="probe", target="x", control="shufled")
    with pytest.raises(DataError, match="`probe` has such a one: add `--where evaluator=probe`"):
        values(target="x")
    with pytest.raises(UsageError, match="unknown field `controll`; did you mean `control`"):
        values(controll="none")
