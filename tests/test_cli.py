"""The command line: tables on standard output, one line and an exit code for each mistake."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

TASK = """task: small
version: 1
modality: vector
data: {dataset: wine, target: label}
evaluators:
  knn: {use: knn, k: [1, 5], metric: l2}
codecs: [float32, int8]
groups: [label]
main: knn.accuracy
"""


@pytest.fixture
def task(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(TASK)
    return path


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


def test_a_run_ends_with_the_table_and_says_what_it_did(cli, task, out):
    result = cli("run", task, "-e", "identity", "--out", out)

    assert result.code == 0
    assert "small" in result.out
    assert "accuracy" in result.out
    assert "2 units in" in result.err
    assert "178" not in result.out  # only the test split is scored


def test_a_second_run_says_that_nothing_is_to_do(cli, task, out):
    cli("run", task, "-e", "identity", "--out", out)
    result = cli("run", task, "-e", "identity", "--out", out)

    assert "nothing to do: 2 units, all done" in result.err
    assert "identity" in result.out


def test_a_second_run_imports_no_torch(cli, task, out, cache):
    cli("run", task, "-e", "identity", "--out", out)
    code = (
        "import sys; from evalharness.cli import main; sys.argv = ['evalharness', 'run', *sys.argv[1:]]\n"
        "try: main()\nexcept SystemExit as end: assert not end.code, end.code\n"
        "heavy = {'torch', 'faiss', 'datasets', 'pandas', 'sklearn', 'ray', 'scipy'} & set(sys.modules); assert not heavy, heavy"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, str(task), "-e", "identity", "--out", str(out)], capture_output=True, text=True, check=False
    )

    assert result.returncode == 0, result.stderr
    assert "nothing to do" in result.stderr


def test_a_dry_run_computes_nothing_and_prints_counts(cli, task, out):
    result = cli("run", task, "-e", "identity", "-e", "random-projection", "--out", out, "--dry-run")

    assert result.code == 0
    assert "views to embed" in result.out
    assert "2 of 2" in result.out
    assert "4 units, of which 0 are done" in result.out
    assert not out.exists()


def test_a_dry_run_estimates_from_what_earlier_units_took(cli, task, out, cache):
    assert "(rate assumed)" in cli("run", task, "-e", "identity", "--out", out, "--dry-run").out
    cli("run", task, "-e", "identity", "--out", out)
    again = cli("run", task, "-e", "identity", "--out", out, "--force", "--dry-run").out
    assert "(rate assumed)" not in again
    file = cache / "unit-times.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps({**line, "seconds": 300.0 * line["units"]}) + "\n" for line in lines))
    assert "10 min" in cli("run", task, "-e", "identity", "--out", out, "--force", "--dry-run").out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["run", "TASK", "-e", "identiti"], 2, "unknown encoder `identiti`; did you mean `identity`?"),
        (["run", "TASK", "-e", "random-projection?dims=3"], 2, "encoder `random-projection` has no parameter `dims`; did you mean `dim`?"),
        (
            ["run", "TASK", "-e", "random-projection?dim"],
            6,
            "expected `param=value` after `?` in encoder `random-projection?dim`, got `dim`",
        ),
        (["run", "TASK", "-e", "identity@last"], 2, "encoder `identity`: unknown layer `last`; known: none"),
        (["run", "TASK", "-e", "pixels"], 2, "encoder `pixels` takes image, but the tasks named need vector; choose another suite"),
        (["run", "TASK"], 2, "name an encoder with `-e`; known: "),
        (["run", "quik"], 2, "unknown suite or task `quik`; did you mean `quick`?"),
        (["run", "none.yaml", "-e", "identity"], 3, "none.yaml: cannot be read"),
        (["run", "TASK", "-e", "identity", "--device", "cuda:7"], 2, "device `cuda:7` cannot be used"),
        (["run", "TASK", "-e", "identity", "--dtype", "int8"], 2, "expected `--dtype` to be float32, float16 or bfloat16, got `int8`"),
        (["run", "TASK", "-e", "identity", "--mirror", "nowhere"], 2, "`--mirror nowhere` is no folder"),
        (["run", "TASK", "-e", "identity", "-p", "nowhere.py"], 4, "plugin file `nowhere.py` does not exist"),
        (["run", "TASK", "-e", "identity", "-p", "no:nothing"], 2, "unknown plugin `nothing`"),
        (["run", "TASK", "-e", "npz:none.npz"], 6, "none.npz"),
        (["list", "encoder"], 2, "unknown kind `encoder`; did you mean `encoders` or"),
        (["show", "encoder", "pixel"], 2, "unknown encoder `pixel`; did you mean `pixels`?"),
        (["show", "thing", "pixel"], 2, "unknown kind `thing`"),
        (["leaderboard", "nowhere"], 6, "no results in `nowhere`"),
        (["leaderboard", "nowhere", "--format", "pdf"], 2, "unknown reporter `pdf`"),
        (["leaderboard", "nowhere", "--where", "suite"], 2, "expected `--where KEY=VALUE`"),
    ],
)
def test_each_mistake_is_one_line_with_its_code(cli, task, out, arguments, code, message):
    arguments = [task if argument == "TASK" else argument for argument in arguments]
    result = cli(*arguments, *(["--out", out] if arguments[0] == "run" else []))

    assert result.code == code
    assert message in result.err
    assert len(result.err.strip().splitlines()) == 1
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("target: label", "target: lable", "small.yaml:4: unknown column `lable`; did you mean `label`?"),
        ("groups: [label]", "groups: [lable]", "small.yaml:8: unknown column `lable`; did you mean `label`?"),
        (
            "target: label",
            "target: label, splits: {train: train, test: tset}",
            "small.yaml:4: task `small`: unknown split of `wine` `tset`; did you mean `test`?",
        ),
        ("target: label", "target: label, splits: {train: train}", "has no test rows; name a `test` split or `folds`"),
        ("target: label", "target: label, inputs: {vector: ash}", "data set `wine` has fixed inputs; remove `data.inputs`"),
        (
            "evaluators:",
            "fits: {few: {budget: 500/class}}\nevaluators:",
            "a budget of 500/class needs 500 rows of every class, but class `",
        ),
        ("evaluators:", "fits: {few: {where: {label: blue}}}\nevaluators:", "unknown value of `label` `blue`"),
    ],
)
def test_each_mistake_of_a_task_about_its_data_is_one_line(cli, tmp_path, out, old, new, message):
    path = tmp_path / "small.yaml"
    path.write_text(TASK.replace(old, new))
    result = cli("run", path, "-e", "identity", "--out", out)

    assert result.code in (2, 3, 6)
    assert message in result.err
    assert len(result.err.strip().splitlines()) == 1


def test_no_network_and_no_mirror_is_one_line(cli, tmp_path, out, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: (_ for _ in ()).throw(ConnectionError("no route")))
    path = tmp_path / "small.yaml"
    path.write_text(
        TASK.replace("dataset: wine", "dataset: hf:somebody/something").replace("target: label", "target: label, inputs: {vector: [a]}")
    )
    result = cli("run", path, "-e", "identity", "--out", out)

    assert result.code == 6
    assert "EVALHARNESS_MIRROR" in result.err
    assert len(result.err.strip().splitlines()) == 1


def test_failed_units_end_with_a_code_and_the_table(cli, tmp_path, out):
    path = tmp_path / "small.yaml"
    path.write_text(TASK.replace("k: [1, 5]", "k: 500"))
    result = cli("run", path, "-e", "identity", "--out", out)

    assert result.code == 8
    assert "k = 500 exceeds the" in result.out
    assert "2 units failed; the same command tries them again" in result.err


@pytest.mark.parametrize("kind", ["encoders", "datasets", "shifts", "codecs", "evaluators", "reporters", "suites", "tasks", "plugins"])
def test_every_kind_is_listed_as_text_and_json(cli, kind):
    text, rows = cli("list", kind).out, json.loads(cli("list", kind, "--json").out)

    assert rows
    assert all(row["name"] in text for row in rows)


def test_neighbours_kept_as_examples_are_shown(cli, task, out):
    task.write_text(
        TASK.replace("knn: {use: knn, k: [1, 5], metric: l2}", "near: {use: neighbours, metric: l2}").replace(
            "knn.accuracy", "near.label_purity"
        )
    )
    cli("run", task, "-e", "identity", "--out", out)
    text, found = cli("show", "neighbours", out), json.loads(cli("show", "neighbours", out, "--json").out)

    assert text.code == 0, text.err
    assert [unit["cell"] for unit in found] == ["near, of label", "near, of label, int8"]
    assert all(len(unit["examples"]) == 8 for unit in found)
    assert "small · identity · near, of label, int8" in text.out
    assert text.out.count("(differs)") == sum(
        other["label"] != example["label"] for unit in found for example in unit["examples"] for other in example["neighbours"]
    )


NEAR = """task: {name}
version: 1
modality: {modality}
data: {{dataset: {dataset}, params: {{train: 50, test: 60}}, target: {target}, splits: {{test: test}}}}
evaluators: {{near: {{use: neighbours, k: 5, examples: 3}}}}
main: near.label_purity
"""


def test_neighbours_are_shown_with_their_texts(cli, tmp_path, out):
    file = tmp_path / "texts.yaml"
    file.write_text(NEAR.format(name="texts", modality="text", dataset="sentences", target="label"))
    assert cli("run", file, "-e", "hashed-ngrams", "-e", "colour-words", "--out", out).code == 0
    (unit,) = json.loads(cli("show", "neighbours", out, "--where", "encoder=hashed-ngrams", "--json").out)
    shown = cli("show", "neighbours", out, "--where", "encoder=hashed-ngrams", "--content", "--task", file)

    assert unit["encoder"] == "hashed-ngrams"
    assert set(unit) == {"suite", "task", "encoder", "cell", "examples"}
    assert shown.code == 0, shown.err
    assert shown.out.count("“") == shown.out.count("”") == 3 * 6
    assert "no plugin ships the task `texts`; name its file with `--task FILE`" in cli("show", "neighbours", out, "--content").err
    file.write_text(file.read_text().replace("test: 60", "test: 61"))
    assert "are not those that the results were made from" in cli("show", "neighbours", out, "--content", "--task", file).err
    assert "no examples of neighbours with encoder=none" in cli("show", "neighbours", out, "--where", "encoder=none").err


def test_neighbours_are_shown_as_a_page_of_images(cli, tmp_path, out):
    file, page = tmp_path / "images.yaml", tmp_path / "page.html"
    file.write_text(NEAR.format(name="images", modality="image", dataset="scenes", target="category"))
    cli("run", file, "-e", "pixels", "--out", out)
    ran = cli("show", "neighbours", out, "--html", page, "--task", file)

    assert ran.code == 0, ran.err
    assert page.read_text().count('src="data:image/png;base64,') == 3 * 6
    unwritable = cli("show", "neighbours", out, "--html", tmp_path / "no" / "page.html", "--task", file)
    assert unwritable.code == 7
    assert unwritable.err.startswith("evalharness: cannot write")
    assert "as a page (`--html FILE`) images" in cli("show", "neighbours", out, "--content", "--task", file).err


def test_columns_of_a_data_set_are_listed(cli, tmp_path):
    rows = json.loads(cli("show", "dataset", "sentence-pairs", "--columns", "--json").out)
    score = next(row for row in rows if row["column"] == "score")
    assert (score["kind"], score["missing"]) == ("number", 0)
    assert score["values"].endswith(" to 5")
    assert "label   " in cli("show", "dataset", "digits", "--columns").out
    absent = cli("show", "dataset", "csv:/nowhere/at/all", "--columns")
    assert absent.code == 6
    assert absent.err.count("\n") == 1
    assert "names no file or folder" in absent.err
    assert "`--columns` goes with `show dataset`" in cli("show", "encoder", "pixels", "--columns").err


def test_neighbours_are_shown_without_torch(cli, task, out):
    task.write_text(
        TASK.replace("knn: {use: knn, k: [1, 5], metric: l2}", "near: {use: neighbours}").replace("knn.accuracy", "near.label_purity")
    )
    cli("run", task, "-e", "identity", "--out", out)
    code = (
        "import sys; from evalharness.cli import main; sys.argv = ['evalharness', 'show', 'neighbours', sys.argv[1]]\n"
        "try: main()\nexcept SystemExit as end: assert not end.code, end.code\n"
        "heavy = {'torch', 'faiss', 'datasets', 'sklearn', 'scipy'} & set(sys.modules); assert not heavy, heavy"
    )
    result = subprocess.run([sys.executable, "-c", code, str(out)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_results_without_neighbours_say_so_in_one_line(cli, task, out):
    cli("run", task, "-e", "identity", "--out", out)
    result = cli("show", "neighbours", out)

    assert result.code == 6
    assert result.err.count("\n") == 1
    assert "run a task with the evaluator `neighbours` first" in result.err


def test_show_takes_one_name_of_other_kinds(cli):
    for names in ([], ["pixels", "identity"]):
        result = cli("show", "encoder", *names)
        assert result.code == 2
        assert f"expected one NAME after `show encoder`, got {len(names)}" in result.err


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        ("encoder", "random-projection", '"dim": 64'),
        ("dataset", "scenes", "train"),
        ("shift", "pgd", "attack"),
        ("codec", "truncate-16", '"dim": 16'),
        ("evaluator", "knn", "accuracy (fraction, 0 to 1)"),
        ("suite", "quick", "digits"),
        ("task", "wine", "folds"),
        ("plugin", "knn", "evalharness"),
    ],
)
def test_everything_can_be_shown(cli, kind, name, expected):
    result = cli("show", kind, name)

    assert result.code == 0, result.err
    assert expected in result.out
    assert json.loads(cli("show", kind, name, "--json").out)


def test_validate_names_every_faulty_file(cli, tmp_path, task):
    bad = tmp_path / "bad.yaml"
    bad.write_text(TASK.replace("use: knn", "use: kn"))
    result = cli("validate", task, bad)

    assert result.code == 3
    assert f"{task}: 1 task, no fault" in result.out
    assert "bad.yaml:6: unknown evaluator `kn`; did you mean `knn`?" in result.err
    assert "1 of 2 files has faults" in result.err


def test_doctor_checks_machine_and_encoder(cli):
    result = cli("doctor", "-e", "random-conv")

    assert result.code == 0, result.out
    assert "ok   random-conv: batch size 1 against 9: largest deviation" in result.out
    assert "torch" in result.out


def test_doctor_finds_an_encoder_that_depends_on_its_batch(cli, tmp_path):
    plugin = tmp_path / "batchy.py"
    plugin.write_text(
        "from evalharness import EncoderSpec, as_encoder, hookimpl\n"
        "@hookimpl\ndef evalharness_encoders():\n"
        "    yield EncoderSpec(name='batchy', summary='x', modalities=('image',),\n"
        "        build=lambda *, device, dtype: as_encoder(lambda images: images.flatten(1) - images.flatten(1).mean(0)))\n"
    )
    result = cli("doctor", "-e", "batchy", "-p", plugin)

    assert result.code == 6
    assert "BAD  batchy: batch size 1 against 9" in result.out


def test_the_cache_is_listed_verified_and_pruned(cli, task, out):
    cli("run", task, "-e", "identity", "--out", out)

    assert "2 views" in cli("cache", "list").out
    assert len(json.loads(cli("cache", "list", "--json").out)) == 2
    assert cli("cache", "verify").out.strip() == "2 complete views, 0 faults"
    assert "removed 2 views" in cli("cache", "prune", "--all").out
    assert "the cache is empty" in cli("cache", "list").out


@pytest.mark.parametrize("style", ["table", "markdown", "csv", "json"])
def test_leaderboards_come_in_every_format(cli, task, out, style):
    cli("run", task, "-e", "identity", "--out", out)

    assert "identity" in cli("leaderboard", out, "--format", style).out
    assert "int8" in cli("leaderboard", out, "--by", "codec").out
    assert "label=" in cli("leaderboard", out, "--by", "group").out


def test_the_version_is_printed(cli):
    from evalharness import __version__

    assert cli("--version").out.strip() == __version__
