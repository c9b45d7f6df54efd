import pytest
import torch

from evalharness import AttackModel
from evalharness.errors import DataError, UsageError
from evalharness.plugins import pgd

W = torch.tensor([[1.0, 2.0], [0.0, 1.0], [3.0, -1.0]])
HEAD = torch.tensor([1.0, -2.0, 0.5])


def make_model(encode, inputs, logits=None):
    return AttackModel(encode=encode, clean=encode(inputs).detach(), logits=logits)


def keys(severities, batch, seed=0):
    return torch.randint(-(2**62), 2**62, (len(severities), batch), generator=torch.Generator().manual_seed(seed))


def centre(batch, dim):
    return torch.full((batch, dim), 0.5)


def linear_head(weights=HEAD, margin=1.2):
    """Return logits whose first class leads by ``margin`` at the centre."""

    def logits(batch):
        lead = (batch - 0.5) @ weights + margin
        return torch.stack([lead, torch.zeros_like(lead)], dim=1)

    return logits


def network(seed=0, features=12, dim=5, classes=3):
    generator = torch.Generator().manual_seed(seed)
    first, second = torch.randn(features, 16, generator=generator), torch.randn(16, dim, generator=generator)
    head = torch.randn(dim, classes, generator=generator)
    encode = lambda batch: torch.tanh(batch.flatten(1) @ first) @ second  # noqa: E731
    return encode, lambda batch: encode(batch) @ head


def check_budget(batch, inputs, budget, norm="linf"):
    delta = (batch - inputs).flatten(1)
    size = delta.abs().amax(1) if norm == "linf" else delta.norm(dim=1)
    assert float(size.max()) <= budget * (1 + 1e-6) + 1e-7
    assert float(batch.min()) >= 0
    assert float(batch.max()) <= 1


def test_linear_encoder_reaches_the_largest_displacement_with_restarts():
    inputs = centre(20, 2)
    model = make_model(lambda batch: batch @ W.T, inputs)
    (found,) = pgd.attack(inputs, [0.1], keys([1], 20), model=model, restarts=12)
    moved = (model.encode(found) - model.clean).norm(dim=1)
    assert moved.tolist() == pytest.approx([0.424264] * 20, abs=1e-5)
    (single,) = pgd.attack(inputs, [0.1], keys([1], 20), model=model)
    assert (model.encode(single) - model.clean).norm(dim=1).min() == pytest.approx(0.374166, abs=1e-5)


def test_linear_encoder_reaches_the_largest_singular_value_in_l2():
    inputs = centre(8, 2)
    model = make_model(lambda batch: batch @ W.T, inputs)
    (found,) = pgd.attack(inputs, [0.1], keys([1], 8), model=model, norm="l2", steps=60, step_size=0.05)
    assert (model.encode(found) - model.clean).norm(dim=1).tolist() == pytest.approx([0.319939] * 8, abs=2e-5)
    check_budget(found, inputs, 0.1, "l2")


@pytest.mark.parametrize(("norm", "smallest"), [("linf", 0.342857), ("l2", 0.523723)])
def test_linear_head_flips_at_the_closed_form(norm, smallest):
    inputs, logits = centre(6, 3), linear_head()
    model = make_model(lambda batch: batch, inputs, logits)
    budgets = [smallest - 0.002, smallest + 0.002]
    model.bounds = (-1.0, 2.0)
    under, over = pgd.attack(inputs, budgets, keys(budgets, 6), model=model, labels=torch.zeros(6, dtype=torch.int64), norm=norm)
    assert (logits(under).argmax(1) == 0).all()
    assert (logits(over).argmax(1) == 1).all()


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("objective", ["displacement", "margin", "cross-entropy"])
def test_a_larger_budget_never_lowers_the_objective_and_stays_in_the_ball(norm, objective):
    encode, logits = network()
    inputs = torch.rand(16, 3, 2, 2, generator=torch.Generator().manual_seed(1))
    labels = logits(inputs).argmax(1)
    model = make_model(encode, inputs, logits)
    budgets = [0.3, 0.0, 0.02, 0.1]
    batches = pgd.attack(inputs, budgets, keys(budgets, 16), model=model, labels=labels, norm=norm, steps=10, objective=objective)
    goal, everyone = pgd.make_goal(model, labels, objective), torch.arange(16)
    scores = {budget: goal.measure(batch, everyone) for budget, batch in zip(budgets, batches, strict=True)}
    assert torch.equal(batches[1], inputs)
    for small, large in ((0.0, 0.02), (0.02, 0.1), (0.1, 0.3)):
        assert (scores[large] >= scores[small] - 1e-5).all()
        assert scores[large].mean() > scores[small].mean()
    for budget, batch in zip(budgets, batches, strict=True):
        check_budget(batch, inputs, budget, norm)


def test_the_clean_input_is_no_start():
    # at the clean input the gradient of every distance is zero: an attack from there would report perfect robustness
    inputs = centre(4, 2)
    model = make_model(lambda batch: batch @ W.T, inputs)
    (found,) = pgd.attack(inputs, [0.05], keys([1], 4), model=model, steps=3)
    assert (found != inputs).any(dim=1).all()


def test_gradient_beats_random_noise():
    encode, _ = network(seed=2)
    inputs = torch.rand(16, 3, 2, 2, generator=torch.Generator().manual_seed(3))
    model = make_model(encode, inputs)
    (found,) = pgd.attack(inputs, [0.05], keys([1], 16), model=model, steps=20)
    noise = pgd.Ball(norm="linf", radius=0.05, step=1.0, bounds=(0.0, 1.0)).draw(inputs, keys([1], 16, seed=9)[0])
    assert ((encode(found) - model.clean).norm(dim=1) > (encode(noise) - model.clean).norm(dim=1)).all()


def test_wrong_and_unknown_items_stay_as_they_are():
    encode, logits = network()
    inputs = torch.rand(10, 12, generator=torch.Generator().manual_seed(4))
    labels = logits(inputs).argmax(1)
    labels[0], labels[1], labels[2] = (labels[0] + 1) % 3, 3, -1
    model = make_model(encode, inputs, logits)
    for objective in ("margin", "cross-entropy"):
        (found,) = pgd.attack(inputs, [0.2], keys([1], 10), model=model, labels=labels, objective=objective, steps=5)
        assert torch.equal(found[1:3], inputs[1:3])
    (found,) = pgd.attack(inputs, [0.2], keys([1], 10), model=model, labels=labels, steps=5)
    assert torch.equal(found[:3], inputs[:3])
    assert (found[3:] != inputs[3:]).any()


def test_an_item_is_left_alone_once_broken():
    inputs, logits = centre(2, 3), linear_head()
    calls = []
    model = make_model(lambda batch: batch, inputs, lambda batch: calls.append(len(batch)) or logits(batch))
    model.bounds = (-1.0, 2.0)
    budgets = [0.5, 0.8]
    small, large = pgd.attack(inputs, budgets, keys(budgets, 2), model=model, labels=torch.zeros(2, dtype=torch.int64), steps=40)
    assert torch.equal(small, large)
    assert len(calls) < 40


def test_neither_batch_nor_order_change_an_item():
    encode, _ = network()
    inputs, given = torch.rand(6, 12, generator=torch.Generator().manual_seed(5)), keys([1, 2], 6)
    budgets = [0.05, 0.1]
    whole = pgd.attack(inputs, budgets, given, model=make_model(encode, inputs), steps=5)
    order = torch.tensor([3, 1, 5])
    part = pgd.attack(inputs[order], budgets, given[:, order], model=make_model(encode, inputs[order]), steps=5)
    for one, two in zip(whole, part, strict=True):
        assert torch.allclose(one[order], two, atol=1e-6)


def test_parameters_gather_no_gradient():
    layer = torch.nn.Linear(12, 4)
    inputs = torch.rand(3, 12)
    pgd.attack(inputs, [0.1], keys([1], 3), model=make_model(layer, inputs), steps=2)
    assert layer.weight.grad is None
    assert not inputs.requires_grad


def test_auto_is_margin_with_a_head_and_displacement_without():
    encode, logits = network()
    inputs = torch.rand(2, 12)
    labels = torch.zeros(2, dtype=torch.int64)
    assert pgd.make_goal(make_model(encode, inputs), None, "auto").objective == "displacement"
    assert pgd.make_goal(make_model(encode, inputs, logits), labels, "auto").objective == "margin"


def test_wrong_parameters_are_refused():
    inputs = torch.rand(2, 12)
    model = make_model(network()[0], inputs)
    for params, message in [
        ({"norm": "l1"}, "`norm` of `pgd` to be `linf` or `l2`, got `l1`"),
        ({"steps": 0}, "`steps` of `pgd` to be at least 1"),
        ({"restarts": 0}, "`restarts` of `pgd` to be at least 1"),
        ({"step_size": -1.0}, "positive `step_size`"),
        ({"objective": "loss"}, "`objective` of `pgd` to be one of auto, displacement"),
        ({"objective": "margin"}, "`margin` of `pgd` needs a head; name an evaluator that has one in `through`"),
    ]:
        with pytest.raises(UsageError, match=message):
            pgd.attack(inputs, [0.1], keys([1], 2), model=model, **params)
    with pytest.raises(UsageError, match="budgets of `pgd` to be 0 or more"):
        pgd.attack(inputs, [-0.1], keys([1], 2), model=model)


def test_missing_and_broken_gradients_are_named():
    inputs = torch.rand(2, 12)
    with pytest.raises(UsageError, match="must not detach"):
        pgd.attack(inputs, [0.1], keys([1], 2), model=make_model(lambda batch: batch.detach() * 2, inputs))
    broken = lambda batch: (batch - batch).sqrt() + batch  # noqa: E731
    with pytest.raises(DataError, match="gradient that is NaN or infinite"):
        pgd.attack(inputs, [0.1], keys([1], 2), model=make_model(broken, inputs))


def test_registers_as_an_attack_that_needs_gradients():
    (spec,) = pgd.evalharness_shifts()
    assert spec.mechanism == "attack"
    assert "gradient" in spec.access
