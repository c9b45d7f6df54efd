import numpy as np
import pytest
import torch
from scipy import stats as scipy_stats

from evalharness import Links, Side, Table, stats
from evalharness.errors import DataError, VectorsError
from evalharness.plugins import int8, similarity
from evalharness.vectors import code_vectors


def table(vectors, codec=None):
    coded = code_vectors(torch.as_tensor(np.asarray(vectors), dtype=torch.float32), codec, "cosine")
    return Table(vectors=coded, ids=np.array([f"r{at}" for at in range(len(vectors))]), rows=np.arange(len(vectors)))


def side(left, right, gold, rows=None, codec=None):
    rows = np.repeat(np.arange(len(gold))[:, None], 2, axis=1) if rows is None else np.asarray(rows)
    links = Links(source="left", target="right", rows=rows, grades=np.asarray(gold, dtype=np.float64), ids=np.arange(len(gold)).astype(str))
    return Side(parts={"left": table(left, codec), "right": table(right, codec)}, links={"pairs": links})


def run(test):
    (outcome,) = similarity.score(None, test, generator=torch.Generator())
    return outcome


def value(name, outcome):
    return float(stats.get_reducer(name)(outcome.columns["cosine"].numpy(), outcome.columns["gold"], np.ones((1, len(outcome.rows))))[0])


def at_cosines(cosines):
    left = np.tile([1.0, 0.0], (len(cosines), 1))
    return left, np.stack([cosines, np.sqrt(1 - np.square(cosines))], axis=1)


def test_reference_values():
    left, right = at_cosines(np.array([0.1, 0.3, 0.2, 0.6, 0.6, 0.9]))
    outcome = run(side(left, right, range(6)))
    assert value("spearman", outcome) == pytest.approx(0.927634, abs=1e-6)
    assert value("pearson", outcome) == pytest.approx(0.939120, abs=1e-6)


def test_equals_scipy_on_random_pairs():
    rng = np.random.default_rng(0)
    left, right, gold = rng.standard_normal((50, 8)), rng.standard_normal((50, 8)), rng.integers(0, 6, 50)
    outcome = run(side(left, right, gold))
    cosine = (left * right).sum(1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)
    np.testing.assert_allclose(outcome.columns["cosine"], cosine, atol=1e-6)
    assert value("spearman", outcome) == pytest.approx(scipy_stats.spearmanr(cosine, gold).statistic, abs=1e-9)


def test_links_say_which_rows_are_pairs():
    left, right = at_cosines(np.array([0.9, 0.1, 0.5]))
    outcome = run(side(left, right, [1, 2, 3], rows=[[0, 2], [1, 0], [2, 1]]))
    np.testing.assert_allclose(outcome.columns["cosine"], [0.5, 0.9, 0.1], atol=1e-6)
    assert outcome.part == "pairs"
    assert outcome.item == "pair"


def test_pairs_without_score_are_left_out_and_counted():
    left, right = at_cosines(np.array([0.9, 0.1, 0.5]))
    outcome = run(side(left, right, [1, np.nan, 3]))
    assert outcome.rows.tolist() == [0, 2]
    assert outcome.details == {"pairs_without_score": 1}


def test_constant_gold_is_undefined():
    left, right = at_cosines(np.array([0.9, 0.1, 0.5]))
    assert np.isnan(value("spearman", run(side(left, right, [2, 2, 2]))))


def test_equal_pairs_tie_and_blocks_change_nothing(monkeypatch):
    rng = np.random.default_rng(1)
    left, right = np.tile(rng.standard_normal((1, 33)), (40, 1)), np.tile(rng.standard_normal((1, 33)), (40, 1))
    test = side(left, right, range(40))
    whole = run(test).columns["cosine"]
    assert len(torch.unique(whole)) == 1
    monkeypatch.setattr(similarity, "BLOCK_BYTES", 16 * 33 * 7)
    assert torch.equal(run(test).columns["cosine"], whole)


def test_coded_sides_are_decoded():
    rng = np.random.default_rng(2)
    left, right = rng.standard_normal((20, 8)), rng.standard_normal((20, 8))
    codec = int8.fit(torch.as_tensor(left, dtype=torch.float32))
    plain, coded = run(side(left, right, range(20))), run(side(left, right, range(20), codec=codec))
    assert 0 < (plain.columns["cosine"] - coded.columns["cosine"]).abs().max() < 0.3


def test_wrong_input_is_refused():
    with pytest.raises(DataError, match="needs one set of linked pairs, got none"):
        run(Side(parts={"items": table(np.eye(2))}))
    with pytest.raises(DataError, match="none of the 2 pairs of `pairs` has a gold score"):
        run(side(np.eye(2), np.eye(2), [np.nan, np.nan]))
    with pytest.raises(VectorsError, match="norm 0"):
        run(side(np.zeros((2, 2)), np.eye(2), [1, 2]))
