import numpy as np
import pytest
import torch

from evalharness.errors import DataError, UsageError, VectorsError
from evalharness.plugins import binary
from evalharness.vectors import code_vectors


def random(rows, dim, seed=0):
    return torch.randn(rows, dim, generator=torch.Generator().manual_seed(seed))


def test_bits_are_packed_first_dimension_highest_and_zero_is_zero():
    vectors = torch.tensor([[0.3, -0.1, 0.0, 2.0, -3.0, 1.0, 1.0, -1.0]])
    assert binary.fit(vectors).encode(vectors).tolist() == [[0b10010110]]


@pytest.mark.parametrize("dim", [1, 7, 8, 9, 64, 100])
def test_codes_equal_numpy_and_decode_to_signs(dim):
    vectors = random(20, dim)
    codec = binary.fit(vectors)
    codes = codec.encode(vectors)
    np.testing.assert_array_equal(codes.numpy(), np.packbits(vectors.numpy() > 0, axis=1))
    assert torch.equal(codec.decode(codes), torch.where(vectors > 0, 1.0, -1.0))
    assert codec.bytes_per_vector(9) == -(-dim // 8)


def brute(queries, gallery, k, barred=None):
    hamming = ((queries.numpy()[:, None] > 0) != (gallery.numpy()[None] > 0)).sum(2).astype(float)
    if barred is not None:
        for row, column in zip(*np.nonzero(barred >= 0), strict=True):
            hamming[row, barred[row, column]] = np.inf
    order = np.argsort(hamming, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(hamming, order, 1), order


@pytest.mark.parametrize("block", [2**8, 2**12, 2**25])
def test_search_equals_brute_force_with_ties_by_position(monkeypatch, block):
    monkeypatch.setattr(binary, "BLOCK_BYTES", block)
    gallery, queries = random(300, 13), random(40, 13, 1)  # few dimensions make many ties
    codec = binary.fit(gallery)
    barred = np.random.default_rng(0).integers(-1, 300, (40, 3))
    values, found = codec.search(queries, codec.encode(gallery), 17, exclude=torch.from_numpy(barred))
    hamming, order = brute(queries, gallery, 17, barred)
    np.testing.assert_array_equal(found.numpy(), order)
    np.testing.assert_allclose(values.numpy(), 1 - 2 * hamming / 13, atol=1e-6)


def test_values_are_cosines_of_the_decoded_vectors():
    vectors = random(50, 24)
    coded = code_vectors(vectors, binary.fit(vectors), "cosine")
    values, found = coded.search(vectors[:5], 50)
    signs = coded.dense()
    expected = torch.nn.functional.cosine_similarity(signs[:5, None], signs[None], dim=2)
    assert torch.allclose(values, expected.gather(1, found), atol=1e-6)


def test_rescoring_equals_numpy():
    gallery, queries = random(400, 32), random(30, 32, 1)
    codec = binary.fit(gallery, rescore=4)
    own = torch.arange(30)[:, None]
    values, found = codec.search(queries, codec.encode(gallery), 5, exclude=own)
    _, candidates = brute(queries, gallery, 20, own.numpy())
    unit = torch.nn.functional.normalize(queries.double(), dim=1).numpy()
    scores = np.einsum("qd,qmd->qm", unit, np.where(gallery.numpy() > 0, 1, -1)[candidates]) / 32**0.5
    order = np.lexsort((candidates, -scores))[:, :5]
    np.testing.assert_array_equal(found.numpy(), np.take_along_axis(candidates, order, 1))
    np.testing.assert_allclose(values.numpy(), np.take_along_axis(scores, order, 1), atol=1e-6)
    assert not (found == own).any()


def test_rescoring_finds_more_of_the_true_neighbours():
    gallery = torch.nn.functional.normalize(random(2000, 64), dim=1)
    queries = gallery[:200]
    _, exact = code_vectors(gallery, None, "cosine").search(queries, 10)
    recalls = []
    for rescore in (0, 4):
        coded = code_vectors(gallery, binary.fit(gallery, rescore=rescore), "cosine")
        found = coded.search(queries, 10)[1]
        recalls.append(float((found[:, :, None] == exact[:, None]).any(2).float().mean()))
    assert recalls[0] < recalls[1]


def test_centring_uses_the_bits_of_one_sided_vectors():
    vectors = random(200, 16).abs()
    plain, centred = binary.fit(vectors), binary.fit(vectors, centre=True)
    assert (plain.encode(vectors) == 255).all()
    share = (centred.decode(centred.encode(vectors)) > 0).float().mean()
    assert 0.3 < share < 0.6
    assert torch.allclose(centred.project(vectors).mean(0), torch.zeros(16), atol=1e-6)
    assert centred.bytes_per_vector(100) == 2 + 4 * 16 / 100


def test_too_large_k_names_the_largest():
    vectors = random(5, 8)
    codec = binary.fit(vectors)
    with pytest.raises(DataError, match="largest possible k is 4 of 5"):
        codec.search(vectors, codec.encode(vectors), 5, exclude=torch.arange(5)[:, None].repeat(1, 2))
    assert codec.search(vectors, codec.encode(vectors), 5)[1].shape == (5, 5)


def test_rescoring_takes_no_more_than_there_is():
    vectors = random(6, 8)
    codec = binary.fit(vectors, rescore=4)
    assert codec.search(vectors, codec.encode(vectors), 3)[1].shape == (6, 3)


def test_wrong_input_is_refused():
    vectors = random(3, 8)
    with pytest.raises(UsageError, match="`rescore` of codec `binary` to be 0"):
        binary.fit(vectors, rescore=-1)
    with pytest.raises(DataError, match="to centre by"):
        binary.fit(vectors[:0], centre=True)
    with pytest.raises(VectorsError, match="finite"):
        binary.fit(vectors).encode(vectors * torch.nan)
    with pytest.raises(VectorsError, match="`queries` must be finite"):
        binary.fit(vectors).search(vectors * torch.nan, binary.fit(vectors).encode(vectors), 1)
    with pytest.raises(VectorsError, match="norm 0"):
        binary.fit(vectors, rescore=2).search(vectors * 0, binary.fit(vectors).encode(vectors), 1)


def test_registers_with_its_parameters():
    (spec,) = binary.evalharness_codecs()
    assert spec.params == {"rescore": 0, "centre": False}
