"""The contract of a reducer, the registry, and the reducers made of weighted sums.

A reducer maps columns (M,) and weights (R, M) to (R,) values: ones give the value, a 0/1 mask a subgroup, counts a bootstrap replicate.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from evalharness.errors import UsageError, near_matches
from evalharness.types import Array

Reducer = Callable[..., Array]
Kernel = Callable[..., Array]
Bound = Callable[[Any], Array]
REDUCERS: dict[str, Reducer] = {}
BLOCK_BYTES = 16 * 2**20
_PRODUCT_CELLS = 2**17


def make_reducer(kernel: Kernel) -> Reducer:
    """Wrap ``kernel(*columns, weights (r, M)) -> (r,)`` as a reducer that checks, blocks, and leaves undefined what is.

    The kernel sees finite columns and blocks of weights of the dtype given, each row with a positive sum.
    A resample without rows, or with a row whose column is NaN, gives NaN; a NaN in a row of weight 0 does no harm.

    >>> half_mean = make_reducer(lambda values, weights: weights @ values / weights.sum(axis=1) / 2)
    >>> half_mean(np.array([1.0, 3.0]), np.array([[1, 1]]))
    array([1.])
    """

    @functools.wraps(kernel)
    def prepare(*columns: Array) -> Bound:
        return functools.partial(kernel, *columns)

    return make_prepared(prepare)


def make_prepared(prepare: Callable[..., Bound], *, axes: int = 1) -> Reducer:
    """Wrap ``prepare(*columns) -> kernel(weights (r, M)) -> (r,)``, for kernels that sort or group their columns once for all blocks.

    What :func:`make_reducer` promises holds here too; :func:`bind_columns` gives the prepared kernel.
    Columns are (M,), with ``axes`` = 2 (M, L).
    """

    def bind(*columns: Any) -> Bound:
        return _guard(reduce, prepare, [np.asarray(column) for column in columns])

    @functools.wraps(prepare)
    def reduce(*arguments: Any) -> Array:
        if len(arguments) < 2:
            raise UsageError(f"reducer `{prepare.__name__}` takes its columns and then `weights`, got {len(arguments)} argument(s)")
        return bind(*arguments[:-1])(arguments[-1])

    del reduce.__wrapped__  # its signature lacks the weights
    reduce.bind, reduce.axes = bind, axes  # type: ignore[attr-defined]
    return reduce


def check_columns(reduce: Reducer, columns: Sequence[Array], size: int) -> None:
    """Refuse columns that are not (size,), or (size, L) for a reducer of such.

    Raises:
        UsageError: one is not.
    """
    axes = getattr(reduce, "axes", 1)
    wrong = [column.shape for column in columns if column.ndim != axes or len(column) != size]
    if wrong:
        wanted = f"({size}, L)" if axes == 2 else f"({size},)"
        name = getattr(reduce, "__name__", reduce)
        raise UsageError(f"columns of reducer `{name}` must have shape {wanted} like its weights, got {wrong[0]}")


def bind_columns(reducer: str | Reducer, *columns: Any) -> Bound:
    """Return the function of weights (R, M) to values (R,) that a reducer is for given columns, prepared once.

    >>> bind_columns("mean", np.array([1.0, 3.0]))(np.array([[1, 1], [3, 1]]))
    array([2. , 1.5])

    Raises:
        UsageError: no reducer has this name.
    """
    reduce = get_reducer(reducer)
    bind = getattr(reduce, "bind", None)
    return functools.partial(reduce, *columns) if bind is None else bind(*columns)


def _guard(reduce: Reducer, prepare: Callable[..., Bound], columns: list[Array]) -> Bound:
    """Return the kernel of the rows without NaN, in blocks, NaN where a resample has no rows or one of those left out."""
    missing = _missing(columns)
    present = None if missing is None else np.flatnonzero(~missing)
    kept = columns if present is None else [column[present] for column in columns]
    kernel: Bound | None = None

    def bound(given: Any) -> Array:
        nonlocal kernel
        weights = _check(reduce, columns, given)
        result = np.full(len(weights), np.nan)
        rows = max(1, BLOCK_BYTES // (8 * max(1, weights.shape[1])))
        for start in range(0, len(weights), rows):
            block = weights[start : start + rows]
            defined = block.any(axis=1)
            if present is not None:
                defined &= ~block[:, missing].any(axis=1)
                block = block[:, present]
            if not defined.all():
                block = block[defined]
            if len(block):
                kernel = kernel or prepare(*kept)
                result[start : start + rows][defined] = kernel(block)
        return result

    return bound


def _check(reduce: Reducer, columns: list[Array], given: Any) -> Array:
    weights = np.asarray(given)
    name = reduce.__name__
    if weights.ndim != 2:
        raise UsageError(f"`weights` of reducer `{name}` must be (resamples, items), got shape {weights.shape}")
    check_columns(reduce, columns, weights.shape[1])
    if weights.dtype.kind == "f" and not (weights >= 0).all():
        raise UsageError(f"`weights` of reducer `{name}` must not be negative or NaN")
    return weights


def _missing(columns: list[Array]) -> Array | None:
    lacking = [np.isnan(column).any(axis=tuple(range(1, column.ndim))) for column in columns if column.dtype.kind == "f"]
    if len({column.shape for column in lacking}) > 1:
        return None  # refused as soon as there are weights to name
    together = functools.reduce(np.logical_or, lacking) if lacking else None
    return together if together is not None and together.any() else None


def get_reducer(reducer: str | Reducer) -> Reducer:
    """Return a registered reducer by name, or the callable given.

    >>> get_reducer("mean")(np.array([1.0, 3.0]), np.array([[1, 1], [3, 1]]))
    array([2. , 1.5])

    Raises:
        UsageError: no reducer has this name; near matches are offered.
    """
    if callable(reducer):
        return reducer
    if reducer not in REDUCERS:
        near = near_matches(reducer, REDUCERS)
        hint = f"did you mean {' or '.join(f'`{match}`' for match in near)}?" if near else f"known: {', '.join(sorted(REDUCERS))}"
        raise UsageError(f"unknown reducer `{reducer}`; {hint}")
    return REDUCERS[reducer]


def real(weights: Array) -> Array:
    """Return weights as float64."""
    return np.asarray(weights, dtype=np.float64)


def totals(weights: Array) -> Array:
    """Return the sums of rows, (r, M) to (r,) float64."""
    # Sums of small integers are several times faster in int32.
    small = weights.dtype.kind in "biu" and weights.dtype.itemsize == 1 and weights.shape[1] < 2**23
    return np.asarray(weights.sum(axis=1, dtype=np.int32 if small else np.float64), dtype=np.float64)


def moment_product(weights: Array, columns: Array) -> Array:
    """Return ``weights @ columns`` in float64, (r, M) and (M, T) to (r, T), a few cells at a time so that copies stay in the cache."""
    rows, items = weights.shape
    if weights.dtype == np.float64:
        return np.asarray(weights @ columns)
    width = max(1, min(items, _PRODUCT_CELLS))
    height = max(1, _PRODUCT_CELLS // width)
    result = np.zeros((rows, columns.shape[1]))
    for top in range(0, rows, height):
        for left in range(0, items, width):
            part = weights[top : top + height, left : left + width].astype(np.float64)
            result[top : top + height] += part @ columns[left : left + width]
    return result


@make_reducer
def mean(values: Array, weights: Array) -> Array:
    """Return weighted means.

    Args:
        values: (M,) numbers or hits.
        weights: (R, M) not negative.

    Returns:
        (R,) float64.
    """
    return divide(moment_product(weights, values.astype(np.float64)[:, None])[:, 0], totals(weights))


@make_reducer
def ratio(numerators: Array, denominators: Array, weights: Array) -> Array:
    """Return weighted ratios of sums; NaN where the denominators sum to 0.

    Args:
        numerators: (M,) numbers.
        denominators: (M,) numbers.
        weights: (R, M) not negative.

    Returns:
        (R,) float64.
    """
    sums = moment_product(weights, np.stack([numerators, denominators], axis=1).astype(np.float64))
    return divide(sums[:, 0], sums[:, 1])


@make_reducer
def above_chance(hits: Array, chance: Array, weights: Array) -> Array:
    """Return weighted scores above chance, (mean of hits - mean of chance) / (1 - mean of chance); NaN where chance is 1.

    Args:
        hits: (M,) bool or numbers in [0, 1].
        chance: (M,) what a readout that knows nothing scores on each item, such as whether the commonest class is right.
        weights: (R, M) not negative.

    Returns:
        (R,) float64, at most 1; 0 is chance.

    Source:
        METRICS.md 1.6.
    """
    top = hits.astype(np.float64) - chance.astype(np.float64)
    sums = moment_product(weights, np.stack([top, 1 - chance.astype(np.float64)], axis=1))
    return divide(sums[:, 0], sums[:, 1])


def divide(top: Array, bottom: Array, empty: float = np.nan) -> Array:
    """Return quotients, ``empty`` where ``bottom`` is 0."""
    return np.asarray(
        np.divide(top, bottom, out=np.full(np.shape(top), empty), where=np.broadcast_to(np.asarray(bottom) != 0, np.shape(top)))
    )


def quantile(q: float) -> Reducer:
    """Return the reducer of the ``q`` quantile, interpolated linearly as numpy does on the rows repeated.

    Args:
        q: the quantile, a fraction in [0, 1].

    Raises:
        UsageError: ``q`` is outside [0, 1].
    """
    if not 0 <= q <= 1:
        raise UsageError(f"`q` must lie in [0, 1], got {q}")

    def prepare(values: Array) -> Bound:
        order = np.argsort(values, kind="stable")
        ordered = values[order].astype(np.float64)

        def kernel(weights: Array) -> Array:
            reached = np.cumsum(weights[:, order], axis=1, dtype=np.float64)
            at = q * (reached[:, -1] - 1)
            # As numpy: the nearest whole number stands where rounding alone sets the product apart from it.
            below = np.floor(at + 1e-9)
            lower, upper = (ordered[_first_above(reached, level)] for level in (below, below + 1))
            return np.asarray(lower + (upper - lower) * np.maximum(at - below, 0.0))

        return kernel

    prepare.__name__ = prepare.__qualname__ = f"quantile({q})"
    prepare.__doc__ = f"Return weighted {q} quantiles: values (M,), weights (R, M) to (R,)."
    return make_prepared(prepare)


def _first_above(rising: Array, levels: Array) -> Array:
    """Return (r,) the first place of each row of ``rising`` (r, M) that exceeds its level, the last where none does, by bisection."""
    rows = np.arange(len(rising))
    low, high = np.zeros(len(rising), dtype=np.int64), np.full(len(rising), rising.shape[1] - 1)
    for _ in range(rising.shape[1].bit_length()):
        middle = (low + high) // 2
        above = rising[rows, middle] > levels
        low, high = np.where(above, low, np.minimum(middle + 1, high)), np.where(above, middle, high)
    return low


@make_reducer
def pearson(first: Array, second: Array, weights: Array) -> Array:
    """Return weighted Pearson correlations; NaN where a column is constant on the rows drawn.

    Args:
        first: (M,) numbers.
        second: (M,) numbers.
        weights: (R, M) not negative.

    Returns:
        (R,) float64 in [-1, 1].
    """
    x, y = standardise(first), standardise(second)
    sums = moment_product(weights, np.stack([x, y, x * x, y * y, x * y], axis=1))
    total = totals(weights)
    spread_x = sums[:, 2] - sums[:, 0] ** 2 / total
    spread_y = sums[:, 3] - sums[:, 1] ** 2 / total
    joint = sums[:, 4] - sums[:, 0] * sums[:, 1] / total
    exact = np.flatnonzero((spread_x < 1e-6 * sums[:, 2]) | (spread_y < 1e-6 * sums[:, 3]) | (spread_x <= 0) | (spread_y <= 0))
    if len(exact):
        spread_x[exact], spread_y[exact], joint[exact] = _centred(x, y, real(weights[exact]))
    return np.asarray(np.clip(divide(joint, np.sqrt(spread_x * spread_y)), -1.0, 1.0))


def standardise(values: Array) -> Array:
    """Return values less their mean and over their largest deviation, so that sums of squares lose little to rounding."""
    centred = values.astype(np.float64) - values.astype(np.float64).mean()
    scale = float(np.abs(centred).max())
    return np.asarray(centred / scale if scale > 0 else centred)


def constant_rows(values: Array, weights: Array) -> Array:
    """Return (r,) bool, whether all values of positive weight are equal."""
    drawn = weights > 0
    least = np.where(drawn, values, np.inf).min(axis=1)
    return np.asarray(least == np.where(drawn, values, -np.inf).max(axis=1))


def _centred(x: Array, y: Array, weights: Array) -> tuple[Array, Array, Array]:
    """Return sums of squares and products about each row's own means, 0 where a column is constant."""
    total = weights.sum(axis=1, keepdims=True)
    dx = x - (weights @ x)[:, None] / total
    dy = y - (weights @ y)[:, None] / total
    flat_x, flat_y = constant_rows(x, weights), constant_rows(y, weights)
    spread_x = np.where(flat_x, 0.0, (weights * dx * dx).sum(axis=1))
    spread_y = np.where(flat_y, 0.0, (weights * dy * dy).sum(axis=1))
    return spread_x, spread_y, np.where(flat_x | flat_y, 0.0, (weights * dx * dy).sum(axis=1))


@make_reducer
def r2(truth: Array, prediction: Array, weights: Array) -> Array:
    """Return weighted coefficients of determination, 1 - SSE / SST about the mean of the rows drawn.

    Args:
        truth: (M,) numbers.
        prediction: (M,) numbers.
        weights: (R, M) not negative.

    Returns:
        (R,) float64, at most 1; NaN where the truth is constant on the rows drawn.
    """
    y = truth.astype(np.float64) - truth.astype(np.float64).mean()
    error = np.square(truth.astype(np.float64) - prediction)
    sums = moment_product(weights, np.stack([y, y * y, error], axis=1))
    spread = sums[:, 1] - sums[:, 0] ** 2 / totals(weights)
    exact = np.flatnonzero((spread < 1e-6 * sums[:, 1]) | (spread <= 0))
    if len(exact):
        spread[exact] = _centred(y, y, real(weights[exact]))[0]
    return 1 - divide(sums[:, 2], spread)


NUM_BINS = 15


def assign_bins(confidence: Array, num_bins: int = NUM_BINS) -> Array:
    """Return the bin (M,) of each confidence: open below, closed above, 0 in the first."""
    return np.asarray(np.clip(np.ceil(confidence.astype(np.float64) * num_bins) - 1, 0, num_bins - 1), dtype=np.int64)


@make_reducer
def calibration_error(confidence: Array, hit: Array, weights: Array) -> Array:
    """Return the expected calibration error over 15 equal-width bins.

    Args:
        confidence: (M,) probability of the predicted class, in [0, 1].
        hit: (M,) bool or 0/1.
        weights: (R, M) not negative.

    Returns:
        (R,) float64 in [0, 1]; biased upwards in small samples.

    Source:
        Guo et al. 2017; bins are open below and closed above, 0 belongs to the first.
    """
    bins = assign_bins(confidence)
    signed = np.zeros((len(bins), NUM_BINS))
    signed[np.arange(len(bins)), bins] = hit.astype(np.float64) - confidence
    return divide(np.abs(moment_product(weights, signed)).sum(axis=1), totals(weights))


median = quantile(0.5)
REDUCERS.update(
    mean=mean, ratio=ratio, above_chance=above_chance, median=median, pearson=pearson, r2=r2, calibration_error=calibration_error
)
