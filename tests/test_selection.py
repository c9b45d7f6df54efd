"""Row selections: nested, stratified, keyed by what they are about."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalharness.errors import DataError, UnknownNameError, UsageError
from evalharness.selection import assign_folds, draw_keys, hash_ids, match_where, strata, stratified_order, take_per_class, take_share
from evalharness.types import class_column, number_column

IDS = np.array([f"row/{at}" for at in range(1000)])
KEYS = draw_keys(hash_ids(IDS), "test")


def test_keys_depend_on_what_they_are_about_and_on_the_id_alone():
    assert (draw_keys(hash_ids(IDS), "test") == KEYS).all()
    assert (draw_keys(hash_ids(IDS), "other") != KEYS).all()
    assert (draw_keys(hash_ids(IDS[::-1]), "test") == KEYS[::-1]).all()
    assert len(np.unique(KEYS)) == 1000


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.integers(1, 60), min_size=1, max_size=8), n=st.integers(1, 200))
def test_every_prefix_is_proportional_within_one_row(sizes, n):
    codes = np.repeat(np.arange(len(sizes)), sizes)
    keys = draw_keys(hash_ids(IDS[: len(codes)]), "hypothesis")
    order = stratified_order(keys, codes)
    n = min(n, len(codes))
    counts = np.bincount(codes[order[:n]], minlength=len(sizes))

    assert sorted(order) == list(range(len(codes)))
    assert np.abs(counts - n * np.array(sizes) / len(codes)).max() <= 1 + len(sizes)


def test_prefixes_are_nested_and_hundred_rows_of_77_classes_hold_them_all():
    codes = np.arange(1000) % 77
    order = stratified_order(KEYS, codes)

    assert len(np.unique(codes[order[:100]])) == 77
    assert set(order[:50]) < set(order[:100])


def test_shares_are_stratified_and_nested():
    codes = np.arange(1000) % 4
    small, large = take_share(KEYS, codes, 0.1), take_share(KEYS, codes, 0.5)

    assert (len(small), len(large)) == (100, 500)
    assert set(small) < set(large)
    assert np.bincount(codes[small]).tolist() == [25] * 4
    with pytest.raises(UsageError, match=r"expected a share in \(0, 1\], got 1.5"):
        take_share(KEYS, codes, 1.5)


def test_per_class_budgets_are_balanced_and_nested():
    column = class_column([f"c{at % 10}" for at in range(1000)])
    few, more = take_per_class(KEYS, column, 3), take_per_class(KEYS, column, 8)

    assert set(few) < set(more)
    assert np.bincount(column.values[more]).tolist() == [8] * 10


def test_a_class_that_is_too_small_is_named_with_the_largest_budget():
    column = class_column(["rare"] + ["common"] * 999)
    with pytest.raises(
        DataError, match="a budget of 8/class needs 8 rows of every class, but class `rare` has 1; the largest possible budget is 1/class"
    ):
        take_per_class(KEYS, column, 8)


def test_folds_are_balanced_and_keep_clusters_whole():
    codes = np.arange(1000) % 5
    folds = assign_folds(KEYS, codes, 4)
    assert np.bincount(folds).tolist() == [250] * 4
    assert np.ptp(np.bincount(folds[codes == 2])) <= 1

    clusters = np.arange(1000) // 7
    folds = assign_folds(KEYS, codes, 4, clusters)
    assert all(len(np.unique(folds[clusters == cluster])) == 1 for cluster in np.unique(clusters))
    assert np.ptp(np.bincount(folds)) <= 21


def test_more_folds_than_rows_is_an_error():
    with pytest.raises(DataError, match="5 folds need at least 5 independent rows, there are 3"):
        assign_folds(KEYS[:3], np.zeros(3, dtype=np.int64), 5)


def test_strata_cross_columns_and_cut_numbers():
    columns = [class_column(["a", "b"] * 500), number_column(np.arange(1000.0))]

    assert len(np.unique(strata(columns, 1000))) == 10


def test_where_matches_values_or_lists_and_names_unknown_ones():
    columns = {"colour": class_column(["red", "blue"] * 500), "size": number_column(np.arange(1000.0))}

    assert match_where({"colour": "red"}, columns, 1000, "here").sum() == 500
    assert match_where({"colour": ["red", "blue"]}, columns, 1000, "here").sum() == 1000
    with pytest.raises(UnknownNameError, match="here: unknown value of `colour` `rde`; did you mean `red`"):
        match_where({"colour": "rde"}, columns, 1000, "here")
    with pytest.raises(UnknownNameError, match="here: unknown class column `color`; did you mean `colour`"):
        match_where({"color": "red"}, columns, 1000, "here")
