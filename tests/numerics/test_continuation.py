import itertools

import numpy as np
import pytest
import torch

from evalharness.numerics._continuation import combine_known, follow_path, order_penalties


def test_anchors_come_first_and_levels_halve_the_gaps():
    logs = np.log(np.logspace(-2, 2, 17)).tolist()
    groups = order_penalties(logs)
    assert groups == [[0], [4], [8], [12], [16], [2, 6, 10, 14], [1, 3, 5, 7, 9, 11, 13, 15]]
    assert order_penalties([0.0]) == [[0]]
    assert order_penalties([0.0, 0.1]) == [[0], [1]]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 45, 96])
def test_every_penalty_is_solved_once(count):
    groups = order_penalties(np.log(np.logspace(-6, 5, count)).tolist())
    assert sorted(itertools.chain(*groups)) == list(range(count))


def test_polynomials_are_met_exactly_and_wild_ones_avoided():
    known = [0.0, 1.0, 2.0, 3.0]
    for at in (0.5, 2.7):
        factors = combine_known(known, at)
        assert sum(factor * known[one] ** 3 for one, factor in factors.items()) == pytest.approx(at**3)
    far = combine_known([0.0, 0.01, 0.02], 50.0)
    assert far == {2: 1.0}


def test_starts_come_from_what_is_known():
    logs = [0.0, 2.5, 5.0, 5.0]
    seen = []

    def solve(group, start):
        seen.append((group, None if start is None else start[0, :, 0].tolist()))
        return torch.tensor([[[2 * logs[at]] for at in group]])

    solved = follow_path(logs, solve)
    assert solved[0, :, 0].tolist() == [0.0, 5.0, 10.0, 10.0]
    assert seen[0] == ([0], None)
    assert seen[1] == ([1], [0.0])
    assert seen[2] == ([2], [10.0])
    assert seen[3] == ([3], [10.0])
