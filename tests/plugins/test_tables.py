import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import PIL.Image
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from evalharness import class_column
from evalharness.errors import DataError, UnknownNameError, UsageError
from evalharness.plugins import tables

MIRROR = Path(os.environ.get("EVALHARNESS_MIRROR") or Path(__file__).parents[2].parent / "shared/data")


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    monkeypatch.setenv("EVALHARNESS_MIRROR", str(tmp_path))
    return tmp_path


def write(path, columns, row_group_size=None, features=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    if features:
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, path, row_group_size=row_group_size)
    return path


def resolve(reference):
    return tables.evalharness_resolve("dataset", reference)


def load(reference, split="test", **params):
    spec = resolve(reference)
    return spec.load(split, **{**spec.params, **params})


def items(*args, **params):
    return load(*args, **params).parts["items"]


def png(colour, size=(4, 3), mode="RGB"):
    content = io.BytesIO()
    PIL.Image.new(mode, size, colour).save(content, "png")
    return content.getvalue()


def wav(samples, rate=8000):
    from scipy.io import wavfile

    content = io.BytesIO()
    wavfile.write(content, rate, samples)
    return content.getvalue()


# --- finding files ------------------------------------------------------------------------------------------------


def test_mirror_is_read_by_name_and_split(mirror):
    write(mirror / "org" / "set" / "test.parquet", {"text": ["a", "b"], "label": [7, 10]})
    write(mirror / "org" / "set" / "train.parquet", {"text": ["c"], "label": [7]})
    assert resolve("hf:org/set").name == "hf:org/set"
    assert resolve("hf:org/set").splits == ("test", "train")
    samples = items("hf:org/set")
    assert samples.modality == "text"
    assert samples.read(np.array([1, 0])) == ["b", "a"]
    assert samples.ids.tolist() == ["test/0", "test/1"]
    assert samples.columns["label"].names == ("7", "10")


@pytest.mark.parametrize(
    ("name", "content"), [("test.csv", "text,label\na,1\nb,2\n"), ("test.jsonl", '{"text":"a","label":1}\n{"text":"b","label":2}\n')]
)
def test_text_forms_read_alike(mirror, name, content):
    (mirror / "set").mkdir()
    (mirror / "set" / name).write_text(content)
    samples = items("hf:set")
    assert samples.read(np.arange(2)) == ["a", "b"]
    assert samples.columns["label"].labels().tolist() == ["1", "2"]


def test_shards_are_one_split(mirror):
    for shard, text in enumerate(["a", "b"]):
        write(mirror / "o" / "s" / "data" / f"test-0000{shard}-of-00002.parquet", {"text": [text]})
    assert items("hf:o/s").read(np.array([1, 0])) == ["b", "a"]
    write(mirror / "o" / "s" / "data" / "test-00001-of-00002.parquet", {"text": [1]})
    with pytest.raises(DataError, match=r"test-00001-of-00002.parquet has other columns or types than .*; shards of one split must agree"):
        items("hf:o/s")


def test_configurations_are_sub_folders(mirror):
    write(mirror / "o" / "s" / "en" / "test.parquet", {"text": ["a"]})
    assert items("hf:o/s/en").size == 1
    with pytest.raises(DataError, match="name one of its configurations: hf:o/s/en"):
        resolve("hf:o/s")


def test_image_trees_are_tables(mirror):
    for label in ("dog", "cat"):
        path = mirror / "o" / "s" / "test" / label / "1.png"
        path.parent.mkdir(parents=True)
        path.write_bytes(png((51, 0, 0)))
    samples = items("hf:o/s")
    assert samples.columns["label"].labels().tolist() == ["cat", "dog"]
    assert samples.read(np.arange(2)).shape == (2, 3, 3, 4)


def test_files_and_folders_are_read_by_path(tmp_path):
    path = write(tmp_path / "mine.parquet", {"text": ["a"]})
    assert items(f"parquet:{path}", "all").ids.tolist() == ["all/0"]
    assert items(f"parquet:{path}", "mine").size == 1
    assert items(f"parquet:{tmp_path}", "mine").size == 1
    assert resolve(f"parquet:{tmp_path}").splits == ("mine",)
    with pytest.raises(UnknownNameError, match=r"unknown split of `parquet:.*` `main`; did you mean `mine`"):
        items(f"parquet:{path}", "main")
    with pytest.raises(DataError, match=r"is a folder without SPLIT.csv files"):
        items(f"csv:{tmp_path}", "mine")
    with pytest.raises(DataError, match=r"`csv:nowhere.csv` names no file or folder"):
        items("csv:nowhere.csv")


def test_unreadable_files_are_named(tmp_path):
    (tmp_path / "x.parquet").write_text("no table")
    with pytest.raises(DataError, match=r"x.parquet cannot be read as parquet"):
        items(f"parquet:{tmp_path / 'x.parquet'}", "all")
    (tmp_path / "x.csv").write_text("a,b\n1\n")
    with pytest.raises(DataError, match=r"x.csv cannot be read as CSV"):
        items(f"csv:{tmp_path / 'x.csv'}", "all")


def test_references_of_others_are_left_alone():
    assert resolve("digits") is None
    assert resolve("beir:x") is None
    assert tables.evalharness_resolve("encoder", "hf:org/model") is None
    with pytest.raises(UsageError, match="`hf:a/b/c/d` is no data set of the hub"):
        resolve("hf:a/b/c/d")


def test_without_mirror_and_network_the_way_out_is_named(mirror, monkeypatch):
    import datasets

    def fail(*args, **kwargs):
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    message = r"^`hf:o/s/en`, split `test`, is not in the mirror .* \(ConnectionError: no route\); .* EVALHARNESS_MIRROR .* holds o/s/en/test.parquet$"
    with pytest.raises(DataError, match=message):
        load("hf:o/s/en")
    monkeypatch.delenv("EVALHARNESS_MIRROR")
    with pytest.raises(DataError, match="is in no mirror and could not be loaded"):
        load("hf:o/s/en")
    assert resolve("hf:o/s").identity("test").kind == "none"
    assert resolve("hf:o/s").identity("test", revision="0" * 40).kind == "declared"


def test_hub_data_sets_are_read_lazily(monkeypatch):
    import datasets

    monkeypatch.delenv("EVALHARNESS_MIRROR", raising=False)
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["x", "y"])})
    made = datasets.Dataset.from_dict({"text": ["a", "b", "c"], "label": [1, 0, 1]}, features=features)
    monkeypatch.setattr(datasets, "load_dataset", lambda name, config, *, split, revision: made)
    samples = items("hf:o/s")
    assert samples.read(np.array([2, 0, 2])) == ["c", "a", "c"]
    assert samples.columns["label"].labels().tolist() == ["y", "x", "y"]


# --- columns ------------------------------------------------------------------------------------------------------


def test_columns_take_their_kind_from_the_type(mirror):
    columns = {
        "text": ["a", "b", "c"],
        "word": ["z", None, "ä"],
        "flag": [True, False, None],
        "whole": [10, 9, None],
        "real": [0.5, None, float("nan")],
        "tags": [["b", "a"], [], None],
        "many": [[2, 10], [2], []],
        "dictionary": pa.array(["q", "p", None]).dictionary_encode(),
        "embedding": [[0.1], [0.2], [0.3]],
        "empty": pa.nulls(3),
        "nested": [{"a": 1}, {"a": 2}, {"a": 3}],
    }
    write(mirror / "s" / "test.parquet", columns)
    read = items("hf:s", inputs={"text": "text"}).columns
    assert set(read) == set(columns) - {"text", "embedding", "nested"}
    for name in ("word", "whole"):
        expected = class_column(columns[name])
        assert (read[name].names, read[name].values.tolist()) == (expected.names, expected.values.tolist())
    assert read["flag"].labels().tolist() == ["true", "false", None]
    assert read["dictionary"].labels().tolist() == ["q", "p", None]
    assert read["empty"].values.tolist() == [-1, -1, -1]
    np.testing.assert_equal(read["real"].values, [0.5, np.nan, np.nan])
    assert read["tags"].names == ("a", "b")
    assert read["tags"].values.tolist() == [[True, True], [False, False], [False, False]]
    assert read["many"].names == ("2", "10")
    assert read["many"].values.tolist() == [[True, True], [True, False], [False, False]]


def test_named_classes_keep_names_and_codes(mirror):
    features = {
        "label": {"_type": "ClassLabel", "names": ["zebra", "ant"]},
        "tags": {"_type": "List", "feature": {"_type": "ClassLabel", "names": ["x", "y"]}},
    }
    columns = {"text": ["a", "b", "c"], "label": [1, 0, -1], "tags": [[1], [0, 1], []]}
    write(mirror / "s" / "test.parquet", columns, features=features)
    read = items("hf:s").columns
    assert read["label"].names == ("zebra", "ant")
    assert read["label"].labels().tolist() == ["ant", "zebra", None]
    assert read["tags"].values.tolist() == [[False, True], [True, True], [False, False]]
    write(mirror / "s" / "test.parquet", {**columns, "label": [0, 1, 2]}, features=features)
    with pytest.raises(DataError, match="column `label` names 2 classes but holds codes from 0 to 2"):
        items("hf:s")


def test_integers_are_numbers_on_request(mirror):
    write(mirror / "s" / "test.parquet", {"text": ["a", "b"], "age": [3, None]})
    assert items("hf:s").columns["age"].kind == "class"
    np.testing.assert_equal(items("hf:s", number=["age"]).columns["age"].values, [3.0, np.nan])
    with pytest.raises(DataError, match=r"column `text` of `hf:s` holds string, which is no vector"):
        items("hf:s", inputs={"vector": "text"})
    with pytest.raises(UnknownNameError, match="unknown column of `hf:s`, split `test`, `ages`; did you mean `age`"):
        items("hf:s", number=["ages"])
    write(mirror / "t" / "test.parquet", {"text": ["a"], "word": ["b"]})
    with pytest.raises(DataError, match=r"column `word` was to be read as numbers \(`number`\) but holds string"):
        items("hf:t", number="word")


# --- inputs and ids -----------------------------------------------------------------------------------------------


def test_two_parts_are_linked_row_by_row(mirror):
    write(mirror / "s" / "test.parquet", {"one": ["a", "b"], "two": ["c", "d"], "score": [1.0, 2.0], "key": ["k1", "k2"]})
    data = load("hf:s", inputs={"left.text": "one", "right.text": "two"}, pair_id="key")
    links = data.links["pairs"]
    assert data.parts["right"].read(np.arange(2)) == ["c", "d"]
    assert (links.source, links.target, links.rows.tolist()) == ("left", "right", [[0, 0], [1, 1]])
    assert links.ids.tolist() == ["k1", "k2"]
    assert data.parts["left"].ids.tolist() == ["test/0", "test/1"]
    assert links.columns["score"].values.tolist() == data.parts["left"].columns["score"].values.tolist() == [1.0, 2.0]


def test_vectors_come_from_columns_or_a_list(mirror):
    write(mirror / "s" / "test.parquet", {"a": [1, 2], "b": [0.5, 1.5], "v": [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]})
    samples = items("hf:s", inputs={"vector": ["b", "a"]})
    assert samples.read(np.array([1, 0])).tolist() == [[1.5, 2.0], [0.5, 1.0]]
    assert set(samples.columns) == set()
    assert items("hf:s", inputs={"vector": "a"}).read(np.arange(2)).tolist() == [[1.0], [2.0]]
    listed = items("hf:s", inputs={"vector": "v"}).read(np.array([1]))
    assert (listed.dtype, listed.tolist()) == (torch.float32, [[4.0, 5.0, 6.0]])


def test_vectors_of_unequal_length_are_named(mirror):
    write(mirror / "s" / "test.parquet", {"v": [[1.0], [1.0, 2.0]]})
    with pytest.raises(DataError, match="row test/1 has no vector, or one of another length than row test/0"):
        items("hf:s", inputs={"vector": "v"}).read(np.arange(2))


@pytest.mark.parametrize(
    ("columns", "inputs"),
    [
        ({"x": [1.0, None, 3.0]}, {"vector": ["x"]}),
        ({"x": [1.0, float("nan"), 3.0]}, {"vector": ["x"]}),
        ({"x": [[1.0], [None], [3.0]]}, {"vector": "x"}),
        ({"x": ["a", None, "c"]}, {"text": "x"}),
    ],
)
def test_incomplete_rows_are_named_or_dropped(mirror, columns, inputs):
    write(mirror / "s" / "test.parquet", {**columns, "label": ["p", "q", "r"]})
    with pytest.raises(DataError, match=r"1 of 3 rows have no value in input column `x` \(test/1\); leave them out with `missing: drop`"):
        items("hf:s", inputs=inputs)
    samples = items("hf:s", inputs=inputs, missing="drop")
    assert samples.ids.tolist() == ["test/0", "test/2"]
    assert samples.columns["label"].labels().tolist() == ["p", "r"]
    assert len(samples.read(np.arange(2))) == 2


def test_csv_reads_gaps_as_missing(tmp_path):
    (tmp_path / "x.csv").write_text('text,sex,mass\n"a\nb",male,1.5\nc,NA,NA\n')
    samples = items(f"csv:{tmp_path / 'x.csv'}", "all")
    assert samples.read(np.arange(2)) == ["a\nb", "c"]
    assert samples.columns["sex"].labels().tolist() == ["male", None]
    np.testing.assert_equal(samples.columns["mass"].values, [1.5, np.nan])


def test_ids_come_from_a_column_and_are_unique(mirror):
    write(mirror / "s" / "test.parquet", {"text": ["a", "b"], "key": [5, 7], "same": ["x", "x"], "gap": ["x", None]})
    assert items("hf:s", id="key").ids.tolist() == ["5", "7"]
    with pytest.raises(DataError, match="id `x` of column `same` stands in 2 rows of split `test`; ids are unique"):
        items("hf:s", id="same")
    with pytest.raises(DataError, match="row test/1 has no id in column `gap`"):
        items("hf:s", id="gap")


@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        ({"inputs": {"text": "tekst"}}, UnknownNameError, "unknown column of `hf:s`, split `test`, `tekst`; did you mean `text`"),
        ({"inputs": {"txt": "text"}}, UsageError, "maps PART.MODALITY to a column, with modality text, image, audio, vector; got `txt`"),
        ({"inputs": {"text": ["text", "other"]}}, UsageError, "`text` of `hf:s` takes one column, got 2"),
        ({"inputs": {"text": "text", "items.text": "other"}}, UsageError, "gives part `items` more than one column"),
        ({"inputs": {"image": "number"}}, DataError, "column `number` of `hf:s` holds int64, which is no image"),
        ({"missing": "skip"}, UsageError, "`missing` of `hf:s` is `error` or `drop`, got `skip`"),
        ({"id": "key"}, UnknownNameError, "unknown column of `hf:s`"),
    ],
)
def test_wrong_parameters_are_named(mirror, params, error, message):
    write(mirror / "s" / "test.parquet", {"text": ["a"], "other": ["b"], "number": [1]})
    with pytest.raises(error, match=message):
        load("hf:s", **params)


def test_inputs_are_guessed_only_when_obvious(mirror):
    write(mirror / "s" / "test.parquet", {"sentence": ["a"], "label": [1]})
    with pytest.raises(DataError, match=r"does not say which column is its input; set `inputs`, .* from the columns sentence, label"):
        load("hf:s")


# --- reading ------------------------------------------------------------------------------------------------------


def test_rows_are_found_in_every_row_group(mirror):
    write(mirror / "s" / "test.parquet", {"text": [f"t{row}" for row in range(25)]}, row_group_size=4)
    samples = items("hf:s")
    at = np.random.default_rng(0).integers(0, 25, size=60)
    assert samples.read(at) == [f"t{row}" for row in at]
    assert samples.read(np.array([], dtype=np.int64)) == []


def test_images_are_decoded_when_read(mirror, monkeypatch):
    image = {"bytes": png((255, 0, 51)), "path": None}
    write(mirror / "s" / "test.parquet", {"image": [image, {"bytes": png(102, mode="L"), "path": "x.png"}], "label": [0, 1]})
    with monkeypatch.context() as context:
        context.setattr(PIL.Image, "open", lambda *_: pytest.fail("decoded too early"))
        samples = items("hf:s")
    images = samples.read(np.arange(2))
    assert images.dtype == torch.float32
    np.testing.assert_allclose(images[:, :, 0, 0], [[1, 0, 0.2], [0.4, 0.4, 0.4]], rtol=1e-6)
    assert set(samples.columns) == {"label"}


def test_images_of_raw_bytes_and_different_sizes_are_a_list(mirror):
    write(mirror / "s" / "test.parquet", {"image": [png(0, mode="L"), png(0, size=(5, 5), mode="1")]})
    assert [tuple(image.shape) for image in items("hf:s").read(np.arange(2))] == [(3, 3, 4), (3, 5, 5)]


def test_images_may_be_files_beside_the_table(tmp_path):
    (tmp_path / "x.png").write_bytes(png((0, 255, 0)))
    (tmp_path / "list.csv").write_text("image,label\nx.png,a\ny.png,b\n")
    samples = items(f"csv:{tmp_path / 'list.csv'}", "all")
    assert samples.read(np.array([0]))[0, :, 0, 0].tolist() == [0, 1, 0]
    with pytest.raises(DataError, match=r"y.png, named by row all/1, cannot be read: No such file"):
        samples.read(np.array([1]))


def test_unreadable_images_are_named(mirror):
    empty = {"bytes": None, "path": None}
    write(mirror / "s" / "test.parquet", {"image": [{"bytes": b"no image", "path": None}, empty]})
    with pytest.raises(DataError, match="the image of row test/0 cannot be read"):
        items("hf:s").read(np.array([0]))
    with pytest.raises(DataError, match="row test/1 holds no file"):
        items("hf:s").read(np.array([1]))


def test_audio_is_padded_and_scaled(mirror):
    stereo = np.array([[16384, -16384], [16384, 0]], dtype=np.int16)
    cells = [{"bytes": wav(np.array([0, 16384, -32768], dtype=np.int16)), "path": None}, {"bytes": wav(stereo), "path": None}]
    write(mirror / "s" / "test.parquet", {"audio": cells, "label": [0, 1]})
    batch = items("hf:s", inputs={"audio": "audio"}).read(np.arange(2))
    assert batch.sample_rate == 8000
    assert batch.lengths.tolist() == [3, 2]
    assert batch.waveforms.tolist() == [[0.0, 0.5, -1.0], [0.0, 0.25, 0.0]]


def test_mixed_sample_rates_are_refused(mirror):
    silence = np.zeros(4, dtype=np.uint8)
    write(mirror / "s" / "test.parquet", {"audio": [{"bytes": wav(silence), "path": None}, {"bytes": wav(silence, 16000), "path": None}]})
    with pytest.raises(DataError, match="row test/1 is sampled at 16000 Hz, row test/0 at 8000 Hz"):
        items("hf:s", inputs={"audio": "audio"}).read(np.arange(2))


def test_identity_and_fingerprint_follow_the_files(mirror):
    path = write(mirror / "s" / "test.parquet", {"text": ["a"]})
    before = resolve("hf:s").identity("test"), items("hf:s").fingerprint
    assert resolve("hf:s").identity("test") == before[0]
    assert resolve("hf:s").identity("test", missing="drop") != before[0]
    write(path, {"text": ["other"]})
    assert resolve("hf:s").identity("test") != before[0]
    assert items("hf:s").fingerprint != before[1]


def test_resolving_imports_nothing_heavy():
    code = (
        "import sys; from evalharness.plugins import tables, beir, npz, image_folder, scenes, sentences, sklearn_data;"
        "tables.evalharness_resolve('dataset', 'hf:a/b'); list(scenes.evalharness_datasets());"
        "print(sorted({'torch', 'datasets', 'pandas', 'sklearn', 'pyarrow', 'PIL', 'scipy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.real
@pytest.mark.skipif(not MIRROR.is_dir(), reason="no mirror")
@pytest.mark.parametrize(
    ("reference", "split", "inputs", "size", "num_classes"),
    [
        ("mteb/banking77", "test", {"text": "text"}, 3080, 77),
        ("uci/sentiment-labelled-sentences", "all", None, 3000, 2),
        ("zalando-datasets/fashion_mnist", "test", None, 10000, 10),
        ("ylecun/mnist", "test", None, 10000, 10),
        ("flwrlabs/pacs", "train", None, 840, 7),
        ("brendenlake/omniglot", "small", None, 4840, 242),
        ("jakobovski/free-spoken-digit-dataset", "test", {"audio": "audio"}, 300, 10),
    ],
)
def test_mirror_data(monkeypatch, reference, split, inputs, size, num_classes):
    monkeypatch.setenv("EVALHARNESS_MIRROR", str(MIRROR))
    samples = items(f"hf:{reference}", split, inputs=inputs)
    assert samples.size == size
    assert len(samples.columns["label"].names) == num_classes
    samples.read(np.array([size - 1, 0]))


@pytest.mark.real
@pytest.mark.skipif(not MIRROR.is_dir(), reason="no mirror")
def test_penguins_and_similarity(monkeypatch):
    monkeypatch.setenv("EVALHARNESS_MIRROR", str(MIRROR))
    measures = ["bill_length_mm", "bill_depth_mm", "flipper_length_mm", "body_mass_g"]
    samples = items("hf:uci/palmer-penguins", "all", inputs={"vector": measures}, missing="drop")
    assert samples.size == 342
    assert (samples.columns["sex"].values == -1).sum() == 9
    assert torch.isfinite(samples.read(np.arange(342))).all()
    data = load("hf:mteb/stsb_multi_mt/de", inputs={"left.text": "sentence1", "right.text": "sentence2"})
    assert data.links["pairs"].columns["score"].values.max() == 5.0


def test_a_file_that_is_not_utf8_is_refused_by_column(tmp_path):
    from evalharness.errors import DataError
    from evalharness.plugins.tables.readers import read_csv

    path = tmp_path / "latin.csv"
    path.write_bytes("text,label\ncafé,a\nthé,b\n".encode("latin-1"))
    with pytest.raises(DataError, match="latin.csv: column `text` is not UTF-8; save the file as UTF-8"):
        read_csv(path)
