"""Batched tensor kernels, usable alone: tensors or arrays in, the same kind out."""

from evalharness.numerics._arrays import check_directions, check_finite, normalise_rows
from evalharness.numerics._episode_heads import EpisodeScores, score_episodes
from evalharness.numerics._episodes import Episodes, sample_episodes
from evalharness.numerics._geometry import (
    alignment,
    effective_rank,
    isoscore,
    participation_ratio,
    rankme,
    singular_values,
    stable_rank,
    uniformity,
)
from evalharness.numerics._kmeans import KMeans, k_means
from evalharness.numerics._labels import best_threshold, label_columns
from evalharness.numerics._logistic import LogisticPath, logistic_path, one_vs_rest_path
from evalharness.numerics._noise import keyed_normal, keyed_uniform
from evalharness.numerics._ridge import RidgePath, ridge_path
from evalharness.numerics._search import top_k
from evalharness.numerics._threads import one_thread

__all__ = [
    "EpisodeScores",
    "Episodes",
    "KMeans",
    "LogisticPath",
    "RidgePath",
    "alignment",
    "best_threshold",
    "check_directions",
    "check_finite",
    "effective_rank",
    "isoscore",
    "k_means",
    "keyed_normal",
    "keyed_uniform",
    "label_columns",
    "logistic_path",
    "normalise_rows",
    "one_thread",
    "one_vs_rest_path",
    "participation_ratio",
    "rankme",
    "ridge_path",
    "sample_episodes",
    "score_episodes",
    "singular_values",
    "stable_rank",
    "top_k",
    "uniformity",
]
