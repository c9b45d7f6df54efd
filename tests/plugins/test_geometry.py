import math

import numpy as np
import pytest
import torch

from evalharness import Side, Table, stats
from evalharness.errors import DataError, UsageError, VectorsError
from evalharness.numerics import effective_rank, participation_ratio, rankme, uniformity
from evalharness.plugins import geometry
from evalharness.vectors import code_vectors


def table(vectors):
    coded = code_vectors(torch.as_tensor(np.asarray(vectors), dtype=torch.float32), None, "cosine")
    return Table(vectors=coded, ids=np.array([f"r{at}" for at in range(len(vectors))]), rows=np.arange(len(vectors)) + 7)


def run(vectors, seed=0, **params):
    (outcome,) = geometry.score(None, Side(parts={"items": table(vectors)}), generator=torch.Generator().manual_seed(seed), **params)
    return outcome


def gaussian(rows, dim, mean=0.0, seed=0):
    return torch.randn(rows, dim, generator=torch.Generator().manual_seed(seed)) + mean


@pytest.mark.parametrize("shape", [(60, 5), (20, 40)])
def test_values_equal_the_kernels(shape):
    vectors = gaussian(*shape, mean=1.0)
    scalars = run(vectors).scalars
    for name, kernel in (
        ("effective_rank", effective_rank),
        ("participation_ratio", participation_ratio),
        ("rankme", rankme),
        ("uniformity", uniformity),
    ):
        assert scalars[name] == pytest.approx(float(kernel(vectors.double())), rel=1e-6), name


def test_replicates_equal_the_kernels_on_halves():
    vectors = gaussian(31, 6, mean=1.0)
    halves = geometry.draw_halves(31, 4, torch.Generator().manual_seed(3))
    _, samples = geometry.measure(vectors, halves)
    assert halves.shape == (4, 15)
    assert all(len(set(half)) == 15 for half in halves.tolist())
    for name, kernel in (
        ("effective_rank", effective_rank),
        ("participation_ratio", participation_ratio),
        ("rankme", rankme),
        ("uniformity", uniformity),
    ):
        np.testing.assert_allclose(samples[name], [float(kernel(vectors[half].double())) for half in halves], rtol=1e-6, err_msg=name)


def test_spectrum_of_the_reference():
    sigma = torch.tensor([4.0, 2.0, 1.0, 1.0], dtype=torch.float64)
    found = geometry._ranks(sigma, sigma)
    assert float(found["effective_rank"]) == pytest.approx(3.363586, abs=1e-6)
    assert float(found["rankme"]) == pytest.approx(3.363586, abs=1e-5)
    assert float(found["participation_ratio"]) == pytest.approx(1.766423, abs=1e-6)


def test_centring_matters_for_effective_rank_and_not_for_rankme():
    scalars = run(gaussian(1000, 16, mean=5.0), rows=1000, replicates=2).scalars
    assert scalars["effective_rank"] == pytest.approx(15.98, abs=0.02)
    assert scalars["rankme"] == pytest.approx(6.3, abs=0.15)


def test_blocks_change_nothing(monkeypatch):
    vectors = gaussian(50, 4)
    whole = run(vectors)
    monkeypatch.setattr(geometry, "BLOCK_BYTES", 5000)
    np.testing.assert_allclose(run(vectors).replicates["effective_rank"], whole.replicates["effective_rank"], rtol=1e-12)


def test_encoders_share_the_rows():
    one, two = run(gaussian(100, 4), rows=30), run(gaussian(100, 9, seed=1), rows=30)
    assert len(one.rows) == 30
    np.testing.assert_array_equal(one.rows, two.rows)
    assert (np.diff(one.rows) > 0).all()


def test_rotation_changes_nothing():
    vectors = gaussian(40, 6).double()
    rotation = torch.linalg.qr(gaussian(6, 6, seed=1).double()).Q
    one, two = run(vectors), run(vectors @ rotation)
    for name, value in one.scalars.items():
        assert two.scalars[name] == pytest.approx(value, rel=1e-5)


def test_equal_vectors_are_undefined_and_flagged():
    outcome = run(torch.full((20, 4), 0.3))
    assert math.isnan(outcome.scalars["effective_rank"])
    assert math.isnan(outcome.scalars["participation_ratio"])
    assert outcome.scalars["uniformity"] == pytest.approx(0, abs=1e-6)
    assert outcome.scalars["rankme"] == pytest.approx(1, abs=1e-4)
    assert outcome.details["collapse"] == {"complete": True, "dimensional": True}


def test_healthy_and_flat_clouds_are_told_apart():
    assert run(gaussian(200, 20)).details["collapse"] == {"complete": False, "dimensional": False}
    flat = gaussian(200, 1) * torch.ones(20) + 0.001 * gaussian(200, 20, seed=1)
    assert run(flat).details["collapse"] == {"complete": False, "dimensional": True}


def test_the_interval_holds_the_value():
    outcome = run(gaussian(400, 8))
    for name, value in outcome.scalars.items():
        interval = stats.half_sample(value, outcome.replicates[name])
        assert len(outcome.replicates[name]) == 50
        assert interval.low < value < interval.high


def test_several_parts_give_an_outcome_each():
    parts = {"queries": table(gaussian(10, 3)), "corpus": table(gaussian(20, 3))}
    outcomes = geometry.score(None, Side(parts=parts), generator=torch.Generator())
    assert [(outcome.part, outcome.variant) for outcome in outcomes] == [("queries", {"part": "queries"}), ("corpus", {"part": "corpus"})]


def test_wrong_input_is_refused():
    with pytest.raises(DataError, match="needs at least 4 rows, part `items` has 3"):
        run(gaussian(3, 2))
    with pytest.raises(UsageError, match="`rows` of at least 4 and `replicates` of at least 2"):
        run(gaussian(5, 2), rows=3)
    with pytest.raises(VectorsError, match=r"finite.* r2"):
        run(torch.tensor([[1.0], [2.0], [math.nan], [3.0]]))
    with pytest.raises(VectorsError, match="norm 0"):
        run(torch.tensor([[1.0], [2.0], [0.0], [3.0]]))
