"""Fixtures that every test may use; each test has a cache folder of its own, no network, and no plugins but the built-in ones."""

from __future__ import annotations

import importlib.metadata
import os
import socket
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

# Before torch is imported: more threads than cores make small tensors slow, and subprocesses inherit this.
os.environ["OMP_NUM_THREADS"] = str(min(2, int(os.environ.get("OMP_NUM_THREADS", "2")), os.cpu_count() or 1))

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest

from evalharness.registry import Registry, load_registry

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def root():
    """Return the root of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def pyproject():
    """Return the content of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    """Return an embedding cache that is this test's alone."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("EVALHARNESS_CACHE", str(folder))
    return folder


@pytest.fixture(autouse=True)
def _no_mirror(request, monkeypatch):
    if request.node.get_closest_marker("real") is None:
        monkeypatch.delenv("EVALHARNESS_MIRROR", raising=False)


@pytest.fixture(autouse=True, scope="session")
def _no_network():
    """Refuse connections to other machines, at once rather than after retries."""
    connect = socket.socket.connect

    def refuse(self, address):
        if self.family == socket.AF_UNIX or address[0] in ("127.0.0.1", "::1", "localhost"):
            return connect(self, address)
        raise OSError(f"tests have no network: {address}")

    def no_names(host, *arguments, **options):
        if host in (None, "127.0.0.1", "::1", "localhost"):
            return resolve(host, *arguments, **options)
        raise socket.gaierror(f"tests have no network: {host}")

    resolve = socket.getaddrinfo
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", refuse)
        patch.setattr(socket, "getaddrinfo", no_names)
        yield


@pytest.fixture(autouse=True)
def _no_strangers(monkeypatch):
    """Hide the plugins that other installed packages give: no test depends on the machine it runs on."""
    installed = importlib.metadata.distributions

    def ours(**options):
        return (
            one for one in installed(**options) if one.name == "evalharness" or not any(e.group == "evalharness" for e in one.entry_points)
        )

    monkeypatch.setattr(importlib.metadata, "distributions", ours)


@pytest.fixture
def registry():
    """Return a fresh registry that holds the built-in plugins and nothing else."""
    return load_registry()


@pytest.fixture
def empty_registry():
    """Return a registry without a plugin."""
    return Registry()


@pytest.fixture
def cli(monkeypatch, capsys):
    """Return a function that runs the command line in this process and gives exit code, standard output and error."""

    def run(*arguments):
        from evalharness.cli import main

        monkeypatch.setattr(sys, "argv", ["evalharness", *map(str, arguments)])
        capsys.readouterr()
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code or 0
        out, err = capsys.readouterr()
        return SimpleNamespace(code=code, out=out, err=err)

    return run


# --- running toy tasks --------------------------------------------------------------------------------------------

TOYS = Path(__file__).parent / "toys.py"


@pytest.fixture
def toys():
    """Return a registry with the built-in plugins and the toys, whose counters are at zero."""
    registry = load_registry([str(TOYS)])
    module = registry.plugins["toys"].module
    module.COUNTS.clear()
    module.SEEN.clear()
    registry.counts, registry.seen = module.COUNTS, module.SEEN
    return registry


@pytest.fixture
def write_task(tmp_path):
    """Return a function that writes a task file and gives its path."""

    def write(body, name="toy-task"):
        path = tmp_path / f"{name}.yaml"
        head = f"task: {name}\nversion: 1\nmodality: vector\n"
        path.write_text((head if not body.lstrip().startswith("task:") else "") + body, encoding="utf-8")
        return path

    return write


@pytest.fixture
def run_tasks(toys, tmp_path):
    """Return a function that runs task files with encoders and gives the outcome of the session."""
    from evalharness.session import Session, Settings, Silent
    from evalharness.suites import Library

    def run(paths, encoders=("counting",), *, registry=None, out=tmp_path / "out", **settings):
        paths = paths if isinstance(paths, (list, tuple)) else [paths]
        session = Session(registry or toys, Settings(out=out, **settings), Silent())
        return session.run(Library([]).select([str(path) for path in paths]), list(encoders))

    return run
