"""Every hook is documented with exactly its arguments, and the example in each docstring works."""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from types import ModuleType, SimpleNamespace

import pytest

from evalharness import testing
from evalharness.hookspecs import HookSpecs

HOOKS = {name: function for name, function in vars(HookSpecs).items() if name.startswith("evalharness_")}


def arguments(function):
    return [name for name in inspect.signature(function).parameters if name != "self"]


def example(hook):
    """Return the code block of a hook's docstring."""
    _, _, rest = inspect.getdoc(HOOKS[hook]).partition("Example::\n")
    lines = []
    for line in rest.splitlines():
        if line and not line.startswith("    "):
            break
        lines.append(line)
    return textwrap.dedent("\n".join(lines))


@pytest.fixture
def load(empty_registry, tmp_path):
    """Return a function that runs the example of a hook as a plugin in a fresh registry."""

    def run(hook, **names):
        from evalharness import hookimpl

        module = ModuleType("example")
        module.__file__ = str(tmp_path / "example.py")
        vars(module).update(hookimpl=hookimpl, sys=sys, **names)
        exec(compile(example(hook), f"the example of {hook}", "exec"), vars(module))
        empty_registry.register(module, "example")
        return empty_registry

    return run


# --- the page ---------------------------------------------------------------------------------------------------------


def test_every_hook_has_a_heading_with_exactly_its_arguments(root):
    headings = re.findall(r"^## (evalharness_\w+)\((.*)\)$", (root / "docs/hooks.md").read_text(), flags=re.MULTILINE)

    assert {name: text.split(", ") if text else [] for name, text in headings} == {
        name: arguments(function) for name, function in HOOKS.items()
    }
    assert [name for name, _ in headings] == list(HOOKS), "keep the order of hookspecs.py"


@pytest.mark.parametrize("hook", HOOKS)
def test_every_section_shows_the_hook_in_use_and_how_to_see_it_work(root, hook):
    page = (root / "docs/hooks.md").read_text()
    section = page.partition(f"## {hook}(")[2].partition("\n## ")[0]

    shown = page if "The example above uses it." in section else section
    assert f"def {hook}({', '.join(arguments(HOOKS[hook]))}):" in shown
    assert "```console\n$ evalharness " in shown


@pytest.mark.parametrize("hook", HOOKS)
def test_every_docstring_has_an_example_with_the_hooks_arguments(hook):
    assert f"def {hook}({', '.join(arguments(HOOKS[hook]))}):" in example(hook)


# --- the examples of the docstrings, in use ---------------------------------------------------------------------------


def test_example_of_encoders_passes_the_checks(load):
    assert testing.check_encoder(load("evalharness_encoders").get("encoder", "mean-colour")).dim == 3


def test_example_of_datasets_passes_the_checks(load):
    dataset = testing.check_dataset(load("evalharness_datasets").get("dataset", "ramp"))

    assert dataset.parts["items"].columns["label"].names == ("0", "1")


def test_example_of_shifts_passes_the_checks(load):
    assert len(testing.check_shift(load("evalharness_shifts").get("shift", "darken"))) == 3


def test_example_of_codecs_passes_the_checks(load):
    assert testing.check_codec(load("evalharness_codecs").get("codec", "half")) == pytest.approx(1, abs=1e-5)


def test_example_of_evaluators_passes_the_checks(load):
    (outcome,) = testing.check_evaluator(load("evalharness_evaluators").get("evaluator", "norms"))

    assert len(outcome.columns["norm"]) == len(outcome.rows)


def test_example_of_reporters_renders(load):
    rows = [SimpleNamespace(encoder="first"), SimpleNamespace(encoder="second")]
    board = SimpleNamespace(tables=[SimpleNamespace(rows=rows)])

    assert load("evalharness_reporters").get("reporter", "names").render(board) == "first\nsecond"


def test_example_of_task_paths_gives_its_folder(load, tmp_path):
    assert load("evalharness_task_paths").task_paths() == [tmp_path / "tasks"]


def test_example_of_resolve_answers_its_own_references_alone(load):
    from evalharness import EncoderSpec
    from evalharness.errors import UnknownNameError

    def make_spec(value):
        return EncoderSpec(name="any", summary=f"{value}", modalities=("vector",), build=dict)

    registry = load("evalharness_resolve", make_spec=make_spec)

    assert registry.get("encoder", "constant:3").summary == "3.0"
    with pytest.raises(UnknownNameError):
        registry.get("encoder", "variable:3")


def test_example_of_run_started_is_told(load, capsys):
    load("evalharness_run_started").hook.evalharness_run_started(run=SimpleNamespace(num_units=5))

    assert capsys.readouterr().err == "5 units to do\n"


@pytest.mark.parametrize(("hook", "event"), [("evalharness_unit_finished", "unit"), ("evalharness_run_finished", "run")])
def test_examples_of_trackers_are_told(load, hook, event):
    told = []
    tracker = SimpleNamespace(log=told.append, close=lambda: told.append("closed"))

    registry = load(hook, tracker=tracker)
    getattr(registry.hook, hook)(**{event: SimpleNamespace(task="digits", evaluator="knn", seconds=2.0)})

    assert told == ([{"digits/knn": 2.0}] if event == "unit" else ["closed"])
