"""Leaderboard tables along one axis: every shift, codec, group, fit or layer of a task's main metric, and what an encoder costs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from evalharness.board import BoardRow, BoardTable, interval_notes
from evalharness.costs import format_bytes, format_count
from evalharness.errors import counted
from evalharness.records import inside, limit_of
from evalharness.shown import Record, Score, budget_text, is_single, label_of, score_of, size_text

BY = {"shift": ("shift", "severity"), "codec": ("codec",), "group": ("group",), "fit": ("fit",), "layer": ("layer",)}


def axis_tables(records: Sequence[Record], by: str, labels_of: Mapping[str, int], about: str | None = None) -> Iterable[BoardTable]:
    """Yield, for each task's main metric, a table of encoders against the values of one axis; limited rows have tables of their own.

    ``labels_of`` says how many rows the fit of a unit learned from; ``about`` stands in the titles.
    """
    plain = [record for record in records if is_single(record) or record["over"] == "budget"]
    for key in sorted({(record["suite"] or "", record["task"], limit_of(record)) for record in plain}):
        own = [record for record in plain if (record["suite"] or "", record["task"], limit_of(record)) == key]
        bases = [record for record in own if record["main"] and record["value"] is not None]
        if bases:
            found = _axis_table(key, own, bases[-1], by, labels_of)
            if found is not None:
                found.title += f" · {about}" if about else ""
                yield found


_KEPT = ("target", "metric", "evaluator", "params", "seed", "task_version", "dataset_fingerprint")


def _axis_table(key: tuple[str, str, str], own: Sequence[Record], base: Record, by: str, labels_of: Mapping[str, int]) -> BoardTable | None:
    wanted = {name: base[name] for name in ("shift", "severity", "codec", "group", "fit", *_KEPT) if name not in BY[by]}
    if by != "shift" and base["shift"] == "robust":
        wanted |= {"shift": "clean", "severity": 0}  # several attacks at once have no other codec, group or fit
    if by == "group":
        others = {name: value for name, value in wanted.items() if name != "fit"}
        grouped = (record["fit"] for record in own if record["group"] is not None and all(record[name] == others[name] for name in others))
        wanted["fit"] = next(grouped, base["fit"])
    cells = [
        record
        for record in own
        if record["status"] != "not_applicable"
        and record["over"] != "budget"
        and all(record[name] == value for name, value in wanted.items())
        and (by != "group" or record["group"] is not None)
    ]
    if by == "fit":
        means = {record["fit"] for record in cells if record["over"] == "draw"}
        cells = [record for record in cells if str(record["fit"]).partition("/")[0] not in means or record["over"] == "draw"]
    sizes = _axis_sizes(cells, by)
    # Fits stand in the order of how many labels they learned from, everything else in that of its names.
    alike = [record for record in own if all(record[name] == base[name] for name in ("target", "evaluator", "params"))]
    labels = _labels_of_fits(alike, labels_of) if by == "fit" else {}
    names = sorted(sizes, key=lambda name: (labels.get(name.partition("/")[0], 0), _natural(name)))
    learned = {name: f"\n{labels[name.partition('/')[0]]:,} labels" if name.partition("/")[0] in labels else "" for name in names}
    columns = {name: f"{name}{learned[name]}\n{sizes[name] or 'n = 0'}" for name in names}
    if len(columns) < (1 if by == "group" else 2):
        return None
    scores: dict[str, dict[str, Score]] = {}
    for record in cells:
        label = record["encoder"] if by == "layer" else label_of(record)
        scores.setdefault(label, {})[_axis_value(record, by)] = score_of(record)
    curves = _budget_scores(own, wanted) if by == "fit" else {}
    columns |= {name: name for found in curves.values() for name in found}
    rows = [BoardRow(encoder=encoder, scores=found | curves.get(encoder, {}), ranked=True) for encoder, found in sorted(scores.items())]
    limit = f" · limited to {key[2]} rows" if key[2] else ""
    title = f"{key[0] or 'single tasks'} · {key[1]} · {base['metric']} by {by}{limit}"
    return BoardTable(title=title, columns=columns, rows=rows, notes=interval_notes(cells), records=list(cells))


def _labels_of_fits(records: Sequence[Record], labels_of: Mapping[str, int]) -> dict[str, int]:
    """Return how many labels each fit of some records of one target learned from, those of the first of several draws."""
    found: dict[str, int] = {}
    for record in records:
        if record["unit"] in labels_of:
            found.setdefault(str(record["fit"]).partition("/")[0], labels_of[record["unit"]])
    return found


def _budget_scores(own: Sequence[Record], wanted: Mapping[str, Any]) -> dict[str, dict[str, Score]]:
    """Return what ten times the labels add and what a stated score needs, by encoder, beside the fits of a table."""
    found: dict[str, dict[str, Score]] = {}
    for record in own:
        if record["over"] != "budget" or any(record[name] != value for name, value in wanted.items()):
            continue
        if record["statistic"] == "slope":
            found.setdefault(label_of(record), {})["per tenfold\nlabels"] = score_of(record)
        elif record["statistic"] == "reach":
            name = f"labels in all for\n{str(record['reference']).replace('=', ' ')}"
            found.setdefault(label_of(record), {})[name] = replace(score_of(record), shown=_labels_text(record))
    return found


def _labels_text(record: Record) -> str:
    """Return a number of labels with its interval; one that lies beyond all budgets says on which side."""
    if record["value"] is None:
        at_most = re.match(r"at most \d+", str(record["reason"]))
        return at_most[0] if at_most else "not reached"
    ends = "" if record["low"] is None else f" [{record['low']:.0f}, {record['high']:.0f}]"
    return f"{record['value']:.0f}{ends}"


def _axis_sizes(cells: Sequence[Record], by: str) -> dict[str, str]:
    found: dict[str, list[Record]] = {}
    for record in cells:
        found.setdefault(_axis_value(record, by), []).append(record)
    return {name: size_text(records) for name, records in found.items()}


def _natural(name: str) -> tuple[Any, ...]:
    """Sort the clean and uncompressed value first, and numbers in names as numbers."""
    parts = [float(part) if part.replace(".", "", 1).isdigit() else part for part in name.replace("/255", "").replace("/", " ").split()]
    return (name not in ("clean", "float32"), [(isinstance(part, str), part) for part in parts])


def _axis_value(record: Record, by: str) -> str:
    if by == "shift":
        if record["shift"] == "clean":
            return "clean"
        domain = inside(record["selection"])
        if record["shift_kind"] == "domain" and domain:
            return f"{record['shift']} {domain.rpartition('=')[2]}"
        return f"{record['shift']} {budget_text(record['severity'])}"
    value = record[BY[by][0]]
    return "output" if by == "layer" and value is None else str(value)


# --- costs --------------------------------------------------------------------------------------------------------

_COSTS = {
    "items_per_second": ("items a\nsecond", format_count),
    "parameters": ("parameters", format_count),
    "flops_per_item": ("FLOPs\nan item", format_count),
    "dim": ("dim", str),
    "bytes_per_vector": ("bytes a\nvector", format_bytes),
    "peak_memory_bytes": ("peak\nmemory", format_bytes),
}


def cost_table(rows: Sequence[Mapping[str, Any]]) -> BoardTable:
    """Return the table of what each encoder costs, from :func:`evalharness.costs.summarise_costs`."""
    found, notes = [], []
    for row in rows:
        scores = {}
        for key, (_, write) in _COSTS.items():
            value = row.get(key)
            reason = None if value is not None else row["reasons"].get(key)
            scores[key] = Score(
                value=value, low=None, high=None, n=row["items"], status="measured", reason=reason, shown=_shown(value, write)
            )
        label = f"{row['encoder']} · {row['modality']}"
        found.append(BoardRow(encoder=label, scores=scores, ranked=True))
        unknown = [f"{key.replace('_', ' ')}: {score.reason}" for key, score in scores.items() if score.reason]
        notes += [f"{label}: {'; '.join(unknown)}"] if unknown else []
    devices = sorted(
        {f"{row['device']}, {row['dtype']}" + (f", {counted(row['threads'], 'thread')}" if row.get("threads") else "") for row in rows}
    )
    notes.insert(
        0,
        f"Measured while embedding, on {'; '.join(devices)}; peak memory is {_memory_kinds(rows)}.",
    )
    return BoardTable(title="costs", columns={key: heading for key, (heading, _) in _COSTS.items()}, rows=found, notes=notes)


def _memory_kinds(rows: Sequence[Mapping[str, Any]]) -> str:
    words = {
        "process-resident": "that of the whole process, interpreter and libraries included",
        "cuda-allocated": "what torch took on the GPU",
    }
    return " or ".join(sorted({words.get(str(row["memory_kind"]), "not known") for row in rows}))


def _shown(value: Any, write: Any) -> str:
    return "–" if value is None else str(write(value))
