"""The probe agrees with scikit-learn, chooses on validation rows alone and says what it did."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import average_precision_score, f1_score, log_loss, r2_score

from evalharness import stats
from evalharness.errors import DataError, UsageError
from evalharness.plugins.linear_probe import evaluators as linear_probe
from evalharness.plugins.linear_probe.classes import ClassProbe
from evalharness.plugins.linear_probe.settings import GRIDS, Scaling
from evalharness.store.results import compact
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

    assert fitted.scaling.mean.numpy() == pytest.approx(features.mean(axis=0), abs=1e-5)
    assert fitted.scaling.scale.numpy() == pytest.approx(features.std(axis=0), rel=1e-4)
    assert score(fitted, test).details["converged"]


def test_a_constant_column_is_left_alone(tables):
    train, _ = tables
    train.vectors.codes[:, 3] = 0.1
    fitted = fit(train, grid=[1.0])

    assert fitted.scaling.scale[3] == 1


def test_the_penalty_is_the_best_on_validation_rows(tables):
    train, held = tables
    fitted = fit(train, held.take(np.arange(100)))
    grid = GRIDS["quick"]

    assert fitted.details["inverse_penalty"] in grid
    assert fitted.details["trials"] == len(grid)
    hits = [float(score(fit(train, grid=[c]), held.take(np.arange(100))).columns["hit"].float().mean()) for c in grid]
    assert fitted.details["validation_accuracy"] == pytest.approx(max(hits))


def test_carved_validation_rows_join_the_refit_and_others_do_not(tables):
    train, held = tables
    validation = held.take(np.arange(60))
    assert fit(train, validation).details["train_n"] == len(train)
    with pytest.raises(DataError, match="`grid` has 9 penalties, but no validation rows are left to choose by"):
        fit(train)
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
    same = Scaling(mean=torch.zeros(2), scale=torch.ones(2))
    probe = ClassProbe(scaling=same, weights=torch.eye(2), bias=torch.zeros(2), majority=0, details={"converged": True})
    table, _ = sample_tables(classes=2, dim=2)
    table = table.take(np.arange(2))
    table.vectors.codes = torch.from_numpy(np.log(p)).float()
    table.target = Column(kind="class", values=np.array([0, 0]), names=("a", "b"))

    assert score(probe, table).columns["brier"].numpy() == pytest.approx([0.02, 0.32], abs=1e-6)


def test_all_metrics_lie_in_their_ranges(registry, tables):
    train, test = tables
    spec = registry.get("evaluator", "linear-probe")
    values = {metric.name: value for metric, value in metric_values(spec, score(fit(train, grid=[1.0]), test))}

    assert set(values) == {
        "accuracy",
        "balanced_accuracy",
        "macro_f1",
        "log_loss",
        "calibration_error",
        "brier",
        "majority_accuracy",
        "accuracy_above_majority",
    }
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


def test_a_thousand_classes_of_unit_vectors_leave_zero_weights():
    """METRICS 1.1: the gradient at zero weights is about 1e-4 there, which an absolute tolerance takes for convergence."""
    train, _ = sample_tables(rows=2000, classes=1000, dim=64)
    generator = torch.Generator().manual_seed(0)
    train.vectors.codes = torch.nn.functional.normalize(torch.randn(2000, 64, generator=generator), dim=1)
    outcome = score(fit(train, grid=[1.0], scale="raw"), train)

    assert outcome.status == "measured"
    assert float(outcome.columns["log_loss"].mean()) < np.log(1000) - 0.1
    assert outcome.columns["hit"].float().mean() > 0.05


def test_one_class_is_an_error_that_names_it(tables):
    train, _ = tables
    only = train.take(np.flatnonzero(train.target.values == 0))
    only.target = Column(kind="class", values=np.zeros(len(only), dtype=np.int64), names=("c0",))

    with pytest.raises(DataError, match="a probe needs two classes in its training rows, got only `c0`"):
        fit(only, grid=[1.0])


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


def test_the_penalty_does_not_depend_on_what_did_not_converge(tables):
    train, held = tables
    validation = held.take(np.arange(100))
    hasty = fit(train, validation, max_iterations=6)
    assert 0 < hasty.details["not_converged"] < 9
    assert hasty.details["converged"]


def test_the_report_says_what_was_done(tables):
    train, held = tables
    validation = held.take(np.arange(60))
    validation.carved = True
    details = fit(train, validation, grid="kornblith-45", class_weight="balanced").details
    assert {
        name: details[name] for name in ("trials", "train_n", "validation_n", "refit_on_validation", "scale", "control", "not_converged")
    } == {
        "trials": 45,
        "train_n": len(train) + 60,
        "validation_n": 60,
        "refit_on_validation": True,
        "scale": "standard",
        "control": "none",
        "not_converged": 0,
    }
    assert details["grid_from"] == pytest.approx(1e-6)
    assert details["grid_to"] == pytest.approx(1e5)
    assert 0 <= details["relative_gradient"] <= 1e-4


def test_shuffled_labels_are_chance(tables):
    train, test = tables
    fitted = fit(train, test.take(np.arange(100)), control="shuffled")
    hits = score(fitted, test).columns["hit"].float().mean()
    assert hits < 0.5
    assert fitted.details["control"] == "shuffled"
    assert score(fit(train, test.take(np.arange(100))), test).columns["hit"].float().mean() > 0.8


def test_accuracy_above_majority_is_normalised():
    """METRICS 1.6: accuracy .8 against a chance of .25 is .733333."""
    truth = np.repeat(np.arange(4), 25)
    (metric,) = [metric for metric in linear_probe.CLASS_METRICS if metric.name == "accuracy_above_majority"]
    value = stats.get_reducer(metric.reduce)(np.arange(100) % 5 > 0, truth == 0, np.ones((1, 100)))
    assert value[0] == pytest.approx(0.733333, abs=1e-6)


def with_target(table, kind, values, names=()):
    return replace(table, target=Column(kind=kind, values=values, names=names))


@pytest.fixture
def number_tables(tables):
    slopes = np.random.default_rng(0).standard_normal(12)
    return [
        with_target(
            table, "number", table.vectors.dense().double().numpy() @ slopes + 0.1 * np.random.default_rng(at).standard_normal(len(table))
        )
        for at, table in enumerate(tables)
    ]


def test_numbers_are_ridge_regression(number_tables):
    train, test = number_tables
    outcome = score(fit(train, grid=[0.5], scale="raw"), test)
    model = Ridge(alpha=2.0).fit(train.vectors.dense().double().numpy(), train.target.values)
    expected = model.predict(test.vectors.dense().double().numpy())
    np.testing.assert_allclose(outcome.columns["predicted_number"].numpy(), expected, atol=1e-4)
    values = {metric.name: value for metric, value in metric_values(linear_probe.LINEAR, outcome)}
    assert values == pytest.approx(
        {"r2": r2_score(test.target.values, expected), "spearman": spearmanr(test.target.values, expected)[0]}, abs=1e-4
    )


def test_the_penalty_of_numbers_is_chosen_on_validation_rows(number_tables):
    train, test = number_tables
    few = train.take(np.arange(14))
    fitted = fit(few, test.take(np.arange(50)))
    errors = {
        c: float(
            np.square(
                score(fit(few, grid=[c]), test.take(np.arange(50))).columns["predicted_number"].numpy() - test.target.values[:50]
            ).mean()
        )
        for c in GRIDS["quick"]
    }
    assert fitted.details["inverse_penalty"] == min(errors, key=errors.get)


def test_constant_numbers_are_refused(number_tables):
    train, test = number_tables
    constant = with_target(train, "number", np.full(len(train), 3.0))
    with pytest.raises(DataError, match="the number target has the one value 3 in all .* training rows: R2 and correlation are undefined"):
        fit(constant)
    with pytest.raises(DataError, match="in all 1 test rows"):
        score(fit(train, grid=[1.0]), test.take(np.arange(1)))


@pytest.fixture
def label_tables(tables):
    slopes = np.random.default_rng(0).standard_normal((12, 4))
    names = ("a", "b", "c", "d")
    made = []
    for at, table in enumerate(tables):
        noise = np.random.default_rng(at).standard_normal((len(table), 4))
        held = table.vectors.dense().numpy() @ slopes + 2 * noise > 1
        held[:, 3] = held[:, 3] if at == 0 else False
        made.append(with_target(table, "multilabel", held, names))
    return made


def test_labels_are_one_regression_each(label_tables):
    train, test = label_tables
    outcome = score(fit(train, grid=[0.3], scale="raw", tolerance=1e-7), test)
    for label in range(4):
        model = LogisticRegression(C=0.3, tol=1e-8, max_iter=5000).fit(
            train.vectors.dense().double().numpy(), train.target.values[:, label]
        )
        np.testing.assert_allclose(
            outcome.columns["label_score"][:, label], model.decision_function(test.vectors.dense().double().numpy()), atol=1e-3
        )
    values = {metric.name: value for metric, value in metric_values(linear_probe.LINEAR, outcome)}
    truth, odds = test.target.values, outcome.columns["label_score"].numpy()
    assert set(values) == {"mean_average_precision", "micro_f1"}
    assert values["mean_average_precision"] == pytest.approx(
        np.mean([average_precision_score(truth[:, at], odds[:, at]) for at in range(3)])
    )
    assert values["micro_f1"] == pytest.approx(f1_score(truth, odds > 0, average="micro"))
    assert outcome.details["labels_without_positives"] == ["d"]


def test_the_threshold_of_labels_is_the_best_on_validation_rows(label_tables):
    train, test = label_tables
    held = test.take(np.arange(80))
    fitted = fit(train, held, grid=[0.3])
    odds, truth = fitted.outputs(held.vectors.dense()).numpy(), held.target.values
    got = f1_score(truth, odds > fitted.threshold, average="micro", zero_division=0)
    assert got == pytest.approx(
        max(f1_score(truth, odds > each, average="micro", zero_division=0) for each in np.linspace(-6, 6, 401)), abs=2e-3
    )
    assert fitted.details["threshold_from"] == "validation"


def test_a_label_without_training_rows_is_never_named(label_tables):
    train, test = label_tables
    train.target.values[:, 1] = False
    fitted = fit(train, grid=[1.0])
    assert (fitted.outputs(test.vectors.dense())[:, 1] == -1e4).all()
    assert fitted.details["labels_without_training_rows"] == 1


def ring(rows, seed):
    """Return two classes that no line separates: a disc within a ring."""
    rng = np.random.default_rng(seed)
    codes = np.arange(rows) % 2
    angle, radius = rng.uniform(0, 2 * np.pi, rows), 1.0 + codes + 0.1 * rng.standard_normal(rows)
    table, _ = sample_tables(rows=rows, classes=2, dim=2)
    table.vectors.codes = torch.from_numpy(np.column_stack([radius * np.cos(angle), radius * np.sin(angle)])).float()
    return with_target(table, "class", codes, ("inside", "outside"))


def test_a_hidden_layer_reads_what_no_line_does():
    train, held, test = ring(400, 0), ring(200, 1), ring(300, 2)
    generator = torch.Generator().manual_seed(0)
    hidden = linear_probe.fit_mlp(train, held, generator=generator, hidden=32, epochs=100)
    assert score(hidden, test).columns["hit"].float().mean() > 0.97
    assert score(fit(train, held), test).columns["hit"].float().mean() < 0.65
    again = linear_probe.fit_mlp(train, held, generator=torch.Generator().manual_seed(0), hidden=32, epochs=100)
    assert torch.equal(again.logits(test.vectors.dense()), hidden.logits(test.vectors.dense()))
    assert hidden.details["trials"] == 4


def test_networks_trained_together_are_those_trained_alone():
    train, held, test = ring(200, 0), ring(100, 1), ring(100, 2)
    fits = [
        linear_probe.fit_mlp(train, held, generator=torch.Generator().manual_seed(0), hidden=16, weight_decays=decays)
        for decays in ([0.1, 30.0], [0.1])  # the second stops long before the first
    ]
    assert fits[0].details["weight_decay"] == 0.1
    assert fits[0].details["epochs"] == fits[1].details["epochs"]
    torch.testing.assert_close(*(each.logits(test.vectors.dense()) for each in fits), rtol=1e-4, atol=1e-4)


def test_a_hidden_layer_predicts_numbers(number_tables):
    train, test = number_tables
    squares = [with_target(table, "number", table.vectors.dense().numpy()[:, 0] ** 2) for table in (train, test)]
    fitted = linear_probe.fit_mlp(squares[0], squares[1].take(np.arange(80)), generator=torch.Generator().manual_seed(0), hidden=64)
    values = {metric.name: value for metric, value in metric_values(linear_probe.HIDDEN, score(fitted, squares[1]))}
    assert values["r2"] > 0.5


def test_a_hidden_layer_asks_for_validation_rows_and_sizes(registry, tables):
    train, held = tables
    with pytest.raises(DataError, match="`mlp-probe` needs validation rows"):
        linear_probe.fit_mlp(train, None, generator=GENERATOR)
    with pytest.raises(UsageError, match="expected `hidden`, `epochs` and `patience` of at least 1"):
        linear_probe.fit_mlp(train, held, generator=GENERATOR, hidden=0)
    check_evaluator(registry.get("evaluator", "mlp-probe"), epochs=2)


@pytest.mark.parametrize(("offset", "factor"), [(1e7, 1.0), (1e9, 1.0), (0.0, 1e30), (0.0, 1e-30)])
def test_numbers_of_any_offset_and_unit_are_read_as_well(number_tables, offset, factor):
    train, test = number_tables
    other = [with_target(table, "number", table.target.values * factor + offset) for table in (train, test)]
    for fit_numbers in (linear_probe.fit, linear_probe.fit_mlp):
        scores = []
        for learned, scored in ((train, test), other):
            fitted = fit_numbers(learned, scored.take(np.arange(80)), generator=torch.Generator().manual_seed(0))
            columns = {name: compact(values).astype(np.float64) for name, values in score(fitted, scored).columns.items()}
            scores.append(r2_score(columns["number"] / factor, columns["predicted_number"] / factor))
        assert scores[1] == pytest.approx(scores[0], abs=1e-3)
