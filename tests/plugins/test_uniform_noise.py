import itertools

import pytest
import torch

from evalharness import AttackModel
from evalharness.errors import UsageError
from evalharness.plugins import uniform_noise


def make_model(inputs, seed=0, classes=3, logits=True):
    generator = torch.Generator().manual_seed(seed)
    weights, head = torch.randn(inputs[0].numel(), 5, generator=generator), torch.randn(5, classes, generator=generator)
    encode = lambda batch: torch.tanh(batch.flatten(1) @ weights)  # noqa: E731
    return AttackModel(encode=encode, clean=encode(inputs), logits=(lambda batch: encode(batch) @ head) if logits else None)


def keys(severities, batch, seed=0):
    return torch.randint(-(2**62), 2**62, (len(severities), batch), generator=torch.Generator().manual_seed(seed))


def images(batch=12, seed=0):
    return torch.rand(batch, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


def displacement(model, batch):
    return (model.encode(batch) - model.clean).norm(dim=1)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_larger_budgets_never_move_less_and_hold_their_budget(norm):
    inputs, budgets = images(), [8 / 255, 0.0, 1 / 255, 2 / 255]
    model = make_model(inputs)
    batches = uniform_noise.perturb(inputs, budgets, keys(budgets, 12), model=model, norm=norm)
    moved = [displacement(model, batches[at]) for at in (1, 2, 3, 0)]
    assert torch.equal(batches[1], inputs)
    for small, large in itertools.pairwise(moved):
        assert (large >= small).all()
        assert large.mean() > small.mean()
    for budget, batch in zip(budgets, batches, strict=True):
        delta = (batch - inputs).flatten(1)
        size = delta.abs().amax(1) if norm == "linf" else delta.norm(dim=1)
        assert float(size.max()) <= budget * (1 + 1e-6) + 1e-7
        assert float(batch.min()) >= 0
        assert float(batch.max()) <= 1


def test_more_restarts_never_move_less():
    inputs, given = images(), keys([1], 12)
    model = make_model(inputs)
    one, five = (displacement(model, uniform_noise.perturb(inputs, [0.05], given, model=model, restarts=each)[0]) for each in (1, 5))
    assert (five >= one).all()
    assert (five > one).any()


def test_points_are_uniform_in_the_ball():
    inputs = torch.full((4000, 2), 0.5)
    cube = uniform_noise.draw_point(inputs, keys([1], 4000)[0], 0.1, "linf") - inputs
    assert float(cube.std()) == pytest.approx(0.1 / 3**0.5, rel=0.03)
    ball = (uniform_noise.draw_point(inputs, keys([1], 4000)[0], 0.1, "l2") - inputs).norm(dim=1)
    assert float((ball < 0.1 / 2**0.5).float().mean()) == pytest.approx(0.5, abs=0.03)


def test_margin_falls_and_unknown_labels_stay():
    inputs, budgets = images(), [0.05, 0.2]
    model = make_model(inputs)
    labels = model.logits(inputs).argmax(1)
    labels[0], labels[1] = 3, -1
    small, large = uniform_noise.perturb(inputs, budgets, keys(budgets, 12), model=model, labels=labels, objective="margin")
    assert torch.equal(large[:2], inputs[:2])
    own = labels[2:, None]
    leads = []
    for batch in (inputs, small, large):
        logits = model.logits(batch)[2:]
        leads.append(logits.gather(1, own)[:, 0] - logits.scatter(1, own, -torch.inf).amax(1))
    assert (leads[1] <= leads[0]).all()
    assert (leads[2] <= leads[1]).all()


def test_neither_batch_nor_order_change_an_item():
    inputs, given = images(6), keys([1, 2], 6)
    whole = uniform_noise.perturb(inputs, [0.1, 0.2], given, model=make_model(inputs))
    order = torch.tensor([4, 0, 2])
    part = uniform_noise.perturb(inputs[order], [0.1, 0.2], given[:, order], model=make_model(inputs[order]))
    for one, two in zip(whole, part, strict=True):
        assert torch.equal(one[order], two)


def test_wrong_parameters_are_refused():
    inputs = images(2)
    model = make_model(inputs, logits=False)
    for params, message in [
        ({"norm": "l1"}, "`norm` of `uniform-noise` to be `linf` or `l2`, got `l1`"),
        ({"restarts": 0}, "`restarts` of `uniform-noise` to be at least 1"),
        ({"objective": "loss"}, "to be `displacement` or `margin`, got `loss`"),
        ({"objective": "margin"}, "needs a head; name an evaluator that has one in `through`"),
    ]:
        with pytest.raises(UsageError, match=message):
            uniform_noise.perturb(inputs, [0.1], keys([1], 2), model=model, **params)
    with pytest.raises(UsageError, match="0 or more, got -1"):
        uniform_noise.perturb(inputs, [-1], keys([1], 2), model=model)


def test_registers_as_an_attack_without_gradients():
    (spec,) = uniform_noise.evalharness_shifts()
    assert spec.mechanism == "attack"
    assert spec.access == ("encode",)
