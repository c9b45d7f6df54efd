import numpy as np
import pytest
import torch

from evalharness.errors import DataError, VectorsError
from evalharness.plugins import int8
from evalharness.vectors import code_vectors, learn_codec


def column(*values):
    return torch.tensor(values)[:, None]


def test_a_column_of_three_gives_the_codes_of_the_reference():
    vectors = column(-1.0, 1.0, 0.0)
    assert int8.fit(vectors).encode(vectors)[:, 0].tolist() == [-128, 127, -1]


def test_codes_equal_numpy():
    vectors = torch.randn(500, 7, generator=torch.Generator().manual_seed(0))
    low, high = vectors.double().numpy().min(0), vectors.double().numpy().max(0)
    expected = np.clip(np.floor((vectors.double().numpy() - low) * 255 / (high - low)), 0, 255) - 128
    np.testing.assert_array_equal(int8.fit(vectors).encode(vectors).numpy(), expected)


def test_minimum_and_maximum_take_the_outer_codes():
    vectors = torch.randn(50, 400, generator=torch.Generator().manual_seed(1))
    codes = int8.fit(vectors).encode(vectors)
    assert (codes.amin(0) == -128).all()
    assert (codes.amax(0) == 127).all()


def test_decoding_is_off_by_at_most_half_a_step():
    vectors = torch.randn(200, 5, generator=torch.Generator().manual_seed(2))
    codec = int8.fit(vectors)
    step = (vectors.amax(0) - vectors.amin(0)) / 255
    assert ((codec.decode(codec.encode(vectors)) - vectors).abs() <= step * 0.5001).all()


def test_values_outside_the_range_clip_and_are_counted():
    codec = int8.fit(column(0.0, 1.0))
    vectors = column(-5.0, 0.5, 1.0, 7.0)
    assert codec.encode(vectors)[:, 0].tolist() == [-128, -1, 127, 127]
    assert codec.clip_rate(vectors) == 0.5


def test_a_constant_dimension_decodes_to_the_constant():
    vectors = torch.tensor([[3.25, 1.0], [3.25, 2.0]])
    codec = int8.fit(vectors)
    assert codec.decode(codec.encode(vectors))[:, 0].tolist() == [3.25, 3.25]


def test_codes_do_not_depend_on_the_block(monkeypatch):
    vectors = torch.randn(100, 8, generator=torch.Generator().manual_seed(3))
    codec = int8.fit(vectors)
    whole = codec.encode(vectors)
    monkeypatch.setattr(int8, "BLOCK_ENTRIES", 24)
    assert torch.equal(codec.encode(vectors), whole)


def test_bytes_include_the_ranges():
    codec = int8.fit(torch.randn(4, 768, generator=torch.Generator().manual_seed(0)))
    assert codec.bytes_per_vector(1000) == 768 + 768 * 8 / 1000


def test_nan_and_empty_are_refused():
    with pytest.raises(VectorsError, match="finite"):
        int8.fit(column(0.0, float("nan")))
    with pytest.raises(VectorsError, match="finite"):
        int8.fit(column(0.0, 1.0)).encode(column(float("nan")))
    with pytest.raises(DataError, match="at least one calibration vector"):
        int8.fit(torch.empty(0, 3))


def test_search_through_the_core_finds_nearly_all_neighbours():
    vectors = torch.nn.functional.normalize(torch.randn(1000, 64, generator=torch.Generator().manual_seed(4)), dim=1)
    coded = code_vectors(vectors, int8.fit(vectors), "cosine")
    _, exact = code_vectors(vectors, None, "cosine").search(vectors[:100], 10)
    _, found = coded.search(coded.queries()[:100], 10)
    assert (found[:, :, None] == exact[:, None]).any(2).float().mean() > 0.95


def test_registers_and_learns_through_the_core():
    class Registry:
        def get(self, _kind, _name):
            return next(iter(int8.evalharness_codecs()))

    codec = learn_codec(Registry(), [("int8", {}, "1")], torch.randn(5, 3))
    assert codec.encode(torch.zeros(2, 3)).dtype == torch.int8
