"""The probe agrees with scikit-learn, chooses on validation rows alone and says what it did."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from evalharness.errors import DataError, UsageError
from evalharness.plugins import linear_probe
from evalharness.testing import check_evaluator, metric_values, sample_tables
from evalharness.types import Column, Side

GENERATOR = torch.Generator().manual_seed(0)


@pytest.fixture
def tables():
    return sample_tables()


def fit(train, validation=None, **params):
    return linear_probe.fit(train, validation, generator=GENERATOR, **params)


def score(fitted, test):
    (outcome,) = linear_probe.score(fitted, Side(parts={"items": test}), generator=GENERATOR)
    return outcome


def test_it_passes_the_checks(registry):
    check_evaluator(registry.get("evaluator", "linear-probe"))


def test_one_penalty_agrees_with_scikit_learn(tables):
    train, test = tables
    outcome = score(fit(train, grid=[0.1], scale="raw"), test)
    model = LogisticRegression(C=0.1, tol=1e-8, max_iter=10_000).fit(train.vectors.dense().double().numpy(), train.target.values)
    features = test.vectors.dense().double().numpy()

    assert (outcome.columns["prediction"].numpy() == model.predict(features)).all()
    expected = log_loss(test.target.values, model.predict_proba(features))
    assert float(outcome.columns["log_loss"].mean()) == pytest.approx(expected, rel=1e-4)


def test_standardising_uses_the_training_rows(tables):
    train, test = tables
    fitted = fit(train, grid=[1.0])
    features = train.vectors.dense().numpy()

    assert fitted.mean.numpy() == pytest.approx(features.mean(axis=0), abs=1e-5)
    assert fitted.scale.numpy() == pytest.approx(features.std(axis=0), rel=1e-4)
    assert score(fitted, test).details["converged"]


def test_a_constant_column_is_left_alone(tables):
    train, _ = tables
    train.vectors.codes[:, 3] = 0.1
    fitted = fit(train, grid=[1.0])

    assert fitted.scale[3] == 1


def test_the_penalty_is_the_best_on_validation_rows(tables):
    train, held = tables
    fitted = fit(train, held.take(np.arange(100)))
    grid = linear_probe.GRIDS["quick"]

    assert fitted.details["inverse_penalty"] in grid
    assert 2 <= fitted.details["trials"] <= len(grid)
    hits = [
        float(score(fit(train, grid=[c]), held.take(np.arange(100))).columns["hit"].float().mean())
        for c in grid[: fitted.details["trials"]]
    ]
    assert fitted.details["validation_accuracy"] == pytest.approx(max(hits))


def test_carved_validation_rows_join_the_refit_and_others_do_not(tables):
    train, held = tables
    validation = held.take(np.arange(60))
    assert fit(train, validation).details["train_n"] == len(train)
    validation.carved = True
    assert fit(train, validation).details["train_n"] == len(train) + 60


def test_a_winner_at_the_edge_of_the_grid_is_marked(tables):
    train, held = tables
    assert fit(train, held, grid=[1e-6, 1e-5]).details["grid_edge"]
    assert fit(train, held, grid=[1e-6, 1e-3, 1e-1, 1e1, 1e3]).details["grid_edge"] is False


def test_an_unseen_class_is_a_miss_with_the_floored_loss(tables):
    train, test = tables
    values = test.target.values.copy()
    values[:3] = 4
    test.target = Column(kind="class", values=values, names=(*test.target.names, "new"))
    outcome = score(fit(train, grid=[1.0]), test)

    assert not outcome.columns["hit"][:3].any()
    assert outcome.columns["log_loss"][:3].numpy() == pytest.approx(-np.log(1e-12))
    assert outcome.details["test_items_of_unseen_classes"] == 3
    assert outcome.details["unseen_classes"] == ["new"]


def test_brier_of_two_classes():
    """METRICS 1.2: probabilities .9 and .6 of the truth give .02 and .32."""
    p = np.array([[0.9, 0.1], [0.6, 0.4]])
    probe = linear_probe.Probe(
        mean=torch.zeros(2), scale=torch.ones(2), weights=torch.eye(2), bias=torch.zeros(2), majority=0, details={"converged": True}
    )
    table, _ = sample_tables(classes=2, dim=2)
    table = table.take(np.arange(2))
    table.vectors.codes = torch.from_numpy(np.log(p)).float()
    table.target = Column(kind="class", values=np.array([0, 0]), names=("a", "b"))

    assert score(probe, table).columns["brier"].numpy() == pytest.approx([0.02, 0.32], abs=1e-6)


def test_all_metrics_lie_in_their_ranges(registry, tables):
    train, test = tables
    spec = registry.get("evaluator", "linear-probe")
    values = {metric.name: value for metric, value in metric_values(spec, score(fit(train, grid=[1.0]), test))}

    assert set(values) == {"accuracy", "balanced_accuracy", "macro_f1", "log_loss", "calibration_error", "brier", "majority_accuracy"}
    assert values["accuracy"] > 0.8


def test_zero_weights_are_never_measured():
    """1,000 classes of unit vectors: a fit that stops at once must not pass for a result."""
    generator = torch.Generator().manual_seed(0)
    train, _ = sample_tables(rows=2000, classes=1000, dim=64)
    train.vectors.codes = torch.nn.functional.normalize(torch.randn(2000, 64, generator=generator), dim=1)
    fitted = fit(train, grid=[1e4], scale="raw", max_iterations=1)
    (outcome,) = linear_probe.score(fitted, Side(parts={"items": train}), generator=generator)

    assert outcome.status == "not_converged"
    assert "after the last iteration" in outcome.reason


def test_one_class_is_an_error_that_names_it(tables):
    train, _ = tables
    only = train.take(np.flatnonzero(train.target.values == 0))
    only.target = Column(kind="class", values=np.zeros(len(only), dtype=np.int64), names=("c0",))

    with pytest.raises(DataError, match="a probe needs two classes in its training rows, got only `c0`"):
        fit(only)


def test_wrong_parameters_are_named(tables):
    train, _ = tables
    with pytest.raises(UsageError, match="unknown grid `quik`; expected one of quick, kornblith-45, clip-96"):
        fit(train, grid="quik")
    with pytest.raises(UsageError, match="expected `scale` to be `standard` or `raw`, got `robust`"):
        fit(train, scale="robust")
    with pytest.raises(UsageError, match="expected positive inverse penalties"):
        fit(train, grid=[0.0])


def test_the_head_gives_gradients(tables):
    train, _ = tables
    fitted = fit(train, grid=[1.0])
    vectors = train.vectors.dense()[:4].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(linear_probe.head(fitted)(vectors).sum(), vectors)

    assert gradient.shape == (4, 12)


def test_the_chosen_fit_is_judged_when_it_has_converged(tables):
    train, held = tables
    validation = held.take(np.arange(100))
    hasty = fit(train, validation, search_iterations=1)
    patient = fit(train, validation, search_iterations=2000)

    assert hasty.details["converged"]
    hit = float(score(fit(train, grid=[hasty.details["inverse_penalty"]]), validation).columns["hit"].float().mean())
    assert hasty.details["validation_accuracy"] == pytest.approx(hit)
    assert patient.details["converged"]


def test_a_grid_at_chance_is_walked_to_its_end():
    """A walk that left early would keep the constant classifier of the strongest penalty."""
    generator = np.random.default_rng(0)
    train, held = sample_tables(classes=8)
    for table in (train, held):
        table.vectors.codes = torch.from_numpy(generator.normal(size=(len(table), 12))).float()
    assert fit(train, held).details["trials"] == 9
