"""Reducers over classes and clusters, all from weighted counts made in one product."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from evalharness.stats._reducers import REDUCERS, Bound, divide, make_prepared, totals

if TYPE_CHECKING:
    from collections.abc import Callable

    from evalharness.types import Array

_EXACT_IN_INT16 = 2**15
_EXACT_IN_FLOAT32 = 2**24


def class_counts(truth: Array, prediction: Array, weights: Array) -> tuple[Array, Array, Array]:
    """Return the true, predicted and hit counts of each class.

    Args:
        truth: (M,) codes.
        prediction: (M,) codes; those that no row truly has are classes too.
        weights: (r, M) not negative.

    Returns:
        Three (r, C) float64, classes in ascending order of code.
    """
    return prepare_class_counts(truth, prediction)(weights)


def prepare_class_counts(truth: Array, prediction: Array) -> Callable[[Array], tuple[Array, Array, Array]]:
    """Return :func:`class_counts` as a function of its weights."""
    from scipy.sparse import csr_array

    names, codes = np.unique(np.concatenate([truth, prediction]), return_inverse=True)
    codes, num_classes = codes.reshape(2, -1), len(names)
    # A hit enters one sum and a miss two, in place of three and two.
    hits, misses = np.flatnonzero(codes[0] == codes[1]), np.flatnonzero(codes[0] != codes[1])
    rows = np.concatenate([codes[0][hits], codes[0][misses] + num_classes, codes[1][misses] + 2 * num_classes])
    places = (rows, np.concatenate([hits, misses, misses]))
    selector = csr_array((np.ones(len(rows), dtype=np.int16), places), shape=(3 * num_classes, len(truth)))
    selectors = {np.dtype(np.int16): selector}

    def count(weights: Array) -> tuple[Array, Array, Array]:
        kind = _narrowest(weights)
        chosen = selectors.setdefault(kind, selector.astype(kind))
        product = np.asarray(chosen @ np.ascontiguousarray(weights.T).astype(kind, copy=False))
        hit, missed, wrong = product.astype(np.float64).reshape(3, num_classes, -1).transpose(0, 2, 1)
        return hit + missed, hit + wrong, hit

    return count


def _narrowest(weights: Array) -> np.dtype[Any]:
    """Return the type in which sums of these weights are exact, since narrow ones halve the traffic."""
    if weights.dtype.kind not in "biu":
        return np.dtype(np.float64)
    largest = totals(weights).max(initial=0)
    return np.dtype(np.int16 if largest < _EXACT_IN_INT16 else np.float32 if largest < _EXACT_IN_FLOAT32 else np.float64)


@make_prepared
def balanced_accuracy(truth: Array, prediction: Array) -> Bound:
    """Return the weighted mean recall over the classes that the rows drawn truly have.

    Args:
        truth: (M,) codes.
        prediction: (M,) codes of the same vocabulary.
        weights: (R, M) not negative.

    Returns:
        (R,) float64 in [0, 1].

    Source:
        METRICS.md 1.2; scikit-learn's ``balanced_accuracy_score``.
    """
    count = prepare_class_counts(truth, prediction)

    def kernel(weights: Array) -> Array:
        true, _, hit = count(weights)
        return divide(divide(hit, true, 0.0).sum(axis=1), (true > 0).sum(axis=1))

    return kernel


@make_prepared
def macro_f1(truth: Array, prediction: Array) -> Bound:
    """Return the weighted mean F1 over the classes that the rows drawn have as truth or as prediction.

    The label set is this union, as in scikit-learn; so a class that is predicted and never true counts 0.

    Args:
        truth: (M,) codes.
        prediction: (M,) codes of the same vocabulary.
        weights: (R, M) not negative.

    Returns:
        (R,) float64 in [0, 1].

    Source:
        METRICS.md 1.2; scikit-learn's ``f1_score(average="macro")``.
    """
    count = prepare_class_counts(truth, prediction)

    def kernel(weights: Array) -> Array:
        true, predicted, hit = count(weights)
        seen = true + predicted
        return divide(divide(2 * hit, seen, 0.0).sum(axis=1), (seen > 0).sum(axis=1))

    return kernel


@make_prepared
def weighted_f1(truth: Array, prediction: Array) -> Bound:
    """Return the mean F1 over classes, each as heavy as the rows drawn that truly have it.

    Args:
        truth: (M,) codes.
        prediction: (M,) codes of the same vocabulary.
        weights: (R, M) not negative.

    Returns:
        (R,) float64 in [0, 1].

    Source:
        METRICS.md 1.2; scikit-learn's ``f1_score(average="weighted")``.
    """
    count = prepare_class_counts(truth, prediction)

    def kernel(weights: Array) -> Array:
        true, predicted, hit = count(weights)
        return divide((true * divide(2 * hit, true + predicted, 0.0)).sum(axis=1), true.sum(axis=1))

    return kernel


def prepare_contingency(truth: Array, cluster: Array) -> Callable[[Array], tuple[Array, Array, Array]]:
    """Return the function of weights (r, M) to the counts of cells that are not empty, of classes and of clusters, (U, r), (C, r) and (K, r) float64."""
    from scipy.sparse import csr_array

    classes, rows = np.unique(truth, return_inverse=True)
    clusters, columns = np.unique(cluster, return_inverse=True)
    cells, places = np.unique(rows * len(clusters) + columns, return_inverse=True)
    ones, at = np.ones(len(places), dtype=np.int16), np.arange(len(places))
    selectors = {np.dtype(np.int16): csr_array((ones, (places, at)), shape=(len(cells), len(places)))}
    groups = [
        csr_array((np.ones(len(cells)), (of, np.arange(len(cells)))), shape=(count, len(cells)))
        for of, count in ((cells // len(clusters), len(classes)), (cells % len(clusters), len(clusters)))
    ]

    def count(weights: Array) -> tuple[Array, Array, Array]:
        kind = _narrowest(weights)
        chosen = selectors.setdefault(kind, selectors[np.dtype(np.int16)].astype(kind))
        table = np.asarray(chosen @ np.ascontiguousarray(weights.T).astype(kind, copy=False)).astype(np.float64)
        return table, groups[0] @ table, groups[1] @ table

    return count


def _prepare_purities(truth: Array, cluster: Array) -> Callable[[Array], tuple[Array, Array]]:
    """Return the function of weights (r, M) to homogeneity and completeness (r,)."""
    from scipy.special import entr

    count = prepare_contingency(truth, cluster)

    def measure(weights: Array) -> tuple[Array, Array]:
        whole = totals(weights)
        joint, true, found = (entr(counts / whole).sum(axis=0) for counts in count(weights))
        return (1 - divide(joint - found, true, 0.0)).clip(0, 1), (1 - divide(joint - true, found, 0.0)).clip(0, 1)

    return measure


@make_prepared
def homogeneity(truth: Array, cluster: Array) -> Bound:
    """Return how far each cluster holds a single class: 1 - H(class | cluster) / H(class), 1 for a single class.

    Args:
        truth: (M,) codes.
        cluster: (M,) codes of any vocabulary.
        weights: (R, M) not negative.

    Returns:
        (R,) float64 in [0, 1].

    Source:
        Rosenberg & Hirschberg 2007; scikit-learn's ``homogeneity_score``.
    """
    measure = _prepare_purities(truth, cluster)
    return lambda weights: measure(weights)[0]


@make_prepared
def completeness(truth: Array, cluster: Array) -> Bound:
    """Return how far each class lies in a single cluster: 1 - H(cluster | class) / H(cluster), 1 for a single cluster.

    Args:
        truth: (M,) codes.
        cluster: (M,) codes of any vocabulary.
        weights: (R, M) not negative.

    Returns:
        (R,) float64 in [0, 1].

    Source:
        Rosenberg & Hirschberg 2007; scikit-learn's ``completeness_score``.
    """
    measure = _prepare_purities(truth, cluster)
    return lambda weights: measure(weights)[1]


@make_prepared
def v_measure(truth: Array, cluster: Array) -> Bound:
    """Return the harmonic mean of homogeneity and completeness, 0 where both are 0.

    Args:
        truth: (M,) codes.
        cluster: (M,) codes of any vocabulary.
        weights: (R, M) not negative.

    Returns:
        (R,) float64 in [0, 1].

    Source:
        Rosenberg & Hirschberg 2007, beta 1; scikit-learn's ``v_measure_score``.
    """
    measure = _prepare_purities(truth, cluster)

    def kernel(weights: Array) -> Array:
        pure, whole = measure(weights)
        return divide(2 * pure * whole, pure + whole, 0.0)

    return kernel


@make_prepared
def adjusted_rand(truth: Array, cluster: Array) -> Bound:
    """Return the Rand index adjusted for chance: 0 on average for random clusters of these sizes, 1 where all pairs agree.

    Args:
        truth: (M,) codes.
        cluster: (M,) codes of any vocabulary.
        weights: (R, M) not negative.

    Returns:
        (R,) float64 in [-0.5, 1]; 1 where no pair is told apart by one side alone.

    Source:
        Hubert & Arabie 1985; scikit-learn's ``adjusted_rand_score``.
    """
    count = prepare_contingency(truth, cluster)

    def kernel(weights: Array) -> Array:
        both, true, found = ((counts * (counts - 1)).sum(axis=0) for counts in count(weights))
        whole = totals(weights)
        expected = divide(true * found, whole * (whole - 1), 0.0)
        alike = (true == both) & (found == both)
        return np.where(alike, 1.0, divide(both - expected, (true + found) / 2 - expected))

    return kernel


REDUCERS.update(
    adjusted_rand=adjusted_rand,
    balanced_accuracy=balanced_accuracy,
    completeness=completeness,
    homogeneity=homogeneity,
    macro_f1=macro_f1,
    v_measure=v_measure,
    weighted_f1=weighted_f1,
)
