"""The band of a calibrated model."""

import numpy as np
import pytest

from evalharness import stats
from evalharness.errors import DataError
from evalharness.stats._calibration import calibration_null


def test_calibrated_model_shows_an_error_at_small_n():
    generator = np.random.default_rng(0)
    assert calibration_null(1 / 3 + generator.random(500) * 2 / 3, 500, generator).mean() == pytest.approx(0.047, abs=0.002)


def test_simulated_errors_are_those_of_the_reducer(monkeypatch):
    monkeypatch.setattr("evalharness.stats._calibration._BLOCK_CELLS", 100)
    confidence = np.random.default_rng(1).random(40)
    got = calibration_null(confidence, 7, np.random.default_rng(2))
    hits = np.random.default_rng(2).random((7, 40)) < confidence
    expected = [stats.calibration_error(confidence, row, np.ones((1, 40)))[0] for row in hits]
    np.testing.assert_allclose(got, expected)


def test_band_narrows_with_n_and_is_reached_rarely():
    generator = np.random.default_rng(0)
    few, many = (stats.calibration_band(generator.random(n), generator) for n in (100, 10000))
    assert many < few / 5
    confidence = generator.random(300)
    band = stats.calibration_band(confidence, generator)
    assert (calibration_null(confidence, 2000, generator) > band).mean() == pytest.approx(0.05, abs=0.02)


def test_confidences_must_be_probabilities():
    with pytest.raises(DataError, match="must hold probabilities"):
        stats.calibration_band([1.5], np.random.default_rng(0))
    with pytest.raises(DataError, match="got 0 values"):
        stats.calibration_band([], np.random.default_rng(0))
