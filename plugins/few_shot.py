"""Few-shot episodes: several heads on the same random episodes of a few classes, all scored in blocks."""

from __future__ import annotations

import hashlib
import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from evalharness import Column, EvaluatorSpec, MetricInfo, Outcome, Side, Table, hookimpl
from evalharness.errors import DataError, UsageError, unknown_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import torch

    from evalharness.numerics import Episodes

HEADS = ("nearest-centroid", "simpleshot-un", "simpleshot-l2n", "simpleshot-cl2n", "ridge", "logistic")
METRICS = ("l2", "cosine")
OF_BASE = "simpleshot-cl2n"


def score(
    fitted: None,
    test: Side,
    *,
    generator: torch.Generator,
    clean: Side | None = None,
    exact: Side | None = None,
    base: Table | None = None,
    way: int | Sequence[int] = 5,
    shot: int | Sequence[int] = (1, 5),
    query: int = 15,
    episodes: int = 600,
    head: str | Sequence[str] = "nearest-centroid",
    metric: str = "l2",
    penalty: float = 1.0,
    within: str | None = None,
    main_shot: int | None = None,
) -> list[Outcome]:
    """Return the accuracy of every episode, one outcome a way, shot and head; first the first way and head with the main shot (5 where asked for, else the largest).

    The episodes of a way and shot follow from the generator and the labels alone: encoders and heads are compared on the same ones, whatever else is asked.
    With ``within`` every episode stays in one superclass, named by that column, and superclasses are the independent units in place of classes.
    Rows without a label are left out.

    Raises:
        DataError: there are fewer classes than ``way``, in all or in every superclass, a class has fewer than shot + query items, or is of several superclasses;
            the message names it. The head `simpleshot-cl2n` has no training rows, or test rows are among them.
        UsageError: a parameter makes no sense.

    Source:
        METRICS.md 3; heads as in ``numerics.score_episodes``.
    """
    del fitted, clean, exact
    ways, heads = _counts("way", way), _listed(head)
    shots = _order_shots(_counts("shot", shot), main_shot)
    _check_params(heads, metric, penalty)
    table = test.items
    groups = None if within is None else _superclasses(table, within)
    drawn = _draw(table, ways, shots, generator, groups, query=query, episodes=episodes)
    vectors = table.vectors.dense().float()
    base_mean = _base_mean(base, table) if OF_BASE in heads else None
    given = {"metric": metric, "penalty": float(penalty), "base_mean": base_mean}
    # A variant names its shot, and what else was asked for as a list.
    named = [name for name, values in (("way", ways), ("shot", None), ("head", heads)) if values is None or len(values) > 1]
    asked = [dict(zip(("way", "shot", "head"), values, strict=True)) for values in itertools.product(ways, shots, heads)]
    return [_outcome(vectors, drawn[each["way"], each["shot"]], table, groups, each, named, **given) for each in asked]


# --- parameters -----------------------------------------------------------------------------------------------------


def _listed(given: Any) -> list[Any]:
    """Return a parameter that is one value or a list of them as a list without repetitions."""
    return list(dict.fromkeys(given)) if isinstance(given, (list, tuple)) else [given]


def _counts(name: str, given: Any) -> list[int]:
    counts = _listed(given)
    if not counts or any(isinstance(count, bool) or not isinstance(count, int) or count < 1 for count in counts):
        raise UsageError(f"expected `{name}` of `few-shot` to be positive, a whole number or a list of them, got {given!r}")
    return counts


def _order_shots(shots: list[int], main_shot: int | None) -> list[int]:
    if main_shot is not None and main_shot not in shots:
        raise UsageError(f"expected `main_shot` to be one of `shot` = {shots}, got {main_shot}")
    main = main_shot if main_shot is not None else 5 if 5 in shots else max(shots)
    return [main, *sorted(set(shots) - {main})]


def _check_params(heads: Sequence[str], metric: str, penalty: float) -> None:
    if not heads:
        raise UsageError("expected `head` of `few-shot` to be a name or a list of names, got an empty list")
    for name in heads:
        if name not in HEADS:
            raise UsageError(f"`head` of `few-shot`: {unknown_name('head', str(name), HEADS)}")
    if metric not in METRICS:
        raise UsageError(f"expected `metric` of `few-shot` to be `l2` or `cosine`, got `{metric}`")
    if metric == "cosine" and "nearest-centroid" not in heads:
        raise UsageError("`metric` of `few-shot` is about the head `nearest-centroid`, which is not among `head`: leave it out")
    if isinstance(penalty, bool) or not isinstance(penalty, (int, float)) or not (math.isfinite(penalty) and penalty > 0):
        raise UsageError(f"expected `penalty` of `few-shot` to be positive, got {penalty!r}")


def _superclasses(table: Table, within: str) -> Column:
    column = table.columns.get(within)
    if column is None:
        raise UsageError(f"`within` of `few-shot`: {unknown_name('column', within, table.columns)}")
    if column.kind != "class":
        raise UsageError(f"expected `within` of `few-shot` to name a class column, got the {column.kind} column `{within}`")
    return column


def _base_mean(base: Table | None, test: Table) -> torch.Tensor:
    """Return the mean (D,) of base-training vectors, float64."""
    if base is None or not len(base):
        raise DataError(
            f"the head `{OF_BASE}` subtracts the mean of base-training rows, and the task has none: name a `train` split in `data.splits`"
        )
    shared = np.intersect1d(base.ids, test.ids)
    if len(shared):
        raise DataError(
            f"the head `{OF_BASE}` subtracts the mean of base-training rows, but {len(shared)} of them are test rows ({shared[0]}):"
            " name a `train` split apart from `test`"
        )
    from evalharness.numerics import check_finite

    vectors = base.vectors.dense()
    check_finite(vectors, base.ids, "base vectors")
    return vectors.double().mean(dim=0)


# --- episodes -------------------------------------------------------------------------------------------------------


def _draw(
    table: Table, ways: Sequence[int], shots: Sequence[int], generator: torch.Generator, groups: Column | None, *, query: int, episodes: int
) -> dict[tuple[int, int], Episodes]:
    """Return the episodes of each way and shot, each drawn by a generator of its own, so that none depends on what else is asked."""
    import torch

    from evalharness.numerics import sample_episodes

    assert table.target is not None
    labels = torch.from_numpy(np.ascontiguousarray(table.target.values))
    seed = int(torch.randint(2**62, (1,), generator=generator))
    given: dict[str, Any] = {"query": query, "episodes": episodes, "names": table.target.names}
    if groups is not None:
        given |= {"groups": torch.from_numpy(np.ascontiguousarray(groups.values)), "group_names": groups.names}
    return {
        (way, shot): sample_episodes(labels, way=way, shot=shot, generator=_child(seed, way, shot), **given)
        for way in ways
        for shot in shots
    }


def _child(seed: int, way: int, shot: int) -> torch.Generator:
    import torch

    digest = hashlib.sha256(f"{seed} {way} {shot}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 2)


def _outcome(
    vectors: torch.Tensor,
    drawn: Episodes,
    table: Table,
    groups: Column | None,
    asked: Mapping[str, Any],
    named: Sequence[str],
    **given: Any,
) -> Outcome:
    from evalharness.numerics import score_episodes

    scores = score_episodes(vectors, drawn, head=asked["head"], ids=table.ids, **given)
    failed = int((~scores.converged).sum())
    clusters, details = _units(drawn, table, groups, asked["way"])
    return Outcome(
        item="episode",
        part="items",
        rows=np.arange(len(scores.accuracy)),
        columns={"accuracy": scores.accuracy.cpu()},
        clusters=clusters,
        variant={name: asked[name] for name in named},
        details=details,
        status="not_converged" if failed else "measured",
        reason=f"the head `{asked['head']}` did not converge in {failed} of {len(scores.accuracy)} episodes" if failed else None,
    )


def _units(drawn: Episodes, table: Table, groups: Column | None, way: int) -> tuple[np.ndarray, dict[str, Any]]:
    """Return the independent units, classes (E, way) or the superclass (E, 1) of each episode, and what episodes are drawn from.

    ``num_classes`` counts the units: classes of one superclass are alike, so that leaving out one at a time would show too little or too much.
    """
    assert table.target is not None
    present, first, sizes = np.unique(table.target.values, return_index=True, return_counts=True)
    kept = present >= 0
    own = None if groups is None else groups.values[first]
    if own is not None:
        names, counts = np.unique(own[kept], return_counts=True)
        kept &= np.isin(own, names[counts >= way])
    present, sizes = present[kept], sizes[kept]
    details: dict[str, Any] = {"num_classes": len(present), "smallest_class": int(sizes.min()), "items": int(sizes.sum())}
    places = np.searchsorted(present, drawn.classes.numpy())
    if own is None:
        return places, details
    superclasses, codes = np.unique(own[kept], return_inverse=True)
    return codes[places[:, :1]], {**details, "num_classes": len(superclasses), "classes_within": len(present)}


@hookimpl
def evalharness_evaluators() -> Iterable[EvaluatorSpec]:
    """Register `few-shot`."""
    yield EvaluatorSpec(
        name="few-shot",
        summary="Heads fitted on a few support items of a few classes, in random episodes",
        source="Snell et al. 2017; Wang et al. 2019 (SimpleShot); episodes after Vinyals et al. 2016",
        params={
            "way": 5,
            "shot": (1, 5),
            "query": 15,
            "episodes": 600,
            "head": "nearest-centroid",
            "metric": "l2",
            "penalty": 1.0,
            "within": None,
            "main_shot": None,
        },
        protocol=2,
        target_kinds=("class",),
        metrics=(MetricInfo(name="accuracy", columns=("accuracy",)),),
        main="accuracy",
        needs=frozenset({"base"}),
        score=score,
    )
