"""The stores: what is complete, what is torn, what is newest."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from evalharness.errors import StoreError
from evalharness.records import FIELDS, cell_key, make_record, record_key, score_digest
from evalharness.store import ResultsReader, RunWriter, ViewCache, atomic_write, file_digest
from evalharness.store.files import append_lines, content_digest, read_lines
from evalharness.store.results import StoredOutcome, UnitResult, compact, read_rows, row_set_digest, safe_name, variant_name
from evalharness.store.views import ROWS_PER_SHARD
from evalharness.types import Column, class_column, number_column

ROWS = np.arange(0, 2 * (ROWS_PER_SHARD + 10), 2)


def write_view(cache, rows=ROWS, stop=None, value=0.0):
    writer = cache.writer("family", rows, {"label": "test"})
    writer.start()
    for shard in writer.missing()[:stop]:
        start, end = writer.bounds[shard]
        writer.write_shard(shard, torch.arange(start, end, dtype=torch.float32)[:, None].repeat(1, 3) + value)
    if stop is None:
        writer.finish()
    return writer


def test_a_view_is_read_by_rows_of_the_source():
    cache = ViewCache()
    write_view(cache)
    view = cache.find("family", ROWS[[5, 4099]])

    assert (view.dim, len(view.shards)) == (3, 2)
    assert view.gather(ROWS[[4099, 5]])[:, 0].tolist() == [4099, 5]
    assert isinstance(view.shards[0](), np.memmap)
    with pytest.raises(KeyError):
        view.gather(np.array([1]))


def test_a_view_serves_parts_of_itself_and_nothing_more():
    cache = ViewCache()
    write_view(cache)

    assert cache.find("family", ROWS[:7]) is not None
    assert cache.find("family", np.array([1])) is None
    assert cache.find("other", ROWS[:7]) is None


def test_an_unfinished_view_does_not_count_and_its_shards_are_used_again():
    cache = ViewCache()
    write_view(cache, stop=1)

    assert cache.find("family", ROWS) is None
    assert cache.writer("family", ROWS, {}).missing() == [1]
    write_view(cache)
    assert cache.find("family", ROWS) is not None


def test_a_damaged_shard_of_an_unfinished_view_is_written_again():
    cache = ViewCache()
    writer = write_view(cache, stop=1)
    shard = writer.folder / "shard-00000.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])

    assert cache.writer("family", ROWS, {}).missing() == [0, 1]


def test_a_damaged_view_is_dropped_and_named():
    cache = ViewCache()
    writer = write_view(cache)
    (writer.folder / "rows.npy").write_bytes(b"nothing")
    again = ViewCache()

    assert len(again.verify()[1]) == 1
    assert again.find("family", ROWS) is None


def test_pruning_removes_unfinished_views():
    cache = ViewCache()
    write_view(cache, rows=ROWS[:5], stop=0)
    write_view(cache)

    assert cache.prune()[0] == 1
    assert cache.verify() == (1, [])
    assert cache.prune(everything=True)[0] == 1
    assert cache.entries() == []


def test_a_file_appears_whole_or_not_at_all(tmp_path):
    with pytest.raises(ValueError, match="half way"), atomic_write(tmp_path / "a") as stream:
        stream.write(b"half")
        raise ValueError("half way")

    assert list(tmp_path.iterdir()) == []


def test_torn_lines_are_skipped_and_closed_off(tmp_path):
    path = tmp_path / "lines.jsonl"
    append_lines(path, [{"a": 1}, {"a": 2}])
    path.write_bytes(path.read_bytes()[:-4])
    append_lines(path, [{"a": 3}])

    assert list(read_lines(path)) == [{"a": 1}, {"a": 3}]
    assert list(read_lines(tmp_path / "none")) == []


def test_content_digests_are_remembered_and_follow_the_content(tmp_path, monkeypatch):
    path = tmp_path / "weights"
    path.write_bytes(b"one")
    first = file_digest(path)
    assert first == content_digest(path)
    monkeypatch.setattr("evalharness.store.files.content_digest", lambda _: pytest.fail("read twice"))
    assert file_digest(path) == first
    monkeypatch.undo()
    path.write_bytes(b"two!")
    assert file_digest(path) != first


def record(**fields):
    base = dict.fromkeys(("suite", "task", "encoder", "metric", "statistic"), "x") | {"params": {}, "unit": "u", "status": "measured"}
    return make_record(**(base | fields))


def test_a_record_has_every_field_and_no_other():
    assert list(record()) == list(FIELDS)
    assert record(value=float("nan"))["value"] is None
    with pytest.raises(TypeError, match="unknown record fields: \\['colour'\\]"):
        make_record(colour="red")


def test_keys_hold_what_sets_records_apart():
    assert record_key(record(value=1.0, n=3)) == record_key(record(value=2.0, n=4))
    assert record_key(record(group="a")) != record_key(record())
    assert cell_key(record(group="a", params={"variant": "k=1"})) == cell_key(record())
    assert record_key(record(severity=2)) == record_key(record(severity=2.0))


def test_the_score_digest_ignores_order_and_where_outcomes_lie():
    one, two = record(value=1.0), record(metric="y", value=2.0)
    assert score_digest([one, two]) == score_digest([two, one])
    assert score_digest([one]) == score_digest([{**one, "outcome": "elsewhere", "unit": "v"}])
    assert score_digest([one]) != score_digest([{**one, "value": 1.5}])


def unit(key="u", value=1.0, status="measured", **fields):
    return UnitResult(
        key=key,
        line={"unit": key, "suite": "x", "status": status, "outcomes": []},
        records=[record(unit=key, value=value, status=status, **fields) | {"_variant": "k=1"}],
        outcomes=[
            StoredOutcome(
                variant="k=1", rows=np.arange(3), columns={"hit": np.array([True, False, True]), "pair": np.arange(6).reshape(3, 2)}
            )
        ],
    )


def make_run(tmp_path, name, started, units):
    writer = RunWriter(tmp_path, name, {"started": started})
    writer.commit("task / ünï", "enc?a=1", units)
    return writer


def test_outcomes_come_back_as_they_were_stored(tmp_path):
    make_run(tmp_path, "a", "1", [unit()])
    reader = ResultsReader([tmp_path])
    (found,) = reader.records()
    outcome = reader.outcome(found)

    assert outcome.columns["hit"].tolist() == [True, False, True]
    assert outcome.columns["pair"].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert "_variant" not in found


def test_the_newest_run_wins_and_a_newer_unit_replaces_its_cell(tmp_path):
    make_run(tmp_path, "b", "1", [unit("old", 1.0, "failed")])
    make_run(tmp_path, "a", "2", [unit("new", 2.0, params={"variant": "k=1"})])
    reader = ResultsReader([tmp_path])

    assert [(item["value"], item["status"]) for item in reader.records()] == [(2.0, "measured")]
    assert reader.finished()["x", "new"]["status"] == "measured"


def test_records_without_their_unit_line_do_not_count(tmp_path):
    writer = make_run(tmp_path, "a", "1", [unit()])
    append_lines(writer.folder / "records.jsonl", [record(unit="torn")])

    assert len(ResultsReader([tmp_path]).records()) == 1


def test_a_missing_outcome_file_is_named(tmp_path):
    writer = make_run(tmp_path, "a", "1", [unit()])
    for path in (writer.folder / "outcomes").iterdir():
        path.unlink()
    reader = ResultsReader([tmp_path])
    with pytest.raises(StoreError, match=r"outcome file `a/outcomes/.*.parquet` is missing"):
        reader.outcome(reader.records()[0])


def test_rows_keep_ids_values_and_the_order_of_names(tmp_path):
    import pyarrow.parquet as pq

    writer = RunWriter(tmp_path, "a", {"started": "1"})
    columns = {"label": class_column(["b", None, "ä"]), "size": number_column([1.0, None, 3.0])}
    columns |= {"tags": Column(kind="multilabel", values=np.array([[1, 0], [0, 0], [1, 1]], dtype=bool), names=("p", "q"))}
    ids = np.array(["x", "y", "z"])
    writer.write_rows("digest", ids, columns)
    path = tmp_path / "a" / "rows" / "digest.parquet"
    table, again = pq.read_table(path), read_rows(path)

    assert table["id"].to_pylist() == ["x", "y", "z"]
    assert table["label"].to_pylist() == ["b", None, "ä"]
    assert table["size"].to_pylist() == [1.0, None, 3.0]
    assert again.columns["label"].names == ("b", "ä")
    assert row_set_digest(again.ids, again.columns) == row_set_digest(ids, columns)
    columns["size"].values[0] = 2.0
    assert row_set_digest(again.ids, again.columns) != row_set_digest(ids, columns)


def test_columns_are_stored_as_exactly_as_needed():
    assert compact(np.array([True])).dtype == bool
    assert compact(np.array([1, 200])).dtype == np.int16
    assert compact(np.array([-1, 5])).dtype == np.int8
    assert compact(torch.tensor([0.1], dtype=torch.float64)).dtype == np.float32


def test_names_of_files_are_safe_and_told_apart():
    assert safe_name("pixels") == "pixels"
    names = {safe_name(name) for name in ("a/b", "a b", "a\tb", "🦜", "", "a" * 200, "../x")}
    assert len(names) == 7
    assert all(name.isascii() and "/" not in name and not name.startswith(".") for name in names)
    assert variant_name({"shot": 5, "k": 1}) == "k=1,shot=5"
