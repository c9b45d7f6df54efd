"""``evalharness list`` and ``evalharness show``: what is registered, without loading anything heavy."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from evalharness.cli.options import AsJson, Plugins, open_registry
from evalharness.errors import UnknownNameError, unknown_name
from evalharness.registry import KINDS, Registry

KIND_NAMES = [*(f"{kind}s" for kind in KINDS), "suites", "tasks", "plugins"]


def list_things(
    kind: Annotated[str | None, typer.Argument(metavar="[KIND]", help=f"One of {', '.join(KIND_NAMES)}; default all.")] = None,
    plugins: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """List what is registered, built-ins and others alike."""
    registry = open_registry(plugins)
    if kind is not None and kind not in KIND_NAMES:
        raise UnknownNameError(unknown_name("kind", kind, KIND_NAMES))
    found = {name: describe_kind(registry, name) for name in ([kind] if kind else KIND_NAMES)}
    if as_json:
        typer.echo(json.dumps(found if kind is None else found[kind], ensure_ascii=False, indent=2))
        return
    for name, rows in found.items():
        _print_rows(name, rows, heading=kind is None)


def describe_kind(registry: Registry, kind: str) -> list[dict[str, Any]]:
    """Return a description of everything of a kind."""
    if kind == "plugins":
        return [
            {
                "name": name,
                "from": plugin.origin,
                "hooks": [hook.removeprefix("evalharness_") for hook in plugin.hooks],
                "broken": plugin.error,
            }
            for name, plugin in sorted(registry.plugins.items())
        ]
    if kind in ("suites", "tasks"):
        return _describe_files(registry, kind)
    single = kind.removesuffix("s")
    return [_describe_spec(registry, single, name) for name in registry.specs(single)]


def _describe_spec(registry: Registry, kind: str, name: str) -> dict[str, Any]:
    spec = registry.get(kind, name)
    row = {"name": name, "summary": spec.summary, "plugin": registry.owner(kind, name).name}
    for extra in ("modalities", "mechanism", "main"):
        if hasattr(spec, extra):
            value = getattr(spec, extra)
            row[extra] = list(value) if isinstance(value, tuple) else value
    return row


def _describe_files(registry: Registry, kind: str) -> list[dict[str, Any]]:
    from evalharness.session import open_library

    library = open_library(registry)
    if kind == "suites":
        files = [library.suite(name)[0] for name in library.suites]
        return [{"name": file.suite, "summary": file.summary, "tasks": list(file.tasks)} for file in files]
    tasks = [library.task(name).file for name in library.tasks]
    return [{"name": file.task, "summary": file.summary, "modality": list(file.modalities), "dataset": file.data.dataset} for file in tasks]


def _print_rows(kind: str, rows: list[dict[str, Any]], *, heading: bool) -> None:
    from tabulate import tabulate

    if heading:
        typer.echo(f"{kind}\n")
    shown = [[_cell(value) for value in row.values()] for row in rows]
    headings = list(rows[0]) if rows else []
    typer.echo(tabulate(shown, headings, tablefmt="simple", disable_numparse=True) if rows else "none")
    if heading:
        typer.echo("")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def show(
    kind: Annotated[str, typer.Argument(help="encoder, dataset, shift, codec, evaluator, reporter, suite, task or plugin.")],
    name: Annotated[str, typer.Argument(help="A registered name or a reference.")],
    plugins: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Show everything known of one registered thing."""
    registry = open_registry(plugins)
    facts = show_facts(registry, kind.removesuffix("s"), name)
    if as_json:
        typer.echo(json.dumps(facts, ensure_ascii=False, indent=2, default=str))
        return
    width = max(map(len, facts))
    for key, value in facts.items():
        typer.echo(f"{key.ljust(width)}  {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)}")


def show_facts(registry: Registry, kind: str, name: str) -> dict[str, Any]:
    """Return what is known of one thing."""
    from evalharness.session import open_library

    if kind == "task":
        task = open_library(registry).task(name)
        return {"file": str(task.document.path), **task.document.data}
    if kind == "suite":
        file, document = open_library(registry).suite(name)
        return {"file": str(document.path), **file.model_dump()}
    if kind == "plugin":
        if name not in registry.plugins:
            raise UnknownNameError(unknown_name("plugin", name, registry.plugins))
        return next(row for row in describe_kind(registry, "plugins") if row["name"] == name)
    if kind not in KINDS:
        raise UnknownNameError(unknown_name("kind", kind, [*KINDS, "suite", "task", "plugin"]))
    return _spec_facts(registry, kind, name)


def _spec_facts(registry: Registry, kind: str, name: str) -> dict[str, Any]:
    spec = registry.get(kind, name)
    owner = registry.owner(kind, name)
    facts: dict[str, Any] = {"name": spec.name, "summary": spec.summary, "plugin": f"{owner.name} ({owner.origin})"}
    for field in type(spec).__dataclass_fields__:
        value = getattr(spec, field)
        if field in facts or callable(value) or value is None or value in ("", (), {}, frozenset()):
            continue
        facts[field] = _plain(value)
    return facts


def _plain(value: Any) -> Any:
    if isinstance(value, tuple) and value and hasattr(value[0], "columns"):
        return [f"{metric.name} ({metric.unit}, {metric.low:g} to {metric.high:g})" for metric in value]
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    return dict(value) if hasattr(value, "items") else list(value) if isinstance(value, tuple) else value
