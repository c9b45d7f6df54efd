"""Checks and normalisation of vectors."""

import numpy as np
import pytest
import torch

from evalharness import numerics
from evalharness.errors import VectorsError
from evalharness.numerics import check_finite, normalise_rows


def test_rows_get_unit_length_in_their_own_kind():
    vectors = np.random.default_rng(0).standard_normal((20, 5)) * 1e-20
    for given, kind in ((vectors, np.float64), (vectors.astype(np.float32), np.float32), ((vectors * 1e20).astype(np.float16), np.float32)):
        got = normalise_rows(given)
        assert got.dtype == kind
        np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1, rtol=1e-6)
    assert isinstance(normalise_rows(torch.ones(2, 2)), torch.Tensor)
    frozen = np.ones((2, 2))
    frozen.flags.writeable = False
    np.testing.assert_allclose(normalise_rows(frozen), 0.5**0.5)


def test_zero_rows_are_named_by_position_or_id():
    vectors = np.ones((14, 2))
    vectors[1:] = 0
    with pytest.raises(VectorsError, match="got norm 0 in rows 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 3 more"):
        normalise_rows(vectors)
    with pytest.raises(VectorsError, match=r"`codes` cannot be normalised.* id b;"):
        normalise_rows(vectors[:2], ids=["a", "b"], what="codes")


def test_undefined_rows_are_named_by_position_or_id():
    vectors = torch.ones(3, 2)
    check_finite(vectors)
    check_finite(np.ones((2, 2), dtype=np.int64))
    check_finite(np.full((2, 2), 3e38, dtype=np.float32))
    vectors[2, 0] = torch.inf
    with pytest.raises(VectorsError, match="`vectors` must be finite, got NaN or infinity in row 2"):
        check_finite(vectors)
    with pytest.raises(VectorsError, match=r"`test` must be finite.* in id z"):
        check_finite(vectors.half(), ids=np.array(["x", "y", "z"]), what="test")
    with pytest.raises(VectorsError, match=r"must have shape \(rows, dimensions\), got \(3, 0\)"):
        check_finite(vectors[:, :0])


@pytest.mark.parametrize("factor", [1e20, 1e-20])
@pytest.mark.parametrize(
    "work",
    [
        lambda rows: numerics.top_k(rows, rows, 1, metric="l2"),
        lambda rows: numerics.k_means(rows, 3, generator=torch.Generator()),
        lambda rows: numerics.logistic_path(rows, np.arange(60) % 2, [1.0]),
        lambda rows: numerics.ridge_path(rows, np.arange(60.0), [1.0]),
    ],
)
def test_magnitudes_whose_squares_are_no_float32_are_refused(work, factor):
    rows = np.random.default_rng(0).standard_normal((60, 4)).astype(np.float32)
    work(rows)
    with pytest.raises(VectorsError, match=r"float32 cannot hold: multiply all vectors by one factor"):
        work(rows * np.float32(factor))


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        ([[1.0, 2.0], [3.0]], "expected rows of equal length, got list"),
        ([["a", "b"]], "expected real numbers, got an array of <U1 of shape"),
        (np.array([[None, 1.0]]), "expected real numbers, got an array of object"),
        (np.ones((3, 2), dtype=complex), "expected real numbers, got an array of complex128"),
        (torch.ones(3, 2, dtype=torch.complex64), "expected real numbers, got a tensor of torch.complex64"),
    ],
)
@pytest.mark.parametrize(
    "work",
    [normalise_rows, lambda given: numerics.top_k(given, given, 1), numerics.uniformity],
    ids=["normalise_rows", "top_k", "uniformity"],
)
def test_what_is_no_matrix_of_real_numbers_is_refused_in_our_words(work, vectors, message):
    with pytest.raises(VectorsError, match=message):
        work(vectors)


@pytest.mark.parametrize("dtype", [">f4", ">f8", np.longdouble, np.float16, np.uint8, np.int32])
def test_numbers_of_every_width_and_byte_order_are_taken(dtype):
    vectors = np.array([[3, 4], [4, 3], [1, 0]]).astype(dtype)
    np.testing.assert_allclose(normalise_rows(vectors)[0], [0.6, 0.8], rtol=1e-6)
    assert numerics.top_k(vectors, vectors, 2)[1].tolist() == [[0, 1], [1, 0], [2, 1]]
