"""Crossings of columns, and calibration in every cell."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from evalharness import stats
from evalharness.errors import DataError, UsageError


def columns(generator, n=400):
    return {name: generator.integers(-1, size, n) for name, size in (("a", 2), ("b", 3), ("c", 4))}


def test_intersections_equal_enumeration():
    table = columns(np.random.default_rng(0))
    expected = []
    for order in (1, 2, 3):
        for names in itertools.combinations(table, order):
            for codes in itertools.product(*(range(table[name].max() + 1) for name in names)):
                size = int(np.logical_and.reduce([table[name] == code for name, code in zip(names, codes, strict=True)]).sum())
                expected += [(names, codes, size)] if size >= 20 else []
    got = stats.intersections(table, minimum=20)
    assert [tuple(crossing) for crossing in got] == expected
    assert len({len(crossing.columns) for crossing in got}) > 1
    assert all(crossing.members(table).sum() == crossing.n for crossing in got)


def test_missing_rows_belong_to_no_crossing():
    got = stats.intersections({"a": np.array([0, 0, -1]), "b": np.array([1, 1, 1])}, minimum=1)
    assert [(crossing.columns, crossing.n) for crossing in got] == [(("a",), 2), (("b",), 3), (("a", "b"), 2)]
    assert stats.intersections({}, minimum=1) == []
    assert stats.intersections({"a": []}) == []


def test_intersections_refuse_what_are_no_codes():
    with pytest.raises(UsageError, match=r"column `b` must hold whole codes, one a row as the other columns, got shape \(2,\)"):
        stats.intersections({"a": [0, 1, 1], "b": [0, 1]})
    with pytest.raises(UsageError, match="column `a` must hold whole codes.* of float64"):
        stats.intersections({"a": [0.5, 1.0]})
    with pytest.raises(UsageError, match="`minimum` must be at least 1, got 0"):
        stats.intersections({"a": [0]}, minimum=0)


def test_multicalibration_by_hand():
    """Group 1 is too sure by .4 in its upper bin: half of its four rows, of eight."""
    hits = np.array([1, 0, 1, 0, 0, 1, 1, 0])
    confidence = np.array([0.5, 0.5, 0.5, 0.5, 0.9, 0.9, 0.45, 0.45])
    groups = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    got = stats.multicalibration(hits, confidence, groups)
    assert got == (pytest.approx(0.4 * 2 / 8), 1, 8, 2, pytest.approx(-0.4))


def test_multicalibration_equals_enumeration_for_codes_and_memberships():
    generator = np.random.default_rng(1)
    hits, confidence = generator.integers(0, 2, 300), generator.random(300)
    members = generator.random((300, 4)) < 0.4
    for groups in (members, generator.integers(-1, 3, 300)):
        table = groups if groups.ndim == 2 else groups[:, None] == np.arange(3)
        cells = {}
        for group, at in itertools.product(range(table.shape[1]), range(5)):
            inside = table[:, group] & (confidence > at / 5) & (confidence <= (at + 1) / 5)
            cells[group, at] = abs((hits - confidence)[inside].sum()) / 300
        got = stats.multicalibration(hits, confidence, groups, bins=5)
        assert got.value == pytest.approx(max(cells.values()))
        assert cells[got.group, got.bin] == pytest.approx(got.value)
        assert abs(got.bias) * got.n / 300 == pytest.approx(got.value)


def test_crossings_are_memberships_of_an_audit():
    generator = np.random.default_rng(2)
    table = columns(generator)
    crossings = stats.intersections(table)
    hits, confidence = generator.integers(0, 2, 400), generator.random(400)
    got = stats.multicalibration(hits, confidence, np.stack([each.members(table) for each in crossings], axis=1))
    assert 0 <= got.group < len(crossings)
    assert got.n <= crossings[got.group].n


def test_multicalibration_refuses_what_it_cannot_audit():
    with pytest.raises(DataError, match="no row belongs to a group"):
        stats.multicalibration([1], [0.5], [-1])
    with pytest.raises(DataError, match=r"must be 0 or 1 and `confidence` lie in \[0, 1\], and neither NaN"):
        stats.multicalibration([1.0, np.nan], [0.5, 0.5], [0, 0])
    with pytest.raises(UsageError, match=r"one hit, confidence and group a row, got 1, 2 and shape \(1,\)"):
        stats.multicalibration([1], [0.5, 0.5], [0])
    with pytest.raises(UsageError, match="`bins` must be at least 1"):
        stats.multicalibration([1], [0.5], [0], bins=0)
    with pytest.raises(UsageError, match="must hold whole codes or be a"):
        stats.multicalibration([1], [0.5], [0.5])
