"""Clusters are measured against classes as scikit-learn does, and the interval allows for clustering afresh."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn import metrics as sk

from evalharness import Column, Side, stats
from evalharness.errors import DataError, UsageError, VectorsError
from evalharness.plugins import clustering
from evalharness.testing import check_evaluator, sample_tables
from evalharness.vectors import CodedVectors

PEERS = {
    "v_measure": sk.v_measure_score,
    "homogeneity": sk.homogeneity_score,
    "completeness": sk.completeness_score,
    "adjusted_rand": sk.adjusted_rand_score,
    "adjusted_mutual_info": sk.adjusted_mutual_info_score,
}


@pytest.fixture
def table():
    return sample_tables()[1]


def run(table, seed=0, **params):
    (outcome,) = clustering.score(None, Side(parts={"items": table}), generator=torch.Generator().manual_seed(seed), **params)
    return outcome


def with_vectors(table, vectors):
    table.vectors = CodedVectors(torch.as_tensor(vectors, dtype=torch.float32))
    return table


def test_it_passes_the_checks(registry):
    check_evaluator(registry.get("evaluator", "clustering"))


@pytest.mark.parametrize("params", [{}, {"metric": "l2"}, {"clusters": 7}])
def test_values_equal_scikit_learn(table, params):
    outcome = run(table, **params)
    assert set(outcome.scalars) == set(PEERS)
    for name, peer in PEERS.items():
        assert outcome.scalars[name] == pytest.approx(peer(outcome.columns["truth"], outcome.columns["assigned"]), abs=1e-12), name


def test_separate_classes_are_found(table):
    corners = torch.eye(4)[torch.from_numpy(table.target.values)] + 0.01 * table.vectors.dense()[:, :4]
    outcome = run(with_vectors(table, corners))
    assert outcome.scalars == pytest.approx(dict.fromkeys(PEERS, 1.0))
    assert outcome.details["clusters"] == outcome.details["classes"] == 4


def test_clusters_are_named_by_the_row_of_their_first_item(table):
    outcome = run(table)
    for name in np.unique(outcome.columns["assigned"]):
        assert outcome.rows[np.flatnonzero(outcome.columns["assigned"] == name)[0]] == name


def test_cosine_ignores_length_and_l2_does_not(table):
    plain = run(table).columns["assigned"]
    lengths = torch.linspace(0.1, 10, len(table))[:, None]
    scaled = with_vectors(table, table.vectors.dense() * lengths)
    assert (run(scaled).columns["assigned"] == plain).all()
    assert (run(scaled, metric="l2").columns["assigned"] != plain).any()


def test_the_spread_over_seeds_is_kept(table):
    spread = run(table, seeds=4).details["over_seeds"]
    assert set(spread) == set(PEERS)
    assert spread["v_measure"]["sd"] >= 0
    assert np.isnan(run(table, seeds=1).details["over_seeds"]["v_measure"]["sd"])


def test_halves_are_the_same_for_all_encoders_and_hold_the_value(table):
    outcome = run(table, replicates=12)
    assert all(len(values) == 12 for values in outcome.replicates.values())
    interval = stats.half_sample(outcome.scalars["v_measure"], outcome.replicates["v_measure"], low=0, high=1)
    assert interval.low < outcome.scalars["v_measure"] < interval.high
    one, two = (clustering._draw_halves(9, 3, torch.Generator().manual_seed(5)) for _ in range(2))
    np.testing.assert_array_equal(one, two)
    assert one.shape == (3, 4)


@pytest.mark.parametrize("metric", ["cosine", "l2"])
def test_equal_vectors_say_nothing_of_the_classes(table, metric):
    outcome = run(with_vectors(table, torch.full((len(table), 3), 0.3)), metric=metric)
    assert outcome.scalars["v_measure"] < 0.05
    assert outcome.scalars["adjusted_rand"] == pytest.approx(0, abs=0.02)


def test_wrong_input_is_refused(table):
    with pytest.raises(UsageError, match="expected `metric` to be `cosine` or `l2`, got `dot`"):
        run(table, metric="dot")
    with pytest.raises(UsageError, match="`seeds` of at least 1 and `replicates` of at least 2, got 0 and 20"):
        run(table, seeds=0)
    with pytest.raises(UsageError, match="expected `clusters` of at least 2, or null for the number of classes, got 1"):
        run(table, clusters=1)
    with pytest.raises(DataError, match="300 clusters need as many rows, got 240"):
        run(table, clusters=300)
    with pytest.raises(VectorsError, match="norm 0"):
        run(with_vectors(table, torch.zeros(len(table), 3)))
    with pytest.raises(VectorsError, match="finite"):
        run(with_vectors(table, torch.full((len(table), 3), float("nan"))), metric="l2")
    table.target = Column(kind="class", values=np.zeros(len(table), dtype=np.int64), names=("a",))
    with pytest.raises(DataError, match="needs items of at least two classes, got 1"):
        run(table)
