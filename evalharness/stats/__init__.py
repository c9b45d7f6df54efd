"""Reducers, resample counts, intervals, paired tests and rank sets on numpy arrays; no torch."""

from evalharness.stats._audit import Crossing, Multicalibration, intersections, multicalibration
from evalharness.stats._calibration import calibration_band
from evalharness.stats._class_reducers import balanced_accuracy, class_counts, macro_f1
from evalharness.stats._episodes import ClassInterval, episode_interval, episode_jackknife
from evalharness.stats._groups import GroupGaps, RateGaps, demographic_parity, equalised_odds, group_gaps
from evalharness.stats._intervals import (
    WorstGroup,
    bootstrap,
    detectable_difference,
    half_sample,
    jackknife_interval,
    newcombe,
    simultaneous_level,
    t_interval,
    wilson,
    worst_group_bound,
)
from evalharness.stats._many import (
    CorrelatedT,
    Friedman,
    SignedRank,
    bayesian_signed_rank,
    benjamini_hochberg,
    bonferroni,
    borda,
    correlated_t,
    friedman,
    holm,
    nemenyi_difference,
)
from evalharness.stats._paired import McNemar, PairedDifference, mcnemar, paired_difference, sign_flip
from evalharness.stats._rank_reducers import auc, average_precision, spearman
from evalharness.stats._ranks import Pairwise, pairwise, rank_sets, rank_sets_from_errors
from evalharness.stats._reducers import REDUCERS, calibration_error, get_reducer, make_reducer, mean, median, pearson, quantile, r2, ratio
from evalharness.stats._resamples import Resamples
from evalharness.stats._resampling import count_blocks, counts, jackknife_blocks, jackknife_weights
from evalharness.stats._worst import WorstGroupNull, worst_group_null
from evalharness.types import Interval

__all__ = [
    "REDUCERS",
    "ClassInterval",
    "CorrelatedT",
    "Crossing",
    "Friedman",
    "GroupGaps",
    "Interval",
    "McNemar",
    "Multicalibration",
    "PairedDifference",
    "Pairwise",
    "RateGaps",
    "Resamples",
    "SignedRank",
    "WorstGroup",
    "WorstGroupNull",
    "auc",
    "average_precision",
    "balanced_accuracy",
    "bayesian_signed_rank",
    "benjamini_hochberg",
    "bonferroni",
    "bootstrap",
    "borda",
    "calibration_band",
    "calibration_error",
    "class_counts",
    "correlated_t",
    "count_blocks",
    "counts",
    "demographic_parity",
    "detectable_difference",
    "episode_interval",
    "episode_jackknife",
    "equalised_odds",
    "friedman",
    "get_reducer",
    "group_gaps",
    "half_sample",
    "holm",
    "intersections",
    "jackknife_blocks",
    "jackknife_interval",
    "jackknife_weights",
    "macro_f1",
    "make_reducer",
    "mcnemar",
    "mean",
    "median",
    "multicalibration",
    "nemenyi_difference",
    "newcombe",
    "paired_difference",
    "pairwise",
    "pearson",
    "quantile",
    "r2",
    "rank_sets",
    "rank_sets_from_errors",
    "ratio",
    "sign_flip",
    "simultaneous_level",
    "spearman",
    "t_interval",
    "wilson",
    "worst_group_bound",
    "worst_group_null",
]
