"""The registry: how plugins are found, named, checked and listed, and what is said when that goes wrong."""

from __future__ import annotations

import importlib.metadata
from types import ModuleType, SimpleNamespace

import pytest

from evalharness import CodecSpec, EncoderSpec, hookimpl
from evalharness.errors import PluginError, UnknownNameError, UsageError
from evalharness.registry import load_registry, source_digest

FILE = """
from evalharness import CodecSpec, hookimpl

@hookimpl
def evalharness_codecs():
    yield CodecSpec(name="half", summary="Half precision", fit=None, params={"width": 16})
"""


def codec(name="half", **fields):
    return CodecSpec(name=name, summary="A codec", fit=lambda vectors: None, **fields)


def giving(*specs, hook="evalharness_codecs"):
    """Return a plugin that gives specs."""
    return SimpleNamespace(**{hook: hookimpl(lambda: list(specs))})


def resolving(prefix, result):
    @hookimpl
    def evalharness_resolve(kind, reference):
        return result if reference.startswith(prefix) else None

    return SimpleNamespace(evalharness_resolve=evalharness_resolve)


class Distribution:
    """Stand in for an installed package."""

    def __init__(self, name, *entries):
        self.name, self.version, self.metadata = name, "1.0", {"Name": name}
        self.entry_points = [importlib.metadata.EntryPoint(entry, value, "evalharness") for entry, value in entries]


@pytest.fixture
def installed(monkeypatch):
    """Return a function that sets what is installed."""

    def install(*distributions):
        monkeypatch.setattr(importlib.metadata, "distributions", lambda **_: iter(distributions))
        every = [entry for distribution in distributions for entry in distribution.entry_points]
        monkeypatch.setattr(importlib.metadata, "entry_points", lambda *, group: every if group == "evalharness" else [])

    return install


# --- specs ------------------------------------------------------------------------------------------------------------


def test_specs_are_sorted_by_name(empty_registry):
    empty_registry.register(giving(codec("b"), codec("a")), "one")
    empty_registry.register(giving(codec("0")), "two")

    assert list(empty_registry.specs("codec")) == ["0", "a", "b"]
    assert empty_registry.owner("codec", "a").name == "one"


def test_a_plugin_can_be_taken_out_again(empty_registry):
    empty_registry.register(giving(codec()), "one")
    assert "half" in empty_registry.specs("codec")

    empty_registry.unregister("one")

    assert empty_registry.specs("codec") == {}
    assert empty_registry.plugins == {}


def test_two_specs_of_one_name_are_an_error_that_names_both_plugins(empty_registry):
    empty_registry.register(giving(codec()), "one", origin="package-a 1.0")
    empty_registry.register(giving(codec()), "two", origin="package-b 2.0")

    with pytest.raises(PluginError, match=r"codec `half` is registered twice: .*package-[ab].*package-[ab].*-p no:NAME") as caught:
        empty_registry.specs("codec")
    assert all(name in str(caught.value) for name in ("`one`", "`two`", "package-a 1.0", "package-b 2.0"))


def test_two_kinds_may_share_a_name(empty_registry):
    empty_registry.register(giving(codec("same")), "one")
    empty_registry.register(
        giving(EncoderSpec(name="same", summary="", modalities=("text",), build=dict), hook="evalharness_encoders"), "two"
    )

    assert empty_registry.get("codec", "same").summary == "A codec"
    assert empty_registry.get("encoder", "same").modalities == ("text",)


def test_a_spec_of_another_kind_is_an_error_that_names_the_plugin(empty_registry):
    empty_registry.register(giving(codec(), hook="evalharness_encoders"), "mixed-up")

    with pytest.raises(PluginError, match=r"plugin `mixed-up`.*expected EncoderSpec from `evalharness_encoders`, got CodecSpec"):
        empty_registry.specs("encoder")


def test_a_plugin_that_raises_is_named_and_its_error_chained(empty_registry):
    @hookimpl
    def evalharness_codecs():
        raise ZeroDivisionError("no\nluck")
        yield

    empty_registry.register(SimpleNamespace(evalharness_codecs=evalharness_codecs), "unlucky", origin="package-a 1.0")

    with pytest.raises(
        PluginError, match=r"plugin `unlucky` \(package-a 1.0\) raised in evalharness_codecs: ZeroDivisionError: no luck"
    ) as caught:
        empty_registry.specs("codec")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize(
    ("typed", "message"), [("hafl", "unknown codec `hafl`; did you mean `half`"), ("zzz", "unknown codec `zzz`; known: half")]
)
def test_an_unknown_name_brings_near_matches_or_what_is_known(empty_registry, typed, message):
    empty_registry.register(giving(codec()), "one")

    with pytest.raises(UnknownNameError, match=message):
        empty_registry.get("codec", typed)


def test_an_unknown_parameter_brings_near_matches_or_what_is_known(empty_registry):
    empty_registry.register(giving(codec(params={"width": 16})), "one")

    assert empty_registry.params("codec", "half", {"width": 8}) == {"width": 8}
    with pytest.raises(UsageError, match="codec `half` has no parameter `widht`; did you mean `width`"):
        empty_registry.params("codec", "half", {"widht": 8})
    with pytest.raises(UsageError, match="here: codec `half` has no parameter `q`; it takes: width"):
        empty_registry.params("codec", "half", {"q": 8}, "here: ")


# --- references -------------------------------------------------------------------------------------------------------


def test_a_reference_becomes_a_spec_of_that_name(empty_registry):
    empty_registry.register(resolving("other:", None), "one")
    empty_registry.register(resolving("pq-", codec("any")), "two")

    assert empty_registry.get("codec", "pq-8").name == "pq-8"
    assert empty_registry.owner("codec", "pq-8").name == "two"
    with pytest.raises(UnknownNameError, match="unknown codec `other:1`"):
        empty_registry.get("codec", "other:1")


def test_a_registered_name_goes_before_a_reference(empty_registry):
    empty_registry.register(resolving("ha", codec("reference")), "one")
    empty_registry.register(giving(codec()), "two")

    assert empty_registry.owner("codec", "half").name == "two"


def test_a_reference_resolved_to_another_kind_is_an_error(empty_registry):
    empty_registry.register(resolving("pq-", codec()), "one")

    with pytest.raises(PluginError, match="plugin `one`: expected EncoderSpec for `pq-8`, got CodecSpec"):
        empty_registry.get("encoder", "pq-8")


# --- checks at registration -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hook", "message"), [("evalharness_codec", "did you mean `evalharness_codecs`"), ("xyz", "hooks are: evalharness_encoders, ")]
)
def test_a_misspelt_hook_is_an_error(empty_registry, hook, message):
    with pytest.raises(PluginError, match=f"plugin `typo` implements `{hook}`, which is no hook; {message}"):
        empty_registry.register(giving(codec(), hook=hook), "typo")
    assert "typo" not in empty_registry.plugins


def test_a_hook_without_its_marker_is_an_error(empty_registry):
    with pytest.raises(PluginError, match="plugin `bare` has `evalharness_codecs` without `@hookimpl`; add the marker"):
        empty_registry.register(SimpleNamespace(evalharness_codecs=list), "bare")


def test_an_argument_that_the_hook_does_not_have_is_an_error(empty_registry):
    @hookimpl
    def evalharness_codecs(colour):
        return [colour]

    with pytest.raises(PluginError, match=r"plugin `more` \(package-a\) is not valid: .*colour"):
        empty_registry.register(SimpleNamespace(evalharness_codecs=evalharness_codecs), "more", origin="package-a")


def test_two_plugins_of_one_name_are_an_error_that_names_both(empty_registry):
    empty_registry.register(giving(codec()), "one", origin="package-a 1.0")

    with pytest.raises(PluginError, match=r"two plugins are named `one`: one from package-a 1.0, one from package-b 2.0"):
        empty_registry.register(giving(), "one", origin="package-b 2.0")


# --- installed packages -----------------------------------------------------------------------------------------------


def test_two_packages_with_a_plugin_of_one_name_are_an_error_that_names_both(installed):
    entry = ("codecs", "evalharness.plugins.int8")
    installed(Distribution("package-a", entry), Distribution("package-b", ("codecs", "evalharness.plugins.binary")))

    with pytest.raises(PluginError, match=r"two packages give a plugin named `codecs`: package-a 1.0 and package-b 1.0; .*`-p no:codecs`"):
        load_registry()
    assert load_registry(["no:codecs"]).plugins == {}


def test_a_package_found_twice_is_loaded_once(installed):
    entry = ("int8", "evalharness.plugins.int8")
    installed(Distribution("package-a", entry), Distribution("package-a", entry))

    assert list(load_registry().plugins) == ["int8"]


def test_a_broken_plugin_is_listed_and_fatal_only_when_needed(installed):
    installed(Distribution("package-a", ("int8", "evalharness.plugins.int8"), ("broken", "evalharness.plugins.nowhere")))

    registry = load_registry()

    assert registry.plugins["broken"].error == "ModuleNotFoundError: No module named 'evalharness.plugins.nowhere'"
    assert registry.plugins["broken"].hooks == ()
    assert registry.get("codec", "int8").name == "int8"
    with pytest.raises(UnknownNameError, match=r"unknown codec `int3`.*plugin `broken` is broken: ModuleNotFoundError"):
        registry.get("codec", "int3")


def test_listing_shows_a_broken_plugin_with_its_reason(installed, cli):
    installed(Distribution("package-a", ("int8", "evalharness.plugins.int8"), ("broken", "evalharness.plugins.nowhere")))

    done = cli("list", "plugins")

    assert done.code == 0
    assert "broken  package-a 1.0           ModuleNotFoundError: No module named 'evalharness.plugins.nowhere'" in done.out


# --- what -p names ----------------------------------------------------------------------------------------------------


def test_a_file_is_a_plugin_whose_source_is_part_of_keys(tmp_path):
    file = tmp_path / "my-half.py"
    file.write_text(FILE)

    registry = load_registry([str(file)], installed=False)

    assert list(registry.plugins) == ["my-half"]
    assert registry.plugins["my-half"].hooks == ("evalharness_codecs",)
    before = registry.stamp("codec", "half")
    assert before == f"1+{source_digest(registry.plugins['my-half'].module)}"
    file.write_text(FILE + "# changed\n")
    assert load_registry([str(file)], installed=False).stamp("codec", "half") != before


def test_a_builtin_is_stamped_by_its_protocol_alone(registry):
    assert registry.stamp("codec", "int8") == str(registry.get("codec", "int8").protocol)


def test_a_package_is_digested_with_all_its_files(tmp_path):
    module = ModuleType("package")
    module.__file__ = str(tmp_path / "__init__.py")
    (tmp_path / "__init__.py").write_text("")
    before = source_digest(module)
    (tmp_path / "part.py").write_text("x = 1")

    assert source_digest(module) != before
    assert source_digest(SimpleNamespace()) == "none"


def test_a_module_is_a_plugin_under_its_full_name(tmp_path, monkeypatch):
    (tmp_path / "half_module.py").write_text(FILE)
    monkeypatch.syspath_prepend(tmp_path)

    registry = load_registry(["half_module"], installed=False)

    assert registry.owner("codec", "half").name == "half_module"


def test_a_plugin_can_be_blocked():
    assert "int8" in load_registry().plugins

    registry = load_registry(["no:int8"])

    assert "int8" not in registry.plugins
    with pytest.raises(UnknownNameError, match="unknown codec `int8`"):
        registry.get("codec", "int8")


def test_blocking_a_plugin_that_is_not_there_is_an_error():
    with pytest.raises(UnknownNameError, match="unknown plugin `int9`; did you mean `int8`"):
        load_registry(["no:int9"])


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ("nowhere.py", "plugin file `nowhere.py` does not exist"),
        ("no_such_module", "plugin `no_such_module` cannot be loaded: ModuleNotFoundError"),
    ],
)
def test_what_cannot_be_loaded_by_name_is_an_error_at_once(request_, message):
    with pytest.raises(PluginError, match=message):
        load_registry([request_], installed=False)


def test_a_file_that_raises_is_an_error_that_names_it(tmp_path):
    file = tmp_path / "raises.py"
    file.write_text("1 / 0")

    with pytest.raises(PluginError, match=r"plugin `.*raises.py` cannot be loaded: ZeroDivisionError: division by zero"):
        load_registry([str(file)], installed=False)


def test_a_mistake_of_the_user_is_one_line_with_its_exit_code(cli):
    done = cli("show", "codec", "int9")

    assert (done.code, done.out) == (UnknownNameError.exit_code, "")
    assert done.err == "evalharness: unknown codec `int9`; did you mean `int8`?\n"


# --- observers --------------------------------------------------------------------------------------------------------


@pytest.fixture
def events(registry):
    """Return the events of a run whose other observer raises each time."""
    seen = []

    @hookimpl
    def evalharness_run_started(run):
        seen.append(("started", run))

    @hookimpl
    def evalharness_unit_finished(unit):
        seen.append(("unit", unit))

    @hookimpl
    def evalharness_run_finished(run):
        seen.append(("finished", run))

    @hookimpl
    def fails(run):
        raise RuntimeError("tracker is down")

    hooks = {function.__name__: function for function in (evalharness_run_started, evalharness_unit_finished, evalharness_run_finished)}
    registry.register(SimpleNamespace(evalharness_run_started=fails, evalharness_run_finished=fails), "tracker")
    registry.register(SimpleNamespace(**hooks), "watcher")
    return seen


def test_observers_learn_of_every_unit_and_their_exceptions_are_logged_not_fatal(registry, events, tmp_path, caplog):
    from evalharness import evaluate

    task = tmp_path / "iris.yaml"
    task.write_text(
        "task: iris\nversion: 1\nmodality: vector\nsummary: three irises\ndata: {dataset: iris, target: label}\nevaluators: {knn: {use: knn}}\nmain: knn.accuracy\n"
    )
    results = evaluate("identity", str(task), registry=registry)

    assert [kind for kind, _ in events] == ["started", "unit", "finished"]
    (started, unit) = events[0][1], events[1][1]
    assert (started.encoders, started.tasks, started.num_units, started.folder) == (("identity",), ("iris",), 1, None)
    assert (unit.task, unit.encoder, unit.evaluator, unit.status) == ("iris", "identity", "knn", "measured")
    assert len(unit.records) == len(results.records)
    assert [record.message for record in caplog.records].count("observer of plugin `tracker` raised in evalharness_run_started") == 1
    assert "tracker is down" in caplog.text


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("linear-probe", {"grid": ["a"]}, "expected `grid` to be a word or a number or a list of numbers, got `['a']`"),
        ("linear-probe", {"grid": True}, "expected `grid` to be"),
        ("linear-probe", {"max_iterations": 1.5}, "expected `max_iterations` to be a whole number, got `1.5`"),
        ("linear-probe", {"tolerance": None}, "expected `tolerance` to be a number, got `None`"),
        ("mlp-probe", {"weight_decays": 1}, "expected `weight_decays` to be a list of numbers, got `1`"),
        ("knn", {"k": [1, "a"]}, "expected `k` to be a whole number or a list of whole numbers, got `[1, 'a']`"),
        ("knn", {"main_k": True}, "expected `main_k` to be a whole number or null, got `True`"),
        ("knn", {"metric": None}, "expected `metric` to be a word, got `None`"),
        ("few-shot", {"within": 1}, "expected `within` to be a word or null, got `1`"),
        ("clustering", {"clusters": "many"}, "expected `clusters` to be a whole number or null, got `many`"),
    ],
)
def test_a_parameter_of_another_type_is_refused(name, given, message):
    with pytest.raises(UsageError) as caught:
        load_registry().params("evaluator", name, given)
    assert message in str(caught.value)


def test_parameters_of_the_declared_types_are_taken():
    registry = load_registry()
    for name, given in (
        ("linear-probe", {"grid": 1, "tolerance": 1}),
        ("linear-probe", {"grid": [1, 2.5]}),
        ("linear-probe", {"grid": "clip-96", "class_weight": None}),
        ("knn", {"k": (1, 5), "main_k": 5}),
        ("few-shot", {"head": ["ridge"], "penalty": 1, "within": None}),
    ):
        assert registry.params("evaluator", name, given) | given == registry.params("evaluator", name, given)
