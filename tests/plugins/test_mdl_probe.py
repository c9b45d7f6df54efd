"""The online code: its definition, check values, and what it says of vectors that tell and do not tell the labels."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from evalharness.errors import DataError, UsageError
from evalharness.plugins.linear_probe import online
from evalharness.plugins.linear_probe.online import code_bits, cut_points
from evalharness.testing import check_evaluator, metric_values, sample_tables
from evalharness.types import Column, Side, Table
from evalharness.vectors import CodedVectors


def make_table(vectors, labels):
    rows = np.arange(len(labels))
    target = Column(kind="class", values=np.asarray(labels), names=tuple(f"c{code}" for code in range(max(labels) + 1)))
    held = CodedVectors(torch.from_numpy(np.asarray(vectors, dtype=np.float32)))
    return Table(vectors=held, ids=rows.astype(str), rows=rows, target=target, columns={})


def run(table, seed=0, **params):
    (outcome,) = online.score(None, Side(parts={"items": table}), generator=torch.Generator().manual_seed(seed), **params)
    return outcome


def compression(outcome):
    return {metric.name: value for metric, value in metric_values(online.ONLINE, outcome)}["compression"]


def test_it_passes_the_checks(registry):
    check_evaluator(registry.get("evaluator", "mdl-probe"))


def test_blocks_end_where_the_reference_says():
    """METRICS 1.5."""
    assert cut_points(1000) == [1, 2, 4, 8, 16, 32, 62, 125, 250, 500, 1000]
    assert cut_points(20) == [1, 2, 5, 10, 20]


@pytest.mark.parametrize(("probability", "length", "ratio"), [(1.0, 1.0, 1000.0), (0.9, 152.851090, 6.542315), (0.5, 1000.0, 1.0)])
def test_codelengths_of_the_reference(probability, length, ratio):
    """METRICS 1.5: two classes, a thousand labels, the first block of one."""
    bits = code_bits(np.full(1000, probability), 2, cut_points(1000)[0])

    assert bits.sum() == pytest.approx(length, abs=1e-5)
    assert 1000 / bits.sum() == pytest.approx(ratio, abs=1e-5)


def test_a_probability_of_zero_is_clipped_and_counted():
    assert code_bits(np.zeros(3), 4, 1).tolist() == pytest.approx([2.0, 39.863, 39.863], abs=1e-3)


def test_blocks_are_coded_by_probes_of_the_labels_before():
    _, table = sample_tables(rows=120)
    outcome = run(table, grid=1.0, scale="raw", tolerance=1e-8)
    order = torch.randperm(120, generator=torch.Generator().manual_seed(0)).numpy()
    vectors, codes = table.vectors.dense().double().numpy()[order], table.target.values[order]
    bits, cuts = np.asarray(outcome.columns["bits"])[order], outcome.details["blocks_end_at"]

    assert bits[: cuts[0]].tolist() == [2.0] * cuts[0]
    for start, stop in itertools.pairwise(cuts):
        known = np.unique(codes[:start])
        if len(known) < 2:
            continue
        model = LogisticRegression(C=1.0, tol=1e-10, max_iter=5000).fit(vectors[:start], codes[:start])
        held = model.predict_proba(vectors[start:stop])
        absent = 4 - len(known)
        escape = absent / (start + absent)
        place = {code: at for at, code in enumerate(known)}
        expected = [(1 - escape) * held[at, place[code]] if code in place else escape / absent for at, code in enumerate(codes[start:stop])]
        np.testing.assert_allclose(bits[start:stop], -np.log2(expected), rtol=2e-3, atol=1e-4)


def test_an_escape_leaves_probabilities_that_sum_to_one():
    draw = np.random.default_rng(0)
    vectors, labels = torch.from_numpy(draw.standard_normal((60, 4)).astype(np.float32)), torch.from_numpy(draw.integers(0, 3, 60))
    total = np.zeros(1)
    for code in range(5):
        coder = online.Coder(
            vectors=vectors,
            codes=torch.cat([labels[:50], torch.tensor([code])]),
            num_classes=5,
            penalties=(1.0,),
            scale="standard",
            limits={},
            spent=np.zeros(1),
        )
        total += coder.code(50, 51)
    assert total[0] == pytest.approx(1.0, abs=1e-6)


def test_vectors_that_tell_the_labels_compress_them_and_others_do_not():
    draw = np.random.default_rng(1)
    labels = draw.integers(0, 3, 600)
    clear = make_table(6 * np.eye(3, 8)[labels] + draw.standard_normal((600, 8)), labels)
    noise = make_table(draw.standard_normal((600, 8)), labels)
    good, bad = run(clear), run(noise)

    assert compression(good) > 8
    assert 0.8 < compression(bad) < 1.05
    assert good.details["codelength_bits"] == pytest.approx(np.sum(good.columns["bits"]))
    assert bad.details["uniform_codelength_bits"] == pytest.approx(600 * math.log2(3))
    assert compression(good) == pytest.approx(good.details["uniform_codelength_bits"] / good.details["codelength_bits"])


def test_the_label_entropy_code_is_told():
    """METRICS 1.5: a prior of .9 and .1 alone costs .468996 bits a label."""
    labels = np.array([0] * 90 + [1] * 10)
    outcome = run(make_table(np.random.default_rng(2).standard_normal((100, 3)), labels))

    assert outcome.details["label_entropy_codelength_bits"] == pytest.approx(46.8996, abs=1e-3)


def test_the_order_is_drawn_by_the_seed():
    _, table = sample_tables(rows=120)
    one, again, other = (np.asarray(run(table, seed=seed).columns["bits"]) for seed in (1, 1, 2))

    assert (one == again).all()
    assert (one != other).any()


@pytest.mark.parametrize(
    ("rows", "params", "error", "message"),
    [
        (9, {}, DataError, "needs 10 items or more, got 9"),
        (20, {"grid": -1.0}, UsageError, "positive inverse penalties"),
        (20, {"scale": "unit"}, UsageError, "expected `scale`"),
    ],
)
def test_what_cannot_be_coded_is_refused(rows, params, error, message):
    with pytest.raises(error, match=message):
        run(make_table(np.random.default_rng(3).standard_normal((rows, 3)), np.arange(rows) % 2), **params)


def test_one_class_is_refused():
    with pytest.raises(DataError, match="all items are of one class"):
        run(make_table(np.ones((20, 3)), np.ones(20, dtype=int)))
