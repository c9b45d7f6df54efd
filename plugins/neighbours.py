"""The neighbourhood of each item among the others: do labels and sources agree, are some items everyone's neighbours; with examples to look at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from evalharness import EvaluatorSpec, MetricInfo, Outcome, Side, Table, hookimpl
from evalharness.errors import DataError, UsageError

if TYPE_CHECKING:
    import torch

SHOWN = 5
HUBS_FROM = 400  # items from which the interval of hubness covers
RATES = {"purity": "label_purity", "same_source": "same_source_rate"}  # by the column of single items


def score(
    fitted: None,
    test: Side,
    *,
    generator: torch.Generator,
    clean: Side | None = None,
    exact: Side | None = None,
    base: Table | None = None,
    k: int = 10,
    metric: str = "cosine",
    source: str | None = None,
    examples: int = 8,
    replicates: int = 50,
) -> list[Outcome]:
    """Return of every item the share of its k neighbours with its label, and in how many others' lists it stands.

    An item is never its own neighbour; a copy of it under another id is one.
    Neighbours of equal similarity follow their position.
    ``source`` names a class column, such as site or speaker, whose agreement is measured too.
    Examples are drawn from the generator.

    Raises:
        DataError: k exceeds the other items, or ``source`` is no class column or lacks values.
        UsageError: a parameter makes no sense.
        VectorsError: a vector is not finite, or has norm 0 under cosine.

    Source:
        Radovanović et al. 2010 (hubness); METRICS.md 2.2.
    """
    del fitted, clean, exact, base
    table = test.items
    assert table.target is not None
    _check(k, examples, replicates, len(table))
    origins = None if source is None else _find_source(table, source)
    shown = np.sort(_draw(len(table), generator)[:examples])
    halves = np.stack([_draw(len(table), generator)[: len(table) // 2] for _ in range(replicates)])
    similarity, wide = _search(table, _width(k, len(table)), metric)
    near, truth = wide[:, :k], table.target.values
    occurrence = count_occurrences(near, len(table))
    named = {"purity": truth} if origins is None else {"purity": truth, "same_source": origins}
    columns = {name: share_alike(codes, near, codes) for name, codes in named.items()}
    purity_of = {
        name: float(columns["purity"][truth == code].mean()) for code, name in enumerate(table.target.names) if (truth == code).any()
    }
    return [
        Outcome(
            item="sample",
            part="items",
            rows=table.rows,
            columns={**columns, "occurrence": occurrence, "antihub": occurrence == 0},
            scalars=measure(near, occurrence, k, named, np.arange(len(table))),
            replicates=_replicate(wide, halves, k, named),
            details={"k": k, "similarity": metric, "purity_of": purity_of, "examples": _describe(table, shown, near, similarity)},
        )
    ]


def _check(k: int, examples: int, replicates: int, size: int) -> None:
    if k < 1 or examples < 0 or replicates < 2:
        raise UsageError(
            f"expected `k` of at least 1, `examples` of at least 0 and `replicates` of at least 2, got {k}, {examples} and {replicates}"
        )
    if k > size - 1:
        raise DataError(f"k = {k} exceeds the {size - 1} other items; the largest possible k is {size - 1}")


def _find_source(table: Table, name: str) -> np.ndarray:
    column = table.columns.get(name)
    if column is None or column.kind != "class":
        known = sorted(each for each, column in table.columns.items() if column.kind == "class")
        raise DataError(f"expected `source` to be a class column ({', '.join(known)}), got `{name}`")
    missing = int((column.values < 0).sum())
    if missing:
        raise DataError(f"{missing} of {len(column)} items have no `{name}`, the column that `source` names")
    return column.values


def _draw(size: int, generator: torch.Generator) -> np.ndarray:
    import torch

    order: np.ndarray = torch.randperm(size, generator=generator).numpy()
    return order


def _width(k: int, size: int) -> int:
    """Return how many neighbours to look up so that any random half holds k of them, but for a chance below 1e-9 an item."""
    return min(size - 1, 4 * k + 40)


def _search(table: Table, width: int, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Return similarities and positions (N, width) of each item's neighbours among the others; under l2 the similarity is minus the distance."""
    import torch

    own = torch.arange(len(table))[:, None]
    found, at = table.search(table, width, metric=metric, mode="coded", exclude=own)
    return (-found if metric == "l2" else found).cpu().double().numpy(), at.cpu().numpy()


def share_alike(codes: np.ndarray, near: np.ndarray, own: np.ndarray) -> np.ndarray:
    """Return the share of the neighbours (N, K) whose code is that of the item itself, ``own`` (N,), float64; -1 is nobody."""
    known = near >= 0
    share: np.ndarray = ((codes[near] == own[:, None]) & known).sum(axis=1) / known.sum(axis=1)
    return share


def count_occurrences(near: np.ndarray, size: int) -> np.ndarray:
    """Return in how many lists of neighbours (N, K) each of ``size`` items stands, (size,) int64; -1 is nobody."""
    return np.bincount(near[near >= 0], minlength=size)


def measure_occurrences(occurrence: np.ndarray, k: int) -> dict[str, float]:
    """Return skewness (population moments, NaN where all are equal), Robin Hood index and maximum of occurrences (N,).

    >>> measure_occurrences(np.array([4, 1, 0, 0, 0]), 1)["robin_hood"]
    0.6
    """
    deviation = occurrence - occurrence.mean()
    spread = float((deviation**2).mean())
    return {
        "hubness": float((deviation**3).mean()) / spread**1.5 if spread > 0 else float("nan"),
        "robin_hood": float(np.abs(occurrence - k).sum() / (2 * k * len(occurrence))),
        "largest_occurrence": float(occurrence.max()),
    }


def measure(near: np.ndarray, occurrence: np.ndarray, k: int, named: Mapping[str, np.ndarray], at: np.ndarray) -> dict[str, float]:
    """Return all statistics of neighbours (H, k) of the items at some positions (H,), and of the occurrences of these.

    ``named`` are the codes (N,) of all items that ought to agree: ``purity`` and ``same_source``.
    """
    shares = {RATES[name]: float(share_alike(codes, near, codes[at]).mean()) for name, codes in named.items()}
    return {**shares, **measure_occurrences(occurrence, k)}


def _replicate(wide: np.ndarray, halves: np.ndarray, k: int, named: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the statistics on halves (R, H), each item's neighbours being the nearest within its half; none where a half is too small.

    Items share neighbours, so that resampling them one by one would show too little spread: of label purity 55 to 62 % (docs/coverage.md).
    """
    if halves.shape[1] <= k:
        return {}
    found = []
    for half in halves:
        near = nearest_within(wide, half, k)
        found.append(measure(near, count_occurrences(near, len(wide))[half], k, named, half))
    # The skewness of few counts hangs on its one or two hubs, which half of the halves lack.
    given = [name for name in found[0] if name != "hubness" or len(wide) >= HUBS_FROM]
    return {name: np.array([each[name] for each in found]) for name in given}


def nearest_within(wide: np.ndarray, half: np.ndarray, k: int) -> np.ndarray:
    """Return the first k of each row's neighbours (N, W) that belong to some positions, for the rows that do, (H, k); -1 where fewer are known."""
    inside = np.zeros(len(wide), dtype=bool)
    inside[half] = True
    near = wide[half]
    kept = inside[near]
    order = np.argsort(~kept, axis=1, kind="stable")[:, :k]
    first: np.ndarray = np.where(np.take_along_axis(kept, order, axis=1), np.take_along_axis(near, order, axis=1), -1)
    return first


def _describe(table: Table, shown: np.ndarray, near: np.ndarray, similarity: np.ndarray) -> list[dict[str, Any]]:
    assert table.target is not None
    labels = table.target.labels()

    def name(at: int) -> dict[str, Any]:
        return {"id": str(table.ids[at]), "label": None if labels[at] is None else str(labels[at])}

    return [
        {
            **name(at),
            "neighbours": [
                {**name(other), "similarity": round(float(value), 6)}
                for other, value in zip(near[at, :SHOWN], similarity[at, :SHOWN], strict=False)
            ],
        }
        for at in shown
    ]


METRICS = (
    MetricInfo(name="label_purity", reduce=None, interval="half-sample"),
    MetricInfo(name="same_source_rate", reduce=None, higher_is_better=None, interval="half-sample"),
    MetricInfo(name="antihub_rate", columns=("antihub",), higher_is_better=False, interval="wilson"),
    MetricInfo(
        name="hubness",
        reduce=None,
        low=float("-inf"),
        high=float("inf"),
        unit="skewness",
        higher_is_better=False,
        interval="half-sample",
    ),
    MetricInfo(name="robin_hood", reduce=None, higher_is_better=False, interval="half-sample"),
    MetricInfo(
        name="largest_occurrence",
        reduce=None,
        high=float("inf"),
        unit="lists",
        higher_is_better=False,
        interval="half-sample",
    ),
)


@hookimpl
def evalharness_evaluators() -> Iterable[EvaluatorSpec]:
    """Register `neighbours`."""
    yield EvaluatorSpec(
        name="neighbours",
        summary="What lies next to each item: label purity, same-source rate, hubs and antihubs, with examples",
        source="Radovanović et al. 2010",
        protocol=2,
        params={"k": 10, "metric": "cosine", "source": None, "examples": 8, "replicates": 50},
        target_kinds=("class",),
        metrics=METRICS,
        main="label_purity",
        score=score,
    )
