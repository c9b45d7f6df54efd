import json
import os
from pathlib import Path

import numpy as np
import pytest

from evalharness.errors import DataError, UnknownNameError, UsageError
from evalharness.plugins import beir

MIRROR = Path(os.environ.get("EVALHARNESS_MIRROR") or Path(__file__).parents[2].parent / "shared/data")
CORPUS = [{"_id": "d1", "title": "Wings", "text": "lift ü"}, {"_id": "d2", "title": "", "text": "drag"}, {"_id": "d3", "text": "flow"}]
QUERIES = [{"_id": "q1", "text": "why lift?"}, {"_id": "q2", "text": "unjudged"}, {"_id": "q3", "text": "what flows?"}]
QRELS = "query-id\tcorpus-id\tscore\nq3\td3\t2\nq1\td2\t0\nq1\td1\t1\n"


@pytest.fixture(autouse=True)
def _no_mirror(monkeypatch):
    monkeypatch.delenv("EVALHARNESS_MIRROR", raising=False)


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path / "org" / "set", QRELS)


def write(folder, qrels, corpus=CORPUS, queries=QUERIES):
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in corpus) + "\n\n", encoding="utf-8")
    (folder / "queries.jsonl").write_text("\n".join(json.dumps(row) for row in queries), encoding="utf-8")
    (folder / "qrels" / "test.tsv").write_text(qrels, encoding="utf-8")
    return folder


def resolve(path):
    return beir.evalharness_resolve("dataset", f"beir:{path}")


def test_reads_texts_ids_and_grades(folder):
    spec = resolve(folder)
    data = spec.load("test")
    queries, corpus, links = data.parts["queries"], data.parts["corpus"], data.links["qrels"]
    assert spec.splits == ("test",)
    assert queries.ids.tolist() == ["q1", "q3"]
    assert queries.read(np.array([1, 0])) == ["what flows?", "why lift?"]
    assert corpus.read(np.arange(3)) == ["Wings lift ü", "drag", "flow"]
    assert corpus.ids[links.rows[:, 1]].tolist() == ["d3", "d2", "d1"]
    assert queries.ids[links.rows[:, 0]].tolist() == ["q3", "q1", "q1"]
    assert links.grades.tolist() == [2.0, 0.0, 1.0]


def test_mirror_is_read_by_name(folder, monkeypatch):
    monkeypatch.setenv("EVALHARNESS_MIRROR", str(folder.parents[1]))
    assert resolve("org/set").load("test").parts["corpus"].size == 3


def test_a_file_without_header_is_read_alike(tmp_path):
    data = resolve(write(tmp_path / "x", QRELS.partition("\n")[2].replace("\n", "\r\n"))).load("test")
    assert len(data.links["qrels"].grades) == 3


def test_identity_and_fingerprints_follow_the_files(folder):
    before, prints = resolve(folder).identity("test"), fingerprints(folder)
    (folder / "qrels" / "test.tsv").write_text(QRELS + "q2\td1\t1\n")
    assert resolve(folder).identity("test") != before
    after = fingerprints(folder)
    assert after["queries"] != prints["queries"]
    assert after["corpus"] == prints["corpus"]


def fingerprints(folder):
    return {name: part.fingerprint for name, part in resolve(folder).load("test").parts.items()}


def test_unknown_documents_are_refused_or_dropped(tmp_path):
    spec = resolve(write(tmp_path / "x", QRELS + "q1\td9\t1\n"))
    with pytest.raises(DataError, match=r"1 of 4 judgements name a query or document that is not there \(query `q1`, document `d9`\)"):
        spec.load("test")
    assert len(spec.load("test", missing="drop").links["qrels"].grades) == 3
    with pytest.raises(UsageError, match="`error` or `drop`, got `skip`"):
        spec.load("test", missing="skip")


@pytest.mark.parametrize(
    ("qrels", "message"),
    [
        ("q1\td1\t1\nq1 d1 1\n", "line 2: expected query, document and grade between tabs, got `q1 d1 1`"),
        ("q1\td1\t1\nq1\td1\t2\n", "line 2: document `d1` is judged twice for query `q1`"),
        ("query-id\tcorpus-id\tscore\n", "holds no judgement"),
    ],
)
def test_bad_judgements_are_refused(tmp_path, qrels, message):
    with pytest.raises(DataError, match=message):
        resolve(write(tmp_path / "x", qrels)).load("test")


def test_bad_documents_are_refused(tmp_path):
    with pytest.raises(DataError, match="id `d1` stands on two lines"):
        resolve(write(tmp_path / "x", QRELS, corpus=[*CORPUS, CORPUS[0]])).load("test")
    (tmp_path / "x" / "corpus.jsonl").write_text('{"_id": "d1"}\n{"id": "d2"}\n')
    with pytest.raises(DataError, match=r"corpus.jsonl, line 2: expected a JSON object with `_id`"):
        resolve(tmp_path / "x").load("test")


def test_missing_folder_file_or_split_is_named(folder):
    with pytest.raises(DataError, match="`beir:no/where` is neither in the mirror nor a folder"):
        resolve("no/where").load("test")
    with pytest.raises(UnknownNameError, match=r"unknown split of `beir:.*` `tests`; did you mean `test`"):
        resolve(folder).load("tests")
    (folder / "queries.jsonl").unlink()
    with pytest.raises(DataError, match=r"lacks .*queries.jsonl"):
        resolve(folder).load("test")


def test_other_references_are_left_alone():
    assert beir.evalharness_resolve("encoder", "beir:x") is None
    assert beir.evalharness_resolve("dataset", "hf:x") is None


@pytest.mark.real
@pytest.mark.skipif(not MIRROR.is_dir(), reason="no mirror")
def test_cranfield(monkeypatch):
    monkeypatch.setenv("EVALHARNESS_MIRROR", str(MIRROR))
    data = resolve("ir/cranfield").load("test")
    assert (data.parts["corpus"].size, data.parts["queries"].size) == (1400, 225)
    assert np.unique(data.links["qrels"].grades, return_counts=True)[1].tolist() == [225, 1612]
