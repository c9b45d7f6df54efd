"""``evalharness list`` and ``evalharness show``: what is registered, without loading anything heavy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from evalharness.cli.options import DEFAULT_OUT, AsJson, Mirror, Plugins, open_registry, read_pairs
from evalharness.errors import UnknownNameError, UsageError, unknown_name
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
    kind: Annotated[str, typer.Argument(help="encoder, dataset, shift, codec, evaluator, reporter, suite, task or plugin; or neighbours.")],
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME|DIR", help="A registered name or a reference; for neighbours result folders, several are merged."),
    ] = None,
    columns: Annotated[bool, typer.Option("--columns", help="Of a dataset: load it and list its columns by split and part.")] = False,
    where: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Of neighbours: keep matching units; may be repeated.")
    ] = None,
    content: Annotated[bool, typer.Option("--content", help="Of neighbours: read the data again and print the texts.")] = False,
    page: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Of neighbours: write a page with the texts or images instead of printing."),
    ] = None,
    tasks: Annotated[
        list[str] | None, typer.Option("--task", metavar="FILE", help="Of neighbours: a task file that no plugin ships; may be repeated.")
    ] = None,
    plugins: Plugins = None,
    mirror: Mirror = None,
    as_json: AsJson = False,
) -> None:
    """Show everything known of one registered thing, or the neighbours that a run kept as examples."""
    registry = open_registry(plugins, mirror)
    if kind == "neighbours":
        from evalharness.cli.neighbours import show_neighbours

        folders = [Path(name) for name in names or [str(DEFAULT_OUT)]]
        pairs = read_pairs(where, "--where")
        show_neighbours(folders, registry, where=pairs, tasks=tasks or [], content=content, page=page, as_json=as_json)
        return
    if names is None or len(names) != 1:
        raise UsageError(f"expected one NAME after `show {kind}`, got {len(names or ())}; `evalharness list` shows the names")
    if columns:
        _show_columns(registry, kind.removesuffix("s"), names[0], as_json=as_json)
        return
    facts = show_facts(registry, kind.removesuffix("s"), names[0])
    if as_json:
        typer.echo(json.dumps(facts, ensure_ascii=False, indent=2, default=str))
        return
    width = max(map(len, facts))
    for key, value in facts.items():
        typer.echo(f"{key.ljust(width)}  {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)}")


def _show_columns(registry: Registry, kind: str, name: str, *, as_json: bool) -> None:
    from tabulate import tabulate

    from evalharness.contents import describe_columns

    if kind != "dataset":
        raise UsageError(f"`--columns` goes with `show dataset`, not with `show {kind}`")
    rows = describe_columns(registry, name)
    if as_json:
        typer.echo(json.dumps(rows, ensure_ascii=False, indent=2))
        return
    typer.echo(tabulate([[_cell(value) for value in row.values()] for row in rows], list(rows[0]) if rows else [], disable_numparse=True))


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
