import numpy as np
import pytest

from evalharness.errors import UnknownNameError, UsageError
from evalharness.plugins import sklearn_data

SPECS = {spec.name: spec for spec in sklearn_data.evalharness_datasets()}
SIZES = {"digits": 1797, "wine": 178, "breast-cancer": 569, "iris": 150}


@pytest.mark.parametrize("name", SIZES)
def test_train_and_test_are_all_rows_once_and_stratified(name):
    train, test, whole = (SPECS[name].load(split).parts["items"] for split in ("train", "test", "all"))
    assert whole.size == SIZES[name]
    assert sorted([*train.ids, *test.ids]) == sorted(whole.ids)
    shares = np.bincount(test.columns["label"].values) / np.bincount(whole.columns["label"].values)
    np.testing.assert_allclose(shares, 0.4, atol=0.02)


@pytest.mark.parametrize("name", SIZES)
def test_rows_keep_their_inputs_labels_and_ids_in_every_split(name):
    whole, test = (SPECS[name].load(split).parts["items"] for split in ("all", "test"))
    row = int(test.ids[7].removeprefix("row/"))
    assert whole.ids[row] == test.ids[7]
    assert (whole.read(np.array([row])) == test.read(np.array([7]))).all()
    assert whole.columns["label"].labels()[row] == test.columns["label"].labels()[7]


def test_digits_are_images_of_three_equal_channels():
    digits = SPECS["digits"].load("test").parts["items"]
    images = digits.read(np.arange(10))
    assert digits.modality == "image"
    assert images.shape == (10, 3, 8, 8)
    assert (images[:, 0] == images[:, 2]).all()
    assert 0 <= images.min() < images.max() <= 1
    assert digits.columns["label"].names == tuple("0123456789")


def test_labels_carry_their_names():
    assert SPECS["breast-cancer"].load("all").parts["items"].columns["label"].names == ("benign", "malignant")
    assert SPECS["iris"].load("all").parts["items"].columns["label"].names == ("setosa", "versicolor", "virginica")


def test_larger_test_share_only_adds_test_rows():
    small, large = (set(SPECS["wine"].load("test", test_share=share).parts["items"].ids) for share in (0.2, 0.5))
    assert small < large


def test_fingerprint_and_identity_tell_splits_and_shares_apart():
    cases = [("train", 0.4), ("test", 0.4), ("test", 0.2)]
    assert len({SPECS["iris"].load(split, test_share=share).parts["items"].fingerprint for split, share in cases}) == 3
    assert len({SPECS["iris"].identity(split, test_share=share).digest for split, share in cases}) == 3
    assert SPECS["iris"].identity("test") == SPECS["iris"].identity("test")


def test_unknown_split_names_near_match():
    with pytest.raises(UnknownNameError, match="unknown split of `iris` `tset`; did you mean `test`"):
        SPECS["iris"].load("tset")


def test_share_of_zero_is_refused():
    with pytest.raises(UsageError, match="`test_share` of `iris` must lie between 0 and 1, got 0"):
        SPECS["iris"].load("test", test_share=0)
