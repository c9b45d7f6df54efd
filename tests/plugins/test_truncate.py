import pytest
import torch

from evalharness.errors import DataError, UsageError, VectorsError
from evalharness.plugins import int8, truncate
from evalharness.vectors import ChainCodec, code_vectors

PAIR = torch.tensor([[3.0, 4.0, 12.0], [4.0, 3.0, 12.0]]) / 13


def fit(reference, vectors):
    spec = truncate.evalharness_resolve("codec", reference)
    return spec.fit(vectors, **spec.params)


def test_two_dimensions_are_normalised_again():
    assert float(PAIR[0] @ PAIR[1]) == pytest.approx(0.994083, abs=1e-6)
    kept = fit("truncate-2", PAIR).encode(PAIR)
    assert float(kept[0] @ kept[1]) == pytest.approx(0.96, abs=1e-6)


def test_reference_becomes_a_spec_with_the_dimension():
    spec = truncate.evalharness_resolve("codec", "truncate-128")
    assert spec.name == "truncate-128"
    assert spec.params == {"dim": 128}


@pytest.mark.parametrize(
    ("kind", "reference"), [("encoder", "truncate-8"), ("codec", "truncate-x"), ("codec", "truncate-8+int8"), ("codec", "int8")]
)
def test_other_references_are_left_to_others(kind, reference):
    assert truncate.evalharness_resolve(kind, reference) is None


def test_all_dimensions_change_unit_vectors_little():
    codec = fit("truncate-3", PAIR)
    assert torch.allclose(codec.decode(codec.encode(PAIR)), PAIR, atol=1e-7)
    assert codec.bytes_per_vector(5) == 12


def test_queries_go_the_same_way():
    codec = fit("truncate-2", PAIR)
    assert torch.equal(codec.project(PAIR), codec.encode(PAIR))
    coded = code_vectors(PAIR, codec, "cosine")
    assert coded.search(coded.queries(), 1)[1][:, 0].tolist() == [0, 1]


def test_chain_with_int8_stores_truncated_codes():
    vectors = torch.randn(50, 16, generator=torch.Generator().manual_seed(0))
    first = fit("truncate-4", vectors)
    chain = ChainCodec([first, int8.fit(first.encode(vectors))])
    assert chain.encode(vectors).shape == (50, 4)
    assert chain.project(vectors).shape == (50, 4)


def test_too_many_dimensions_name_the_way_out():
    with pytest.raises(DataError, match=r"the encoder gives 3; use `truncate-3`"):
        fit("truncate-4", PAIR)


def test_none_is_refused():
    with pytest.raises(UsageError, match="at least 1, got 0"):
        fit("truncate-0", PAIR)


def test_nan_is_refused():
    with pytest.raises(VectorsError, match="finite"):
        fit("truncate-2", PAIR).encode(PAIR * torch.nan)


def test_a_row_that_vanishes_is_named():
    with pytest.raises(VectorsError, match="1 of 2 vectors have norm 0 in their first 1 dimensions, row 1 first; keep more dimensions"):
        fit("truncate-1", PAIR).encode(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
