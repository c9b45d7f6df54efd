"""Ridge paths against scikit-learn and explicit leave-one-out refits."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from evalharness.errors import DataError, UsageError, VectorsError
from evalharness.numerics import ridge_path


def make(rows, dimensions, targets=2):
    generator = np.random.default_rng(0)
    features = generator.standard_normal((rows, dimensions)) + 3
    return features, features @ generator.standard_normal((dimensions, targets)) + generator.standard_normal((rows, targets))


def test_three_points_by_hand():
    path = ridge_path(np.array([[1.0], [2.0], [3.0]]), np.array([1.0, 2.0, 2.0]), [1.0])
    assert path.weights[0, 0, 0] == pytest.approx(1 / 3)
    assert path.bias[0, 0] == pytest.approx(1.0)


@pytest.mark.parametrize(("rows", "dimensions"), [(60, 7), (20, 50)])
def test_equals_scikit_learn_with_exact_leave_one_out(rows, dimensions):
    features, targets = make(rows, dimensions)
    alphas = [0.1, 3.0, 100.0]
    path = ridge_path(features, targets, alphas)
    for at, alpha in enumerate(alphas):
        model = Ridge(alpha=alpha).fit(features, targets)
        np.testing.assert_allclose(path.weights[at], model.coef_.T, atol=1e-8)
        np.testing.assert_allclose(path.bias[at], model.intercept_, atol=1e-7)
        np.testing.assert_allclose(path.predict(features)[at], model.predict(features), atol=1e-7)
        left = [
            Ridge(alpha=alpha).fit(np.delete(features, i, 0), np.delete(targets, i, 0)).predict(features[i : i + 1])[0] for i in range(rows)
        ]
        np.testing.assert_allclose(path.loo_error[at], ((np.array(left) - targets) ** 2).mean(0), rtol=1e-7)


def test_blocks_change_nothing(monkeypatch):
    features, targets = make(40, 5)
    whole = ridge_path(features, targets, [1.0, 2.0])
    monkeypatch.setattr("evalharness.numerics._ridge._BLOCK_BYTES", 500)
    np.testing.assert_allclose(ridge_path(features, targets, [1.0, 2.0]).loo_error, whole.loo_error)


def test_no_penalty_is_least_squares_and_interpolation_has_no_error():
    features, targets = make(30, 4)
    design = np.c_[features, np.ones(30)]
    path = ridge_path(features, targets, [0.0])
    np.testing.assert_allclose(np.r_[path.weights[0], path.bias], np.linalg.lstsq(design, targets, rcond=None)[0], atol=1e-8)
    assert np.isnan(ridge_path(features[:4], targets[:4], [0.0]).loo_error).all()


def test_constant_features_get_no_weight():
    path = ridge_path(np.ones((5, 2)), np.arange(5.0), [1.0])
    np.testing.assert_allclose(path.weights, 0, atol=1e-12)
    assert path.bias[0, 0] == pytest.approx(2.0)


def test_kinds_are_kept():
    features, targets = make(20, 3)
    path = ridge_path(torch.tensor(features, dtype=torch.float32), torch.tensor(targets), [1.0])
    assert path.weights.dtype == torch.float32
    assert path.loo_error.dtype == torch.float64
    assert path.weights.shape == (1, 3, 2)


def test_wrong_input_is_refused():
    features, targets = make(10, 3)
    with pytest.raises(DataError, match="`targets` must be finite, got NaN or infinity in 1 rows"):
        ridge_path(features, np.where(np.arange(10)[:, None] == 2, np.nan, targets), [1.0])
    with pytest.raises(DataError, match="needs at least 2 rows, got 1"):
        ridge_path(features[:1], targets[:1], [1.0])
    with pytest.raises(UsageError, match=r"`targets` must be \(10,\) or \(10, K\), got shape \(9, 2\)"):
        ridge_path(features, targets[1:], [1.0])
    with pytest.raises(UsageError, match=r"`alphas` must be a list of numbers, none negative, got \[-1.0\]"):
        ridge_path(features, targets, [-1.0])
    with pytest.raises(VectorsError, match="`features` must be finite"):
        ridge_path(features * np.inf, targets, [1.0])
