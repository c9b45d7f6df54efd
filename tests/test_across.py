"""Records over several cells: references, severities, domains, families and draws, checked against values made by hand."""

import numpy as np
import pytest

from evalharness.across import AcrossPlan, CellResult, across_records
from evalharness.estimates import Items, Resampler
from evalharness.summaries import SummaryPlan
from evalharness.types import Column, MetricInfo

ACCURACY = MetricInfo(name="accuracy", columns=("hit",), interval="wilson")


def make_plan(metric=ACCURACY, **fields):
    summary = SummaryPlan(
        base={},
        metrics=[metric],
        main_metrics=frozenset({metric.name}),
        params={},
        main_cell=False,
        main_metric=metric.name,
        main_variant=None,
        groups=lambda part: [],
        unit="u",
    )
    return AcrossPlan(summary=summary, **fields)


def make_items(hits, rows=None, clusters=None, **fields):
    hits = np.asarray(hits)
    given = {"variant": "", "item": "sample", "part": "items", "cluster_name": "person" if clusters is not None else None, **fields}
    return Items(rows=np.arange(len(hits)) if rows is None else np.asarray(rows), columns={"hit": hits}, clusters=clusters, **given)


def make_cell(items, shift="clean", severity=0.0, kind=None, **fields):
    base = {"fit": "all", "target": "label", "codec": "float32", "selection": "test", "regime": None, "shift_type": None, "protocols": {}}
    base |= {"shift": shift, "severity": severity, "shift_kind": kind, **fields}
    return CellResult(base=base, items={} if items is None else {items.variant: items}, status="failed" if items is None else "measured")


def records_of(cells, plan=None, **wanted):
    found = list(across_records(plan or make_plan(), cells, Resampler(0)))
    return [record for record in found if all(record[name] == value for name, value in wanted.items())]


def one(cells, plan=None, **wanted):
    (record,) = records_of(cells, plan, **wanted)
    return record


@pytest.fixture
def hits():
    draw = np.random.default_rng(0)
    return [draw.random(400) < share for share in (0.9, 0.8, 0.6, 0.4)]


def corruption(hits, **fields):
    return [make_cell(make_items(hits[0]))] + [
        make_cell(make_items(each), "noise", at, "corruption", **fields) for at, each in enumerate(hits[1:], 1)
    ]


def test_differences_and_ratios_to_the_clean_cell_are_paired(hits):
    record = one(corruption(hits), statistic="difference", reference="clean", severity=1, over=None)
    ratio = one(corruption(hits), statistic="ratio", reference="clean", severity=1, over=None)
    error = (hits[1].astype(float) - hits[0]).std(ddof=1) / 20

    assert record["value"] == pytest.approx(hits[1].mean() - hits[0].mean())
    assert (record["high"] - record["low"]) / 2 == pytest.approx(1.96 * error, rel=0.1)
    assert record["method"] == "paired-bootstrap-basic-expanded"
    assert ratio["value"] == pytest.approx(hits[1].mean() / hits[0].mean())
    assert ratio["low"] < ratio["value"] < ratio["high"] < 1


def test_a_cell_that_never_differs_from_its_reference_has_no_interval(hits):
    cells = [make_cell(make_items(hits[0])), make_cell(make_items(hits[0]), codec="int8")]
    record = one(cells, statistic="difference", reference="float32")

    assert (record["value"], record["low"], record["reason"]) == (0.0, None, "the two never differ")


def test_mean_and_slope_over_severities(hits):
    cells = corruption(hits)
    mean = one(cells, statistic="mean", over="severity")
    drop = one(cells, statistic="difference", over="severity")
    slope = one(cells, statistic="slope", over="severity")
    values = [each.mean() for each in hits]

    assert mean["value"] == pytest.approx(np.mean(values[1:]))
    assert (mean["shift"], mean["severity"]) == ("noise", None)
    assert drop["value"] == pytest.approx(np.mean(values[1:]) - values[0])
    assert slope["value"] == pytest.approx(np.polyfit([0, 1, 2, 3], values, 1)[0])
    assert slope["low"] < slope["value"] < slope["high"] < 0


def test_a_mean_is_not_made_over_what_is_left_when_a_cell_failed(hits):
    cells = corruption(hits)
    cells[2].items = {}
    cells[2].reason = "out of memory"
    record = one(cells, over="severity")

    assert (record["status"], record["value"]) == ("failed", None)
    assert record["reason"] == "not measured: severity 2 (out of memory)"


def test_changed_inputs_are_compared_with_the_same_rows_of_the_clean_cell(hits):
    some = np.arange(0, 400, 2)
    cells = [make_cell(make_items(hits[0])), make_cell(make_items(hits[1][some], some), "noise", 1, "corruption")]
    record = one(cells, statistic="difference")

    assert record["value"] == pytest.approx(hits[1][some].mean() - hits[0][some].mean())
    assert record["n"] == 200


def test_domains_of_other_rows_are_independent_and_the_worst_is_bounded_over_all(hits):
    def domain(at):
        return make_cell(make_items(hits[at], np.arange(400) + 400 * at), "domains", 0, "domain", selection=f"test[domain={'abcd'[at]}]")

    cells = [make_cell(make_items(hits[0])), domain(1), domain(2), domain(3)]
    mean, gap = one(cells, statistic="mean", over="domain"), one(cells, statistic="gap", over="domain")
    worst = one(cells, statistic="worst", over="domain")
    single = one(cells, statistic="difference", over=None, selection="test[domain=d]")
    errors = [each.std() / 20 for each in hits[1:]]

    assert mean["value"] == pytest.approx(np.mean([each.mean() for each in hits[1:]]))
    assert mean["selection"] == "test[domain=b|c|d]"
    assert (mean["high"] - mean["low"]) / 2 == pytest.approx(1.96 * np.sqrt(np.sum(np.square(errors))) / 3, rel=0.1)
    assert (worst["group"], worst["value"], worst["high"]) == ("domain=d", pytest.approx(hits[3].mean()), None)
    assert worst["low"] == pytest.approx(hits[3].mean() - 1.645 * errors[2], abs=0.005)
    assert gap["value"] == pytest.approx(hits[1].mean() - hits[3].mean())
    assert single["method"] == "newcombe"


def test_rows_that_two_domains_share_are_drawn_together():
    """Half of the rows are the same: the interval of the difference is narrower than that of independent samples."""
    hits = np.random.default_rng(1).random(900) < 0.7
    shared = np.arange(600), np.arange(300, 900)
    cells = [
        make_cell(make_items(hits[shared[0]], shared[0])),
        make_cell(make_items(hits[shared[1]], shared[1]), "later", 0, "domain", selection="test[year=2]"),
    ]
    record = one(cells, statistic="difference")
    apart = np.sqrt(2 * hits.var() / 600)

    assert record["method"] == "partly-paired-bootstrap-basic-expanded"
    assert (record["high"] - record["low"]) / 2 < 0.85 * 1.96 * apart


def test_seen_and_unseen_families_have_means_and_a_difference(hits):
    cells = [
        make_cell(make_items(hits[0])),
        make_cell(make_items(hits[0]), "blur", 1, "corruption", regime="seen"),
        make_cell(make_items(hits[1]), "noise", 1, "corruption", regime="unseen"),
        make_cell(make_items(hits[2]), "noise", 2, "corruption", regime="unseen"),
        make_cell(make_items(hits[3]), "fog", 1, "corruption", regime="unseen"),
    ]
    values = [each.mean() for each in hits]
    noise = (values[1] + values[2]) / 2

    assert one(cells, over="family:seen")["value"] == pytest.approx(values[0])
    assert one(cells, over="family:unseen", statistic="mean")["value"] == pytest.approx((noise + values[3]) / 2)
    assert one(cells, over="family")["value"] == pytest.approx((values[0] + noise + values[3]) / 3)
    gap = one(cells, over="family:unseen", statistic="difference")
    assert (gap["value"], gap["reference"]) == (pytest.approx((noise + values[3]) / 2 - values[0]), "family:seen")


def test_draws_have_a_mean_over_test_rows_and_a_spread_beside_it(hits):
    plan = make_plan(main={"over": "draw", "fit": "few", "shift": "clean", "codec": "float32", "target": "label"})
    cells = [make_cell(make_items(each), fit=f"few/{at}") for at, each in enumerate(hits)]
    mean, spread = one(cells, plan, statistic="mean"), one(cells, plan, statistic="spread")
    values = [each.mean() for each in hits]

    assert (mean["fit"], mean["main"], mean["scope"]) == ("few", True, "test items")
    assert mean["value"] == pytest.approx(np.mean(values))
    assert spread["value"] == pytest.approx(np.std(values, ddof=1))
    assert (spread["low"], spread["scope"], spread["n"]) == (None, "training draws", 4)
    assert f"{spread['value']:.3g}" in mean["reason"]


def test_draws_have_references_and_subgroups_of_their_mean(hits):
    groups = Column(kind="class", values=np.arange(400) % 2, names=("even", "odd"))
    plan = make_plan(main={"over": "draw", "fit": "few", "shift": "clean", "codec": "float32", "target": "label"})
    plan.summary.groups = lambda part: [("half", groups)]
    cells = [make_cell(make_items(each), fit=f"few/{at}") for at, each in enumerate(hits[:2])]
    cells += [make_cell(make_items(each), fit=f"few/{at}", codec="int8") for at, each in enumerate(hits[1:3])]
    loss = one(cells, plan, statistic="difference", reference="float32", fit="few")
    even = one(cells, plan, group="half=even", statistic="mean")
    worst = one(cells, plan, statistic="worst")

    assert loss["value"] == pytest.approx(hits[2].mean() / 2 - hits[0].mean() / 2)
    assert loss["method"] == "paired-bootstrap-basic-expanded"
    assert (even["fit"], even["over"]) == ("few", "draw")
    assert even["value"] == pytest.approx((hits[0][::2].mean() + hits[1][::2].mean()) / 2)
    assert (worst["fit"], worst["over"]) == ("few", "group:half")
    assert worst["p"] > 0.01


def test_clusters_move_together_across_cells():
    draw = np.random.default_rng(2)
    people = np.repeat(np.arange(40), 10)
    clean = np.repeat(draw.random(40) < 0.8, 10)
    noisy = clean & np.repeat(draw.random(40) < 0.7, 10)
    cells = [make_cell(make_items(clean, clusters=people)), make_cell(make_items(noisy, clusters=people), "noise", 1, "corruption")]
    record = one(cells, statistic="difference")
    by_person = (noisy.astype(float) - clean).reshape(40, 10).mean(axis=1)

    assert (record["n"], record["n_units"], record["scope"]) == (400, 40, "clusters by person")
    assert (record["high"] - record["low"]) / 2 == pytest.approx(1.96 * by_person.std() / np.sqrt(40), rel=0.15)


@pytest.mark.parametrize(("units", "method"), [(4, "none"), (12, "paired-jackknife"), (40, "paired-bootstrap-basic-expanded")])
def test_few_units_have_the_rules_of_few_units(units, method):
    draw = np.random.default_rng(3)
    first, second = draw.random(units), draw.random(units)
    cells = [make_cell(make_items(first)), make_cell(make_items(second), "noise", 1, "corruption")]
    record = one(cells, statistic="difference")

    assert record["method"] == method
    assert record["status"] == ("insufficient" if units < 5 else "measured")


def test_the_same_episodes_are_compared_class_by_class():
    draw = np.random.default_rng(4)
    classes = np.stack([draw.choice(20, 5, replace=False) for _ in range(600)])
    skill = draw.normal(0.7, 0.1, 20)
    scores = skill[classes].mean(axis=1) + draw.normal(0, 0.05, 600)
    worse = scores - 0.1 * skill[classes].mean(axis=1)
    episodes = {"item": "episode", "num_classes": 20}
    cells = [
        make_cell(make_items(scores, clusters=classes, **episodes)),
        make_cell(make_items(worse, clusters=classes, **episodes), codec="int8"),
    ]
    record = one(cells, statistic="difference")

    assert (record["scope"], record["n_units"], record["method"]) == ("classes", 20, "paired-class-jackknife")
    assert record["low"] < record["value"] < record["high"] < 0


def test_an_attack_list_takes_the_least_of_each_item(hits):
    cells = [
        make_cell(make_items(hits[0])),
        *[make_cell(make_items(hits[at][::-1], np.arange(400)[::-1]), name, 0.1, "attack") for at, name in ((1, "random"), (2, "pgd"))],
    ]
    record = one(cells, make_plan(robust={"accuracy": ["random", "pgd"]}), shift="robust")

    assert record["value"] == pytest.approx((hits[0] & hits[1] & hits[2]).mean())
    assert (record["over"], record["method"]) == ("attack:random,pgd", "wilson")
