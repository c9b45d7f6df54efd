"""What intervals cover, by simulation through the code that the product uses; the forms that it does not use fail.

``python benchmarks/coverage.py`` simulates far more and writes ``docs/coverage.md``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::RuntimeWarning")]
LEAST = 0.92


@pytest.fixture(scope="module", autouse=True)
def _root_on_path():
    root = str(Path(__file__).parents[2])
    sys.path.insert(0, root)
    yield
    sys.path.remove(root)


def cover(settings, what, size, repeats=1000):
    """Return the coverages of a setting, by form."""
    from benchmarks._forms import simulate

    (setting,) = [each for each in settings() if each.what == what and each.size.split(" ")[0] == str(size)]
    return {form: tally.coverage for form, tally in simulate(setting, repeats).tallies.items()}


@pytest.mark.parametrize("units", [5, 10, 20, 30])
def test_means_of_few_units(units):
    from benchmarks._settings import mean_settings

    found = cover(mean_settings, "mean, normal", units)
    assert found["used"] >= LEAST
    assert found["used"] > found["percentile"] + 0.05 if units < 20 else True


@pytest.mark.parametrize("units", [10, 20, 30])
def test_studentised_means_of_few_skewed_units(units):
    from benchmarks._settings import mean_settings

    assert cover(mean_settings, "mean, exponential", units)["studentised"] >= LEAST


@pytest.mark.parametrize("clusters", [20, 50])
def test_clusters_and_rows_taken_for_independent(clusters):
    from benchmarks._settings import cluster_settings

    found = cover(cluster_settings, "clustered hits", clusters)
    assert found["used"] >= LEAST
    assert found["Wilson at effective n"] >= LEAST + 0.01
    assert max(found["Wilson over rows"], found["percentile over rows"]) < 0.85


def test_wald_of_rare_misses_fails():
    from benchmarks._settings import proportion_settings

    found = cover(proportion_settings, "proportion 0.995", 200)
    assert found["used"] >= LEAST
    assert found["Wald"] < 0.7


def test_macro_f1_of_many_classes():
    from benchmarks._settings import class_settings

    found = cover(class_settings, "macro-F1, 77 classes", 300, repeats=400)
    assert found["used"] >= 0.87
    assert found["percentile"] < 0.65
    assert found["percentile within classes"] < 0.75
    assert found["basic within classes"] < 0.8


@pytest.mark.parametrize(("what", "size"), [("Spearman 0.8", 100), ("Spearman 0.3", 100), ("Spearman 0.95", 50), ("Spearman, graded", 50)])
def test_rank_correlations(what, size):
    from benchmarks._settings import correlation_settings

    found = cover(correlation_settings, what, size)
    assert found["used"] >= LEAST
    assert found["used"] > found["basic"] - 0.005


@pytest.mark.parametrize(("what", "size"), [("AUC 0.98", 60), ("AUC 0.75", 60), ("AUC 0.75", 300)])
def test_areas_under_the_curve(what, size):
    from benchmarks._settings import score_settings

    found = cover(score_settings, what, size)
    assert found["used"] >= LEAST
    if what == "AUC 0.98":
        assert found["basic"] < 0.8
        assert found["percentile"] < 0.91


@pytest.mark.parametrize(
    ("section", "what", "size"),
    [
        ("Means", "mean in [0, 1], many ones", 10),
        ("Clusters", "clustered hits", 5),
        ("Ratios and quantiles", "ratio of sums", 20),
        ("Ratios and quantiles", "quantile 0.5, exponential", 20),
        ("Classes", "balanced accuracy, 77 classes", 300),
        ("Classes", "macro-F1, 5 classes", 29),
        ("AUC and average precision", "AUC 0.9", 20),
        ("AUC and average precision", "average precision", 25),
        ("Correlations", "Spearman 0.6", 10),
        ("Correlations", "Pearson 0.6", 10),
        ("Correlations", "Pearson, skewed", 20),
        ("R2", "R2 0.6", 20),
        ("Calibration", "calibration error 0.1", 300),
    ],
)
def test_where_a_common_form_would_cover_too_little(section, what, size):
    from benchmarks._settings import SECTIONS

    assert cover(SECTIONS[section], what, size, repeats=500)["used"] >= LEAST


@pytest.mark.parametrize("classes", [20, 242])
def test_few_shot_by_class(classes):
    from benchmarks._episodes import episode_settings

    found = cover(episode_settings, "few-shot accuracy, 5-way 1-shot", classes, repeats=500)
    assert found["used"] >= LEAST
    assert found["over episodes"] < (0.3 if classes == 20 else 0.75)  # METRICS 3: 23 % with twenty classes
    assert found["by the query's class"] < 0.85


def lines(run, repeats):
    return {(line.what, line.size, line.form): line.right for line in run(repeats)}


def test_worst_of_ten_groups():
    from benchmarks._several import group_lines

    found = lines(group_lines, 400)
    assert all(right >= LEAST for (_, _, form), right in found.items() if form.startswith("lowest"))
    assert all(right < 0.1 for (what, _, form), right in found.items() if form == "percentile of the minimum" and "equal" in what)
    assert all(right <= 0.07 for (_, _, form), right in found.items() if form.startswith("permutation"))


def test_rank_sets_hold_together():
    from benchmarks._several import rank_lines

    found = lines(rank_lines, 600)
    assert all(right >= LEAST for (_, _, form), right in found.items() if form == "max-t over pairs")
    assert found["five equal models", "200 items", "pairs at 1.96 each"] < 0.8
    assert found["five equal models", "200 items", "quantiles of bootstrap ranks"] < 0.4


def test_differences_and_tests():
    from benchmarks._several import difference_lines, test_lines

    found = [line for line in difference_lines(400) if line.role == "used"]
    assert all(line.right >= (0.87 if "77 classes" in line.what else LEAST) for line in found), found
    rejected = {line.form: line.right for line in test_lines(600)}
    assert rejected["signs of rows"] > 0.2
    assert all(rejected[form] < 0.08 for form in ("random signs", "signs of whole clusters", "inverted basic interval"))


def test_duplicates_spoil_a_whole_cloud():
    from benchmarks._episodes import cloud_settings

    found = cover(cloud_settings, "uniformity", 100, repeats=300)
    assert found["used"] >= 0.9
    assert found["percentile with duplicates"] < 0.2


def test_calibration_error_given_outside_the_band():
    from benchmarks._settings import calibration_settings

    found = cover(calibration_settings, "calibration error 0.1", 300, repeats=500)
    assert found["t · SD outside the band"] >= LEAST
    assert found["used"] >= LEAST


@pytest.mark.parametrize("items", [100, 400])
def test_label_purity_of_items_that_share_neighbours(items):
    from functools import partial

    from benchmarks._neighbourhoods import settings_of

    assert cover(partial(settings_of, "neighbours"), "label purity at this n", items, repeats=400)["used"] >= 0.9
