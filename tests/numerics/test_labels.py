"""Thresholds on the scores of labels."""

import numpy as np
import pytest
import torch

from evalharness.errors import UsageError
from evalharness.numerics import best_threshold, label_columns


def f1(scores, truth, threshold):
    named = scores > threshold
    total = named.sum() + truth.sum()
    return 2 * (named & truth).sum() / total if total else 0.0


@pytest.mark.parametrize("seed", range(5))
def test_no_other_threshold_has_a_higher_micro_f1(seed):
    draw = np.random.default_rng(seed)
    truth = draw.random((30, 4)) < 0.3
    scores = np.round(draw.random((30, 4)) + 0.3 * truth, 1 + seed % 3)
    threshold = best_threshold(scores, truth)

    candidates = [*np.unique(scores), scores.min() - 1]
    assert f1(scores, truth, threshold) == pytest.approx(max(f1(scores, truth, each) for each in candidates))


@pytest.mark.parametrize(("high", "low"), [(0.1 + 0.2, 0.3), (1.0, 1 - 1.1e-16), (1e300, 0.0), (5e-324, 0.0)])
def test_neighbouring_numbers_are_told_apart(high, low):
    scores, truth = np.array([[high], [low]]), np.array([[True], [False]])
    assert f1(scores, truth, best_threshold(scores, truth)) == 1


@pytest.mark.parametrize("value", [0.0, 1.0, -1e30, 1e300])
def test_where_all_carry_a_label_all_are_named(value):
    scores, truth = np.full((3, 2), value), np.ones((3, 2), dtype=bool)
    assert f1(scores, truth, best_threshold(scores, truth)) == 1


def test_columns_count_labels():
    scores, truth = torch.tensor([[0.9, 0.2], [0.6, 0.7]]), torch.tensor([[True, False], [False, True]])
    columns = label_columns(scores, truth, 0.5)

    assert columns["agreed"].tolist() == [2, 2]
    assert columns["named"].tolist() == [2, 3]


def test_shapes_must_agree():
    with pytest.raises(UsageError, match="must have one shape"):
        best_threshold(np.zeros((2, 2)), np.zeros((2, 3), dtype=bool))
