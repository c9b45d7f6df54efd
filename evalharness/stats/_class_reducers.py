"""Reducers over classes, all from weighted true, predicted and hit counts made in one product."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from evalharness.stats._reducers import REDUCERS, divide, make_reducer

if TYPE_CHECKING:
    from evalharness.types import Array

_EXACT_IN_FLOAT32 = 2**24


def class_counts(truth: Array, prediction: Array, weights: Array) -> tuple[Array, Array, Array]:
    """Return the true, predicted and hit counts of each class.

    Args:
        truth: (M,) codes.
        prediction: (M,) codes; those that no row truly has are classes too.
        weights: (r, M).

    Returns:
        Three (r, C) float64, classes in ascending order of code.
    """
    from scipy.sparse import csr_array

    names, codes = np.unique(np.concatenate([truth, prediction]), return_inverse=True)
    codes, num_classes, items = codes.reshape(2, -1), len(names), np.arange(len(truth))
    hits = np.flatnonzero(codes[0] == codes[1])
    rows = np.concatenate([codes[0], codes[1] + num_classes, codes[0][hits] + 2 * num_classes])
    # Counts of whole rows stay exact in float32, which halves the traffic, until they could pass 2^24.
    small = weights.dtype.kind in "biu" and int(weights.max(initial=0)) * len(truth) < _EXACT_IN_FLOAT32
    kind = np.float32 if small else np.float64
    columns = np.concatenate([items, items, items[hits]])
    selector = csr_array((np.ones(len(rows), dtype=kind), (rows, columns)), shape=(3 * num_classes, len(truth)))
    product = np.asarray(selector @ np.ascontiguousarray(weights.T).astype(kind))
    true, predicted, hit = product.astype(np.float64).reshape(3, num_classes, -1).transpose(0, 2, 1)
    return true, predicted, hit


@make_reducer
def balanced_accuracy(truth: Array, prediction: Array, weights: Array) -> Array:
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
    true, _, hit = class_counts(truth, prediction, weights)
    recall = np.divide(hit, true, out=np.zeros_like(hit), where=true > 0)
    return divide(recall.sum(axis=1), (true > 0).sum(axis=1))


@make_reducer
def macro_f1(truth: Array, prediction: Array, weights: Array) -> Array:
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
    true, predicted, hit = class_counts(truth, prediction, weights)
    seen = true + predicted
    scores = np.divide(2 * hit, seen, out=np.zeros_like(hit), where=seen > 0)
    return divide(scores.sum(axis=1), (seen > 0).sum(axis=1))


REDUCERS.update(balanced_accuracy=balanced_accuracy, macro_f1=macro_f1)
