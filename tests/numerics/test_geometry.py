"""Geometry against METRICS.md and short numpy."""

import numpy as np
import pytest
import torch

from evalharness import numerics
from evalharness.errors import DataError, UsageError, VectorsError

SQUARE = np.array([[1.0, 0], [0, 1], [-1, 0], [0, -1]])
SPECTRUM = np.diag([4.0, 2, 1, 1])


def on_circle(*degrees):
    angles = np.deg2rad(degrees)
    return np.stack([np.cos(angles), np.sin(angles)], 1)


def with_variances(*variances):
    rows = np.concatenate([np.eye(len(variances)), -np.eye(len(variances))])
    return rows * np.sqrt(variances)


@pytest.mark.parametrize(
    ("vectors", "expected"),
    [
        (SQUARE, -4.396349),
        (np.eye(5), -4),
        (np.ones((4, 3)), 0),
        (np.array([[2.0, 0], [-3, 0]]), -8),
        (on_circle(0, 120, 240), -6),
        (on_circle(0, 10, 180, 190), -1.158646),
        (on_circle(0, 10), -0.060769),
    ],
)
def test_uniformity_reference_values(vectors, expected):
    assert numerics.uniformity(vectors) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("dimensions", "expected"), [(2, -1.575027), (3, -2.079777), (8, -3.082527), (64, -3.875236)])
def test_uniformity_of_the_sphere(dimensions, expected):
    vectors = np.random.default_rng(0).standard_normal((3000, dimensions))
    assert numerics.uniformity(vectors) == pytest.approx(expected, abs=0.01)


def test_uniformity_by_pairs_in_blocks_and_at_great_sharpness():
    vectors = np.random.default_rng(0).standard_normal((70, 6))
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    squared = ((unit[:, None] - unit[None]) ** 2).sum(-1)[np.triu_indices(70, 1)]
    for t in (0.5, 2.0, 5000.0):
        expected = np.logaddexp.reduce(-t * squared) - np.log(len(squared))
        assert numerics.uniformity(vectors, t) == pytest.approx(expected)
        assert numerics.uniformity(vectors, t, block_bytes=1) == pytest.approx(expected)


def test_uniformity_of_subsets_equals_their_own():
    generator = np.random.default_rng(0)
    vectors, weights = generator.standard_normal((50, 6)), generator.random((4, 50)) < 0.5
    expected = [numerics.uniformity(vectors[row]) for row in weights]
    np.testing.assert_allclose(numerics.uniformity(vectors, weights=weights, block_bytes=2000), expected)
    assert np.isnan(numerics.uniformity(vectors, weights=np.eye(50)[:1])).all()


def test_alignment_reference_values():
    first, second = np.eye(2), np.array([[0.6, 0.8], [0.6, 0.8]])
    assert numerics.alignment(first, second) == pytest.approx(0.6)
    assert numerics.alignment(3 * first, 2 * second, alpha=1) == pytest.approx(0.763441, abs=1e-6)


def test_spectrum_reference_values():
    assert numerics.effective_rank(SPECTRUM, centre=False) == pytest.approx(3.363586, abs=1e-6)
    assert numerics.rankme(SPECTRUM) == pytest.approx(3.363586, abs=2e-6)
    assert numerics.participation_ratio(SPECTRUM, centre=False) == pytest.approx(1.766423, abs=1e-6)
    assert numerics.stable_rank(SPECTRUM, centre=False) == pytest.approx(1.375)


def test_centring_matters():
    vectors = np.random.default_rng(0).standard_normal((4000, 16)) + 5
    assert numerics.effective_rank(vectors, centre=False) == pytest.approx(6.31, abs=0.15)
    assert numerics.effective_rank(vectors) == pytest.approx(15.98, abs=0.02)


@pytest.mark.parametrize(("n", "expected"), [(64, 59.3), (128, 103.0), (1280, 126.3)])
def test_effective_rank_depends_on_n(n, expected):
    vectors = np.random.default_rng(0).standard_normal((n, 128))
    assert numerics.effective_rank(vectors, centre=False) == pytest.approx(expected, abs=0.8)


@pytest.mark.parametrize(
    ("variances", "expected"), [((1, 1, 1, 1), 1), ((4, 2, 1, 1), 0.636364), ((1, 1, 0, 0), 0.333333), ((1, 0, 0, 0), 0)]
)
def test_isoscore_reference_values(variances, expected):
    assert numerics.isoscore(with_variances(*variances)) == pytest.approx(expected, abs=1e-6)


def test_gram_matrix_gives_the_same_spectrum(monkeypatch):
    generator = np.random.default_rng(0)
    for shape in ((60, 20), (20, 60)):
        vectors = generator.standard_normal(shape)
        direct = numerics.singular_values(vectors)
        monkeypatch.setattr("evalharness.numerics._geometry._DIRECT_ENTRIES", 0)
        np.testing.assert_allclose(numerics.singular_values(vectors), direct, atol=1e-6)
        monkeypatch.undo()


def test_leading_axes_are_separate_clouds():
    vectors = torch.randn(3, 30, 5, generator=torch.Generator().manual_seed(0))
    for measure in (numerics.effective_rank, numerics.rankme, numerics.participation_ratio, numerics.stable_rank, numerics.isoscore):
        together = measure(vectors)
        assert together.dtype == torch.float64
        torch.testing.assert_close(together, torch.stack([measure(cloud) for cloud in vectors]))


def test_rotation_and_scale_change_nothing():
    generator = np.random.default_rng(0)
    vectors = generator.standard_normal((80, 6)) * np.arange(1, 7)
    turned = 7 * vectors @ np.linalg.qr(generator.standard_normal((6, 6)))[0]
    for measure in (numerics.effective_rank, numerics.rankme, numerics.participation_ratio, numerics.isoscore, numerics.uniformity):
        assert measure(turned) == pytest.approx(measure(vectors))


def test_what_is_undefined_is_refused():
    with pytest.raises(DataError, match="uniformity needs at least 2 rows, got 1"):
        numerics.uniformity(np.ones((1, 3)))
    with pytest.raises(DataError, match="a spectrum needs at least 2 rows, got 1"):
        numerics.rankme(np.ones((1, 3)))
    with pytest.raises(DataError, match="all rows of `vectors` are equal"):
        numerics.effective_rank(np.full((7, 3), 0.1))
    with pytest.raises(DataError, match="IsoScore needs at least 2 dimensions, got 1"):
        numerics.isoscore(np.ones((7, 1)))
    with pytest.raises(DataError, match="at least one pair"):
        numerics.alignment(np.ones((0, 2)), np.ones((0, 2)))
    with pytest.raises(VectorsError, match=r"pairs of rows, got shapes \(2, 2\) and \(3, 2\)"):
        numerics.alignment(np.eye(2), np.ones((3, 2)))
    with pytest.raises(VectorsError, match="must be finite"):
        numerics.stable_rank(np.full((3, 2), np.nan))
    with pytest.raises(VectorsError, match=r"must have shape \(..., rows, dimensions\), got \(3,\)"):
        numerics.singular_values(np.ones(3))
    with pytest.raises(VectorsError, match="norm 0 in row 1"):
        numerics.uniformity(np.array([[1.0, 0], [0, 0]]))
    with pytest.raises(UsageError, match="`t` must be positive, got 0"):
        numerics.uniformity(SQUARE, 0)
    with pytest.raises(UsageError, match="`weights` must be 0 or 1"):
        numerics.uniformity(SQUARE, weights=np.full((1, 4), 2))
    with pytest.raises(UsageError, match=r"`weights` must be \(subsets, 4\), got shape \(4,\)"):
        numerics.uniformity(SQUARE, weights=np.ones(4))
