"""The headline tables: one for each suite, modality and limit, main values first, then what hides behind them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from evalharness.board import BoardRow, BoardTable, RankSet, interval_notes, rank_text
from evalharness.errors import counted
from evalharness.records import limit_of
from evalharness.shown import Record, Score, budget_text, domain_of, label_of, number, p_text, score_of, size_text, version_of

MAX_TASK_COLUMNS = 5
MAX_COLUMNS = 8
MEAN = "mean"
_PAIRED = {  # what tells encoders apart, by the method of their intervals
    "class-jackknife": "the classes of the same episodes",
    "half-sample": "halves of the same items",
}


class Ranking(Protocol):
    """What rank sets a board is given."""

    def sets(self, task: str) -> Mapping[str, RankSet]:
        """Return the rank sets of one task by encoder label."""

    def suite(self, tasks: Sequence[str]) -> tuple[Mapping[str, RankSet], Mapping[str, tuple[float, float, float]]]:
        """Return rank sets and means with bounds over tasks by encoder label."""

    def reasons(self) -> Mapping[str, str]:
        """Return why tasks have no rank sets."""


@dataclass(slots=True, kw_only=True)
class Facts:
    """Hold what tables need beside records: each task's modality and margin, and how many bytes a unit's vectors take."""

    modalities: Mapping[str, str] = field(default_factory=dict)
    margins: Mapping[str, float] = field(default_factory=dict)
    bytes_of: Mapping[str, float] = field(default_factory=dict)  # unit -> bytes a vector
    labels_of: Mapping[str, int] = field(default_factory=dict)  # unit -> rows that its fit learned from
    rank: Any = None  # (records by task) -> Ranking, or None
    partial: bool = False
    about: str = ""  # the cell shown, where it is not the main one


def headline_tables(records: Sequence[Record], facts: Facts) -> Iterator[BoardTable]:
    """Yield the headline tables of some records."""

    def key_of(record: Record) -> tuple[str, str, str]:
        return record["suite"] or "", facts.modalities.get(record["task"], ""), limit_of(record)

    for key in sorted({key_of(record) for record in records}):
        own = [record for record in records if key_of(record) == key]
        main = [record for record in own if record["main"]]
        if main:
            yield from _Headline(key, main, own, facts).tables()


class _Headline:
    """Make the tables of one suite, modality and limit."""

    def __init__(self, key: tuple[str, str, str], main: Sequence[Record], records: Sequence[Record], facts: Facts) -> None:
        suite, modality, limit = key
        self.title = f"{suite or 'single tasks'}{f' · {modality}' if modality else ''}{f' · limited to {limit} rows' if limit else ''}"
        self.title += f" · {facts.about}" if facts.about else ""
        self._records = records
        self._facts = facts
        self.tasks = list(dict.fromkeys(record["task"] for record in main))
        chosen = {task: newest_version([record for record in main if record["task"] == task]) for task in self.tasks}
        self._columns = {task: kept for task, (kept, _) in chosen.items()}
        self._older = {task: older for task, (_, older) in chosen.items() if older}
        measured = {task: [record for record in kept if record["status"] == "measured"] for task, kept in self._columns.items()}
        self._ranking: Ranking | None = None if facts.rank is None else facts.rank(measured)

    def tables(self) -> Iterator[BoardTable]:
        for start in range(0, len(self.tasks), MAX_TASK_COLUMNS):
            table = self._table(self.tasks[start : start + MAX_TASK_COLUMNS], last=start + MAX_TASK_COLUMNS >= len(self.tasks))
            if table.rows:
                yield table

    # --- one table ------------------------------------------------------------------------------------------------

    def _table(self, tasks: list[str], *, last: bool) -> BoardTable:
        used = [record for task in tasks for record in self._columns[task]]
        scores: dict[str, dict[str, Score]] = {}
        for record in used:
            scores.setdefault(label_of(record), {})[record["task"]] = score_of(record)
        others = sorted(encoder for encoder, found in scores.items() if all(score.status == "not_applicable" for score in found.values()))
        scores = {encoder: found for encoder, found in scores.items() if encoder not in others}
        columns = {task: _heading(task, self._columns[task]) for task in tasks}
        ranks = self._add_ranks(tasks, columns, scores)
        room = MAX_COLUMNS - 1 - bool(ranks)
        for column in self._beside(tasks):
            if len(columns) < room:
                columns[column.key] = column.heading
                for encoder, score in column.scores.items():
                    if encoder in scores:
                        scores[encoder][column.key] = score
        rows = [self._row(encoder, tasks, found, ranks.get(encoder)) for encoder, found in scores.items()]
        rows.sort(key=lambda row: (not row.ranked, -self._order(row, tasks), row.encoder))
        notes = [*interval_notes(used), *self._notes(tasks, columns, rows, ranks, last=last)]
        notes += [f"Of another modality: {', '.join(others)}."] if others and rows else []
        return BoardTable(title=self.title, columns=columns, rows=rows, notes=notes, records=used)

    def _commensurate(self) -> bool:
        """Say whether the main values of all tasks lie on one scale, so that a mean means something."""
        return len({(record["metric"], record["higher_is_better"]) for kept in self._columns.values() for record in kept}) == 1

    def _add_ranks(self, tasks: Sequence[str], columns: dict[str, str], scores: dict[str, dict[str, Score]]) -> Mapping[str, RankSet]:
        """Add rank sets to scores, a mean over tasks of one scale to columns, and return the rank sets of rows."""
        ranking = self._ranking
        if len(self.tasks) == 1:
            return {} if ranking is None else ranking.sets(tasks[0])
        for task in tasks if ranking is not None else ():
            for encoder, rank in ranking.sets(task).items():  # type: ignore[union-attr]
                if encoder in scores:
                    scores[encoder][task] = replace(scores[encoder][task], rank=rank_text(rank))
        if not self._commensurate():
            return {}
        sets, means = ({}, {}) if ranking is None else ranking.suite(self.tasks)
        found = {encoder: self._mean(encoder, means) for encoder in scores}
        if any(score is not None for score in found.values()):
            heading = f"mean of {len(self.tasks)} tasks\n{self._columns[tasks[0]][0]['metric']}"
            tasks_after = dict(columns)
            columns.clear()
            columns |= {MEAN: heading, **tasks_after}
            for encoder, score in found.items():
                if score is not None:
                    scores[encoder][MEAN] = score
        return sets

    def _mean(self, encoder: str, means: Mapping[str, tuple[float, float, float]]) -> Score | None:
        """Return an encoder's mean over tasks; over those it has, where that was asked for."""
        values = [
            record["value"]
            for kept in self._columns.values()
            for record in kept
            if label_of(record) == encoder and record["status"] == "measured"
        ]
        if len(values) == len(self.tasks):
            mean = sum(values) / len(values)
            _, low, high = means.get(encoder, (mean, float("nan"), float("nan")))
            lower = any(record["higher_is_better"] is False for kept in self._columns.values() for record in kept)
            bounds = (-high, -low) if lower else (low, high)
            known = [None if bound != bound else bound for bound in bounds]  # noqa: PLR0124 (NaN marks a bound that is not known)
            return Score(value=mean, low=known[0], high=known[1], n=None, status="measured")
        if self._facts.partial and values:
            return Score(value=sum(values) / len(values), low=None, high=None, n=None, status=f"over {len(values)} of {len(self.tasks)}")
        return None

    def _row(self, encoder: str, tasks: Sequence[str], found: dict[str, Score], rank: RankSet | None) -> BoardRow:
        main = [found.get(task) for task in tasks]
        bad = [
            (task, score.reason or score.status.replace("_", " "))
            for task, score in zip(tasks, main, strict=True)
            if score and score.status != "measured"
        ]
        lacking = [task for task, score in zip(tasks, main, strict=True) if score is None]
        reason = "; ".join([*_by_reason(bad), *([f"not run: {', '.join(lacking)}"] if lacking else [])]) or None
        return BoardRow(encoder=encoder, scores=found, ranked=reason is None, reason=reason, rank=None if reason else rank)

    def _order(self, row: BoardRow, tasks: Sequence[str]) -> float:
        """Order by the mean over tasks where all share a scale, by the first task otherwise."""
        lower = {task for task in tasks if any(record["higher_is_better"] is False for record in self._columns[task])}
        values = [
            (-1 if task in lower else 1) * score.value for task in tasks if (score := row.scores.get(task)) and score.value is not None
        ]
        if not values:
            return float("-inf")
        if MEAN in row.scores and row.scores[MEAN].value is not None:
            return (-1 if lower else 1) * float(row.scores[MEAN].value or 0.0)
        return sum(values) / len(values) if self._commensurate() else values[0]

    # --- notes ----------------------------------------------------------------------------------------------------

    def _notes(
        self, tasks: Sequence[str], columns: Mapping[str, str], rows: Sequence[BoardRow], ranks: Mapping[str, RankSet], *, last: bool
    ) -> list[str]:
        notes = []
        shown = {score.rank for row in rows for key, score in row.scores.items() if key in tasks and score.rank}
        if ranks or shown:
            how = f"95 % right for all rows of a column at once, from {self._pairing(tasks)}"
            places = "places that cannot be excluded"
            what = [
                f"rank: {places}{', over the mean, for these tasks' if len(self.tasks) > 1 else ''}" if ranks else "",
                f"#: {'the same' if ranks else places} in one task" if shown else "",
            ]
            notes.append(f"{'; '.join(text for text in what if text).capitalize()}; {how}.")
        if len(self.tasks) > 1 and not self._commensurate() and last:
            metrics = sorted({record["metric"] for kept in self._columns.values() for record in kept})
            notes.append(f"No mean over tasks: {', '.join(metrics)} share no scale.")
        if any("\nworst " in heading for heading in columns.values()):
            notes.append("Worst: its name and value; (≥ …) is a lower bound over all groups, or domains, at once.")
        notes += [*self._permutation_notes(tasks, columns), *self._spread_notes(tasks)]
        notes += [
            f"{task}: {counted(older, 'row')} of another version, data or selection {'is' if older == 1 else 'are'} not shown"
            for task, older in self._older.items()
            if task in tasks
        ]
        if self._ranking is not None:
            notes += [f"{task}: no rank sets, {reason}" for task, reason in self._ranking.reasons().items() if task in tasks]
        notes += _by_reason([(row.encoder, str(row.reason)) for row in rows if not row.ranked], " is not ranked: ", " are not ranked: ")
        return [*notes, *self._flags(tasks)]

    def _pairing(self, tasks: Sequence[str]) -> str:
        """Say what the encoders of a column share, from which it is known how they differ."""
        measured = [record for task in tasks for record in self._columns[task] if record["status"] == "measured"]
        shared = [_PAIRED.get(str(record["method"]), "paired resamples of the same items") for record in measured]
        return ", ".join(dict.fromkeys(shared)) or "paired resamples of the same items"

    def _permutation_notes(self, tasks: Sequence[str], columns: Mapping[str, str]) -> list[str]:
        """Return how often the worst group would be so low if labels meant nothing, for the worst groups shown."""
        notes = []
        for task in tasks:
            found: dict[str, dict[str, str]] = {}
            for base, record in self._with(task, statistic="worst"):
                key = f"{task}/{str(record['over']).partition(':')[2]}"
                if key in columns and record["p"] is not None and record["codec"] == base["codec"]:
                    found.setdefault(columns[key].replace("\n", ", "), {})[label_of(base)] = p_text(record["p"])
            for heading, by_encoder in found.items():
                shown = "; ".join(f"{encoder} {p}" for encoder, p in by_encoder.items())
                notes.append(f"{heading}: p of a worst group so low if its labels meant nothing: {shown}.")
        return notes

    def _spread_notes(self, tasks: Sequence[str]) -> list[str]:
        """Return the spread over draws of training rows that a main value is the mean of."""
        notes = []
        for task in tasks:
            found = {
                label_of(base): number(record["value"])
                for base, record in self._with(task, statistic="spread", over="draw")
                if record["value"] is not None and all(record[name] == base[name] for name in ("shift", "severity", "codec"))
            }
            if found:
                shown = "; ".join(f"{encoder} {spread}" for encoder, spread in found.items())
                notes.append(f"{task}: standard deviation over draws of training rows, which the intervals do not cover: {shown}.")
        return notes

    def _flags(self, tasks: Sequence[str]) -> list[str]:
        """Return what is wrong in cells that the table does not show."""
        counts: dict[tuple[str, str], dict[str, int]] = {}
        for record in self._records:
            if record["task"] in tasks and not record["main"] and record["status"] in ("failed", "not_converged", "suspect"):
                held = counts.setdefault((record["task"], label_of(record)), {})
                held[record["status"]] = held.get(record["status"], 0) + 1
        words = {"failed": "failed", "not_converged": "not converged", "suspect": "suspect"}
        return [
            f"{task}, {encoder}: besides, {', '.join(f'{count} {words[status]}' for status, count in sorted(held.items()))}"
            for (task, encoder), held in sorted(counts.items())
        ]

    # --- beside the main value ------------------------------------------------------------------------------------

    def _beside(self, tasks: Sequence[str]) -> Iterator[_Column]:
        """Yield the columns that may stand beside main values, the most telling first."""
        for kind in (self._domains, self._unseen, self._groups, self._robust, self._codecs):
            for task in tasks:
                yield from kind(task)

    def _gather(self, task: str, heading: str, found: Iterable[tuple[Record, str, Score]]) -> Iterator[_Column]:
        columns: dict[str, _Column] = {}
        for base, name, score in found:
            column = columns.setdefault(name, _Column(key=f"{task}/{name}", heading=f"{task}\n{heading.format(name)}", scores={}))
            column.scores[label_of(base)] = score
        yield from columns.values()

    def _with(self, task: str, **fields: Any) -> Iterator[tuple[Record, Record]]:
        """Yield each main record of a task with the records of its cell that have some fields; other axes are free where ``cell`` is None."""
        for base in self._columns[task]:
            for record in self._records:
                if all(record[name] == base[name] for name in _CELL) and all(record[name] == value for name, value in fields.items()):
                    yield base, record

    def _domains(self, task: str) -> Iterator[_Column]:
        worst = [
            (base, record)
            for base, record in self._with(task, statistic="worst", over="domain")
            if record["value"] is not None and record["codec"] == base["codec"]
        ]
        found = [(base, "domain", replace(score_of(record), name=str(record["group"]).rpartition("=")[2])) for base, record in worst]
        bounded = {(label_of(base), record["shift"]) for base, record in worst}
        for base, record in self._with(task, statistic="value", shift_kind="domain", group=None, over=None):
            alone = (label_of(base), record["shift"]) not in bounded  # a shift of one domain has no bound over several
            if alone and base["shift"] == "clean" and record["value"] is not None and record["codec"] == base["codec"]:
                found.append((base, "domain", replace(score_of(record), name=domain_of(record))))
        yield from self._gather(task, "worst {}", _worst_of(found))

    def _groups(self, task: str) -> Iterator[_Column]:
        found = [
            (base, str(record["over"]).partition(":")[2], replace(score_of(record), name=str(record["group"]).partition("=")[2]))
            for base, record in self._with(task, statistic="worst")
            if str(record["over"]).startswith("group:")
            and record["value"] is not None
            and all(record[name] == base[name] for name in ("shift", "severity", "selection", "codec"))
        ]
        yield from self._gather(task, "worst {}", found)

    def _unseen(self, task: str) -> Iterator[_Column]:
        found = [
            (base, "unseen less seen", score_of(record))
            for base, record in self._with(task, statistic="difference", over="family:unseen", reference="family:seen")
            if record["codec"] == base["codec"]
        ]
        yield from self._gather(task, "{}", found)

    def _robust(self, task: str) -> Iterator[_Column]:
        found = [
            (base, record)
            for base, record in self._with(task, statistic="value", shift="robust", group=None)
            if base["shift"] != "robust" and record["codec"] == base["codec"]
        ]
        largest = max((record["severity"] for _, record in found), default=None)
        kept = [(base, f"robust at {budget_text(largest)}", score_of(record)) for base, record in found if record["severity"] == largest]
        yield from self._gather(task, "{}", kept)

    def _codecs(self, task: str) -> Iterator[_Column]:
        margin = self._facts.margins.get(task)
        if margin is None:
            return
        found = []
        for base in self._columns[task]:
            coded = [
                record
                for own, record in self._with(task, statistic="difference", reference="float32", group=None, over=None)
                if own is base and all(record[name] == base[name] for name in ("shift", "severity", "selection"))
            ]
            if coded and (score := self._cheapest(coded, margin)) is not None:
                found.append((base, f"codec within {number(margin)}\nless float32", score))
        yield from self._gather(task, "{}", found)

    def _cheapest(self, coded: Sequence[Record], margin: float) -> Score | None:
        """Walk from dear to cheap codecs as long as a loss beyond the margin is excluded; the first that is not ends the walk."""
        sized = [(self._bytes(record), record) for record in coded]
        known = sorted([(size, record) for size, record in sized if size is not None], key=lambda item: -item[0])
        best: Score | None = None
        for size, record in known:
            bound = record["low"] if record["higher_is_better"] is not False else None if record["high"] is None else -record["high"]
            unchanged = record["low"] is None and record["value"] == 0
            if not unchanged and (bound is None or bound < -margin):
                break
            best = replace(score_of(record), name=f"{record['codec']} ({size:.0f} B)", rank=None)
        none = Score(value=None, low=None, high=None, n=None, status="undecided", reason="no codec stays within the margin", shown="none")
        return best or (none if known else None)

    def _bytes(self, record: Record) -> float | None:
        """Return the bytes a vector of a difference's coded cell, which the cell's own unit knows."""
        axes = [name for name in (*_CELL, "shift", "severity", "selection", "codec") if name != "fit"]
        fits = (record["fit"], f"{record['fit']}/0")  # of a mean over draws each has the same bytes
        plain = (each for each in self._records if each["reference"] is None and each["over"] is None and each["fit"] in fits)
        own = next((each for each in plain if all(each[name] == record[name] for name in axes)), None)
        return None if own is None else self._facts.bytes_of.get(own["unit"])


def _by_reason(pairs: Sequence[tuple[str, str]], one: str = ": ", several: str = ": ") -> list[str]:
    """Return one text for each reason, with all that it holds for."""
    found: dict[str, list[str]] = {}
    for name, reason in pairs:
        found.setdefault(reason, []).append(name)
    return [f"{', '.join(names)}{one if len(names) == 1 else several}{reason}" for reason, names in found.items()]


@dataclass(slots=True, kw_only=True)
class _Column:
    key: str
    heading: str
    scores: dict[str, Score]


_CELL = (
    "suite",
    "task",
    "encoder",
    "layer",
    "fit",
    "target",
    "evaluator",
    "metric",
    "params",
    "seed",
    "task_version",
    "dataset_fingerprint",
)


def _worst_of(found: Sequence[tuple[Record, str, Score]]) -> list[tuple[Record, str, Score]]:
    """Return each encoder's worst of several."""
    worst: dict[str, tuple[Record, str, Score]] = {}
    for base, name, score in found:
        sign = -1.0 if base["higher_is_better"] is False else 1.0
        known = worst.get(label_of(base))
        if known is None or sign * float(score.value or 0) < sign * float(known[2].value or 0):
            worst[label_of(base)] = (base, name, score)
    return list(worst.values())


def newest_version(column: Sequence[Record]) -> tuple[list[Record], int]:
    """Return the rows of the version that came last (measured ones decide), and how many others there are."""
    measured = [record for record in column if record["value"] is not None] or column
    version = version_of(measured[-1])
    kept = [record for record in column if version_of(record) == version or record["value"] is None]
    names = {label_of(record) for record in kept if version_of(record) == version}
    kept = [record for record in kept if version_of(record) == version or label_of(record) not in names]
    return kept, len(column) - len(kept)


def _heading(task: str, column: Sequence[Record]) -> str:
    metric = column[-1]["metric"]
    size = size_text(column)
    return f"{task}\n{metric}" + (f"\n{size}" if size else "")
