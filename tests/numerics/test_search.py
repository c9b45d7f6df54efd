"""Exact search against a plain sort in float64."""

import numpy as np
import pytest
import torch

from evalharness.errors import DataError, UsageError, VectorsError
from evalharness.numerics import top_k

METRICS = ("cosine", "dot", "l2")


def reference(queries, gallery, k, metric, exclude=None):
    """Sort all values, rounded to float32, by value and then by position."""
    q, g = queries.astype(np.float64), gallery.astype(np.float64)
    if metric == "l2":
        values = -np.sqrt(((q[:, None] - g[None]) ** 2).sum(-1))
    else:
        values = (q[:, None] * g[None]).sum(-1)
        if metric == "cosine":
            values = values / np.linalg.norm(q, axis=1)[:, None] / np.linalg.norm(g, axis=1)
    values = values.astype(np.float32)
    if exclude is not None:
        query, slot = np.nonzero(exclude >= 0)
        values[query, exclude[query, slot]] = -np.inf
    order = np.argsort(-values, axis=1, kind="stable")[:, :k]
    found = np.take_along_axis(values, order, 1)
    return (-found if metric == "l2" else found), order


def make(kind, generator, queries=25, gallery=1300, dimensions=12):
    q = generator.standard_normal((queries, dimensions)).astype(np.float32)
    g = generator.standard_normal((gallery, dimensions)).astype(np.float32)
    if kind == "integers":
        q, g = np.round(q).astype(np.float32), np.round(g).astype(np.float32)
        q[:, 0], g[:, 0] = 1, 1
    if kind == "duplicates":
        g = g[generator.integers(0, 40, gallery)]
    if kind == "scaled":
        g = (g[:1] * generator.integers(1, 9, (gallery, 1))).astype(np.float32)
    if kind == "crowded":
        g = (g[:1] + 1e-6 * g).astype(np.float32)
    if kind == "distant":
        q, g = q + 1000, g + 1000
    return q, g


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("kind", ["plain", "integers", "duplicates", "scaled", "crowded", "distant"])
def test_equals_a_full_sort_with_ties_by_position(kind, metric):
    generator = np.random.default_rng(0)
    queries, gallery = make(kind, generator)
    for k in (1, 9, 200):
        exclude = generator.integers(-1, len(gallery), (len(queries), 4))
        values, found = top_k(queries, gallery, k, metric=metric, exclude=exclude)
        expected, order = reference(queries, gallery, k, metric, exclude)
        np.testing.assert_array_equal(found, order)
        np.testing.assert_allclose(values, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("kind", ["plain", "duplicates"])
def test_blocks_batches_and_kinds_change_nothing(kind, metric):
    queries, gallery = make(kind, np.random.default_rng(1), gallery=700)
    values, found = top_k(queries, gallery, 20, metric=metric)
    for block_bytes in (1, 2**12, 2**15):
        again = top_k(torch.from_numpy(queries), torch.from_numpy(gallery), 20, metric=metric, block_bytes=block_bytes)
        assert isinstance(again[0], torch.Tensor)
        np.testing.assert_array_equal(again[0].numpy(), values)
        np.testing.assert_array_equal(again[1].numpy(), found)
    one = top_k(queries[3:4], gallery, 20, metric=metric)
    np.testing.assert_array_equal(one[1][0], found[3])
    np.testing.assert_array_equal(one[0][0], values[3])


def test_wide_blocks_fold_columns_and_stay_exact():
    generator = np.random.default_rng(0)
    queries, gallery = make("plain", generator, queries=6, gallery=40_003, dimensions=4)
    gallery[20_000:20_100] = gallery[:100]
    values, found = top_k(queries, gallery, 15, metric="dot")
    expected, order = reference(queries, gallery, 15, "dot")
    np.testing.assert_array_equal(found, order)
    np.testing.assert_array_equal(values, expected)


def test_equals_faiss():
    import faiss

    queries, gallery = make("plain", np.random.default_rng(2), queries=50, gallery=3000, dimensions=64)
    index = faiss.IndexFlatIP(64)
    index.add(gallery)
    values, found = index.search(queries, 10)
    got = top_k(queries, gallery, 10, metric="dot")
    np.testing.assert_array_equal(got[1], found)
    np.testing.assert_allclose(got[0], values, rtol=1e-5)


def test_all_rows_equal_follow_position():
    gallery = np.tile(np.float32([0.3, -0.7, 0.1]), (5000, 1))
    for metric in METRICS:
        _, found = top_k(gallery[:3], gallery, 4, metric=metric, exclude=np.array([[1], [-1], [0]]))
        assert found.tolist() == [[0, 2, 3, 4], [0, 1, 2, 3], [1, 2, 3, 4]]


def test_distances_are_accurate_far_from_the_origin():
    gallery = np.array([[1e4, 1e4], [1e4 + 0.5, 1e4], [1e4 + 3, 1e4 + 4]], dtype=np.float32)
    values, found = top_k(gallery[:1], gallery, 3, metric="l2")
    assert values.tolist() == [[0.0, 0.5, 5.0]]
    assert found.tolist() == [[0, 1, 2]]


def test_all_rows_may_be_asked_for():
    queries, gallery = make("duplicates", np.random.default_rng(0), queries=3, gallery=90)
    for metric in METRICS:
        _, found = top_k(queries, gallery, 90, metric=metric)
        np.testing.assert_array_equal(found, reference(queries, gallery, 90, metric)[1])
    exclude = np.array([[4, 4, -1], [-1, -1, -1], [7, 8, 7]])
    _, found = top_k(queries, gallery, 88, exclude=exclude)
    np.testing.assert_array_equal(found, reference(queries, gallery, 88, "cosine", exclude)[1])


def test_half_precision_is_raised():
    queries, gallery = make("plain", np.random.default_rng(0))
    half = gallery.astype(np.float16)
    expected = reference(queries, half.astype(np.float32), 5, "cosine")
    got = top_k(queries, half, 5)
    np.testing.assert_array_equal(got[1], expected[1])
    assert got[0].dtype == np.float32
    large = torch.full((2, 300), 200.0, dtype=torch.float16)
    assert top_k(large, large, 1, metric="dot")[0].tolist() == [[12_000_000.0]] * 2
    brain = torch.from_numpy(gallery).to(torch.bfloat16)
    assert top_k(brain[:4], brain, 1)[1].flatten().tolist() == [0, 1, 2, 3]


def test_gallery_may_be_a_read_only_memory_map(tmp_path):
    queries, gallery = make("plain", np.random.default_rng(0))
    np.save(tmp_path / "gallery.npy", gallery)
    mapped = np.load(tmp_path / "gallery.npy", mmap_mode="r")
    for asked in (queries, torch.from_numpy(queries)):
        values, found = top_k(asked, mapped, 7, block_bytes=2**14)
        assert type(values) is type(asked)
        np.testing.assert_array_equal(np.asarray(found), reference(queries, gallery, 7, "cosine")[1])


def test_lower_product_precision_changes_nothing():
    queries, gallery = make("plain", np.random.default_rng(0))
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        found = top_k(queries, gallery, 30)[1]
    finally:
        torch.set_float32_matmul_precision(before)
    np.testing.assert_array_equal(found, reference(queries, gallery, 30, "cosine")[1])


def test_no_queries_find_nothing():
    values, found = top_k(np.zeros((0, 4), np.float32), np.ones((5, 4), np.float32), 2)
    assert values.shape == found.shape == (0, 2)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_rows_that_are_not_finite_are_named(bad):
    clean = np.ones((30, 3), np.float32)
    broken = clean.copy()
    broken[[4, 17], 1] = bad
    with pytest.raises(VectorsError, match=r"`gallery` must be finite, got NaN or infinity in rows 4, 17$"):
        top_k(clean, broken, 2)
    with pytest.raises(VectorsError, match=r"`gallery` must be finite, got NaN or infinity in row 4$"):
        top_k(clean, broken, 2, metric="l2", block_bytes=30 * 4 * 10)
    with pytest.raises(VectorsError, match=r"`queries` must be finite.* in rows 4, 17$"):
        top_k(broken, clean, 2, metric="dot")


def test_zero_rows_have_no_direction():
    zero = np.eye(3, dtype=np.float32)
    zero[1] = 0
    with pytest.raises(VectorsError, match="`gallery` cannot be normalised, got norm 0 in row 1; drop them or use the metric"):
        top_k(np.eye(3, dtype=np.float32), zero, 1)
    with pytest.raises(VectorsError, match=r"`queries` cannot be normalised.* in row 1"):
        top_k(zero, np.eye(3, dtype=np.float32), 1)
    assert top_k(zero, zero, 1, metric="l2")[1].flatten().tolist() == [0, 1, 2]


def test_impossible_requests_are_refused():
    square = np.eye(4, dtype=np.float32)
    with pytest.raises(DataError, match=r"`k` = 4 is more than .* the largest possible k is 2 of 4 rows"):
        top_k(square, square, 4, exclude=np.array([[0, 0], [1, 2], [-1, 3], [-1, -1]]))
    with pytest.raises(UsageError, match="unknown metric `cosin`; did you mean `cosine`"):
        top_k(square, square, 1, metric="cosin")
    with pytest.raises(UsageError, match="`k` must be a whole number of at least 1, got 0"):
        top_k(square, square, 0)
    with pytest.raises(UsageError, match=r"`exclude` must be \(4, X\) integers, got shape \(4,\)"):
        top_k(square, square, 1, exclude=np.arange(4))
    with pytest.raises(UsageError, match=r"`exclude` must hold positions in \[0, 4\) or -1, got 0 to 4"):
        top_k(square, square, 1, exclude=np.array([[0], [1], [2], [4]]))
    with pytest.raises(VectorsError, match=r"`gallery` must have shape \(rows, 4\) like `queries`, got \(4, 3\)"):
        top_k(square, square[:, :3], 1)
    with pytest.raises(VectorsError, match=r"`queries` must have shape \(rows, dimensions\), got \(4,\)"):
        top_k(square[0], square, 1)


@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
def test_the_number_of_threads_changes_nothing(metric):
    generator = torch.Generator().manual_seed(3)
    gallery = torch.randn(3000, 24, generator=generator)
    gallery[1500:1700] = gallery[:200]  # equal rows, whose order is by position
    queries, barred = gallery[:300] * 1.0, torch.arange(300)[:, None]
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(top_k(queries, gallery, 40, metric=metric, exclude=barred, block_bytes=2**19))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    for values, positions in found[1:]:
        assert torch.equal(values, found[0][0])
        assert torch.equal(positions, found[0][1])


def test_a_k_that_is_no_whole_number_and_ids_of_another_length_are_refused():
    rows = np.eye(4, 3)[:3]
    for k in (1.0, True, "1"):
        with pytest.raises(UsageError, match="`k` must be a whole number of at least 1"):
            top_k(rows, rows, k)
    with pytest.raises(UsageError, match="`gallery_ids` must name 3 rows, got 2"):
        top_k(rows, rows, 1, gallery_ids=["a", "b"])
    assert top_k(rows, rows, np.int64(1))[1].tolist() == [[0], [1], [2]]
