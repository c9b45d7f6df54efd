"""Verification finds nothing in honest results, and every planted tampering, also of a forger who mends the digests of records."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evalharness.errors import DataError
from evalharness.evidence import Evidence
from evalharness.records import make_record, score_digest
from evalharness.registry import load_registry
from evalharness.session import Session, Settings, Silent
from evalharness.store.results import StoredOutcome
from evalharness.suites import Library
from evalharness.summaries import summarise
from evalharness.verify import verify

TASK = """task: checked
version: 1
modality: vector
data: {dataset: toy, target: label}
fits: {all: {}, few: {budget: 4/class, draws: 2}}
evaluators:
  centroid: {use: centroid, fits: [all, few]}
  neighbours: {use: knn, fits: [all], k: [1, 5]}
  shape: {use: geometry, rows: 100}
shifts: {jitter: {use: jitter}}
codecs: [float32, int8]
groups: [colour]
main: centroid.accuracy
"""


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """Return a results folder of two encoders."""
    folder = tmp_path_factory.mktemp("honest")
    (folder / "checked.yaml").write_text(TASK)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EVALHARNESS_CACHE", str(folder / "cache"))
        registry = load_registry([str(Path(__file__).parent / "toys.py")])
        session = Session(registry, Settings(out=folder / "out"), Silent())
        session.run(Library([]).select([str(folder / "checked.yaml")]), ["counting", "random-projection?dim=3"])
    return folder / "out"


@pytest.fixture
def results(honest, tmp_path):
    """Return a copy that may be tampered with."""
    shutil.copytree(honest, tmp_path / "out")
    return tmp_path / "out"


# --- a forger's tools ---------------------------------------------------------------------------------------------


def run_of(results):
    (run,) = [path.parent for path in results.glob("*/run.json")]
    return run


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_lines(path, lines):
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))


def mend(results):
    """Write the digests of records anew, as who changes records would."""
    run = run_of(results)
    records, units = lines_of(run / "records.jsonl"), lines_of(run / "units.jsonl")
    for unit in units:
        held = [record for record in records if record["unit"] == unit["unit"]]
        unit["records"], unit["digest"] = len(held), score_digest(held)
    write_lines(run / "units.jsonl", units)


def change_records(results, change, **wanted):
    """Change the records that match; all of them are mended."""
    path = run_of(results) / "records.jsonl"
    records = lines_of(path)
    for record in records:
        if all(record[name] == value for name, value in wanted.items()):
            change(record)
    write_lines(path, records)
    mend(results)


def forge_items(results, change, *, digests):
    """Change the items of the main cell of `counting` and make all its records again, with or without new outcome digests."""
    run = run_of(results)
    evidence = Evidence([results])
    record = next(record for record in evidence.reader.records() if record["main"] and record["encoder"] == "counting")
    file, unit, variant, _ = record["outcome"].split("#")
    items = change(evidence.items_of(None, unit)[variant])
    digest = StoredOutcome(variant=variant, rows=items.rows, columns=items.columns).digest
    outcome = f"{file}#{unit}#{variant}#{digest}" if digests else record["outcome"]
    made = list(summarise(evidence.summary_plan(record), [items], evidence.resampler(record)))
    fields = [{name: value for name, value in each.items() if not name.startswith("_")} for each in made]
    others = [each for each in lines_of(run / "records.jsonl") if each["unit"] != unit]
    records = [*others, *[make_record(**{**each, "outcome": outcome}) for each in fields]]
    write_lines(run / "records.jsonl", records)
    table = pq.read_table(results / file)
    others = table.filter(pa.compute.not_equal(table["unit"], unit))
    own = table.filter(pa.compute.equal(table["unit"], unit)).slice(0, len(items.rows)).to_pydict()
    own["row"] = items.rows.tolist()
    own |= {name: values.tolist() for name, values in items.columns.items()}
    pq.write_table(pa.concat_tables([others, pa.table(own, schema=table.schema)]), results / file)
    mend(results)


def checks_of(results):
    return {fault.check for fault in verify([results]).faults}


# --- honest results -----------------------------------------------------------------------------------------------


def test_honest_results_hold_what_they_claim(honest):
    report = verify([honest])

    assert report.faults == []
    assert report.counts["verified"] > 150
    assert report.counts["unchecked"] == report.counts["fault"] == 0


def test_the_command_says_so(honest, cli):
    found = cli("verify", honest)

    assert found.code == 0
    assert "0 at fault" in found.out


def test_episodes_of_several_folds_are_sound(run_tasks, write_task, tmp_path):
    body = "data: {dataset: toy, target: label, splits: {folds: 2}}\nevaluators: {few: {use: few-shot, way: 2, shot: [1], query: 5, episodes: 60}}\ncodecs: [float32, int8]\nmain: few.accuracy\n"
    run_tasks(write_task(body))

    assert verify([tmp_path / "out"]).faults == []


def test_results_are_verified_wherever_they_lie_and_merged_with_others(honest, tmp_path):
    shutil.copytree(honest, tmp_path / "elsewhere" / "a")

    assert verify([tmp_path / "elsewhere" / "a"]).faults == []
    assert verify([honest, tmp_path / "elsewhere" / "a"]).faults == []


# --- tamperings ---------------------------------------------------------------------------------------------------


def swap_outcomes(results):
    one, other = sorted((run_of(results) / "outcomes").glob("*-0000.parquet"))
    one.rename(one.with_suffix(".x"))
    other.rename(one)
    one.with_suffix(".x").rename(other)


def drop_hard_items(results):
    def change(items):
        hard = np.flatnonzero(~items.columns["hit"].astype(bool))[:50]
        return items.take(np.setdiff1d(np.arange(len(items.rows)), hard))

    forge_items(results, change, digests=True)


def raise_value_and_items(results):
    def change(items):
        items.columns["hit"] = np.ones_like(items.columns["hit"])
        return items

    forge_items(results, change, digests=False)


def raise_hits_alone(results):
    def change(items):
        items.columns["hit"] = np.ones_like(items.columns["hit"])
        return items

    forge_items(results, change, digests=True)


def change_truth(results):
    def change(items):
        items.columns["truth"] = items.columns["prediction"].copy()
        items.columns["hit"] = np.ones_like(items.columns["hit"])
        return items

    forge_items(results, change, digests=True)


def append_duplicate(results):
    path = run_of(results) / "records.jsonl"
    records = lines_of(path)
    best = next(record for record in records if record["main"])
    write_lines(path, [*records, {**best, "value": 0.99, "low": 0.98, "high": 1.0}])
    mend(results)


def change_interval(results):
    def change(record):
        record["low"] += 0.01

    change_records(results, change, main=True, encoder="counting")


def change_fingerprint(results):
    change_records(results, lambda record: record.update(dataset_fingerprint="f" * 32), encoder="counting")


def truncate_outcomes(results):
    path = next((run_of(results) / "outcomes").iterdir())
    path.write_bytes(path.read_bytes()[:-200])


def truncate_records(results):
    path = run_of(results) / "records.jsonl"
    path.write_bytes(path.read_bytes()[:-30])


def remove_outcome(results):
    change_records(results, lambda record: record.update(outcome=None), main=True, encoder="counting")


def exceed_range(results):
    change_records(results, lambda record: record.update(value=1.2, high=1.3), main=True, encoder="counting")


def change_size(results):
    change_records(results, lambda record: record.update(n=record["n"] + 1), main=True, encoder="counting")


def change_unit(results, change, **wanted):
    path = run_of(results) / "units.jsonl"
    units = lines_of(path)
    for unit in units:
        if all(unit[name] == value for name, value in wanted.items()):
            change(unit)
    write_lines(path, units)


def main_unit(results):
    return next(
        record["unit"] for record in lines_of(run_of(results) / "records.jsonl") if record["main"] and record["encoder"] == "counting"
    )


def call_a_unit_failed(results):
    change_unit(results, lambda unit: unit.update(status="failed"), unit=main_unit(results))
    change_records(results, lambda record: record.update(value=0.99, low=0.98, high=1.0), main=True, encoder="counting")


def drop_all_records_of_a_unit(results):
    path, key = run_of(results) / "records.jsonl", main_unit(results)
    write_lines(path, [record for record in lines_of(path) if record["unit"] != key])
    mend(results)


def drop_records_over_cells(results):
    path = run_of(results) / "records.jsonl"
    write_lines(path, [record for record in lines_of(path) if record["reference"] is None])
    mend(results)


def move_the_main_mark(results):
    change_records(results, lambda record: record.update(main=False), main=True, encoder="counting")
    change_records(
        results,
        lambda record: record.update(main=True),
        metric="auc",
        fit="all",
        codec="float32",
        shift="clean",
        group=None,
        encoder="counting",
    )


def forget_a_metric(results):
    path = run_of(results) / "run.json"
    facts = json.loads(path.read_text())
    facts["evaluators"]["centroid"]["metrics"] = [each for each in facts["evaluators"]["centroid"]["metrics"] if each["name"] != "accuracy"]
    path.write_text(json.dumps(facts))


def call_a_metric_a_plugins(results):
    path = run_of(results) / "run.json"
    facts = json.loads(path.read_text())
    facts["evaluators"]["knn"]["metrics"][0]["reduce"] = "*mean"
    path.write_text(json.dumps(facts))


def shorten_members(results):
    path = run_of(results) / "units.jsonl"
    units = lines_of(path)
    next(unit for unit in units if "members" in unit)["members"].pop()
    write_lines(path, units)


def swap_encoders_in_records(results):
    names = {"counting": "random-projection?dim=3", "random-projection?dim=3": "counting"}
    change_records(results, lambda record: record.update(encoder=names[record["encoder"]]))


def rename_a_codec(results):
    change_records(results, lambda record: record.update(codec="int4"), codec="int8", encoder="counting")


def forget_planned_rows(results):
    path = run_of(results) / "planned.jsonl"
    write_lines(path, [{name: value for name, value in line.items() if name != "rows"} for line in lines_of(path)])


TAMPERINGS = [
    (swap_outcomes, {"outcomes"}),
    (drop_hard_items, {"scored rows"}),
    (raise_value_and_items, {"outcomes"}),
    (raise_hits_alone, {"outcomes"}),
    (change_truth, {"outcomes"}),
    (append_duplicate, {"duplicates"}),
    (change_interval, {"values"}),
    (change_fingerprint, {"fingerprints"}),
    (truncate_outcomes, {"outcomes"}),
    (truncate_records, {"files", "record digests"}),
    (remove_outcome, {"outcomes"}),
    (exceed_range, {"ranges", "values"}),
    (change_size, {"values"}),
    (call_a_unit_failed, {"outcomes"}),
    (drop_all_records_of_a_unit, {"completeness"}),
    (drop_records_over_cells, {"completeness"}),
    (move_the_main_mark, {"values"}),
    (forget_a_metric, {"metrics"}),
    (call_a_metric_a_plugins, {"metrics"}),
    (shorten_members, {"completeness"}),
    (swap_encoders_in_records, {"plan"}),
    (rename_a_codec, {"plan"}),
    (forget_planned_rows, {"scored rows"}),
]


@pytest.mark.parametrize(("tamper", "checks"), TAMPERINGS, ids=[tamper.__name__ for tamper, _ in TAMPERINGS])
def test_a_tampering_is_found(tamper, checks, results, cli):
    tamper(results)
    found = cli("verify", results, "--json")

    assert found.code == 9
    assert checks <= {fault["check"] for fault in json.loads(found.out)["faults"]}
    assert found.err.startswith("evalharness: ")
    assert found.err.count("\n") == 1


def test_a_changed_metric_is_named_with_its_run(results):
    call_a_metric_a_plugins(results)

    faults = [fault for fault in verify([results], load_registry).faults if fault.check == "metrics"]

    assert [fault.message for fault in faults if fault.where == f"{run_of(results).name}/run.json"] == [
        "it describes `accuracy` of `knn` otherwise than the evaluator here does, or not at all"
    ]


def test_published_results_describe_the_metrics_as_the_evaluators_do(root):
    evidence = Evidence(sorted(path for path in (root / "results").iterdir() if path.is_dir()), load_registry)

    assert [f"{run.folder}: {message}" for run, message in evidence.foreign_metrics()] == []


def test_records_that_were_changed_without_mending_their_digest_are_found(results):
    path = run_of(results) / "records.jsonl"
    path.write_text(path.read_text().replace('"reason": null', '"reason": "so"', 1))

    assert "record digests" in checks_of(results)


def test_units_that_were_removed_are_found(results):
    run = run_of(results)
    units = lines_of(run / "units.jsonl")
    write_lines(run / "units.jsonl", units[1:])

    faults = verify([results]).faults
    assert any(
        fault.check == "completeness" and "1 planned units of `checked` with `counting` are missing" in fault.message for fault in faults
    )


def test_an_older_format_is_said(results):
    path = run_of(results) / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 1}))

    assert any("format 1 of another version" in fault.message for fault in verify([results]).faults)


def test_changed_groups_are_found(results):
    path = next((run_of(results) / "rows").iterdir())
    table = pq.read_table(path)
    colours = table["colour"].to_pylist()
    changed = pa.array(colours[::-1]).dictionary_encode()
    at = table.column_names.index("colour")
    pq.write_table(table.set_column(at, table.schema.field("colour"), changed.cast(table.schema.field("colour").type)), path)

    assert "row sets" in checks_of(results)


def test_statistics_of_a_whole_cloud_are_under_the_digest(results):
    run = run_of(results)
    units = lines_of(run / "units.jsonl")
    unit = next(line for line in units if line["alias"] == "shape" and "scalars" in line.get("details", {}).get("all", {}))
    name = next(iter(unit["details"]["all"]["scalars"]))
    unit["details"]["all"]["scalars"][name] += 0.5
    write_lines(run / "units.jsonl", units)

    assert {"outcomes", "values"} <= checks_of(results)


@pytest.mark.parametrize("field", ["value", "low", "high", "n_units", "method", "scope", "level", "p", "status", "main"])
def test_no_field_of_a_summary_can_be_changed(field, results):
    def change(record):
        value = record[field]
        record[field] = (
            not value
            if isinstance(value, bool)
            else 0.5
            if not isinstance(value, (int, str))
            else value + 1
            if isinstance(value, int)
            else "other"
        )

    change_records(results, change, encoder="counting", statistic="worst", group="colour=red")
    change_records(results, change, encoder="counting", statistic="worst", group="colour=blue")

    assert checks_of(results) & {"values", "schema"}


# --- verdicts -----------------------------------------------------------------------------------------------------


def test_every_row_has_a_verdict(results, cli):
    change_interval(results)
    text = cli("verify", results, "--all").out
    found = json.loads(cli("verify", results, "--json").out)
    records = lines_of(run_of(results) / "records.jsonl")

    assert len(found["verdicts"]) == len(records)
    assert "fault      checked · counting · centroid accuracy: low " in text
    (bad,) = [verdict for verdict in found["verdicts"] if verdict["verdict"] == "fault"]
    assert bad["faults"][0]["check"] == "values"


def test_a_metric_of_a_plugin_is_checked_with_the_plugin_and_said_to_be_unchecked_without(tmp_path, write_task, cache):
    plugin = tmp_path / "odd.py"
    plugin.write_text(
        "import numpy as np\n"
        "from evalharness import EvaluatorSpec, MetricInfo, Outcome, hookimpl\n"
        "def spread(values, weights):\n"
        "    mean = (weights @ values) / weights.sum(1)\n"
        "    return np.sqrt((weights @ values**2) / weights.sum(1) - mean**2)\n"
        "def score(fitted, test, *, generator, clean=None, exact=None, base=None):\n"
        "    return [Outcome(item='sample', part='items', rows=test.items.rows, columns={'first': test.items.vectors.dense()[:, 0]})]\n"
        "@hookimpl\n"
        "def evalharness_evaluators():\n"
        "    yield EvaluatorSpec(name='odd', summary='Spread', target_kinds=(), main='spread', score=score,\n"
        "        metrics=(MetricInfo(name='spread', columns=('first',), reduce=spread, high=100.0),))\n"
    )
    registry = load_registry([str(Path(__file__).parent / "toys.py"), str(plugin)])
    path = write_task("data: {dataset: toy, target: label}\nevaluators: {odd: {use: odd}}\nmain: odd.spread\n")
    Session(registry, Settings(out=tmp_path / "out"), Silent()).run(Library([]).select([str(path)]), ["counting"])

    assert verify([tmp_path / "out"], lambda: registry).counts["verified"] == 1
    report = verify([tmp_path / "out"])
    assert report.faults == []
    assert report.counts["unchecked"] == 1


@pytest.mark.parametrize("command", ["verify", "failures", "leaderboard"])
def test_an_empty_folder_is_one_line(command, tmp_path, cli):
    found = cli(command, tmp_path)

    assert found.code == 6
    assert found.err.count("\n") == 1
    assert f"no results in `{tmp_path}`; run `evalharness run` first, or name a folder" in found.err


def test_an_empty_folder_raises(tmp_path):
    with pytest.raises(DataError, match="no results in"):
        verify([tmp_path])
