import numpy as np
import pytest
import torch

from evalharness.errors import DataError, UnknownNameError, UsageError
from evalharness.plugins import intervene, scenes
from evalharness.plugins.scenes.factors import FACTORS

NAMES = {"lighting": ("a", "b", "c", "d"), "colour": ("red", "blue")}


def keys(batch, severities=1):
    return torch.randint(-(2**62), 2**62, (severities, batch), generator=torch.Generator().manual_seed(0))


def codes(batch=400):
    rng = np.random.default_rng(0)
    return {name: rng.integers(0, len(values), batch) for name, values in NAMES.items()}


def change(inputs, severities=(1,), labels=NAMES, **params):
    return intervene.change_factor(inputs, severities, keys(len(inputs["colour"]), len(severities)), labels=labels, **params)


def test_the_factor_takes_every_other_value_and_never_its_own():
    inputs = codes()
    (changed,) = change(inputs)
    assert (changed["lighting"] != inputs["lighting"]).all()
    steps = np.bincount((changed["lighting"] - inputs["lighting"]) % 4, minlength=4)
    assert steps[1:].min() > 100
    assert (changed["colour"] == inputs["colour"]).all()


def test_a_value_is_given_to_all():
    (changed,) = change(codes(), value="c")
    assert (changed["lighting"] == 2).all()


def test_severity_zero_changes_nothing():
    inputs = codes()
    clean, changed = change(inputs, (0, 1))
    assert (clean["lighting"] == inputs["lighting"]).all()
    assert (changed["lighting"] != inputs["lighting"]).all()


def test_neither_batch_nor_order_change_an_item():
    inputs, given = codes(20), keys(20)
    whole = intervene.change_factor(inputs, [1], given, labels=NAMES)[0]["lighting"]
    order = np.array([7, 0, 19])
    part = intervene.change_factor({name: each[order] for name, each in inputs.items()}, [1], given[:, order], labels=NAMES)[0]["lighting"]
    assert (part == whole[order]).all()


def test_the_inputs_are_left_as_they_were():
    inputs = codes(5)
    before = {name: each.copy() for name, each in inputs.items()}
    change(inputs)
    assert all((inputs[name] == before[name]).all() for name in inputs)


def test_all_factors_of_scenes_are_known():
    assert tuple(FACTORS) == intervene.FACTORS


def test_all_but_the_factor_are_preserved():
    kept = intervene.preserved(factor="colour")
    assert set(kept) == set(FACTORS) - {"colour"}
    (spec,) = intervene.evalharness_shifts()
    assert "lighting" not in spec.preserves(**spec.params)


def test_scenes_render_with_the_changed_factor():
    (spec, _) = scenes.evalharness_datasets()
    items = spec.load("test", test=4, image_size=16).parts["items"]
    inputs = {name: column.values for name, column in items.columns.items()}
    names = {name: column.names for name, column in items.columns.items()}
    clean, changed = intervene.change_factor(inputs, [0, 1], keys(4, 2), labels=names, factor="background")
    one, two = (spec.render(items.ids, each, test=4, image_size=16) for each in (clean, changed))
    assert torch.equal(one, items.read(np.arange(4)))
    assert (one != two).flatten(1).any(1).all()


def test_wrong_names_are_refused_with_near_matches():
    with pytest.raises(UnknownNameError, match="did you mean `lighting`"):
        change(codes(3), factor="lightning")
    with pytest.raises(UnknownNameError, match="did you mean `lighting`"):
        intervene.preserved(factor="lightning")
    with pytest.raises(UnknownNameError, match="unknown value of factor `colour` `blu`; did you mean `blue`"):
        change(codes(3), factor="colour", value="blu")
    with pytest.raises(DataError, match="single value `a`; there is no other"):
        change(codes(3), labels={"lighting": ("a",), "colour": ("red",)})
    with pytest.raises(UsageError, match="expected severity 1 or 0, got 2"):
        change(codes(3), (2,))
