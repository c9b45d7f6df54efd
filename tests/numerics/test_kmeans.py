"""K-means from several seeds at once, against scikit-learn and by laws."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from evalharness.errors import DataError, UsageError, VectorsError
from evalharness.numerics import k_means


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def blobs(n=600, clusters=5, spread=0.1, dim=8):
    draw = np.random.default_rng(0)
    centres = draw.normal(size=(clusters, dim))
    labels = draw.integers(0, clusters, n)
    return (centres[labels] + spread * draw.normal(size=(n, dim))).astype(np.float32), labels


def test_clear_clusters_are_found_by_the_best_seed():
    rows, truth = blobs()
    found = k_means(rows, 5, num_seeds=5, generator=seeded())
    best = found.labels[found.inertia.argmin()]

    assert {(int(a), int(b)) for a, b in zip(best, truth, strict=True)}.__len__() == 5
    assert found.converged.all()
    assert found.labels.shape == (5, 600)
    assert found.centres.shape == (5, 5, 8)


def test_inertia_equals_that_of_scikit_learn():
    from sklearn.cluster import KMeans

    rows = np.random.default_rng(1).normal(size=(1500, 16)).astype(np.float32)
    ours = k_means(rows, 12, num_seeds=8, generator=seeded())
    theirs = [KMeans(12, n_init=1, random_state=seed).fit(rows).inertia_ for seed in range(8)]

    assert ours.inertia.mean() == pytest.approx(np.mean(theirs), rel=0.01)
    assert ours.inertia.min() == pytest.approx(min(theirs), rel=0.01)


def test_labels_are_of_the_nearest_centre_and_inertia_is_their_distance():
    rows = torch.randn(300, 6, generator=seeded(3))
    found = k_means(rows, 7, num_seeds=3, generator=seeded())
    for seed in range(3):
        distances = torch.cdist(rows.double(), found.centres[seed].double()).square()
        assert (distances.argmin(dim=1) == found.labels[seed]).all()
        assert float(found.inertia[seed]) == pytest.approx(float(distances.amin(dim=1).sum()), rel=1e-5)


def test_without_a_cache_the_result_is_the_same(monkeypatch):
    from evalharness.numerics import _kmeans

    rows = torch.randn(400, 5, generator=seeded(2))
    kept = k_means(rows, 6, num_seeds=4, generator=seeded())
    monkeypatch.setattr(_kmeans, "_CACHE_BYTES", 0)
    made = k_means(rows, 6, num_seeds=4, generator=seeded())

    assert (kept.labels == made.labels).all()
    assert (kept.iterations == made.iterations).all()


def test_as_many_clusters_as_rows_and_rows_that_are_all_equal():
    rows = np.arange(6, dtype=np.float32)[:, None]
    apart, equal = k_means(rows, 6, generator=seeded()), k_means(np.ones((6, 2)), 3, num_seeds=2, generator=seeded())

    assert apart.inertia.max() == pytest.approx(0, abs=1e-10)
    assert equal.inertia.max() == 0
    assert equal.converged.all()


def test_an_empty_cluster_takes_the_farthest_row():
    from evalharness.numerics._kmeans import _Lloyd

    rows = torch.tensor([[0.0], [0.2], [0.4], [9.0]])
    run = _Lloyd(rows, torch.tensor([[[0.0], [100.0]]]))
    run.iterate(0.0, 20)
    labels, inertia = run.finish()

    assert labels[0].tolist() in ([0, 0, 0, 1], [1, 1, 1, 0])
    assert float(inertia[0]) == pytest.approx(0.08)


def test_equal_generators_give_equal_clusters():
    rows = torch.randn(200, 4, generator=seeded(1))

    assert (k_means(rows, 4, generator=seeded(5)).labels == k_means(rows, 4, generator=seeded(5)).labels).all()


@pytest.mark.parametrize(
    ("rows", "arguments", "error", "message"),
    [
        (np.ones((3, 2)), {"num_clusters": 4}, DataError, "4 clusters need as many rows, got 3"),
        (np.ones((3, 2)), {"num_clusters": 0}, UsageError, "must be positive, got 0"),
        (np.full((3, 2), np.nan), {"num_clusters": 2}, VectorsError, "`features` must be finite, got NaN"),
        (np.ones(3), {"num_clusters": 2}, VectorsError, "must have shape"),
    ],
)
def test_bad_input_is_named(rows, arguments, error, message):
    with pytest.raises(error, match=message):
        k_means(rows, generator=seeded(), **arguments)
