"""Reducers, resample counts, intervals, paired tests and rank sets on numpy arrays; no torch."""

from evalharness.stats._calibration import calibration_band
from evalharness.stats._class_reducers import balanced_accuracy, class_counts, macro_f1
from evalharness.stats._episodes import ClassInterval, episode_interval, episode_jackknife
from evalharness.stats._groups import GroupGaps, RateGaps, demographic_parity, equalised_odds, group_gaps
from evalharness.stats._intervals import (
    WorstGroup,
    bootstrap,
    half_sample,
    jackknife_interval,
    newcombe,
    simultaneous_level,
    wilson,
    worst_group_bound,
)
from evalharness.stats._paired import McNemar, PairedDifference, holm, mcnemar, paired_difference, sign_flip
from evalharness.stats._rank_reducers import auc, average_precision, spearman
from evalharness.stats._ranks import rank_sets
from evalharness.stats._reducers import REDUCERS, calibration_error, get_reducer, make_reducer, mean, median, pearson, quantile, r2, ratio
from evalharness.stats._resampling import count_blocks, counts, jackknife_blocks, jackknife_weights
from evalharness.types import Interval

__all__ = [
    "REDUCERS",
    "ClassInterval",
    "GroupGaps",
    "Interval",
    "McNemar",
    "PairedDifference",
    "RateGaps",
    "WorstGroup",
    "auc",
    "average_precision",
    "balanced_accuracy",
    "bootstrap",
    "calibration_band",
    "calibration_error",
    "class_counts",
    "count_blocks",
    "counts",
    "demographic_parity",
    "episode_interval",
    "episode_jackknife",
    "equalised_odds",
    "get_reducer",
    "group_gaps",
    "half_sample",
    "holm",
    "jackknife_blocks",
    "jackknife_interval",
    "jackknife_weights",
    "macro_f1",
    "make_reducer",
    "mcnemar",
    "mean",
    "median",
    "newcombe",
    "paired_difference",
    "pearson",
    "quantile",
    "r2",
    "rank_sets",
    "ratio",
    "sign_flip",
    "simultaneous_level",
    "spearman",
    "wilson",
    "worst_group_bound",
]
