"""The penalty path against scikit-learn and against cases worked by hand."""

import warnings

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.linear_model import LogisticRegression

from evalharness.errors import DataError, UsageError, VectorsError
from evalharness.numerics import logistic_path, one_vs_rest_path


def make(rows, dimensions, classes, seed=0, condition=1.0):
    generator = np.random.default_rng(seed)
    labels = np.r_[np.arange(classes), generator.integers(0, classes, rows - classes)]
    features = (
        generator.standard_normal((rows, dimensions)) + generator.standard_normal((classes, dimensions))[labels] * 2 / dimensions**0.25
    )
    features *= np.logspace(0, -np.log10(condition), dimensions)
    turned = features @ np.linalg.qr(generator.standard_normal((dimensions, dimensions)))[0]
    return (turned - turned.mean(0)) / turned.std(0), labels


def objective(weights, bias, features, labels, inverse_penalty, sample_weight=None):
    logits = features.astype(np.float64) @ weights.astype(np.float64) + bias.astype(np.float64)
    logits -= logits.max(1, keepdims=True)
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(labels)), labels]
    columns = weights.astype(np.float64)
    columns = columns if columns.shape[1] > 2 else columns[:, 1:] - columns[:, :1]
    return inverse_penalty * (losses * (1 if sample_weight is None else sample_weight)).sum() + 0.5 * (columns**2).sum()


def reference(features, labels, inverse_penalty, sample_weight=None):
    """Fit scikit-learn tightly; its binary form has one column, given here as two."""
    two = labels.max() == 1
    model = LogisticRegression(C=inverse_penalty, tol=1e-8, max_iter=20000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(features, labels, sample_weight=sample_weight)
    if two:
        return np.concatenate([-model.coef_ / 2, model.coef_ / 2]).T, np.r_[-model.intercept_ / 2, model.intercept_ / 2]
    return model.coef_.T, model.intercept_


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("rows", "dimensions", "classes", "condition"), [(600, 40, 8, 1), (500, 30, 2, 30), (120, 200, 4, 10), (800, 60, 20, 100)]
)
def test_objective_is_no_higher_than_scikit_learn(rows, dimensions, classes, condition, kind):
    features, labels = make(rows, dimensions, classes, condition=condition)
    grid = np.array([1e-6, 1e-3, 1e-1, 1e4 / rows])
    path = logistic_path(features.astype(kind), labels, grid)
    assert path.converged.all()
    assert path.weights.shape == (4, dimensions, classes)
    assert path.weights.dtype == kind
    for at, inverse_penalty in enumerate(grid):
        best = objective(*reference(features, labels, inverse_penalty), features, labels, inverse_penalty)
        got = objective(path.weights[at], path.bias[at], features, labels, inverse_penalty)
        assert got <= best * (1 + 1e-6)
        assert path.objective[at] == pytest.approx(got, rel=1e-5)


def test_binary_slope_by_hand():
    # METRICS 1.1: w = 2C / (1 + e^w) at C = 1 and 10.
    path = logistic_path(np.array([[-1.0], [1.0]]), np.array([0, 1]), [1.0, 10.0], tolerance=1e-9)
    np.testing.assert_allclose(path.weights[:, 0, 1] - path.weights[:, 0, 0], [0.674832, 2.128035], atol=2e-4)
    np.testing.assert_allclose(path.bias, 0, atol=1e-8)


def test_three_one_hot_points_by_hand():
    # By symmetry the bias is 0, as without one.
    path = logistic_path(np.eye(3), np.arange(3), [1.0], tolerance=1e-9)
    expected = np.full((3, 3), -0.244832) + np.eye(3) * (0.489664 + 0.244832)
    np.testing.assert_allclose(path.weights[0], expected, atol=1e-4)
    logits = path.logits(np.eye(3))[0]
    assert np.exp(logits[0, 0]) / np.exp(logits[0]).sum() == pytest.approx(0.510336, abs=1e-4)


def test_gradient_is_that_of_the_mean_loss():
    features, labels = make(200, 10, 3)
    features = features + 5
    path = logistic_path(features, labels, [0.01, 1.0], max_iterations=2)
    weights, bias = (torch.tensor(part, requires_grad=True) for part in (path.weights, path.bias))
    strengths = torch.tensor([0.01, 1.0]) * 200
    logits = torch.tensor(features) @ weights + bias[:, None]
    loss = torch.nn.functional.cross_entropy(logits.permute(1, 2, 0), torch.tensor(labels)[:, None].expand(-1, 2), reduction="none").mean(0)
    (loss + weights.square().sum((1, 2)) / 2 / strengths).sum().backward()
    expected = torch.maximum(weights.grad.abs().amax((1, 2)), bias.grad.abs().amax(1))
    np.testing.assert_allclose(path.gradient, expected, rtol=1e-6)
    probabilities = np.full((200, 3), 1 / 3) - np.eye(3)[labels]
    at_zero = max(np.abs(features.T @ probabilities).max(), np.abs(probabilities.sum(0)).max()) / 200
    assert path.gradient_at_zero == pytest.approx(at_zero)


def test_convergence_is_relative_and_reported():
    features, labels = make(300, 20, 5)
    path = logistic_path(features, labels, np.logspace(-4, 1, 6))
    assert (path.gradient <= 1e-4 * path.gradient_at_zero).all()
    early = logistic_path(features, labels, np.logspace(-4, 1, 6), max_iterations=5)
    assert early.converged.tolist() == [bool(count < 5) or flag for count, flag in zip(early.iterations, early.converged, strict=True)]
    assert not early.converged.all()
    assert early.iterations.max() == 5


def test_thousand_near_zero_classes_do_not_stop_at_zero():
    features, labels = make(2000, 32, 200)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    path = logistic_path(features.astype(np.float32), labels, [5.0])
    got = objective(path.weights[0], path.bias[0], features, labels, 5.0)
    best = objective(*reference(features, labels, 5.0), features, labels, 5.0)
    assert got <= best * (1 + 1e-6)


def test_separable_problems_at_weak_penalties_converge_in_float32():
    features, labels = make(200, 50, 3, seed=2)
    path = logistic_path(features.astype(np.float32), labels, np.logspace(2, 5, 4))
    assert path.converged.all()
    assert (path.predict(features) == labels).all()


def test_shifting_features_moves_only_the_bias():
    features, labels = make(300, 12, 4)
    one = logistic_path(features, labels, [0.1], tolerance=1e-8)
    other = logistic_path(features + 30, labels, [0.1], tolerance=1e-8)
    np.testing.assert_allclose(other.weights, one.weights, atol=1e-3)


def test_sample_weights_stand_for_repeated_rows():
    features, labels = make(150, 8, 3)
    counts = np.random.default_rng(0).integers(0, 4, 150)
    counts[:3] = 1
    weighted = logistic_path(features, labels, [0.05, 1.0], sample_weight=counts)
    repeated = logistic_path(np.repeat(features, counts, axis=0), np.repeat(labels, counts), [0.05, 1.0])
    np.testing.assert_allclose(weighted.weights, repeated.weights, atol=2e-3)
    np.testing.assert_allclose(weighted.objective, repeated.objective, rtol=1e-6)
    best = objective(*reference(features, labels, 1.0, counts), features, labels, 1.0, counts)
    assert weighted.objective[1] <= best * (1 + 1e-6)


def test_turns_and_blocks_change_nothing(monkeypatch):
    features, labels = make(200, 16, 4)
    grid = [0.01, 0.1, 1.0]
    whole = logistic_path(features, labels, grid)
    monkeypatch.setattr("evalharness.numerics._logistic._BLOCK_BYTES", 4096)
    pieces = logistic_path(features, labels, grid, memory_bytes=1)
    np.testing.assert_allclose(pieces.objective, whole.objective, rtol=1e-7)
    np.testing.assert_allclose(pieces.weights, whole.weights, atol=1e-3)


def test_classes_without_rows_are_never_predicted():
    features, labels = make(200, 6, 3)
    spread = np.array([1, 4, 6])[labels]
    path = logistic_path(features, spread, [0.1], num_classes=9)
    assert path.weights.shape == (1, 6, 9)
    assert set(np.unique(path.predict(features))) <= {1, 4, 6}
    packed = logistic_path(features, labels, [0.1])
    np.testing.assert_allclose(path.weights[0][:, [1, 4, 6]], packed.weights[0])
    np.testing.assert_array_equal(path.predict(features)[0], np.array([1, 4, 6])[packed.predict(features)[0]])


def test_tensors_come_back_as_tensors():
    features, labels = make(100, 5, 3)
    path = logistic_path(torch.tensor(features), torch.tensor(labels), torch.tensor([0.1, 1.0]))
    assert all(isinstance(getattr(path, name), torch.Tensor) for name in ("weights", "bias", "converged", "gradient", "objective"))
    assert path.logits(torch.tensor(features)).shape == (2, 100, 3)
    assert path.predict(features).dtype == np.int64
    single = path.logits(torch.tensor(features[:1]).float())
    np.testing.assert_allclose(single, path.logits(features[:1]), atol=1e-6)


def test_predictions_do_not_depend_on_blocks(monkeypatch):
    features, labels = make(90, 5, 3)
    path = logistic_path(features, labels, [0.1, 1.0])
    expected = path.logits(features).argmax(-1)
    monkeypatch.setattr("evalharness.numerics._logistic._BLOCK_BYTES", 1000)
    np.testing.assert_array_equal(path.predict(features), expected)
    assert path.predict(features[:0]).shape == (2, 0)


def test_ties_go_to_the_smaller_code():
    path = logistic_path(np.array([[-1.0], [1.0]]), np.array([0, 1]), [1.0])
    assert path.predict(np.zeros((1, 1))).tolist() == [[0]]


def test_wrong_input_is_refused():
    features, labels = make(20, 3, 2)
    with pytest.raises(DataError, match="`labels` holds only class 1: a probe needs at least two classes"):
        logistic_path(features, np.ones(20, int), [1.0])
    with pytest.raises(DataError, match="`labels` holds 2 negative codes: drop unlabelled rows first"):
        logistic_path(features, np.r_[-1, -1, labels[2:]], [1.0])
    with pytest.raises(DataError, match="`labels` holds code 1, but `num_classes` is 1"):
        logistic_path(features, labels, [1.0], num_classes=1)
    with pytest.raises(DataError, match="`labels` is empty"):
        logistic_path(features[:0], labels[:0], [1.0])
    with pytest.raises(UsageError, match=r"`labels` must be \(20,\) or \(tasks, 20\) integer codes, got shape \(19,\)"):
        logistic_path(features, labels[1:], [1.0])
    with pytest.raises(UsageError, match=r"`inverse_penalties` must be a list of positive numbers, got \[0.0\]"):
        logistic_path(features, labels, [0.0])
    with pytest.raises(UsageError, match="`tolerance` must be positive, got 0"):
        logistic_path(features, labels, [1.0], tolerance=0)
    with pytest.raises(UsageError, match="`max_iterations` must not be negative"):
        logistic_path(features, labels, [1.0], max_iterations=-1)
    with pytest.raises(UsageError, match=r"`sample_weight` must be \(20,\) or \(tasks, 20\) numbers, not negative"):
        logistic_path(features, labels, [1.0], sample_weight=-np.ones(20))
    with pytest.raises(VectorsError, match=r"`features` must be finite.* in row 3"):
        logistic_path(np.where(np.arange(20)[:, None] == 3, np.nan, features), labels, [1.0])
    with pytest.raises(VectorsError, match=r"`features` must have shape \(rows, dimensions\) or \(tasks, rows, dimensions\), got \(20,\)"):
        logistic_path(features[:, 0], labels, [1.0])


def make_tasks(tasks=3, rows=90, dimensions=12, classes=4):
    parts = [make(rows, dimensions, classes, seed=seed) for seed in range(tasks)]
    return np.stack([part[0] for part in parts]), np.stack([part[1] for part in parts])


GRID = [1e-3, 1e-1, 10.0]


@pytest.mark.parametrize(("rows", "dimensions"), [(90, 12), (30, 60)])
@pytest.mark.parametrize("classes", [2, 4])
def test_draws_at_once_equal_draws_one_by_one(rows, dimensions, classes):
    features, labels = make_tasks(rows=rows, dimensions=dimensions, classes=classes)
    together = logistic_path(features, labels, GRID, tolerance=1e-7)
    assert together.weights.shape == (3, 3, dimensions, classes)
    assert together.gradient_at_zero.shape == (3,)
    for task in range(3):
        alone = logistic_path(features[task], labels[task], GRID, tolerance=1e-7)
        np.testing.assert_allclose(together.objective[task], alone.objective, rtol=1e-6)
        np.testing.assert_allclose(together.logits(features)[task], alone.logits(features[task]), atol=2e-2)
        assert together.gradient_at_zero[task] == pytest.approx(alone.gradient_at_zero)
    assert together.converged.all()
    np.testing.assert_array_equal(together.predict(features[0])[1], logistic_path(features[1], labels[1], GRID).predict(features[0]))


def test_targets_of_the_same_rows_may_have_different_classes():
    features, first = make(200, 10, 4)
    labels = np.stack([first, (features[:, 0] > 0).astype(int), np.where(features[:, 1] > 0, 3, 1)])
    together = logistic_path(features, labels, GRID, tolerance=1e-7)
    for task in range(3):
        alone = logistic_path(features, labels[task], GRID, tolerance=1e-7, num_classes=4)
        np.testing.assert_allclose(together.objective[task], alone.objective, rtol=1e-6)
        np.testing.assert_allclose(together.weights[task], alone.weights, atol=2e-2)
    assert (together.bias[2][:, [0, 2]] == -1e4).all()
    assert (together.weights[2][:, :, [0, 2]] == 0).all()


def test_folds_are_rows_that_weigh_nothing():
    features, labels = make(120, 8, 3)
    held = np.arange(120) % 4 == np.arange(4)[:, None]
    folds = logistic_path(features, labels, GRID, sample_weight=(~held).astype(float), tolerance=1e-7)
    for fold in range(4):
        alone = logistic_path(features[~held[fold]], labels[~held[fold]], GRID, tolerance=1e-7)
        np.testing.assert_allclose(folds.objective[fold], alone.objective, rtol=1e-6)


def test_class_weights_equal_scikit_learn():
    features, labels = make(300, 10, 3)
    labels[labels == 2] = np.where(np.arange((labels == 2).sum()) % 4, 0, 2)
    for given, theirs in (("balanced", "balanced"), ([1.0, 3.0, 0.5], {0: 1.0, 1: 3.0, 2: 0.5})):
        path = logistic_path(features, labels, [0.5], class_weight=given, tolerance=1e-8)
        model = LogisticRegression(C=0.5, class_weight=theirs, tol=1e-9, max_iter=5000).fit(features, labels)
        np.testing.assert_allclose(path.weights[0].T, model.coef_, atol=1e-4)
    with pytest.raises(UsageError, match=r"`class_weight` must be `balanced` or \(3,\) numbers"):
        logistic_path(features, labels, [1.0], class_weight="even")
    with pytest.raises(DataError, match="holds only class 0"):
        logistic_path(features, labels, [1.0], class_weight=[1.0, 0.0, 0.0])


def test_one_vs_rest_equals_scikit_learn_label_by_label():
    features, _ = make(200, 8, 3)
    noise = np.random.default_rng(5).standard_normal((200, 3))
    targets = np.column_stack([features[:, :3] + noise > 0.3, np.zeros(200, bool), np.ones(200, bool)])
    path = one_vs_rest_path(features, targets, [0.1, 1.0], tolerance=1e-8)
    assert path.weights.shape == (2, 8, 5)
    assert path.converged.shape == (2, 5)
    for label in range(3):
        model = LogisticRegression(C=1.0, tol=1e-9, max_iter=5000).fit(features, targets[:, label])
        np.testing.assert_allclose(path.weights[1][:, label], model.coef_[0], atol=1e-4)
        np.testing.assert_allclose(path.bias[1][label], model.intercept_[0], atol=1e-4)
    assert path.bias[0][3:].tolist() == [-1e4, 1e4]
    assert (path.logits(features)[1][:, 3:] == [-1e4, 1e4]).all()
    with pytest.raises(UsageError, match=r"`targets` must be \(200, L\) bool"):
        one_vs_rest_path(features, targets.astype(int), [1.0])
    with pytest.raises(DataError, match="has 1 labels, none of which"):
        one_vs_rest_path(features, targets[:, 3:4], [1.0])


def test_a_memory_map_within_a_budget_equals_arrays_in_memory(tmp_path):
    features, labels = make(9000, 24, 12)
    features = features.astype(np.float32)
    np.save(tmp_path / "rows.npy", features)
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    whole = logistic_path(features, labels, GRID)
    budget = features.nbytes // 4
    blocked = logistic_path(mapped, labels, GRID, memory_bytes=budget)
    np.testing.assert_allclose(blocked.objective, whole.objective, rtol=2e-6)
    assert (blocked.predict(features) == whole.predict(features)).mean() > 0.999
    assert blocked.converged.all()


def test_order_and_repetition_of_penalties_change_nothing():
    features, labels = make(200, 10, 4)
    grid = [10.0, 1e-3, 0.1, 10.0, 3e-3, 1.0]
    path = logistic_path(features, labels, grid, tolerance=1e-7)
    alone = [logistic_path(features, labels, [each], tolerance=1e-7) for each in grid]
    np.testing.assert_allclose(path.objective, [each.objective[0] for each in alone], rtol=1e-6)
    np.testing.assert_allclose(path.weights[0], path.weights[3], atol=1e-3)


def test_the_relative_error_of_the_objective_is_what_it_says():
    features, labels = make(400, 30, 5, condition=100)
    grid = np.logspace(-6, 5, 12)
    path = logistic_path(features.astype(np.float32), labels, grid)
    tight = logistic_path(features, labels, grid, tolerance=1e-9, max_iterations=20000)
    assert (path.objective <= tight.objective * (1 + 3e-6)).all()


def test_shapes_of_tasks_must_agree():
    features, labels = make_tasks()
    with pytest.raises(UsageError, match="must have the same number of tasks, got 2 in `labels` and 3"):
        logistic_path(features, labels[:2], GRID)
    labels[1] = 2
    with pytest.raises(DataError, match="`labels` of task 1 holds only class 2"):
        logistic_path(features, labels, GRID)


@pytest.mark.parametrize("load", [load_wine, load_breast_cancer])
def test_directions_of_small_variance_count_in_float32(load):
    features, labels = load(return_X_y=True)  # raw: variances differ by 1e9 and more
    exact = logistic_path(features, labels, [1.0, 1e3, 1e6])
    found = logistic_path(features.astype(np.float32), labels, [1.0, 1e3, 1e6])
    assert found.converged.all()
    np.testing.assert_allclose(found.objective, exact.objective, rtol=1e-5)
    np.testing.assert_array_equal(found.predict(features.astype(np.float32)), exact.predict(features))


# --- what a tester found ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_balanced_classes_of_which_one_has_no_weight_are_those_without_it(dtype):
    draw = np.random.default_rng(0)
    vectors, labels = draw.standard_normal((60, 5)).astype(dtype), np.arange(60) % 3
    weight = (labels != 2).astype(float)
    found = logistic_path(vectors, labels, [1.0], sample_weight=weight, class_weight="balanced")
    without = logistic_path(vectors[labels != 2], labels[labels != 2], [1.0], class_weight="balanced")

    assert found.converged.all()
    np.testing.assert_allclose(found.weights[0, :, :2], without.weights[0], atol=1e-4)
    assert found.bias[0, 2] == -1e4


@pytest.mark.parametrize("together", [1, 2])
def test_features_of_their_own_that_do_not_fit_together_are_solved_in_turns(together):
    draw = np.random.default_rng(1)
    vectors = draw.standard_normal((5, 80, 6)).astype(np.float32)
    labels = draw.integers(0, 3, (5, 80))
    labels[3] = np.arange(80) % 2  # lacks a class
    weight = draw.random((5, 80))
    budget = 4 * together * 80 * 7 * 4
    for given in (vectors, torch.from_numpy(vectors)):
        whole = logistic_path(given, labels, [0.1, 1.0], sample_weight=weight)
        turns = logistic_path(given, labels, [0.1, 1.0], sample_weight=weight, memory_bytes=budget)
        for field in ("weights", "bias", "converged", "objective", "gradient_at_zero"):
            assert isinstance(getattr(turns, field), type(getattr(whole, field)))
            assert getattr(turns, field).shape == getattr(whole, field).shape
        np.testing.assert_allclose(turns.objective, whole.objective, rtol=1e-5)
        np.testing.assert_allclose(turns.weights, whole.weights, atol=5e-3)
        assert np.mean(np.asarray(turns.predict(given)) == np.asarray(whole.predict(given))) > 0.99


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.uint32, np.int8])
def test_labels_of_every_whole_kind_are_taken(kind):
    vectors, labels = np.eye(3)[np.arange(30) % 3], np.arange(30) % 3
    np.testing.assert_allclose(
        logistic_path(vectors, labels.astype(kind), [1.0]).objective, logistic_path(vectors, labels, [1.0]).objective
    )


def test_wrong_penalties_and_dimensions_are_told_in_one_line():
    vectors, labels = np.eye(3)[np.arange(30) % 3], np.arange(30) % 3
    for wrong in ("a", ["a"], None):
        with pytest.raises(UsageError, match="`inverse_penalties` must be a list of positive numbers"):
            logistic_path(vectors, labels, wrong)
    assert logistic_path(vectors, labels, torch.ones(1, requires_grad=True)).converged.all()
    with pytest.raises(VectorsError, match=r"`features` must have 3 dimensions, as those of the fit, got shape \(30, 2\)"):
        logistic_path(vectors, labels, [1.0]).logits(vectors[:, :2])


def test_a_label_carried_by_rows_without_weight_alone_does_not_vary():
    draw = np.random.default_rng(2)
    vectors, targets = draw.standard_normal((40, 4)), draw.random((40, 2)) < 0.5
    weight = np.where(targets[:, 1], 0.0, 1.0)
    path = one_vs_rest_path(vectors, targets, [1.0], sample_weight=weight)

    assert path.bias[0, 1] == -1e4
    assert path.weights[0, :, 1].tolist() == [0] * 4
