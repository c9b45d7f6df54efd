import pytest
import torch

from evalharness.errors import UsageError
from evalharness.plugins.gaussian_noise import add_noise, evalharness_shifts


def images(batch=4, size=32, channels=3, value=0.5):
    return torch.full((batch, channels, size, size), value)


def keys(severities, batch=4):
    return torch.arange(len(severities) * batch, dtype=torch.int64).view(len(severities), batch) * 7919 + 3


def spread(batch, **params):
    severities = [1, 2, 3, 4, 5]
    noisy = add_noise(batch, severities, keys(severities, len(batch)), **params)
    return [float((each - batch).std()) for each in noisy]


@pytest.mark.parametrize(
    ("size", "scale", "sigmas"),
    [
        (64, "auto", (0.04, 0.06, 0.08, 0.09, 0.10)),
        (96, "auto", (0.08, 0.12, 0.18, 0.26, 0.38)),
        (32, "large", (0.08, 0.12, 0.18)),
        (96, "small", (0.04, 0.06, 0.08, 0.09, 0.10)),
    ],
)
def test_noise_has_the_deviation_of_the_table(size, scale, sigmas):
    found = spread(images(size=size), scale=scale)[: len(sigmas)]
    assert found == pytest.approx(sigmas, rel=0.02 if max(sigmas) < 0.2 else 0.25)


def test_clean_is_clean_exactly():
    batch = torch.rand(4, 3, 9, 9)
    assert torch.equal(add_noise(batch, [0], keys([0]))[0], batch)


def test_noise_grows_and_stays_in_range():
    found = spread(images())
    assert found == sorted(found)
    (noisy,) = add_noise(images(value=0.98), [5], keys([5]), scale="large")
    assert noisy.max() <= 1
    assert noisy.min() >= 0


def test_an_item_gets_the_same_noise_in_any_batch():
    batch, given = torch.rand(4, 3, 16, 16), keys([3])
    whole = add_noise(batch, [3], given)[0]
    alone = torch.cat([add_noise(batch[at : at + 1], [3], given[:, at : at + 1])[0] for at in range(4)])
    order = torch.tensor([2, 0, 3, 1])
    assert torch.equal(whole, alone)
    assert torch.equal(add_noise(batch[order], [3], given[:, order])[0], whole[order])


def test_severities_asked_alone_or_together_agree():
    batch, given = torch.rand(4, 3, 8, 8), keys([1, 4])
    both = add_noise(batch, [1, 4], given)
    assert torch.equal(both[1], add_noise(batch, [4], given[1:])[0])


def test_rounding_gives_values_of_files():
    batch = torch.rand(4, 1, 8, 8)
    rounded, exact = (add_noise(batch, [2], keys([2]), round=flag)[0] for flag in (True, False))
    assert torch.allclose(rounded * 255, (rounded * 255).round(), atol=1e-4)
    assert (rounded - exact).abs().max() <= 0.5 / 255 + 1e-6
    assert not torch.equal(rounded, exact)


def test_grey_and_tiny_images_work():
    assert add_noise(images(size=8, channels=1), [5], keys([5]))[0].shape == (4, 1, 8, 8)


def test_wrong_parameters_are_refused():
    with pytest.raises(UsageError, match="whole numbers from 0 to 5, got 6"):
        add_noise(images(), [6], keys([6]))
    with pytest.raises(UsageError, match=r"whole numbers from 0 to 5, got 1\.5"):
        add_noise(images(), [1.5], keys([1]))
    with pytest.raises(UsageError, match="`auto`, `small` or `large`, got `tiny`"):
        add_noise(images(), [1], keys([1]), scale="tiny")


def test_keeps_every_target():
    (spec,) = evalharness_shifts()
    assert spec.preserves == ("*",)
    assert spec.severities == (1, 2, 3, 4, 5)
