"""``evalharness show neighbours``: the examples of neighbours that runs kept, with their content where that is asked for."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from evalharness.errors import DataError
from evalharness.registry import Registry
from evalharness.store.files import storing
from evalharness.store.results import ResultsReader

LONGEST = 100
STYLE = """
:root { color-scheme: light dark; } body { font: 15px/1.4 system-ui, sans-serif; margin: 2rem auto; max-width: 80rem; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2.5rem; } .row { display: flex; gap: .75rem; overflow-x: auto; padding: .6rem 0; border-bottom: 1px solid #8884; }
figure { margin: 0; flex: 0 0 9.5rem; } figure.own { padding-right: .75rem; border-right: 3px solid #2563a8; } img { width: 8rem; image-rendering: pixelated; }
figcaption { font-size: .82em; overflow-wrap: anywhere; } p { margin: 0 0 .3rem; font-size: .9em; } .differs b { color: #c0392b; }
"""


def show_neighbours(
    folders: Sequence[Path],
    registry: Registry,
    *,
    where: Mapping[str, str],
    tasks: Sequence[str],
    content: bool,
    page: Path | None,
    as_json: bool,
) -> None:
    """Print the examples of result folders, or write them as a page.

    Raises:
        DataError: there are none, or their content cannot be read.
    """
    from evalharness.shown import where_text

    found = find_neighbours(folders, where)
    if not found:
        listed = ", ".join(f"`{folder}`" for folder in folders)
        about = f" with {where_text(where)}" if where else ""
        raise DataError(f"no examples of neighbours{about} in {listed}; run a task with the evaluator `neighbours` first, or name a folder")
    if content or page is not None:
        _add_content(found, registry, tasks, images=page is not None)
    if page is not None:
        with storing(page):
            page.write_text(render_page(found), encoding="utf-8")
        typer.echo(f"wrote {page}")
        return
    for unit in found:
        unit.pop("data")
    if as_json:
        typer.echo(json.dumps(found, ensure_ascii=False, indent=2))
        return
    for unit in found:
        typer.echo(title_of(unit))
        for example in unit["examples"]:
            typer.echo(f"  {example['id']}  {example['label']}{_quote(example)}")
            for other in example["neighbours"]:
                differs = "" if other["label"] == example["label"] else "  (differs)"
                typer.echo(f"    {other['similarity']:8.4f}  {other['id']}  {other['label']}{differs}{_quote(other)}")
        typer.echo("")


def title_of(unit: Mapping[str, Any]) -> str:
    """Return a line that tells a unit apart."""
    return " · ".join(unit[name] for name in ("suite", "task", "encoder", "cell") if unit[name])


def _quote(item: Mapping[str, Any]) -> str:
    text = item.get("content")
    if text is None:
        return ""
    line = " ".join(text.split())
    return f"  “{line if len(line) <= LONGEST else line[: LONGEST - 1] + '…'}”"


def find_neighbours(folders: Sequence[Path], where: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the examples of neighbours that stored units keep in their details, by suite, task, encoder and cell."""
    from evalharness.failures import cell_text
    from evalharness.shown import check_where, label_of, matches

    reader = ResultsReader(folders)
    records = reader.records()
    check_where(where, records)
    current = {
        (record["suite"], record["unit"]): record
        for record in records
        if not (record["group"] or record["over"]) and matches(record, where)
    }
    found = []
    for key, line in reader.finished().items():
        examples = list(_examples_in(line.get("details", {})))
        if examples and key in current:
            record = current[key]
            words = [line["alias"], f"of {record['target']}" if record["target"] else "", cell_text(record).partition(", ")[2]]
            unit = {"suite": line["suite"], "task": line["task"], "encoder": label_of(record), "cell": ", ".join(filter(None, words))}
            found.append({**unit, "data": record["dataset_fingerprint"], "examples": examples})
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


# --- content ----------------------------------------------------------------------------------------------------------


def _add_content(found: Sequence[dict[str, Any]], registry: Registry, tasks: Sequence[str], *, images: bool) -> None:
    """Give every example and neighbour its text, or the address of its image."""
    from evalharness.contents import Contents, image_uri
    from evalharness.session import open_library

    library = open_library(registry)
    files = {task.name: task for selection in library.select(list(tasks)) for task in selection.tasks} if tasks else {}
    read: dict[tuple[str, str], Contents] = {}
    for unit in found:
        name = unit["task"]
        key = (name, unit["data"])
        if key not in read:
            if name not in files and name not in library.tasks:
                raise DataError(f"no plugin ships the task `{name}`; name its file with `--task FILE`")
            read[key] = Contents(registry, files.get(name) or library.task(name), unit["data"])
        contents = read[key]
        items = [item for example in unit["examples"] for item in (example, *example["neighbours"])]
        if contents.modality != "text" and not (images and contents.modality == "image"):
            kinds = "texts, and as a page (`--html FILE`) images" if not images else "texts and images"
            raise DataError(f"the items of task `{name}` are of modality {contents.modality}; only {kinds} can be shown")
        values = contents.read(item["id"] for item in items)
        for item in items:
            value = values[item["id"]]
            item.update({"content": value} if contents.modality == "text" else {"image": image_uri(value)})


def render_page(found: Sequence[Mapping[str, Any]]) -> str:
    """Return a page that holds all it shows and loads nothing: a row an example, its neighbours to the right."""
    parts = []
    for unit in found:
        rows = "\n".join(
            f'<div class="row">{_figure(example, "own")}{"".join(_figure(other, _state(example, other)) for other in example["neighbours"])}</div>'
            for example in unit["examples"]
        )
        parts.append(f"<section>\n<h2>{html.escape(title_of(unit))}</h2>\n{rows}\n</section>")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>evalharness neighbours</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>Neighbours</h1>\n"
        "<p>Each row: an item, drawn by the seed, and its nearest neighbours; labels that differ are red.</p>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def _state(example: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    return "" if other["label"] == example["label"] else "differs"


def _figure(item: Mapping[str, Any], state: str) -> str:
    shown = f'<img src="{item["image"]}" alt="">' if "image" in item else f"<p>{html.escape(item['content'])}</p>"
    similarity = f" · {item['similarity']:.3f}" if "similarity" in item else ""
    caption = f"<b>{html.escape(str(item['label']))}</b>{similarity}<br>{html.escape(item['id'])}"
    return f'<figure class="{state}">{shown}<figcaption>{caption}</figcaption></figure>'
