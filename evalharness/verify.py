"""Check results as a stranger would: files against digests, runs against their plans, and every value and interval computed again from what is stored."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evalharness.across import across_records
from evalharness.errors import StoreError
from evalharness.estimates import Items
from evalharness.evidence import Evidence
from evalharness.facts import FORMAT, find_versions
from evalharness.invariants import CELL, broken_invariants, out_of_range
from evalharness.records import FIELDS, own_params, record_key, score_digest
from evalharness.shown import Record, label_of
from evalharness.store.files import read_json, torn_lines
from evalharness.store.results import RunFolder, StoredOutcome, beside_columns, require_results, row_set_digest
from evalharness.store.views import rows_digest
from evalharness.summaries import summarise

if TYPE_CHECKING:
    from evalharness.registry import Registry

TOLERANCE = 1e-6
STATUSES = {"measured", "not_measured", "not_applicable", "not_converged", "insufficient", "undecided", "suspect", "failed"}
STATISTICS = {"value", "difference", "ratio", "worst", "gap", "mean", "slope", "spread", "reach"}
_EQUAL = ("level", "method", "scope", "n", "n_units", "status", "reason", "higher_is_better", "main")
_CLOSE = ("value", "low", "high", "p")
_TYPES = {
    "value": (int, float),
    "low": (int, float),
    "high": (int, float),
    "level": (int, float),
    "n": (int,),
    "n_units": (int,),
    "main": (bool,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Hold one thing that is wrong: the check that found it, where, and what."""

    check: str
    where: str
    message: str


@dataclass(slots=True, kw_only=True)
class Verdict:
    """Hold what was found of one record: ``verified``, ``recorded`` (it claims no value), ``unchecked`` with the reason, or ``fault``."""

    record: Record
    outcome: str
    faults: list[Fault] = field(default_factory=list)
    reason: str | None = None


@dataclass(slots=True, kw_only=True)
class Report:
    """Hold the verdict on every record and all faults."""

    verdicts: list[Verdict]
    faults: list[Fault]
    num_runs: int
    num_units: int
    notes: list[str] = field(default_factory=list)  # versions that differ from those here, which may move the last digits

    @property
    def counts(self) -> Counter[str]:
        """Count records by verdict."""
        return Counter(verdict.outcome for verdict in self.verdicts)


def verify(folders: Sequence[Path], registry: Callable[[], Registry] | None = None) -> Report:
    """Verify result folders.

    Checked are the schema of every record, digests of records, outcomes and row sets, each run against its plan, the rows that were scored,
    every value, interval and p value computed again, and what must hold between records.

    Raises:
        DataError: the folders hold no results.
    """
    require_results(folders)
    evidence = Evidence(folders, registry)
    return _Verifier(evidence).report()


def place(record: Record) -> str:
    """Return a record in words: task, encoder, evaluator, metric, and the axes that are not at rest."""
    axes = [
        f"{name}={record[name]}"
        for name, rest in (("shift", "clean"), ("severity", 0), ("codec", "float32"), ("group", None), ("over", None), ("reference", None))
        if record[name] != rest and not (name == "severity" and record[name] is None)
    ]
    what = record["metric"] if record["statistic"] == "value" else f"{record['statistic']} of {record['metric']}"
    text = f"{record['task']} · {label_of(record)} · {record['evaluator']} {what}"
    return f"{text} ({', '.join(axes)})" if axes else text


class _Verifier:
    """Collect faults run by run and unit by unit."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._faults: list[Fault] = []
        self._of_record: dict[int, list[Fault]] = {}
        self._unchecked: dict[int, str] = {}
        self._rows: dict[Any, tuple[str, str]] = {}  # cell without its encoder -> (digest of scored rows, first encoder)

    def report(self) -> Report:
        for run in self._evidence.reader.runs:
            self._check_run(run)
        self._check_plans()
        units = list(self._evidence.units())
        for suite, key in units:
            self._check_unit(suite, key)
            self._evidence.forget()
        records = [record for suite, key in units for record in self._evidence.records_of(suite, key)]
        for run, message in self._evidence.foreign_metrics():
            self._fault("metrics", f"{run.folder.name}/run.json", message)
        for check, index, message in broken_invariants(records):
            self._blame(records[index], check, message)
        verdicts = [self._verdict(record) for record in records]
        runs = self._evidence.reader.runs
        return Report(verdicts=verdicts, faults=self._faults, num_runs=len(runs), num_units=len(units), notes=_version_notes(runs))

    def _verdict(self, record: Record) -> Verdict:
        faults = self._of_record.get(id(record), [])
        if faults:
            return Verdict(record=record, outcome="fault", faults=faults)
        if id(record) in self._unchecked:
            return Verdict(record=record, outcome="unchecked", reason=self._unchecked[id(record)])
        return Verdict(record=record, outcome="recorded" if record["value"] is None else "verified", reason=record["reason"])

    def _fault(self, check: str, where: str, message: str) -> Fault:
        fault = Fault(check=check, where=where, message=message)
        self._faults.append(fault)
        return fault

    def _blame(self, record: Record, check: str, message: str) -> None:
        self._of_record.setdefault(id(record), []).append(self._fault(check, place(record), message))

    # --- runs -----------------------------------------------------------------------------------------------------

    def _check_run(self, run: RunFolder) -> None:
        name = run.folder.name
        for file in ("records.jsonl", "units.jsonl", "planned.jsonl"):
            if not (run.folder / file).is_file():
                self._fault("files", f"{name}/{file}", "the file is missing")
            for number in torn_lines(run.folder / file):
                self._fault("files", f"{name}/{file}", f"line {number} is torn")
        facts = read_json(run.folder / "run.json")
        if facts is None:
            self._fault("files", f"{name}/run.json", "it is no JSON")
        elif facts.get("format") != FORMAT:
            self._fault(
                "files",
                f"{name}/run.json",
                f"format {facts.get('format')} of another version of evalharness; this one reads format {FORMAT}",
            )
        self._check_schema(run)
        self._check_digests(run)
        for path in sorted((run.folder / "rows").glob("*.parquet")):
            try:
                rows = self._evidence.row_file(path.stem)
            except StoreError as error:
                self._fault("row sets", f"{name}/rows/{path.name}", str(error))
                continue
            if row_set_digest(rows.ids, rows.columns) != path.stem:
                self._fault("row sets", f"{name}/rows/{path.name}", "ids or columns differ from the digest that names the file")

    def _check_schema(self, run: RunFolder) -> None:
        keys: Counter[tuple[str, str]] = Counter()
        for record in run.records:
            keys[record["unit"], record_key(record)] += 1
            if keys[record["unit"], record_key(record)] == 2:
                self._blame(record, "duplicates", "a second record of the same key in one run")
            for message in _schema_faults(record):
                self._blame(record, "schema", message)

    def _check_digests(self, run: RunFolder) -> None:
        of_unit: dict[tuple[str | None, str], list[Record]] = {}
        for record in run.records:
            of_unit.setdefault((record["suite"], record["unit"]), []).append(record)
        for line in run.units:
            held = of_unit.get((line.get("suite"), line["unit"]), [])
            where = f"{run.folder.name}/records.jsonl, unit {line['unit'][:12]} ({line.get('task')}, {line.get('encoder')})"
            if line.get("records") != len(held):
                self._fault("record digests", where, f"{len(held)} records, {line.get('records')} were written")
            elif line.get("digest") != score_digest(held):
                self._fault("record digests", where, "the records are not those that were written")

    def _check_plans(self) -> None:
        """Check that whatever any run planned was finished, in that run or another, as it was planned."""
        units = set(self._evidence.units())
        missing: Counter[tuple[str, str]] = Counter()
        for key, line in self._evidence.planned.items():
            if key not in units:
                missing[str(line.get("task")), str(line.get("encoder"))] += 1
            elif "members" in line:
                if self._evidence.line(*key).get("members") != line["members"]:
                    where = f"{line.get('task')} · {line.get('encoder')}"
                    self._fault("completeness", where, "a unit over several cells has other members than were planned")
            else:
                self._check_planned(key, line)
        for (task, encoder), count in sorted(missing.items()):
            self._fault("completeness", f"{task} · {encoder}", f"{count} planned units of `{task}` with `{encoder}` are missing")
        for key in units - set(self._evidence.planned):
            self._fault("completeness", f"unit {key[1][:12]}", "no run planned it")

    def _check_planned(self, key: tuple[str | None, str], planned: Mapping[str, Any]) -> None:
        line, records = self._evidence.line(*key), self._evidence.records_of(*key)
        where = f"{planned['task']} · {planned['encoder']}"
        if not records:
            self._fault("completeness", where, "a finished unit has no records")
        for record in records:
            for message in _contradictions_of(record, line, planned):
                self._blame(record, "fingerprints" if "dataset_fingerprint" in message else "plan", message)
        if any(record["main"] for record in records) != bool(planned.get("main")):
            self._fault("plan", where, "the mark of the main value stands in another cell than was planned")
        if line["status"] in ("failed", "not_applicable"):
            return
        try:
            items = self._evidence.items_of(*key)
        except StoreError:
            return  # told with the unit
        for each in items.values():
            wanted = (planned.get("rows") or {}).get(each.part)
            if each.item == "episode" or not each.columns:
                continue  # episodes are drawn, and a whole cloud may be a sample; both are the same for all encoders
            if wanted is None:
                self._fault("scored rows", where, f"nothing was planned of part `{each.part}`")
            elif [len(each.rows), rows_digest(np.sort(each.rows))] not in wanted:
                sizes = " or ".join(dict.fromkeys(str(size) for size, _ in wanted))
                message = f"{len(each.rows)} items of part `{each.part}` were stored, others than the {sizes} planned"
                for record in records:
                    self._of_record.setdefault(id(record), []).append(Fault(check="scored rows", where=where, message=message))
                self._fault("scored rows", where, message)

    # --- units ----------------------------------------------------------------------------------------------------

    def _check_unit(self, suite: str | None, key: str) -> None:
        line, records = self._evidence.line(suite, key), self._evidence.records_of(suite, key)
        if not records and "members" not in line:
            return  # told with the plan
        try:
            if "members" in line:
                again = list(across_records(*self._across(suite, key, line)))
            elif line["status"] in ("failed", "not_applicable"):
                for record in records:
                    if record["value"] is not None or record["status"] != line["status"]:
                        self._blame(record, "outcomes", f"its unit is recorded as {line['status'].replace('_', ' ')}")
                return
            else:
                self._check_outcomes(suite, key, records)
                plan = self._evidence.summary_plan(records[0])
                again = list(summarise(plan, list(self._evidence.items_of(suite, key).values()), self._evidence.resampler(records[0])))
        except (StoreError, KeyError, ValueError, IndexError) as error:
            for record in records:
                self._blame(record, "outcomes", str(error) or type(error).__name__)
            return
        self._compare(records, again)

    def _across(self, suite: str | None, key: str, line: Mapping[str, Any]) -> tuple[Any, Any, Any]:
        """Return what the records over several cells were made with; a member's record says what they share."""
        shared = [record for member in line["members"] for record in self._evidence.records_of(suite, member)]
        if not shared:
            raise StoreError("the cells of a unit over several have no records")
        record = {**shared[0], "unit": key}
        return self._evidence.across_plan(record), self._evidence.cells(suite, key), self._evidence.resampler(record)

    def _check_outcomes(self, suite: str | None, key: str, records: Sequence[Record]) -> None:
        digests = {}
        for variant, items in self._evidence.items_of(suite, key).items():
            columns = dict(items.columns)
            if items.clusters is not None and items.cluster_name is None:
                columns["cluster"] = items.clusters
            beside = beside_columns(items.scalars, items.replicates)
            digests[variant] = StoredOutcome(variant=variant, rows=items.rows, columns=columns, beside=beside).digest
            if len(np.unique(items.rows)) != len(items.rows):
                self._fault("scored rows", place(records[0]), "an item stands twice among those scored")
            self._check_same_rows(records[0], variant, rows_digest(np.sort(items.rows)))
            for message in self._contradictions(records[0], items):
                self._blame(records[0], "outcomes", message)
        for record in records:
            variant = (record["params"] or {}).get("variant", "")
            if record["status"] in ("failed", "not_applicable") or record["group"] is not None:
                continue
            if not record["outcome"]:
                self._blame(record, "outcomes", "a measured record without its items")
            elif digests.get(variant) != str(record["outcome"]).rpartition("#")[2]:
                self._blame(record, "outcomes", "the items are not those that the record was made of")

    def _contradictions(self, record: Record, items: Items) -> Iterator[str]:
        """Yield what columns of the items say against one another, or against the stored truth."""
        truth, prediction, hit = (items.columns.get(name) for name in ("truth", "prediction", "hit"))
        if truth is not None and prediction is not None and hit is not None and ((truth == prediction) != hit.astype(bool)).any():
            yield f"{int(((truth == prediction) != hit.astype(bool)).sum())} items count as hits and are none, or the other way round"
        columns = self._evidence.columns(record, items)
        column = columns.get(str(record["target"]))
        if truth is not None and column is not None and column.kind == "class" and (column.values != truth).any():
            yield f"the truth of {int((column.values != truth).sum())} items is not that of `{record['target']}` in the row set"

    def _check_same_rows(self, record: Record, variant: str, digest: str) -> None:
        """Check that all encoders of one cell were scored on the same rows."""
        names = [name for name in CELL if name not in ("encoder", "layer")]
        cell = (*(str(record[name]) for name in names), str(record["params"]), variant)
        known = self._rows.setdefault(cell, (digest, label_of(record)))
        if known[0] != digest:
            self._blame(record, "scored rows", f"it was scored on other rows than `{known[1]}`")

    def _compare(self, records: Sequence[Record], again: Sequence[Record]) -> None:
        made = {record_key(record): record for record in again}
        known = {metric.name: metric for metric in self._evidence.metrics(records[0])} if records else {}
        strangers = self._evidence.plugin_metrics(records[0]) if records else set()
        for record in records:
            metric = known.get(record["metric"])
            if metric is not None and record["statistic"] == "value" and out_of_range(record, metric.low, metric.high):
                self._blame(record, "ranges", f"value {_text(record['value'])} outside [{metric.low:g}, {metric.high:g}]")
            if record["metric"] not in known and record["metric"] not in strangers:
                self._blame(record, "metrics", "`run.json` does not say how the metric is computed")
                continue
            if record["metric"] not in known:
                self._unchecked[id(record)] = f"`{record['metric']}` is computed by a plugin that is not loaded; name it with `-p`"
                continue
            other = made.pop(record_key(record), None)
            if other is None:
                self._blame(record, "values", "nothing that is stored gives this record")
                continue
            for message in _differences(record, other):
                self._blame(record, "values", message)
        for record in made.values():
            self._fault("completeness", place(record), "the record is missing")


def _version_notes(runs: Sequence[RunFolder]) -> list[str]:
    """Say which packages that numbers are made with have other versions here."""
    here = find_versions()
    there = {(name, str(run.settings.get("versions", {}).get(name))) for run in runs for name in ("evalharness", "numpy", "scipy")}
    return [f"made with {name} {version}, checked with {here.get(name)}" for name, version in sorted(there) if version != here.get(name)]


def _contradictions_of(record: Record, line: Mapping[str, Any], planned: Mapping[str, Any]) -> Iterator[str]:
    """Yield where a record says something else of its cell than its unit's line, or than the plan."""
    names = {"task": record["task"], "encoder": label_of(record), "evaluator": record["evaluator"]}
    for name, value in names.items():
        if line.get(name) != value:
            yield f"`{name}` is `{value}`, its unit's line says `{line.get(name)}`"
    own = own_params(record)
    for name, value in (planned.get("cell") or {}).items():
        said = own if name == "params" else record[name]
        if said != value:
            yield f"`{name}` is `{said}`, `{value}` was planned"
    if not planned.get("cell"):
        yield "`planned.jsonl` does not say which cell it is"


def _schema_faults(record: Record) -> Iterator[str]:
    if set(record) != set(FIELDS):
        extra, lacking = sorted(set(record) - set(FIELDS)), sorted(set(FIELDS) - set(record))
        yield f"fields: {f'unknown {extra}' if extra else ''}{f' missing {lacking}' if lacking else ''}".strip()
        return
    for name, kinds in _TYPES.items():
        value = record[name]
        if value is not None and (not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)):
            yield f"`{name}` is `{value}`"
        elif isinstance(value, float) and not math.isfinite(value):
            yield f"`{name}` is not finite"
    if record["status"] not in STATUSES:
        yield f"unknown status `{record['status']}`"
    if record["statistic"] not in STATISTICS:
        yield f"unknown statistic `{record['statistic']}`"


def _differences(record: Record, again: Record) -> Iterator[str]:
    """Yield what a record says and its items do not."""
    for name in _CLOSE:
        if not _close(record[name], again[name]):
            yield f"{name} {_text(record[name])}, its items give {_text(again[name])}"
    for name in _EQUAL:
        if record[name] != again[name]:
            yield f"{name} {record[name]}, its items give {again[name]}"


def _close(first: Any, second: Any) -> bool:
    if first is None or second is None:
        return first is second
    return math.isclose(first, second, rel_tol=TOLERANCE, abs_tol=TOLERANCE)


def _text(value: Any) -> str:
    return "none" if value is None else f"{value:.6g}"
