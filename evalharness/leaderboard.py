"""The leaderboard: made from result files alone, never from objects in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from evalharness.errors import DataError, unknown_name
from evalharness.keys import canonical
from evalharness.records import FIELDS
from evalharness.store.results import ResultsReader

MAX_TASK_COLUMNS = 5
MAX_COLUMNS = 8
BY = {"shift": ("shift", "severity"), "codec": ("codec",), "group": ("group",), "fit": ("fit",), "layer": ("layer",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Hold one number as a table shows it."""

    value: float | None
    low: float | None
    high: float | None
    n: int | None
    status: str
    reason: str | None = None
    name: str | None = None  # of a worst group or domain

    @property
    def text(self) -> str:
        """Return value and interval in one string; what was not measured says so."""
        if self.value is None:
            return {"not_applicable": "n/a"}.get(self.status, self.status.replace("_", " "))
        shown = number(self.value)
        if self.low is not None and self.high is not None:
            shown += f" [{number(self.low)}, {number(self.high)}]"
        elif self.low is not None:
            shown += f" (≥ {number(self.low)})"
        elif self.high is not None:
            shown += f" (≤ {number(self.high)})"
        return (f"{self.name}: " if self.name else "") + shown + ("" if self.status == "measured" else f" {self.status.replace('_', ' ')}")


def number(value: float) -> str:
    """Return a number as tables show it: three decimals, no leading zero, four significant digits above 10.

    >>> number(0.8123), number(-0.5), number(12.3456), number(1.0)
    ('.812', '-.500', '12.35', '1.000')
    """
    if abs(value) >= 10:
        return f"{value:.4g}"
    return f"{value:.3f}".replace("0.", ".", 1) if abs(value) < 0.9995 else f"{value:.3f}"


@dataclass(slots=True, kw_only=True)
class BoardRow:
    """Hold one encoder's scores by column, and whether it is ranked."""

    encoder: str
    scores: dict[str, Score]
    ranked: bool
    reason: str | None = None


@dataclass(slots=True, kw_only=True)
class BoardTable:
    """Hold one table: a suite and modality, or one axis of one task."""

    title: str
    columns: dict[str, str]  # key -> heading
    rows: list[BoardRow]
    notes: list[str] = field(default_factory=list)
    records: Sequence[Mapping[str, Any]] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Board:
    """Hold all tables of a leaderboard."""

    tables: list[BoardTable]


def make_board(
    folders: Sequence[Path],
    *,
    suite: str | None = None,
    by: str | None = None,
    where: Mapping[str, str] | None = None,
    keep: Callable[[Mapping[str, Any]], bool] | None = None,
) -> Board:
    """Make the leaderboard of result folders; several are merged, the newest row of a key wins, ``keep`` chooses among them.

    Raises:
        DataError: there are no results, or none match.
    """
    reader = ResultsReader(folders)
    records = reader.records()
    if not records:
        raise DataError(f"no results in {', '.join(f'`{folder}`' for folder in folders)}; run `evalharness run` first, or name a folder")
    modalities = _modalities(reader)
    records = records if keep is None else [record for record in records if keep(record)]
    return board_from_records(records, modalities, suite=suite, by=by, where=where)


def _modalities(reader: ResultsReader) -> dict[str, str]:
    return {name: facts["modality"] for run in reader.runs for name, facts in run.settings.get("tasks", {}).items()}


def board_from_records(
    records: Sequence[Mapping[str, Any]],
    modalities: Mapping[str, str],
    *,
    suite: str | None = None,
    by: str | None = None,
    where: Mapping[str, str] | None = None,
) -> Board:
    """Make the leaderboard of records, whose keys are unique.

    Raises:
        DataError: no record matches, or ``by`` is no axis.
    """
    if by is not None and by not in BY:
        raise DataError(f"expected `by` to be one of {', '.join(BY)}, got `{by}`")
    unknown = sorted(set(where or {}) - set(FIELDS))
    if unknown:
        raise DataError(f"`where`: {unknown_name('field', unknown[0], FIELDS)}")
    chosen = [record for record in records if (suite is None or record["suite"] == suite) and _matches(record, where or {})]
    if not chosen:
        suites = sorted({str(record["suite"]) for record in records})
        raise DataError(f"no results match; suites here: {', '.join(suites)}")
    if by is not None:
        return Board(tables=list(_axis_tables(chosen, by)))
    tables = []
    for key in sorted({_table_key(record, modalities) for record in chosen}):
        own = [record for record in chosen if _table_key(record, modalities) == key]
        tables += list(_headline_tables(key, own))
    return Board(tables=tables)


def _matches(record: Mapping[str, Any], where: Mapping[str, str]) -> bool:
    return all(str(record.get(key)) == value for key, value in where.items())


def _inside(record: Mapping[str, Any]) -> str:
    """Return the row filter of a selection, ``domain=photo``; a limit is none."""
    return next((part.rstrip("]") for part in (record["selection"] or "").split("[")[1:] if not part.startswith("limit=")), "")


def limit_of(record: Mapping[str, Any]) -> str:
    """Return the limit that a record's rows were drawn under, the empty string for none."""
    selection = record["selection"] or ""
    return selection.rpartition("[limit=")[2].rstrip("]") if "[limit=" in selection else ""


def _table_key(record: Mapping[str, Any], modalities: Mapping[str, str]) -> tuple[str, str, str]:
    return record["suite"] or "", modalities.get(record["task"], ""), limit_of(record)


def _version(record: Mapping[str, Any]) -> str:
    """Return what must agree for rows of one task to stand in one column."""
    protocols = {key: value for key, value in (record["protocols"] or {}).items() if key != "encoder"}
    return canonical([record["task_version"], record["dataset_fingerprint"], record["selection"], protocols, record["seed"]])


def _headline_tables(key: tuple[str, str, str], records: Sequence[Mapping[str, Any]]) -> Iterable[BoardTable]:
    suite, modality, limit = key
    main = [record for record in records if record["main"]]
    if not main:
        return
    tasks = list(dict.fromkeys(record["task"] for record in main))
    title = f"{suite or 'single tasks'}{f' · {modality}' if modality else ''}{f' · limited to {limit} rows' if limit else ''}"
    for start in range(0, len(tasks), MAX_TASK_COLUMNS):
        table = _headline_table(title, tasks[start : start + MAX_TASK_COLUMNS], main, records)
        if table.rows:
            yield table


def _headline_table(title: str, tasks: list[str], main: Sequence[Mapping[str, Any]], records: Sequence[Mapping[str, Any]]) -> BoardTable:
    columns: dict[str, str] = {}
    notes: list[str] = []
    used: list[Mapping[str, Any]] = []
    scores: dict[str, dict[str, Score]] = {}
    for task in tasks:
        column, older = _newest_version([record for record in main if record["task"] == task])
        used += column
        columns[task] = _heading(task, column)
        notes += [f"{task}: {older} rows of another version, data or selection are not shown"] if older else []
        for record in column:
            scores.setdefault(_label(record), {})[task] = score_of(record)
    for task in tasks:
        _add_worst(task, [record for record in used if record["task"] == task], records, columns, scores)
    others = sorted(encoder for encoder, found in scores.items() if all(score.status == "not_applicable" for score in found.values()))
    rows = [_row(encoder, tasks, found) for encoder, found in scores.items() if encoder not in others]
    rows.sort(key=lambda row: (not row.ranked, -_order_value(row, tasks, used), row.encoder))
    notes = [*_interval_notes(used), *notes, *_missing_notes(rows)]
    if any("/" in key for key in columns):
        notes.insert(1, "Worst: its name and value; (≥ …) is a lower bound over all groups at once.")
    notes += [f"Of another modality: {', '.join(others)}."] if others and rows else []
    return BoardTable(title=title, columns=columns, rows=rows, notes=notes, records=used)


def _label(record: Mapping[str, Any]) -> str:
    return record["encoder"] + (f"@{record['layer']}" if record["layer"] else "")


def _newest_version(column: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], int]:
    """Return the rows of the version that came last (measured ones decide), and how many others there are."""
    measured = [record for record in column if record["value"] is not None] or column
    version = _version(measured[-1])
    kept = [record for record in column if _version(record) == version or record["value"] is None]
    names = {_label(record) for record in kept if _version(record) == version}
    kept = [record for record in kept if _version(record) == version or _label(record) not in names]
    return kept, len(column) - len(kept)


def _heading(task: str, column: Sequence[Mapping[str, Any]]) -> str:
    metric = column[-1]["metric"]
    sizes = sorted({record["n"] for record in column if record["n"]})
    return f"{task}\n{metric}" + (f"\nn = {'/'.join(map(str, sizes))}" if sizes else "")


def score_of(record: Mapping[str, Any]) -> Score:
    """Return a record's number as a table shows it."""
    return Score(
        value=record["value"], low=record["low"], high=record["high"], n=record["n"], status=record["status"], reason=record["reason"]
    )


def _add_worst(
    task: str,
    column: Sequence[Mapping[str, Any]],
    records: Sequence[Mapping[str, Any]],
    columns: dict[str, str],
    scores: dict[str, dict[str, Score]],
) -> None:
    """Add the worst domain and the worst group of a task's main metric, each with its name, as far as the table has room."""
    found: dict[str, dict[str, Score]] = {}
    for base in column:
        for key, score in _worst_of(base, records):
            found.setdefault(key, {})[_label(base)] = score
    for key, by_encoder in found.items():
        if len(columns) + 2 > MAX_COLUMNS:
            return
        columns[f"{task}/{key}"] = f"{task}\nworst {key}"
        for encoder, score in by_encoder.items():
            scores[encoder][f"{task}/{key}"] = score


def _worst_of(base: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> Iterable[tuple[str, Score]]:
    domains = [record for record in records if _is_domain_of(record, base) and record["value"] is not None]
    if domains:
        sign = -1 if base["higher_is_better"] is False else 1
        record = min(domains, key=lambda item: sign * item["value"])
        name = _inside(record).rpartition("=")[2] or record["shift"]
        yield "domain", replace(score_of(record), name=name)
    for record in records:
        if record["statistic"] == "worst" and record["value"] is not None and _same_cell(record, base):
            yield record["over"].partition(":")[2], replace(score_of(record), name=str(record["group"]).partition("=")[2])


_CELL = ("suite", "task", "encoder", "layer", "fit", "target", "codec", "evaluator", "metric", "params")


def _same_cell(record: Mapping[str, Any], base: Mapping[str, Any]) -> bool:
    return all(record[name] == base[name] for name in (*_CELL, "shift", "severity", "selection"))


def _is_domain_of(record: Mapping[str, Any], base: Mapping[str, Any]) -> bool:
    return (
        record["shift_kind"] == "domain"
        and base["shift"] == "clean"
        and record["statistic"] == "value"
        and record["group"] is None
        and all(record[name] == base[name] for name in _CELL)
    )


def _row(encoder: str, tasks: Sequence[str], found: dict[str, Score]) -> BoardRow:
    main = [found.get(task) for task in tasks]
    bad = [
        f"{task}: {score.reason or score.status}" for task, score in zip(tasks, main, strict=True) if score and score.status != "measured"
    ]
    lacking = [task for task, score in zip(tasks, main, strict=True) if score is None]
    reason = "; ".join(bad + ([f"not run: {', '.join(lacking)}"] if lacking else [])) or None
    return BoardRow(encoder=encoder, scores=found, ranked=reason is None, reason=reason)


def _order_value(row: BoardRow, tasks: Sequence[str], used: Sequence[Mapping[str, Any]]) -> float:
    """Order by the mean over tasks where all share a scale, by the first task otherwise."""
    lower = {record["task"] for record in used if record["higher_is_better"] is False}
    values = [(-1 if task in lower else 1) * score.value for task in tasks if (score := row.scores.get(task)) and score.value is not None]
    if not values:
        return float("-inf")
    metrics = {record["metric"] for record in used}
    return sum(values) / len(values) if len(metrics) == 1 else values[0]


def _interval_notes(used: Sequence[Mapping[str, Any]]) -> list[str]:
    scopes = sorted({f"{record['scope']} ({record['method']})" for record in used if record["scope"]})
    level = next((record["level"] for record in used if record["level"]), None)
    return [f"Intervals: {level:.0%}, over {'; '.join(scopes)}."] if scopes and level else []


def _missing_notes(rows: Sequence[BoardRow]) -> list[str]:
    return [f"{row.encoder} is not ranked: {row.reason}" for row in rows if not row.ranked]


# --- one axis at a time -------------------------------------------------------------------------------------------


def _axis_tables(records: Sequence[Mapping[str, Any]], by: str) -> Iterable[BoardTable]:
    """Yield, for each task's main metric, a table of encoders against the values of one axis; limited rows have tables of their own."""
    plain = [record for record in records if record["statistic"] == "value" and record["over"] is None]
    for key in sorted({(record["suite"] or "", record["task"], limit_of(record)) for record in plain}):
        own = [record for record in plain if (record["suite"] or "", record["task"], limit_of(record)) == key]
        bases = [record for record in own if record["main"] and record["value"] is not None]
        if bases:
            found = _axis_table(key, own, bases[-1], by)
            if found is not None:
                yield found


def _axis_table(key: tuple[str, str, str], own: Sequence[Mapping[str, Any]], base: Mapping[str, Any], by: str) -> BoardTable | None:
    fixed = [name for name in ("shift", "codec", "group", "fit") if name not in BY[by]]
    cells = [
        record
        for record in own
        if all(
            record[name] == base[name]
            for name in (*fixed, "target", "metric", "evaluator", "params", "seed", "task_version", "dataset_fingerprint")
        )
        and (by != "group" or record["group"] is not None)
    ]
    columns = {name: f"{name}\nn = {n}" for name, n in sorted(_axis_sizes(cells, by).items(), key=lambda item: _natural(item[0]))}
    if len(columns) < (1 if by == "group" else 2):
        return None
    scores: dict[str, dict[str, Score]] = {}
    for record in cells:
        scores.setdefault(_label(record), {})[_axis_value(record, by)] = score_of(record)
    rows = [BoardRow(encoder=encoder, scores=found, ranked=True) for encoder, found in sorted(scores.items())]
    limit = f" · limited to {key[2]} rows" if key[2] else ""
    title = f"{key[0] or 'single tasks'} · {key[1]} · {base['metric']} by {by}{limit}"
    return BoardTable(title=title, columns=columns, rows=rows, notes=_interval_notes(cells), records=list(cells))


def _axis_sizes(cells: Sequence[Mapping[str, Any]], by: str) -> dict[str, str]:
    sizes: dict[str, set[int]] = {}
    for record in cells:
        sizes.setdefault(_axis_value(record, by), set()).add(record["n"] or 0)
    return {name: "/".join(map(str, sorted(found))) for name, found in sizes.items()}


def _natural(name: str) -> tuple[Any, ...]:
    """Sort the clean and uncompressed value first, and numbers in names as numbers."""
    parts = [float(part) if part.replace(".", "", 1).isdigit() else part for part in name.replace("/", " ").split()]
    return (name not in ("clean", "float32"), [(isinstance(part, str), part) for part in parts])


def _axis_value(record: Mapping[str, Any], by: str) -> str:
    if by == "shift":
        if record["shift"] == "clean":
            return "clean"
        inside = _inside(record)
        return (
            f"{record['shift']} {inside.rpartition('=')[2]}"
            if record["shift_kind"] == "domain" and inside
            else f"{record['shift']} {record['severity']:.3g}"
        )
    return str(record[BY[by][0]])
