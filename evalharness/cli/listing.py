"""``evalharness list`` and ``evalharness show``: what is registered, without loading anything heavy."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from evalharness.cli.options import DEFAULT_OUT, AsJson, Plugins, open_registry
from evalharness.errors import DataError, UnknownNameError, UsageError, unknown_name
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
    plugins: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Show everything known of one registered thing, or the neighbours that a run kept as examples."""
    if kind == "neighbours":
        _show_neighbours([Path(name) for name in names or [str(DEFAULT_OUT)]], as_json=as_json)
        return
    if names is None or len(names) != 1:
        raise UsageError(f"expected one NAME after `show {kind}`, got {len(names or ())}; `evalharness list` shows the names")
    registry = open_registry(plugins)
    facts = show_facts(registry, kind.removesuffix("s"), names[0])
    if as_json:
        typer.echo(json.dumps(facts, ensure_ascii=False, indent=2, default=str))
        return
    width = max(map(len, facts))
    for key, value in facts.items():
        typer.echo(f"{key.ljust(width)}  {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)}")


def _show_neighbours(folders: list[Path], *, as_json: bool) -> None:
    found = find_neighbours(folders)
    if not found:
        listed = ", ".join(f"`{folder}`" for folder in folders)
        raise DataError(f"no examples of neighbours in {listed}; run a task with the evaluator `neighbours` first, or name a folder")
    if as_json:
        typer.echo(json.dumps(found, ensure_ascii=False, indent=2))
        return
    for unit in found:
        typer.echo(" · ".join(unit[name] for name in ("suite", "task", "encoder", "cell") if unit[name]))
        for example in unit["examples"]:
            typer.echo(f"  {example['id']}  {example['label']}")
            for other in example["neighbours"]:
                differs = "" if other["label"] == example["label"] else "  (differs)"
                typer.echo(f"    {other['similarity']:8.4f}  {other['id']}  {other['label']}{differs}")
        typer.echo("")


def find_neighbours(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """Return the examples of neighbours that stored units keep in their details, by suite, task, encoder and cell."""
    from evalharness.failures import cell_text
    from evalharness.shown import label_of
    from evalharness.store.results import ResultsReader

    reader = ResultsReader(folders)
    current = {(record["suite"], record["unit"]): record for record in reader.records() if not (record["group"] or record["over"])}
    found = []
    for key, line in reader.finished().items():
        examples = list(_examples_in(line.get("details", {})))
        if examples and key in current:
            record = current[key]
            words = [line["alias"], cell_text(record).partition(", ")[2]]
            where = {"suite": line["suite"], "task": line["task"], "encoder": label_of(record), "cell": ", ".join(filter(None, words))}
            found.append({**where, "examples": examples})
    return sorted(found, key=lambda unit: [unit[name] or "" for name in ("suite", "task", "encoder", "cell")])


def _examples_in(details: Any) -> Iterator[dict[str, Any]]:
    """Yield the examples with neighbours among details, which nest by variant and fold."""
    if isinstance(details, dict):
        if "id" in details and "neighbours" in details:
            yield details
            return
        details = list(details.values())
    if isinstance(details, list):
        for value in details:
            yield from _examples_in(value)


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
