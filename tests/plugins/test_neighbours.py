"""Occurrences in others' lists as METRICS 2.2 counts them, purity as ten lines of numpy do, and examples drawn by seed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import skew

from evalharness import Column, Side, Table
from evalharness.errors import DataError, UsageError, VectorsError
from evalharness.plugins import neighbours
from evalharness.testing import check_evaluator, sample_tables
from evalharness.vectors import CodedVectors

CROSS = [(0, 0), (1, 0), (-1.1, 0), (0, 1.2), (0, -1.3)]


def make_table(vectors, labels=None, sources=None):
    size = len(vectors)
    target = Column(kind="class", values=np.asarray(labels if labels is not None else np.arange(size) % 2), names=("a", "b"))
    columns = {"label": target}
    if sources is not None:
        columns["site"] = Column(kind="class", values=np.asarray(sources), names=("x", "y", "z"))
    coded = CodedVectors(torch.as_tensor(np.asarray(vectors), dtype=torch.float32))
    ids = np.array([f"r{at}" for at in range(size)])
    return Table(vectors=coded, ids=ids, rows=np.arange(size) + 7, target=target, columns=columns)


def run(table, seed=0, **params):
    (outcome,) = neighbours.score(None, Side(parts={"items": table}), generator=torch.Generator().manual_seed(seed), **params)
    return outcome


def nearest(vectors, k, metric="cosine"):
    rows = np.asarray(vectors, dtype=np.float64)
    if metric == "cosine":
        rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    distance = ((rows[:, None] - rows[None]) ** 2).sum(axis=2)
    np.fill_diagonal(distance, np.inf)
    return distance.argsort(axis=1, kind="stable")[:, :k]


def test_it_passes_the_checks(registry):
    check_evaluator(registry.get("evaluator", "neighbours"))
    check_evaluator(registry.get("evaluator", "neighbours"), source="label", k=3)


def test_the_cross_of_the_reference():
    """METRICS 2.2: the centre is the neighbour of all four tips, and the nearest tip that of the centre."""
    outcome = run(make_table(CROSS), k=1, metric="l2")
    assert outcome.columns["occurrence"].tolist() == [4, 1, 0, 0, 0]
    assert outcome.columns["antihub"].mean() == 0.6
    scalars = {name: outcome.scalars[name] for name in ("hubness", "robin_hood", "largest_occurrence")}
    assert scalars == pytest.approx({"hubness": 1.290994, "robin_hood": 0.6, "largest_occurrence": 4}, abs=1e-6)


@pytest.mark.parametrize(("dim", "expected"), [(3, -0.405), (20, 2.366), (100, 7.867)])
def test_hubness_of_gaussians_of_the_reference(dim, expected):
    vectors = np.random.default_rng(0).standard_normal((1000, dim))
    outcome = run(make_table(vectors), metric="l2", replicates=2)
    assert outcome.scalars["hubness"] == pytest.approx(expected, abs=6e-4)
    assert outcome.scalars["hubness"] == pytest.approx(skew(outcome.columns["occurrence"]))
    assert outcome.columns["occurrence"].mean() == 10


@pytest.mark.parametrize("metric", ["cosine", "l2"])
def test_purity_and_source_equal_numpy(metric):
    generator = np.random.default_rng(2)
    vectors, labels, sources = generator.standard_normal((60, 5)), generator.integers(0, 2, 60), generator.integers(0, 3, 60)
    outcome = run(make_table(vectors, labels, sources), k=7, metric=metric, source="site")
    near = nearest(vectors, 7, metric)
    np.testing.assert_allclose(outcome.columns["purity"], (labels[near] == labels[:, None]).mean(axis=1))
    np.testing.assert_allclose(outcome.columns["same_source"], (sources[near] == sources[:, None]).mean(axis=1))
    assert outcome.scalars["label_purity"] == pytest.approx(outcome.columns["purity"].mean())
    assert outcome.scalars["same_source_rate"] == pytest.approx(outcome.columns["same_source"].mean())
    by_class = outcome.details["purity_of"]
    assert sum(by_class[name] * (labels == code).sum() for code, name in enumerate("ab")) == pytest.approx(outcome.columns["purity"].sum())


def test_the_purity_of_halves_is_that_of_the_items_within_them():
    generator = np.random.default_rng(6)
    vectors, labels = generator.standard_normal((120, 4)), generator.integers(0, 2, 120)
    outcome = run(make_table(vectors, labels), k=5, metric="l2", replicates=3)
    for half in (np.arange(0, 120, 2), np.arange(60)):
        within = half[nearest(vectors[half], 5)]
        expected = (labels[within] == labels[half][:, None]).mean()
        near = neighbours.nearest_within(nearest(vectors, 60), half, 5)
        assert neighbours.share_alike(labels, near, labels[half]).mean() == pytest.approx(expected)
    assert {name: len(values) for name, values in outcome.replicates.items()} == dict.fromkeys(
        ("label_purity", "robin_hood", "largest_occurrence"), 3
    )
    (large,) = [run(make_table(generator.standard_normal((400, 4))), k=5, replicates=2)]
    assert "hubness" in large.replicates


def test_halves_equal_a_search_within_them():
    vectors = np.random.default_rng(3).standard_normal((200, 6))
    half = np.sort(np.random.default_rng(4).permutation(200)[:100])
    wide = nearest(vectors, neighbours._width(5, 200))
    assert wide.shape[1] < 199
    np.testing.assert_array_equal(neighbours.nearest_within(wide, half, 5), half[nearest(vectors[half], 5)])


def test_halves_that_are_too_small_leave_no_replicates():
    assert run(make_table(CROSS), k=2, metric="l2").replicates == {}
    assert {len(values) for values in run(make_table(CROSS), k=1, metric="l2").replicates.values()} == {50}


def test_a_copy_under_another_id_is_a_neighbour_and_the_item_is_not():
    outcome = run(make_table([(1, 0), (1, 0), (0, 1)], labels=[0, 0, 1]), k=1, examples=3)
    shown = {example["id"]: example["neighbours"][0] for example in outcome.details["examples"]}
    assert shown["r0"] == {"id": "r1", "label": "a", "similarity": 1.0}
    assert shown["r1"]["id"] == "r0"


def test_examples_are_drawn_by_the_seed():
    table = make_table(np.random.default_rng(5).standard_normal((40, 4)))
    first, again, other = (run(table, seed=seed).details["examples"] for seed in (1, 1, 2))
    assert first == again != other
    assert len(first) == 8
    assert all(len(example["neighbours"]) == 5 for example in first)
    similarities = [each["similarity"] for each in first[0]["neighbours"]]
    assert similarities == sorted(similarities, reverse=True)
    assert run(table, examples=0).details["examples"] == []


def test_equal_vectors_make_hubs_of_the_first_rows_and_a_full_circle_is_undefined():
    outcome = run(make_table(np.ones((30, 3))), k=2)
    assert outcome.columns["occurrence"][:3].tolist() == [29, 29, 2]
    assert np.isfinite(outcome.scalars["hubness"])
    assert np.isnan(run(make_table(np.ones((4, 3))), k=3).scalars["hubness"])


def test_wrong_input_is_refused():
    table = make_table(CROSS, sources=[0, 1, -1, 2, 0])
    with pytest.raises(DataError, match="k = 5 exceeds the 4 other items; the largest possible k is 4"):
        run(table, k=5, metric="l2")
    with pytest.raises(
        UsageError, match="expected `k` of at least 1, `examples` of at least 0 and `replicates` of at least 2, got 0, 8 and 50"
    ):
        run(table, k=0)
    with pytest.raises(DataError, match=r"expected `source` to be a class column \(label, site\), got `place`"):
        run(table, k=1, source="place")
    with pytest.raises(DataError, match="1 of 5 items have no `site`"):
        run(table, k=1, source="site")
    with pytest.raises(VectorsError, match="norm 0"):
        run(table, k=1)
    with pytest.raises(UsageError, match="manhattan"):
        run(sample_tables()[1], metric="manhattan")
