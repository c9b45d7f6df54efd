"""Many tests, many models, many data sets: adjusted p values, Friedman and Nemenyi, Borda, and two Bayesian comparisons."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from evalharness.errors import DataError, UsageError
from evalharness.stats._checks import as_vector, check_level
from evalharness.types import Array


def _made(p: Any) -> tuple[Array, Array]:
    """Return p values and where there are any."""
    values = as_vector(p, "p")
    made = np.flatnonzero(~np.isnan(values))
    if ((values[made] < 0) | (values[made] > 1)).any():
        raise UsageError(f"`p` must lie in [0, 1], got {values[made].min()} to {values[made].max()}")
    return values, made


def bonferroni(p: Any) -> Array:
    """Adjust p values for their number: each times how many there are.

    >>> bonferroni([0.01, 0.04, 0.03, 0.005])
    array([0.04, 0.16, 0.12, 0.02])

    Args:
        p: (H,) p values in [0, 1]; NaN marks a test that was not made, does not count and stays NaN.

    Returns:
        (H,) adjusted p values in the order given.

    Raises:
        UsageError: a value lies outside [0, 1].

    Source:
        Dunn 1961; :func:`holm` promises the same and never gives larger values.
    """
    values, made = _made(p)
    return np.minimum(values * len(made), 1.0)


def holm(p: Any) -> Array:
    """Adjust p values for their number, stepping down.

    >>> holm([0.01, 0.04, 0.03, 0.005])
    array([0.03, 0.06, 0.06, 0.02])

    Args:
        p: (H,) p values in [0, 1]; NaN marks a test that was not made, does not count and stays NaN.

    Returns:
        (H,) adjusted p values in the order given.

    Raises:
        UsageError: a value lies outside [0, 1].

    Source:
        Holm 1979.
    """
    values, made = _made(p)
    order = made[np.argsort(values[made], kind="stable")]
    stepped = np.maximum.accumulate(values[order] * np.arange(len(order), 0, -1))
    adjusted = np.full(len(values), np.nan)
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted


def benjamini_hochberg(p: Any) -> Array:
    """Adjust p values so that those below q hold at most a share q of false finds, on average.

    This is weaker than :func:`holm`, which bounds the chance of any false find; it needs tests that are independent or depend positively.

    >>> benjamini_hochberg([0.01, 0.04, 0.03, 0.005])
    array([0.02, 0.04, 0.04, 0.02])

    Args:
        p: (H,) p values in [0, 1]; NaN marks a test that was not made, does not count and stays NaN.

    Returns:
        (H,) adjusted p values in the order given.

    Raises:
        UsageError: a value lies outside [0, 1].

    Source:
        Benjamini & Hochberg 1995.
    """
    values, made = _made(p)
    order = made[np.argsort(-values[made], kind="stable")]
    stepped = np.minimum.accumulate(values[order] * len(order) / np.arange(len(order), 0, -1))
    adjusted = np.full(len(values), np.nan)
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted


def _mid_ranks(scores: Any, *, higher_is_better: bool) -> Array:
    """Return ranks within each row, 1 the best, ties sharing the mean of theirs: (N, k) to (N, k)."""
    from scipy.stats import rankdata

    table = np.asarray(scores, dtype=np.float64)
    if table.ndim != 2 or table.shape[0] < 1 or table.shape[1] < 2:
        raise UsageError(f"`scores` must be (data sets, models) with at least one row and two columns, got shape {table.shape}")
    if not np.isfinite(table).all():
        raise DataError(
            f"`scores` must be finite, got {int((~np.isfinite(table)).sum())} missing cells; leave out their data sets or models"
        )
    return np.asarray(rankdata(-table if higher_is_better else table, axis=1))


class Friedman(NamedTuple):
    """Hold Friedman's test: ``mean_ranks`` (k,), 1 the best; chi-square with k - 1 degrees; Iman and Davenport's F with its p."""

    mean_ranks: Array
    chi_square: float
    chi_square_p: float
    f: float
    f_p: float


def friedman(scores: Any, *, higher_is_better: bool = True) -> Friedman:
    """Test whether any of k models differs from the others over N data sets.

    Data sets are the unit: give one score each, not one a seed or fold.
    Prefer the F, since the chi-square is too cautious for few data sets.

    Args:
        scores: (N, k) finite scores, N at least 1, k at least 2.
        higher_is_better: whether rank 1 belongs to the largest score.

    Returns:
        Mean ranks and both tests, corrected for ties; p = 1 where all models tie on every data set, F is infinite where all data sets agree.

    Raises:
        UsageError: ``scores`` has another shape.
        DataError: a cell is missing.

    Source:
        Friedman 1937; Iman & Davenport 1980; Demšar 2006. The correction for ties is that of scipy's ``friedmanchisquare``.
    """
    ranks = _mid_ranks(scores, higher_is_better=higher_is_better)
    datasets, models = ranks.shape
    # Within a data set without ties the ranks have this variance; ties make it smaller.
    spread = float(np.square(ranks - (models + 1) / 2).sum()) / (datasets * (models - 1))
    return _friedman(ranks.mean(axis=0), datasets, spread)


def _friedman(mean_ranks: Array, datasets: int, spread: float) -> Friedman:
    from scipy.stats import chi2
    from scipy.stats import f as f_distribution

    models = len(mean_ranks)
    if spread == 0:
        return Friedman(mean_ranks, 0.0, 1.0, 0.0, 1.0)
    statistic = datasets * float(np.square(mean_ranks - (models + 1) / 2).sum()) / spread
    room = datasets * (models - 1) - statistic
    degrees = (models - 1, (models - 1) * (datasets - 1))
    if datasets < 2:
        return Friedman(mean_ranks, statistic, float(chi2.sf(statistic, models - 1)), math.nan, math.nan)
    f = (datasets - 1) * statistic / room if room > 1e-9 * statistic else math.inf
    return Friedman(mean_ranks, statistic, float(chi2.sf(statistic, models - 1)), f, float(f_distribution.sf(f, *degrees)))


def nemenyi_difference(num_models: int, num_datasets: int, level: float = 0.95) -> float:
    """Return the difference of mean ranks beyond which two of ``num_models`` models differ, all pairs at once.

    It depends on which other models are in the pool; for a claim about a pair prefer Wilcoxon's test with :func:`holm`.

    >>> round(nemenyi_difference(4, 14), 2)
    1.25

    Args:
        num_models: k, at least 2.
        num_datasets: N, at least 1.
        level: the simultaneous level, a fraction.

    Raises:
        UsageError: a number is too small or ``level`` outside (0, 1).

    Source:
        Nemenyi 1963; Demšar 2006: q · √(k (k + 1) / 6N), q the studentised range over √2.
    """
    from scipy.stats import studentized_range

    check_level(level)
    if num_models < 2 or num_datasets < 1:
        raise UsageError(f"expected at least 2 models and 1 data set, got {num_models} and {num_datasets}")
    q = float(studentized_range.ppf(level, num_models, np.inf)) / math.sqrt(2)
    return q * math.sqrt(num_models * (num_models + 1) / (6 * num_datasets))


def borda(scores: Any, *, higher_is_better: bool = True) -> Array:
    """Return the Borda points of each model: the models it beats, summed over data sets, a tie counting half.

    It needs no common scale, unlike a mean of scores.

    >>> borda([[0.9, 0.8, 0.8], [0.7, 0.5, 0.6]])
    array([4. , 0.5, 1.5])

    Args:
        scores: (N, k) finite scores; a missing cell is never filled in.
        higher_is_better: whether rank 1 belongs to the largest score.

    Returns:
        (k,) float64 in [0, N (k - 1)].

    Raises:
        UsageError: ``scores`` has another shape.
        DataError: a cell is missing.
    """
    ranks = _mid_ranks(scores, higher_is_better=higher_is_better)
    return np.asarray((ranks.shape[1] - ranks).sum(axis=0))


class SignedRank(NamedTuple):
    """Hold a Bayesian signed-rank comparison.

    ``left``, ``rope`` and ``right`` are posterior means of the chance that a Walsh average lies below, within, above the region; they sum to 1.
    ``wins`` are the posterior probabilities that each of the three chances is the largest, another quantity: how sure we are, not how much.
    """

    left: float
    rope: float
    right: float
    wins: tuple[float, float, float]


def bayesian_signed_rank(differences: Any, generator: np.random.Generator, *, rope: float = 0.0, samples: int = 20_000) -> SignedRank:
    """Compare two models over data sets by how the Walsh averages of their differences lie about a region of practical equivalence.

    Keep the edges of the region off the grid of the data, such as .008 and not .01 for scores of two decimals: equality is decided by rounding.

    Args:
        differences: (N,) one difference a data set, second minus first, finite.
        generator: the source of randomness, for ``wins`` only.
        rope: half the width of the region, at least 0.
        samples: how many draws of the posterior ``wins`` come from.

    Returns:
        The exact posterior means and the simulated ``wins``; draws that tie count for the region where it takes part, else half for each side.

    Raises:
        DataError: there are no differences or some are not finite.
        UsageError: ``rope`` is negative or ``samples`` below 1.

    Source:
        Benavoli et al. 2014, 2017: Dirichlet weights, with a pseudo-observation at 0 of strength .5; ``wins`` is what baycomp calls ``probs``.
    """
    values = as_vector(differences, "differences")
    if not len(values) or not np.isfinite(values).all():
        raise DataError(
            f"`differences` must be finite and at least one, got {len(values)}, {int((~np.isfinite(values)).sum())} of them not finite"
        )
    if not rope >= 0 or samples < 1:
        raise UsageError(f"`rope` must not be negative and `samples` at least 1, got {rope} and {samples}")
    points, strength = np.concatenate([[0.0], values]), np.concatenate([[0.5], np.ones(len(values))])
    walsh = (points[:, None] + points[None, :]) / 2
    # A Walsh average on the edge belongs to the region; at rope 0 that is only the pseudo-observation with itself and exact ties.
    regions = np.stack([walsh < -rope, np.abs(walsh) <= rope, walsh > rope]).astype(np.float64)
    total = float(strength.sum())
    moments = (np.outer(strength, strength) + np.diag(strength)) / (total * (total + 1))
    left, middle, right = (float(chance) for chance in np.einsum("kij,ij->k", regions, moments))
    return SignedRank(left, middle, right, _wins(regions, strength, generator, samples, with_rope=rope > 0))


def _wins(regions: Array, strength: Array, generator: np.random.Generator, samples: int, *, with_rope: bool) -> tuple[float, float, float]:
    step = max(1, 2**21 // regions.shape[1])
    tally = np.zeros(3)
    for start in range(0, samples, step):
        weights = generator.dirichlet(strength, min(step, samples - start))
        chances = np.stack([np.einsum("si,si->s", weights @ region, weights) for region in regions])
        if not with_rope:
            chances[1] = -1.0
        best = chances >= chances.max(axis=0) - 1e-12
        tally += (best / best.sum(axis=0)).sum(axis=1)
    first, second, third = (float(share) for share in tally / samples)
    return first, second, third


class CorrelatedT(NamedTuple):
    """Hold a correlated t comparison: ``t`` with its two-sided ``p``, and posterior probabilities below, within, above the region."""

    t: float
    p: float
    left: float
    rope: float
    right: float


def correlated_t(differences: Any, folds: int, *, rope: float = 0.0) -> CorrelatedT:
    """Compare two models on one data set from differences by fold, whose training sets overlap.

    The variance of the mean is s² (1 / n + 1 / (folds - 1)); the naive s² / n calls far too many differences real.

    Args:
        differences: (n,) one difference a fold, of one or more repetitions of ``folds``-fold cross-validation, finite, at least two.
        folds: the number of folds of one repetition, at least 2.
        rope: half the width of the region of practical equivalence, at least 0.

    Returns:
        The test; where the differences are all equal, t is infinite (NaN at 0) and the posterior lies at the mean.

    Raises:
        DataError: there are fewer than two differences or some are not finite.
        UsageError: ``folds`` is below 2 or ``rope`` negative.

    Source:
        Nadeau & Bengio 2003; the posterior is that of Corani & Benavoli 2015, a t distribution with n - 1 degrees about the mean.
    """
    from scipy.special import stdtr

    values = as_vector(differences, "differences")
    if len(values) < 2 or not np.isfinite(values).all():
        raise DataError(
            f"`differences` must be finite and at least two, got {len(values)}, {int((~np.isfinite(values)).sum())} of them not finite"
        )
    if folds < 2 or not rope >= 0:
        raise UsageError(f"`folds` must be at least 2 and `rope` not negative, got {folds} and {rope}")
    centre, degrees = float(values.mean()), len(values) - 1
    error = math.sqrt(float(values.var(ddof=1)) * (1 / len(values) + 1 / (folds - 1)))
    if error <= 1e-12 * abs(centre) or error == 0:
        t = math.copysign(math.inf, centre) if centre else math.nan
        return CorrelatedT(t, 0.0 if centre else 1.0, float(centre < -rope), float(abs(centre) <= rope), float(centre > rope))
    t = centre / error
    left, right = float(stdtr(degrees, (-rope - centre) / error)), float(stdtr(degrees, (centre - rope) / error))
    return CorrelatedT(t, 2 * float(stdtr(degrees, -abs(t))), left, max(0.0, 1 - left - right), right)
