"""Guards of the layout: entry points, packages, import direction, import set of listings, sizes, documentation of public names."""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from evalharness import _HOME, __all__

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
ENTRY_POINTS = PYPROJECT["project"]["entry-points"]["evalharness"]
FOLDERS = {"evalharness": ROOT / "evalharness", "evalharness.plugins": ROOT / "plugins", "evalharness.tasks": ROOT / "tasks"}

# Each layer may import its own and those above it, never one below.
LAYERS = (
    "errors types keys records",
    "hookspecs numerics stats yaml",
    "registry suites selection store vectors adapters transforms probes identify randomness gauges costs",
    "stamp pools cells taskcheck plan planner passes embed devices tables grouping forms estimates joint summaries budgets across estimate walk",
    "session contents facts run evidence shown board headline axes ledger ranks compare leaderboard invariants verify failures testing checkup api",
    "cli",
)
LAYER = {name: at for at, names in enumerate(LAYERS) for name in names.split()}
PUBLIC_TO_PLUGINS = {"evalharness", *(f"evalharness.{name}" for name in ("types", "errors", "numerics", "stats", "testing"))}
HEAVY = {"torch", "faiss", "datasets", "pandas", "sklearn", "scipy", "ray", "pyarrow", "transformers", "wordllama"}
MOST_LINES_OF_A_FUNCTION = 60
MOST_LINES_OF_A_FILE = 500


@functools.cache
def read(path):
    return ast.parse(path.read_text(), str(path))


def sources(*folders):
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def name_of(path):
    return str(path.relative_to(ROOT))


# --- entry points and packages ----------------------------------------------------------------------------------------


def plugin_modules():
    """Return the modules under plugins/ that implement a hook, by the entry point they should have."""
    found = {}
    for path in [*(ROOT / "plugins").glob("*.py"), *(ROOT / "plugins").glob("*/__init__.py")]:
        if any(isinstance(node, ast.FunctionDef) and node.name.startswith("evalharness_") for node in read(path).body):
            stem = path.parent.name if path.name == "__init__.py" else path.stem
            found[stem.replace("_", "-")] = f"evalharness.plugins.{stem}"
    return found


def test_entry_points_are_the_plugin_modules():
    expected = plugin_modules()

    missing = sorted(expected.items() - ENTRY_POINTS.items())
    needless = sorted(ENTRY_POINTS.items() - expected.items())
    assert not missing, f"add to [project.entry-points.evalharness] in pyproject.toml, then `pip install -e .`: {missing}"
    assert not needless, f"no such module under plugins/ implements a hook; remove the entry points or write the modules: {needless}"


def test_installed_entry_points_are_those_of_pyproject():
    installed = {
        entry.name: entry.value for entry in importlib.metadata.distribution("evalharness").entry_points if entry.group == "evalharness"
    }

    assert installed == ENTRY_POINTS, "the installed package is older than pyproject.toml; run `pip install -e .` again"


def test_packages_are_the_folders():
    found = set()
    for package, folder in FOLDERS.items():
        for init in folder.rglob("__init__.py"):
            found.add(".".join([package, *init.parent.relative_to(folder).parts]))

    listed = PYPROJECT["tool"]["setuptools"]["packages"]
    assert sorted(found) == sorted(listed), "make `packages` in pyproject.toml equal to the folders that have an __init__.py"
    assert listed == sorted(listed)


def test_every_folder_with_code_is_a_package():
    bare = {
        name_of(path.parent) for folder in FOLDERS.values() for path in folder.rglob("*.py") if not (path.parent / "__init__.py").exists()
    }

    assert not bare, f"add an __init__.py, and the package to `packages` in pyproject.toml: {sorted(bare)}"


def test_no_builtin_plugin_is_broken(registry):
    broken = {name: plugin.error for name, plugin in registry.plugins.items() if plugin.error}

    assert not broken


# --- imports ----------------------------------------------------------------------------------------------------------


def package_of(path):
    """Return the dotted name of the package that a file lies in."""
    package, folder = next((package, folder) for package, folder in reversed(FOLDERS.items()) if path.is_relative_to(folder))
    return ".".join([package, *path.parent.relative_to(folder).parts])


def resolve(name):
    """Return the module of evalharness that a dotted name lies in; lazy names of the root lie where they are defined."""
    parts = name.split(".")
    if len(parts) > 1 and parts[1] in _HOME:
        return _HOME[parts[1]]
    return name


def imports(path):
    """Return the dotted names that a file imports, anywhere in it, with their lines; relative ones made absolute."""
    for node in ast.walk(read(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = (
                [*package_of(path).split(".")[: 1 - node.level or None], *([node.module] if node.module else [])]
                if node.level
                else [node.module]
            )
            for alias in node.names:
                yield ".".join([*base, *([alias.name] if base == ["evalharness"] else [])]), node.lineno


def test_every_module_of_the_core_has_a_layer():
    modules = {path.stem for path in (ROOT / "evalharness").glob("*.py")} | {
        path.parent.name for path in (ROOT / "evalharness").glob("*/__init__.py")
    }

    assert modules - {"__init__"} == set(LAYER), "give the module a layer in tests/test_layout.py and a row in the design"


def core_faults(path):
    own = path.relative_to(ROOT / "evalharness").parts[0].removesuffix(".py")
    for name, line in imports(path):
        parts = resolve(name).split(".")
        if own == "__init__" or parts[0] != "evalharness" or len(parts) == 1 or parts[1] in ("__version__", "tasks"):
            continue
        if parts[1] == "plugins":
            yield f"{name_of(path)}:{line}: the core knows no plugin by name"
        elif LAYER[parts[1]] > LAYER[own]:
            yield f"{name_of(path)}:{line}: `{own}` (layer {LAYER[own]}) imports `{parts[1]}` (layer {LAYER[parts[1]]}), which lies below it"


def test_the_core_imports_upward_and_no_plugin():
    faults = [fault for path in sources("evalharness") for fault in core_faults(path)]

    assert not faults, "\n".join(faults)


def plugin_faults(path):
    package = f"evalharness.plugins.{path.relative_to(ROOT / 'plugins').parts[0]}"
    for name, line in imports(path):
        if name.partition(".")[0] != "evalharness" or name == package or name.startswith(f"{package}."):
            continue
        if name not in PUBLIC_TO_PLUGINS and name.removeprefix("evalharness.") not in __all__:
            yield f"{name_of(path)}:{line}: plugins import themselves and {sorted(PUBLIC_TO_PLUGINS)}, not `{name}`"


def test_plugins_import_public_names_and_themselves_only():
    faults = [fault for path in sources("plugins") for fault in plugin_faults(path)]

    assert not faults, "\n".join(faults)


def imported_by(*arguments):
    """Return the modules that a command leaves imported in a fresh interpreter."""
    code = (
        "import sys\n"
        f"sys.argv = {['evalharness', *arguments]!r}\n"
        "from evalharness.cli import main\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    assert not end.code, end.code\n"
        "sys.stderr.write('\\n'.join(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in done.stderr.split()}


@pytest.mark.parametrize(
    "command",
    [("list",), ("list", "--json"), ("show", "evaluator", "linear-probe"), ("show", "task", "digits"), ("run", "--help")],
    ids=" ".join,
)
def test_listing_imports_nothing_that_computes(command):
    assert imported_by(*command) & HEAVY == set()


def test_importing_the_package_imports_nothing_that_computes():
    code = "import sys, evalharness; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert {name.partition(".")[0] for name in done.stdout.split()} & (HEAVY | {"numpy", "pluggy", "pydantic"}) == set()


# --- sizes, documentation, annotation ---------------------------------------------------------------------------------


def functions(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def length(function):
    """Return the lines of a function, signature included, docstring not."""
    doc = function.body[0] if ast.get_docstring(function) is not None else None
    return function.end_lineno - function.lineno + 1 - (doc.end_lineno - doc.lineno + 1 if doc else 0)


def test_files_and_functions_are_short():
    faults = []
    for path in sources("evalharness", "plugins", "tasks", "tests", "benchmarks", "docs", "examples"):
        lines = len(path.read_text().splitlines())
        faults += (
            [f"{name_of(path)}: {lines} lines, at most {MOST_LINES_OF_A_FILE}; split it by subject"] if lines > MOST_LINES_OF_A_FILE else []
        )
        for function in functions(read(path)):
            if length(function) > MOST_LINES_OF_A_FUNCTION:
                faults.append(
                    f"{name_of(path)}:{function.lineno}: `{function.name}` has {length(function)} lines, at most {MOST_LINES_OF_A_FUNCTION}"
                )

    assert not faults, "\n".join(faults)


def public(body):
    """Return the public functions and classes of a module, and the public methods of those classes."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from public(node.body)


def documentation_faults(path):
    tree = read(path)
    if not ast.get_docstring(tree):
        yield f"{name_of(path)}: a module says what it is about"
    for node in public(tree.body):
        where = f"{name_of(path)}:{node.lineno}: `{node.name}`"
        if not ast.get_docstring(node):
            yield f"{where} has no docstring"
        if isinstance(node, ast.ClassDef):
            continue
        given = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        bare = [one.arg for one in given if one.annotation is None and one.arg not in ("self", "cls")]
        if bare or node.returns is None:
            yield f"{where}: annotate {[*bare, *(['what it returns'] if node.returns is None else [])]}"


def test_public_names_are_documented_and_annotated():
    faults = [fault for path in sources("evalharness", "plugins", "tasks") for fault in documentation_faults(path)]

    assert not faults, "\n".join(faults)


def test_public_names_are_sorted_and_can_be_imported():
    import evalharness

    assert __all__ == sorted(__all__)
    for name in __all__:
        assert getattr(evalharness, name) is not None
