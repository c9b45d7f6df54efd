"""Reducers against scikit-learn and scipy, and the law that weights stand for repeated rows."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import pearsonr, spearmanr
from sklearn import metrics as sk

from evalharness import stats
from evalharness.errors import UsageError


def ones(n):
    return np.ones((1, n), dtype=np.int8)


def ece(confidence, hit):
    total = 0.0
    for at in range(15):
        inside = (confidence > at / 15) & (confidence <= (at + 1) / 15) | ((at == 0) & (confidence == 0))
        if inside.any():
            total += inside.mean() * abs(hit[inside].mean() - confidence[inside].mean())
    return total


def quiet(function):
    def run(*columns):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                return float(function(*columns))
            except ValueError:
                return float("nan")

    return run


def two_classes(function):
    return quiet(lambda score, positive: function(positive, score) if 0 < positive.sum() < len(positive) else np.nan)


def macro_precision(relevant, score):
    held = np.flatnonzero(relevant.any(axis=0))
    return np.mean([sk.average_precision_score(relevant[:, at], score[:, at]) for at in held]) if len(held) else np.nan


REFERENCES = {
    "mean": quiet(np.mean),
    "ratio": quiet(lambda a, b: a.sum() / b.sum() if b.sum() else np.nan),
    "above_chance": quiet(lambda h, c: (h.mean() - c.mean()) / (1 - c.mean()) if len(h) and c.mean() < 1 else np.nan),
    "median": quiet(np.median),
    "pearson": quiet(lambda a, b: pearsonr(a, b)[0] if len(a) > 1 else np.nan),
    "spearman": quiet(lambda a, b: spearmanr(a, b)[0] if len(a) > 1 else np.nan),
    "r2": quiet(lambda y, p: sk.r2_score(y, p) if np.ptp(y) else np.nan),
    "auc": two_classes(sk.roc_auc_score),
    "average_precision": quiet(lambda s, y: sk.average_precision_score(y, s) if y.any() else np.nan),
    "balanced_accuracy": quiet(sk.balanced_accuracy_score),
    "macro_f1": quiet(lambda y, p: sk.f1_score(y, p, average="macro")),
    "weighted_f1": quiet(lambda y, p: sk.f1_score(y, p, average="weighted")),
    "adjusted_rand": quiet(sk.adjusted_rand_score),
    "completeness": quiet(sk.completeness_score),
    "homogeneity": quiet(sk.homogeneity_score),
    "v_measure": quiet(sk.v_measure_score),
    "calibration_error": quiet(ece),
    "macro_average_precision": quiet(macro_precision),
}
KINDS = {
    "mean": "n",
    "ratio": "nn",
    "above_chance": "bb",
    "median": "n",
    "pearson": "nn",
    "spearman": "nn",
    "r2": "nn",
    "auc": "nb",
    "average_precision": "nb",
    "balanced_accuracy": "cc",
    "macro_f1": "cc",
    "weighted_f1": "cc",
    "adjusted_rand": "cc",
    "completeness": "cc",
    "homogeneity": "cc",
    "v_measure": "cc",
    "calibration_error": "ub",
    "macro_average_precision": "BN",
}


def make_columns(kinds, n, generator):
    make = {
        "n": lambda: np.round(generator.standard_normal(n) * 2) / 2,
        "b": lambda: generator.random(n) < 0.4,
        "c": lambda: generator.integers(-1, 4, n),
        "u": lambda: generator.random(n),
        "B": lambda: generator.random((n, 3)) < [0.4, 0.2, 0.0],
        "N": lambda: np.round(generator.standard_normal((n, 3)) * 2) / 2,
    }
    return [make[kind]() for kind in kinds]


def test_every_registered_reducer_has_a_reference():
    assert set(stats.REDUCERS) == set(REFERENCES)


@pytest.mark.parametrize("name", sorted(REFERENCES))
def test_value_equals_reference(name):
    columns = make_columns(KINDS[name], 400, np.random.default_rng(3))
    got = stats.get_reducer(name)(*columns, ones(400))
    assert got.shape == (1,)
    assert got.dtype == np.float64
    assert got[0] == pytest.approx(REFERENCES[name](*columns), abs=1e-12)


@pytest.mark.parametrize("name", sorted(REFERENCES))
@given(data=st.data())
@settings(max_examples=80, deadline=None, derandomize=True)
def test_weights_stand_for_repeated_rows(name, data):
    n = data.draw(st.integers(1, 12))
    generator = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    columns = make_columns(KINDS[name], n, generator)
    weights = np.array(data.draw(st.lists(st.lists(st.integers(0, 4), min_size=n, max_size=n), min_size=1, max_size=3)))
    got = stats.get_reducer(name)(*columns, weights)
    for row, value in zip(weights, got, strict=True):
        expected = REFERENCES[name](*(np.repeat(column, row, axis=0) for column in columns)) if row.any() else np.nan
        assert value == pytest.approx(expected, abs=1e-9, nan_ok=True)


@pytest.mark.parametrize("name", sorted(REFERENCES))
def test_rows_of_weight_zero_are_absent_even_where_nan(name):
    columns = make_columns(KINDS[name], 60, np.random.default_rng(5))
    kept = [column.copy() for column in columns]
    if columns[0].dtype.kind == "f":
        columns[0][7] = np.nan
    weights = np.ones((2, 60), dtype=np.int8)
    weights[0, 7] = 0
    got = stats.REDUCERS[name](*columns, weights)
    assert got[0] == pytest.approx(REFERENCES[name](*(np.delete(column, 7, axis=0) for column in kept)), abs=1e-12)
    if columns[0].dtype.kind == "f":
        assert np.isnan(got[1])


@pytest.mark.parametrize("name", sorted(REFERENCES))
def test_no_rows_score_nan(name):
    columns = make_columns(KINDS[name], 5, np.random.default_rng(0))
    assert np.isnan(stats.REDUCERS[name](*columns, np.zeros((3, 5)))).all()
    assert np.isnan(stats.REDUCERS[name](*(column[:0] for column in columns), np.zeros((2, 0)))).all()


@pytest.mark.parametrize("name", sorted(REFERENCES))
def test_permutation_and_blocks_change_nothing(name, monkeypatch):
    generator = np.random.default_rng(11)
    columns = make_columns(KINDS[name], 80, generator)
    weights = stats.counts(80, 9, generator)
    expected = stats.REDUCERS[name](*columns, weights)
    order = generator.permutation(80)
    monkeypatch.setattr("evalharness.stats._reducers.BLOCK_BYTES", 2 * 8 * 80)
    np.testing.assert_allclose(stats.REDUCERS[name](*(column[order] for column in columns), weights[:, order]), expected, atol=1e-12)
    np.testing.assert_allclose(stats.REDUCERS[name](*columns, weights.astype(float)), expected, atol=1e-12)


@pytest.mark.parametrize("name", sorted(REFERENCES))
@pytest.mark.parametrize("kind", [np.int8, np.int64, np.float64])
def test_many_resamples_at_once_equal_one_at_a_time(name, kind):
    """Many resamples are laid out with rows first, few with resamples first; wide types leave the narrow integer paths."""
    generator = np.random.default_rng(13)
    columns = make_columns(KINDS[name], 70, generator)
    weights = stats.counts(70, 40, generator)
    got = stats.REDUCERS[name](*columns, weights.astype(kind))
    expected = [REFERENCES[name](*(np.repeat(column, row, axis=0) for column in columns)) for row in weights]
    np.testing.assert_allclose(got, expected, atol=1e-9)
    np.testing.assert_allclose([stats.REDUCERS[name](*columns, row[None])[0] for row in weights], got, atol=1e-12)


@pytest.mark.parametrize("name", ["spearman", "auc", "average_precision", "median", "macro_f1"])
def test_counts_too_large_for_narrow_types_stay_exact(name):
    generator = np.random.default_rng(17)
    columns = make_columns(KINDS[name], 30, generator)
    weights = generator.integers(0, 4, (20, 30))
    if name == "median":
        weights += weights.sum(axis=1, keepdims=True) % 2 == 0  # whole middles stand for themselves
        weights[:, 0] += weights.sum(axis=1) % 2 == 0
        factor = 10**6 + 1
    else:
        factor = 10**6
    np.testing.assert_allclose(stats.REDUCERS[name](*columns, weights * factor), stats.REDUCERS[name](*columns, weights), atol=1e-9)


WEIGHTED = {
    "auc": lambda s, y, w: sk.roc_auc_score(y, s, sample_weight=w),
    "average_precision": lambda s, y, w: sk.average_precision_score(y, s, sample_weight=w),
    "balanced_accuracy": lambda y, p, w: sk.balanced_accuracy_score(y, p, sample_weight=w),
    "macro_f1": lambda y, p, w: sk.f1_score(y, p, average="macro", sample_weight=w),
    "weighted_f1": lambda y, p, w: sk.f1_score(y, p, average="weighted", sample_weight=w),
    "r2": lambda y, p, w: sk.r2_score(y, p, sample_weight=w),
}


@pytest.mark.parametrize("name", sorted(WEIGHTED))
def test_fractions_of_a_row_are_weights_of_scikit_learn(name):
    generator = np.random.default_rng(19)
    columns, weights = make_columns(KINDS[name], 60, generator), generator.random((20, 60)) + 0.1
    expected = [WEIGHTED[name](*columns, row) for row in weights]
    np.testing.assert_allclose(stats.REDUCERS[name](*columns, weights), expected, atol=1e-12)


@pytest.mark.parametrize("name", sorted(REFERENCES))
def test_one_row_and_all_equal_rows(name):
    """Equal rows score what one of them scores, or are undefined for both; nothing warns or fails."""
    for seed in range(6):
        columns = make_columns(KINDS[name], 1, np.random.default_rng(seed))
        one = stats.REDUCERS[name](*columns, ones(1))[0]
        many = stats.REDUCERS[name](*(np.repeat(column, 9, axis=0) for column in columns), np.vstack([ones(9)] * 20))
        assert many == pytest.approx(np.full(20, one), nan_ok=True, abs=1e-12)


def test_bound_columns_are_prepared_once(monkeypatch):
    calls = []

    def prepare(values):
        calls.append(len(values))
        return lambda weights: weights @ values

    total = stats.make_prepared(prepare)
    bound = stats.bind_columns(total, np.arange(3.0))
    assert [bound(np.eye(3)).tolist(), bound(ones(3)).tolist(), calls] == [[0.0, 1.0, 2.0], [3.0], [3]]
    assert stats.bind_columns(lambda values, weights: weights @ values, np.ones(2))(np.ones((1, 2))).tolist() == [2.0]


@pytest.mark.parametrize("name", sorted(REFERENCES))
def test_masks_are_subgroups(name):
    generator = np.random.default_rng(7)
    columns, masks = make_columns(KINDS[name], 50, generator), generator.random((3, 50)) < 0.6
    expected = [REFERENCES[name](*(column[mask] for column in columns)) for mask in masks]
    np.testing.assert_allclose(stats.REDUCERS[name](*columns, masks), expected, atol=1e-12)


def test_imbalance_by_hand():
    truth, prediction = np.array([0, 0, 0, 1, 1, 2]), np.array([0, 0, 1, 1, 2, 2])
    assert stats.balanced_accuracy(truth, prediction, ones(6))[0] == pytest.approx(0.722222, abs=1e-6)
    assert stats.macro_f1(truth, prediction, ones(6))[0] == pytest.approx(0.655556, abs=1e-6)
    assert stats.weighted_f1(truth, prediction, ones(6))[0] == pytest.approx(0.677778, abs=1e-6)
    assert (truth == prediction).mean() == pytest.approx(0.666667, abs=1e-6)
    majority = np.zeros(10, dtype=int)
    truth = np.array([0] * 8 + [1] * 2)
    assert stats.balanced_accuracy(truth, majority, ones(10))[0] == 0.5
    assert stats.macro_f1(truth, majority, ones(10))[0] == pytest.approx(0.444444, abs=1e-6)


def test_predicted_class_absent_from_truth_counts_in_macro_f1_only():
    truth, prediction = np.array([0, 0, 1, 1]), np.array([0, 3, 1, 1])
    assert stats.macro_f1(truth, prediction, ones(4))[0] == pytest.approx(0.555556, abs=1e-6)
    assert sk.f1_score(truth, prediction, labels=[0, 1], average="macro") == pytest.approx(
        0.833333, abs=1e-6
    )  # the set that ours is not over
    assert stats.balanced_accuracy(truth, prediction, ones(4))[0] == 0.75


def test_calibration_error_by_hand():
    assert stats.calibration_error(np.array([0.9, 0.9, 0.6, 0.6]), np.array([1, 1, 1, 0]), ones(4))[0] == pytest.approx(0.1)


def test_r2_by_hand():
    assert stats.r2(np.arange(1.0, 5), np.array([1.1, 1.9, 3.2, 3.9]), ones(4))[0] == pytest.approx(0.986)


def test_constant_columns_score_nan():
    flat, rising = np.full(5, 0.1), np.arange(5.0)
    for reducer in (stats.pearson, stats.spearman):
        assert np.isnan(reducer(flat, rising, ones(5))[0])
        assert np.isnan(reducer(rising, flat, ones(5))[0])
    assert np.isnan(stats.r2(flat, rising, ones(5))[0])


def test_resample_of_equal_rows_is_constant_despite_rounding():
    values = np.array([0.1, 0.1, 0.1, 1e6, 0.3])
    weights = np.array([[3, 5, 7, 0, 0], [3, 5, 7, 0, 1]])
    got = stats.pearson(values, values, weights)
    assert np.isnan(got[0])
    assert got[1] == pytest.approx(1.0)
    assert np.isnan(stats.r2(values, values, weights)[0])


def test_single_class_has_no_auc_or_precision():
    score = np.arange(4.0)
    assert np.isnan(stats.auc(score, np.ones(4, bool), ones(4))[0])
    assert np.isnan(stats.average_precision(score, np.zeros(4, bool), ones(4))[0])


@pytest.mark.parametrize("q", [0.0, 0.1, 0.25, 1 / 3, 0.9, 1.0])
def test_quantile_equals_numpy(q):
    generator = np.random.default_rng(2)
    values = generator.standard_normal(31)
    weights = stats.counts(31, 20, generator)
    expected = [np.quantile(np.repeat(values, row), q) for row in weights]
    np.testing.assert_allclose(stats.quantile(q)(values, weights), expected, atol=1e-12)


def test_class_counts_stay_exact_where_float32_would_not():
    truth = np.zeros(3, dtype=int)
    weights = np.array([[2**24, 1, 0]], dtype=np.int64)
    assert stats.class_counts(truth, truth, weights)[0][0, 0] == 2**24 + 1


def test_callable_is_its_own_reducer():
    assert stats.get_reducer(stats.mean) is stats.mean


def test_unknown_reducer_offers_near_matches():
    with pytest.raises(UsageError, match="unknown reducer `macro-f1`; did you mean `macro_f1`"):
        stats.get_reducer("macro-f1")
    with pytest.raises(UsageError, match="unknown reducer `zzz`; known: above_chance, adjusted_rand, auc"):
        stats.get_reducer("zzz")


def test_wrong_shapes_are_refused():
    with pytest.raises(UsageError, match=r"`weights` of reducer `mean` must be \(resamples, items\), got shape \(3,\)"):
        stats.mean(np.ones(3), np.ones(3))
    with pytest.raises(UsageError, match=r"columns of reducer `auc` must have shape \(3,\) like its weights, got \(2,\)"):
        stats.auc(np.ones(2), np.ones(3), np.ones((1, 3)))
    with pytest.raises(UsageError, match="must not be negative or NaN"):
        stats.mean(np.ones(2), np.array([[1.0, -1.0]]))
    with pytest.raises(UsageError, match="takes its columns and then `weights`"):
        stats.mean(np.ones(2))
    with pytest.raises(UsageError, match=r"`q` must lie in \[0, 1\], got 2"):
        stats.quantile(2)


def test_importing_stats_brings_no_torch_or_scipy():
    import subprocess
    import sys

    code = "import evalharness.stats, sys; print(sorted({'torch', 'scipy', 'sklearn', 'pandas'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_macro_average_precision_leaves_out_labels_that_no_drawn_row_carries():
    rng = np.random.default_rng(0)
    relevant, score = rng.random((60, 4)) < [0.5, 0.3, 0.02, 0.0], rng.standard_normal((60, 4)).round(1)
    relevant[7, 2] = True
    weights = np.stack([np.ones(60), *rng.integers(0, 3, (5, 60))])
    weights[1, relevant[:, 2]] = 0
    expected = []
    for row in weights:
        drawn = np.repeat(np.arange(60), row.astype(int))
        held = np.flatnonzero(relevant[drawn].any(axis=0))
        expected.append(sk.average_precision_score(relevant[drawn][:, held], score[drawn][:, held], average="macro"))
    np.testing.assert_allclose(stats.macro_average_precision(relevant, score, weights), expected)
    assert len(set(np.flatnonzero(relevant.any(axis=0)))) == 3
    assert np.isnan(stats.macro_average_precision(np.zeros((5, 2), bool), np.zeros((5, 2)), np.ones((1, 5)))[0])
