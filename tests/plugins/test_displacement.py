import numpy as np
import pytest
import torch

from evalharness import Side, Table, stats
from evalharness.errors import DataError, VectorsError
from evalharness.plugins import displacement
from evalharness.vectors import code_vectors


def side(vectors, part="items"):
    coded = code_vectors(torch.as_tensor(np.asarray(vectors), dtype=torch.float32), None, "cosine")
    ids = np.array([f"r{at}" for at in range(len(vectors))])
    return Side(parts={part: Table(vectors=coded, ids=ids, rows=np.arange(len(vectors)) + 100)})


def run(clean, shifted, seed=0):
    (outcome,) = displacement.score(None, side(shifted), clean=side(clean), generator=torch.Generator().manual_seed(seed))
    return outcome


def metrics(outcome):
    weights = np.ones((1, len(outcome.rows)))
    return {
        metric.name: float(stats.get_reducer(metric.reduce)(*(outcome.columns[name].numpy() for name in metric.columns), weights)[0])
        for metric in displacement.METRICS
    }


def circle(*degrees):
    angles = np.radians(degrees)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def chord(degrees):
    return 2 * np.sin(np.radians(degrees) / 2)


def test_a_case_by_hand():
    outcome = run(circle(0, 10, 100, 130), circle(0, 40, 125, 130))
    np.testing.assert_allclose(outcome.columns["distance"], chord(np.array([0, 30, 25, 0])), atol=1e-6)
    np.testing.assert_allclose(outcome.columns["cosine"], np.cos(np.radians([0, 30, 25, 0])), atol=1e-6)
    np.testing.assert_allclose(outcome.columns["neighbour_distance"], chord(np.array([10, 10, 30, 30])), atol=1e-6)
    assert outcome.columns["swapped"].tolist() == [False, False, False, False]
    found = metrics(outcome)
    assert found["displacement"] == pytest.approx(chord(np.array([0, 30, 25, 0])).mean(), abs=1e-6)
    assert found["relative_displacement"] == pytest.approx((chord(30) + chord(25)) / (2 * chord(10) + 2 * chord(30)), abs=1e-6)
    assert outcome.rows.tolist() == [100, 101, 102, 103]


def test_a_new_nearest_neighbour_is_a_swap():
    outcome = run(circle(0, 10, 100), circle(70, 10, 100))
    assert outcome.columns["swapped"].tolist() == [True, False, False]
    assert metrics(outcome)["neighbour_swap_rate"] == pytest.approx(1 / 3)


def test_no_shift_moves_nothing():
    vectors = np.random.default_rng(0).standard_normal((50, 8))
    found = metrics(run(vectors, 3 * vectors))
    assert found["displacement"] == pytest.approx(0, abs=1e-6)
    assert found["cosine"] == pytest.approx(1)
    assert found["neighbour_swap_rate"] == 0
    assert found["invariance_ratio"] == pytest.approx(0, abs=1e-6)


def test_replacing_items_by_strangers_gives_a_ratio_of_one():
    vectors = np.random.default_rng(0).standard_normal((400, 16))
    assert metrics(run(vectors, vectors[::-1].copy()))["invariance_ratio"] == pytest.approx(1, abs=0.05)


def test_strangers_are_others_and_cover_all_of_them():
    generator = torch.Generator().manual_seed(0)
    drawn = torch.stack([displacement.draw_strangers(5, generator) for _ in range(2000)])
    assert not (drawn == torch.arange(5)).any()
    counts = torch.bincount(drawn[:, 2], minlength=5)
    assert counts[[0, 1, 3, 4]].min() > 400


def test_order_of_rows_changes_nothing_but_strangers():
    rng = np.random.default_rng(1)
    clean = rng.standard_normal((30, 5))
    shifted = clean + 0.3 * rng.standard_normal((30, 5))
    order = rng.permutation(30)
    one, two = run(clean, shifted), run(clean[order], shifted[order])
    for name in ("cosine", "distance", "neighbour_distance", "swapped"):
        assert torch.equal(one.columns[name][order], two.columns[name]), name


def test_duplicates_have_distance_zero_and_the_ratio_of_sums_stays_defined():
    found = metrics(run(circle(0, 0, 90), circle(10, 10, 90)))
    assert found["relative_displacement"] == pytest.approx(2 * chord(10) / chord(90), abs=1e-6)
    assert np.isnan(metrics(run(circle(0, 0), circle(1, 2)))["relative_displacement"])


def test_several_parts_give_an_outcome_each():
    clean, shifted = side(circle(0, 10)), side(circle(0, 20))
    for each in (clean, shifted):
        each.parts["more"] = each.parts["items"]
    outcomes = displacement.score(None, shifted, clean=clean, generator=torch.Generator())
    assert [outcome.variant for outcome in outcomes] == [{"part": "items"}, {"part": "more"}]


def test_wrong_input_is_refused():
    with pytest.raises(DataError, match="part `items` has other clean rows"):
        run(circle(0, 10, 20), circle(0, 10))
    with pytest.raises(DataError, match="needs two rows at least"):
        run(circle(0), circle(0))
    with pytest.raises(VectorsError, match=r"`shifted vectors` .*norm 0.* r1"):
        run(circle(0, 10), np.array([[1.0, 0.0], [0.0, 0.0]]))
