import numpy as np
import pytest
import torch

from evalharness.errors import DataError, VectorsError
from evalharness.plugins import npz

IDS = np.array(["test/0", "test/1", "test/2"])
VECTORS = np.arange(12, dtype=np.float64).reshape(3, 4)


@pytest.fixture
def save(tmp_path):
    def write(**arrays):
        np.savez(tmp_path / "vectors.npz", **arrays)
        return npz.evalharness_resolve("encoder", f"npz:{tmp_path / 'vectors.npz'}")

    return write


def test_looks_vectors_up_by_id(save):
    spec = save(ids=IDS, vectors=VECTORS)
    encoder = spec.build(device="cpu", dtype=torch.float32)
    found = encoder.lookup(["test/2", "test/0", "test/2"], role="query")
    assert spec.precomputed
    assert encoder.dim == 4
    assert found.dtype == torch.float32
    assert found.tolist() == VECTORS[[2, 0, 2]].tolist()
    assert spec.build(device="cpu", dtype="float64").lookup(["test/1"]).dtype == torch.float64


def test_other_references_are_left_alone(tmp_path):
    assert npz.evalharness_resolve("dataset", "npz:x") is None
    assert npz.evalharness_resolve("encoder", "timm:x") is None
    assert npz.evalharness_resolve("encoder", "npz:") is None


def test_identity_is_the_content(save):
    first = save(ids=IDS, vectors=VECTORS).identity()
    assert first.kind == "weights"
    assert save(ids=IDS, vectors=VECTORS + 1).identity() != first


def test_unknown_ids_are_named_and_counted(save):
    encoder = save(ids=IDS, vectors=VECTORS).build(device="cpu")
    with pytest.raises(DataError, match=r"has no vectors of 4 of 5 ids \(`a`, `b`, `c`, …\); its ids look like `test/0`"):
        encoder.lookup(["a", "b", "test/1", "c", "d"])


def test_encoding_is_refused(save):
    with pytest.raises(DataError, match="cannot encode anything new"):
        save(ids=IDS, vectors=VECTORS).build(device="cpu").encode(["text"])


@pytest.mark.parametrize(
    ("arrays", "error", "message"),
    [
        ({"ids": IDS}, DataError, r"lacks the array `vectors` \(it has ids\)"),
        ({"ids": IDS[:2], "vectors": VECTORS}, DataError, r"got ids \(2,\) and vectors \(3, 4\)"),
        ({"ids": IDS, "vectors": VECTORS[0]}, DataError, r"expected `ids` \(N,\) and `vectors` \(N, D\)"),
        ({"ids": IDS[[0, 1, 0]], "vectors": VECTORS}, DataError, "id `test/0` stands 2 times"),
        ({"ids": IDS, "vectors": np.where(VECTORS == 5, np.nan, VECTORS)}, VectorsError, r"vectors of 1 ids are not finite \(test/1\)"),
        ({"ids": IDS.astype(object), "vectors": VECTORS}, DataError, "save ids as text"),
    ],
)
def test_bad_files_are_refused(save, arrays, error, message):
    with pytest.raises(error, match=message):
        save(**arrays).build(device="cpu")


def test_missing_and_broken_files_are_named(tmp_path):
    with pytest.raises(DataError, match=r"`npz:.*none.npz` names no file"):
        npz.evalharness_resolve("encoder", f"npz:{tmp_path / 'none.npz'}").identity()
    (tmp_path / "text.npz").write_text("no archive")
    with pytest.raises(DataError, match=r"text.npz cannot be read"):
        npz.evalharness_resolve("encoder", f"npz:{tmp_path / 'text.npz'}").build(device="cpu")
    np.savez(tmp_path / "cut.npz", ids=IDS, vectors=VECTORS)
    (tmp_path / "cut.npz").write_bytes((tmp_path / "cut.npz").read_bytes()[:200])
    with pytest.raises(DataError, match=r"cut.npz cannot be read"):
        npz.evalharness_resolve("encoder", f"npz:{tmp_path / 'cut.npz'}").build(device="cpu")
    np.save(tmp_path / "one.npy", VECTORS)
    with pytest.raises(DataError, match="is one array, not an archive"):
        npz.evalharness_resolve("encoder", f"npz:{tmp_path / 'one.npy'}").build(device="cpu")
