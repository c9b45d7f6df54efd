"""What must hold of records, whatever the items were."""

import pytest

from evalharness.invariants import broken_invariants
from evalharness.records import make_record

BASE = {
    "task": "t", "encoder": "a", "params": {}, "evaluator": "e", "metric": "accuracy", "statistic": "value", "value": 0.5, "low": 0.4,
    "high": 0.6, "level": 0.95, "n": 10, "n_units": 10, "main": False, "status": "measured", "shift": "clean", "severity": 0, "unit": "u",
    "higher_is_better": True,
}  # fmt: skip


def faults(*changes):
    records = [make_record(**(BASE | change)) for change in changes]
    return [(check, at) for check, at, _ in broken_invariants(records)]


@pytest.mark.parametrize(
    "change",
    [
        {"low": 0.7},
        {"level": 1.0},
        {"p": 0.0},
        {"p": 1.5},
        {"n": -1},
        {"statistic": "gap", "value": -0.1},
        {"value": None},
        {"status": "failed", "value": None, "reason": None},
    ],
)
def test_a_record_that_cannot_be_is_found(change):
    assert faults(change) == [("ranges", 0)]


def test_sound_records_have_no_faults():
    assert faults({}, {"metric": "recall_at_1", "value": 0.2}, {"metric": "recall_at_10", "value": 0.4}, {"main": True}) == []


@pytest.mark.parametrize(
    ("small", "large"), [("recall_at_1", "recall_at_10"), ("recall_at_9", "recall_at_10"), ("accuracy", "top5_accuracy")]
)
def test_a_recall_does_not_fall_with_k(small, large):
    assert faults({"metric": small, "value": 0.4}, {"metric": large, "value": 0.39}) == [("invariants", 1)]
    assert faults({"metric": small, "value": 0.4}, {"metric": large, "value": 0.4}) == []
    assert faults({"metric": small, "value": 0.4}, {"metric": large, "value": 0.3, "encoder": "b"}) == []


def test_no_group_is_worse_than_the_worst():
    worst = {"statistic": "worst", "over": "group:colour", "group": "colour=red", "value": 0.3}
    red, blue = ({"group": f"colour={name}", "value": value} for name, value in (("red", 0.3), ("blue", 0.2)))

    assert faults(worst, red) == []
    assert faults(worst, red, blue) == [("invariants", 0)]
    assert faults(worst, red, {**blue, "status": "insufficient"}) == []


def test_one_main_record():
    assert faults({"main": True}, {"main": True, "metric": "macro_f1"}) == [("invariants", 1)]


def test_an_attack_does_not_help():
    attacked = {"shift": "robust", "severity": 0.1, "over": "attack:pgd", "value": 0.6, "high": 0.7}

    assert faults({}, attacked) == [("invariants", 1)]
    assert faults({}, {**attacked, "value": 0.4}) == []
