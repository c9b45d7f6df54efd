"""Task and suite files: what they may say, and one line with file and line number where they say something else."""

from __future__ import annotations

import json

import pytest

from evalharness.errors import TaskFileError, UnknownNameError
from evalharness.session import builtin_folder, open_library
from evalharness.suites import Library, parse_main, read_tasks, task_schema
from evalharness.taskcheck import check_registered
from evalharness.yaml import read_documents

GOOD = """task: good
version: 1
modality: vector
data: {dataset: wine, target: label}
fits:
  all: {}
  few: {budget: 4/class, draws: 2}
evaluators:
  probe: {use: linear-probe, fits: [all, few], grid: quick}
main: probe.accuracy @ fit=all
"""


@pytest.fixture
def check(registry, tmp_path):
    """Return a function that reads and checks a task of the given text."""

    def run(text, name="good.yaml"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        tasks = read_tasks(path)
        for task in tasks:
            check_registered(registry, task)
        return tasks

    return run


def test_a_good_file_passes(check):
    (task,) = check(GOOD)

    assert task.main == parse_main("probe.accuracy @ fit=all")
    assert task.file.fits["few"].draws == 2


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("grid: quick", "gridd: quick", r"good.yaml:9: evaluator `linear-probe` has no parameter `gridd`; did you mean `grid`\?"),
        (
            "use: linear-probe",
            "use: linear-prob",
            r"good.yaml:9: unknown evaluator `linear-prob`; did you mean `linear-probe` or `mlp-probe` or `mdl-probe`\?",
        ),
        ("dataset: wine", "dataset: wined", r"good.yaml:4: unknown dataset `wined`; did you mean `wine`"),
        ("dataset: wine,", "dataset: wine, params: {share: 1},", r"good.yaml:4: dataset `wine` has no parameter `share`"),
        ("data:", "date:", r"good.yaml:4: unknown key `date`; did you mean `data`\?"),
        ("budget: 4/class", "budgets: 4/class", r"good.yaml:7: unknown key `fits.few.budgets`; did you mean `budget`\?"),
        ("4/class", "4/clas", r"good.yaml:7: `fits.few.budget`: expected a share in \(0, 1\] or `K/class`, got `4/clas`"),
        ("4/class", "1.5", r"good.yaml:7: `fits.few.budget`: expected a share in \(0, 1\] or `K/class`, got 1.5"),
        ("[all, few]", "[al, few]", r"good.yaml:9: unknown fit `al`; did you mean `all`\?"),
        ("version: 1", "version: one", r"good.yaml:2: `version`: Input should be a valid integer"),
        ("version: 1\n", "", r"good.yaml:1: missing key `version`"),
        ("probe.accuracy", "prob.accuracy", r"good.yaml:10: unknown evaluator alias `prob`; did you mean `probe`\?"),
        ("probe.accuracy", "probe.acuracy", r"good.yaml:10: evaluator `linear-probe`: unknown metric `acuracy`; did you mean `accuracy`"),
        ("@ fit=all", "@ fits=all", r"good.yaml:10: `main`: expected one of fit, shift, .* before `=`, got `fits=all`"),
        ("@ fit=all", "@ fit=most", r"good.yaml:10: unknown fit `most`; known: all, few"),
        ("task: good", "task: good/bad", r"good.yaml:1: `task`: expected letters, digits"),
        ("modality: vector", "modality: vector\nchecks: all", r"good.yaml:4: no checks of attacks are registered"),
    ],
)
def test_each_mistake_is_one_line_with_its_place(check, old, new, message):
    with pytest.raises((TaskFileError, UnknownNameError), match=message) as caught:
        check(GOOD.replace(old, new))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD.replace("{dataset: wine", "{dataset: wine: x"), r"good.yaml:4: "),
        (GOOD + "task: again\n", r'good.yaml:11: found duplicate key "task"'),
        ("just words", r"good.yaml:1: expected a mapping of keys to values"),
        ("", r"good.yaml:1: expected a mapping of keys to values"),
        ("- a\n- b\n", r"good.yaml:1: expected a mapping"),
        ("task: [1, 2\n", r"good.yaml:\d+: "),
    ],
)
def test_what_is_not_a_task_file_is_one_line(check, text, message):
    with pytest.raises(TaskFileError, match=message) as caught:
        check(text)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(TaskFileError, match="cannot be read: .*No such file"):
        read_tasks(tmp_path / "none.yaml")


def test_yaml_is_version_1_2_and_fractions_are_numbers(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("a: no\nb: 1e-3\nc: 8/255\nd: 8/class\ne: true\nf: 010\n")

    data = read_documents(path)[0].data
    assert data == {"a": "no", "b": 0.001, "c": 8 / 255, "d": "8/class", "e": True, "f": data["f"]}


def test_several_documents_of_a_file_are_several_tasks(check):
    tasks = check(GOOD + "---\n" + GOOD.replace("task: good", "task: better"))

    assert [task.name for task in tasks] == ["good", "better"]


def test_a_base_file_is_laid_under(check, tmp_path):
    (tmp_path / "_base.yaml").write_text(GOOD.replace("task: good\n", ""))
    (task,) = check("task: child\ninclude: _base\nversion: 2\ndata: {target: [label]}\n", "child.yaml")

    assert (task.name, task.file.version, task.file.data.dataset, task.file.data.targets) == ("child", 2, "wine", ("label",))


@pytest.mark.parametrize(
    ("base", "message"), [("_none", "expected `include` to name a base file beside this one"), ("child", "include: child` makes a circle")]
)
def test_a_wrong_base_is_named(check, base, message):
    with pytest.raises(TaskFileError, match=message):
        check(f"task: child\ninclude: {base}\n", "child.yaml")


def test_a_shift_is_exactly_one_thing(check):
    with pytest.raises(TaskFileError, match="`shifts.a`: expected exactly one of `use`, `select` and `data`"):
        check(GOOD + "shifts: {a: {type: style}}\n")


def test_an_attack_among_shifts_is_sent_to_attacks(check):
    with pytest.raises(TaskFileError, match="shift `pgd` is an attack; name it under `attacks`"):
        check(GOOD + "shifts: {a: {use: pgd}}\n")


def test_every_file_that_ships_passes(registry):
    library = open_library(registry)
    for name in library.tasks:
        check_registered(registry, library.task(name))
    for name in library.suites:
        (selection,) = library.select([name])
        assert selection.tasks
        assert selection.encoders


def test_task_names_are_file_names(tmp_path):
    (tmp_path / "other.yaml").write_text(GOOD)
    with pytest.raises(TaskFileError, match="expected the single task `other`, as the file is named, got `good`"):
        Library([tmp_path]).task("other")


def test_a_later_folder_overrides_with_a_warning(tmp_path, caplog):
    (tmp_path / "wine.yaml").write_text(GOOD.replace("task: good", "task: wine"))
    library = Library([builtin_folder(), tmp_path])

    assert library.task("wine").document.path.parent == tmp_path
    assert "overrides" in caplog.text


def test_an_unknown_suite_offers_near_matches(registry):
    with pytest.raises(UnknownNameError, match="unknown suite or task `quik`; did you mean `quick`?"):
        open_library(registry).select(["quik"])


def test_a_suite_that_names_an_unknown_task_is_named(registry, tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text("suite: s\nversion: 1\ntasks:\n  - wine\n  - whine\n")
    with pytest.raises(TaskFileError, match=r"s.yaml:5: unknown task `whine`; did you mean `wine`"):
        open_library(registry).select([str(path)])


def test_the_schema_for_editors_ships_and_is_current(root):
    assert json.loads((root / "tasks" / "schema.json").read_text()) == task_schema()
