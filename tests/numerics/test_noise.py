"""Keyed noise: moments, independence, and that batches do not matter."""

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from evalharness.errors import UsageError
from evalharness.numerics import keyed_normal, keyed_uniform

KEYS = torch.arange(-300, 300)


@pytest.mark.parametrize("draw", [keyed_normal, keyed_uniform])
def test_numbers_depend_on_key_and_position_only(draw, monkeypatch):
    whole = draw(KEYS, (3, 5, 7))
    assert whole.shape == (600, 3, 5, 7)
    assert whole.dtype == torch.float32
    assert torch.equal(draw(KEYS[17:18], (3, 5, 7))[0], whole[17])
    assert torch.equal(draw(KEYS.view(2, 300).flip(1), (3, 5, 7)).flip(1).view_as(whole), whole)
    np.testing.assert_array_equal(draw(KEYS.numpy(), (3, 5, 7)), whole.numpy())
    assert torch.equal(draw(KEYS[:4], (50,))[:, :20], draw(KEYS[:4], (20,)))
    monkeypatch.setattr("evalharness.numerics._noise._BLOCK", {"cpu": 40})
    assert torch.equal(draw(KEYS, (3, 5, 7)), whole)


@pytest.mark.parametrize(("draw", "law"), [(keyed_normal, "norm"), (keyed_uniform, "uniform")])
def test_the_law_is_right(draw, law):
    values = draw(KEYS, (500,)).double()
    assert kstest(values.flatten().numpy(), law).pvalue > 0.01
    assert kstest(values[:, 0].numpy(), law).pvalue > 0.01
    assert kstest(values[0].numpy(), law).pvalue > 0.01


def test_normal_moments():
    values = keyed_normal(KEYS, (1000,)).double()
    moments = [float(values.pow(power).mean()) for power in range(1, 5)]
    assert moments == pytest.approx([0, 1, 0, 3], abs=0.03)


@pytest.mark.parametrize("stride", [1, 2, 256, 2**32, -(2**63) + 1])
def test_neighbouring_keys_and_positions_are_independent(stride):
    keys = torch.arange(600) * stride
    values = keyed_normal(keys, (1000,)).double()
    deviation = values.numel() ** -0.5
    for product in (
        values[1:] * values[:-1],
        values[:, 1:] * values[:, :-1],
        values[1:, 1:] * values[:-1, :-1],
        values[1:, :-1] * values[:-1, 1:],
    ):
        assert abs(float(product.mean())) < 4.5 * deviation
    squares = values.square() - 1
    assert abs(float((squares[1:] * squares[:-1]).mean())) < 4.5 * 2 * deviation


def test_different_keys_share_no_stretch():
    bits = torch.sort(keyed_uniform(torch.arange(200), (200,)).double() * 2**23).values
    assert len(torch.unique(bits)) > 0.99 * bits.numel()


def test_uniform_stays_inside():
    values = keyed_uniform(torch.arange(2000), (1000,))
    assert 0 < float(values.min()) < 1e-5
    assert 1 - 1e-5 < float(values.max()) < 1


def test_empty_and_scalar_shapes():
    assert keyed_normal(KEYS[:0], (4,)).shape == (0, 4)
    assert keyed_normal(KEYS, ()).shape == (600,)
    assert keyed_normal(torch.tensor(7), (2,)).shape == (2,)
    assert keyed_uniform(KEYS, (0, 2)).shape == (600, 0, 2)


def test_wrong_arguments_are_refused():
    with pytest.raises(UsageError, match=r"`keys` must be int64, got torch.int32"):
        keyed_normal(KEYS.int(), (2,))
    with pytest.raises(UsageError, match=r"must not hold negative sizes, got \(-1,\)"):
        keyed_uniform(KEYS, (-1,))
