import numpy as np
import pytest
import torch

from evalharness.errors import DataError, UnknownNameError, UsageError
from evalharness.plugins import scenes
from evalharness.plugins.scenes.factors import FACTORS

SCENES, CAPTIONS = scenes.evalharness_datasets()
SMALL = {"train": 60, "validation": 20, "test": 50, "image_size": 32}


def load(split="test", **params):
    return SCENES.load(split, **{**SCENES.params, **SMALL, **params}).parts["items"]


def codes_of(samples, at):
    return {name: column.values[at] for name, column in samples.columns.items()}


def test_images_have_the_declared_form():
    samples = load()
    images = samples.read(np.arange(5))
    assert images.shape == (5, 3, 32, 32)
    assert images.dtype == torch.float32
    assert 0 <= images.min() < images.max() <= 1
    assert samples.ids[17] == "test/000017"
    assert len(set(samples.ids)) == samples.size == 50
    assert set(samples.columns) == set(FACTORS)


@pytest.mark.parametrize("size", [32, 47])
def test_bits_do_not_depend_on_the_batch(size):
    samples = load(image_size=size)
    whole = samples.read(np.arange(50))
    for at in (np.array([3]), np.array([49, 0, 0, 7]), np.arange(50)[::-1]):
        assert torch.equal(samples.read(at), whole[torch.from_numpy(at.copy())])


def test_render_with_unchanged_factors_equals_reading():
    samples = load()
    at = np.arange(50)[::-1]
    assert torch.equal(SCENES.render(samples.ids[at], codes_of(samples, at), **SMALL), samples.read(at))


def test_render_takes_ids_of_several_splits_and_fills_in_factors():
    train, test = load("train"), load("test")
    images = SCENES.render(["test/000004", "train/000009"], {}, **SMALL)
    assert torch.equal(images[0], test.read(np.array([4]))[0])
    assert torch.equal(images[1], train.read(np.array([9]))[0])


@pytest.mark.parametrize("factor", FACTORS)
def test_every_factor_changes_pixels(factor):
    samples = load()
    codes = codes_of(samples, np.arange(20))
    changed = {**codes, factor: (codes[factor] + 1) % len(FACTORS[factor])}
    difference = (SCENES.render(samples.ids[:20], changed, **SMALL) - samples.read(np.arange(20))).abs().amax(dim=(1, 2, 3))
    assert (difference > 0.02).all()


def test_every_value_of_a_factor_gives_another_image():
    samples = load()
    for factor, names in FACTORS.items():
        ids = np.repeat(samples.ids[:1], len(names))
        images = SCENES.render(
            ids, {"background": np.zeros(len(names)), "camera": np.zeros(len(names)), factor: np.arange(len(names))}, **SMALL
        )
        assert len(torch.unique(images.flatten(1), dim=0)) == len(names), factor


def test_factors_are_independent_by_default():
    columns = load("train", train=4000).columns
    table = np.zeros((8, 6))
    np.add.at(table, (columns["category"].values, columns["background"].values), 1)
    expected = table.sum(1, keepdims=True) * table.sum(0) / table.sum()
    assert ((table - expected) ** 2 / expected).sum() < 66.6  # the 99.9 % point of chi-squared with 35 degrees of freedom


def test_confounding_ties_factors_of_training_splits_only():
    confound = {"background": ["category", 0.9]}
    train, test = load("train", train=2000, confound=confound), load("test", test=2000, confound=confound)
    tied = [(s.columns["background"].values == s.columns["category"].values % 6).mean() for s in (train, test)]
    assert tied[0] == pytest.approx(0.9 + 0.1 / 6, abs=0.02)
    assert tied[1] == pytest.approx(1 / 6, abs=0.03)
    confounded = load("test", confound={"background": ["category", 1.0]}, confound_test=True)
    assert (confounded.columns["background"].values == confounded.columns["category"].values % 6).all()


def test_a_larger_split_begins_with_the_smaller_one():
    small, large = load("test"), load("test", test=70)
    assert (large.ids[:50] == small.ids).all()
    assert torch.equal(large.read(np.arange(3)), small.read(np.arange(3)))


def test_seeds_and_splits_give_other_items():
    first = load().read(np.arange(3))
    assert not torch.equal(first, load(seed=1).read(np.arange(3)))
    assert not torch.equal(first, load("train").read(np.arange(3)))


def test_fingerprint_follows_what_the_split_is_made_from():
    confound = {"background": ["category", 0.9]}
    prints = {
        load().fingerprint,
        load(seed=1).fingerprint,
        load(test=51).fingerprint,
        load(image_size=33).fingerprint,
        load("train").fingerprint,
    }
    assert len(prints) == 5
    assert load().fingerprint == load(train=61, confound=confound).fingerprint
    assert load("train").fingerprint != load("train", confound=confound).fingerprint
    assert SCENES.identity("test", **SMALL).digest == load().fingerprint


def test_captions_are_linked_to_every_image_they_are_true_of():
    data = CAPTIONS.load("test", **{**SMALL, "test": 1500})
    images, texts, links = data.parts["images"], data.parts["texts"], data.links["captions"]
    assert (links.source, links.target) == ("images", "texts")
    described = np.stack([images.columns[name].values for name in ("category", "colour", "texture", "size", "position", "background")])
    same = (described[:, :, None] == described[:, None, :]).all(0)
    assert same.sum() > 1500  # some images are described alike
    assert sorted(map(tuple, links.rows.tolist())) == sorted(map(tuple, np.argwhere(same).tolist()))
    assert len(set(links.ids)) == len(links.ids)
    assert not set(images.ids) & set(texts.ids)


def test_captions_name_what_is_seen():
    data = CAPTIONS.load("test", **SMALL)
    texts = data.parts["texts"].read(np.arange(50))
    columns = data.parts["images"].columns
    for row, text in enumerate(texts):
        assert columns["category"].labels()[row] in text.lower()
        assert columns["colour"].labels()[row] in text.lower()
    assert texts == CAPTIONS.load("test", **SMALL).parts["texts"].read(np.arange(50))


@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        ({"train": 0}, UsageError, "`train` of `scenes` is a number of images, at least 1, got 0"),
        ({"image_size": 4}, UsageError, "`image_size` of `scenes` is a number of pixels from 8 to 1024, got 4"),
        ({"seed": "a"}, UsageError, "`seed` of `scenes` is a whole number, got 'a'"),
        (
            {"confound": {"backgrund": ["category", 1]}},
            UnknownNameError,
            "unknown factor of `scenes` `backgrund`; did you mean `background`",
        ),
        ({"confound": {"background": "category"}}, UsageError, r"takes FACTOR: \[OTHER, STRENGTH\].*got background: 'category'"),
        ({"confound": {"background": ["category", 2]}}, UsageError, "a strength from 0 to 1"),
    ],
)
def test_wrong_parameters_are_named(params, error, message):
    with pytest.raises(error, match=message):
        load(**params)


def test_unknown_split_is_named():
    with pytest.raises(UnknownNameError, match="unknown split of `scenes` `tests`; did you mean `test`"):
        load("tests")


@pytest.mark.parametrize(
    ("ids", "factors", "error", "message"),
    [
        (["row/1"], {}, DataError, "`row/1` is no id of `scenes`; ids look like `train/000017`"),
        (["test/1"], {"color": [0]}, UnknownNameError, "unknown factor of `scenes` `color`; did you mean `colour`"),
        (["test/1"], {"colour": [8]}, DataError, "takes codes from 0 to 7, got 8 to 8"),
        (["test/1"], {"colour": [1, 2]}, DataError, r"needs one code for each of 1 ids, got shape \(2,\)"),
    ],
)
def test_rendering_refuses_what_does_not_exist(ids, factors, error, message):
    with pytest.raises(error, match=message):
        SCENES.render(ids, factors, **SMALL)


def test_pixels_hold_the_category():
    """A linear map of small images finds the category better than chance (1/8), and far from perfectly."""
    from sklearn.linear_model import RidgeClassifier

    train, test = load("train", train=600, image_size=16), load("test", test=300, image_size=16)
    features = [samples.read(np.arange(samples.size)).flatten(1).numpy() for samples in (train, test)]
    probe = RidgeClassifier(alpha=100.0).fit(features[0], train.columns["category"].values)
    assert 0.16 < probe.score(features[1], test.columns["category"].values) < 0.7
