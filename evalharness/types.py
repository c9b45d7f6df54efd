"""The types that the core and every plugin share; importing this module imports no torch.

Axis letters in shapes: N rows, B batch, D dimensions, C classes, Q queries, K neighbours, G groups, E episodes, R resamples, P penalties, S severities, M items of an outcome, L links.
Specs describe and are frozen; what holds arrays or tensors is slotted and keyword-only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import numpy as np

if TYPE_CHECKING:
    import torch

IdentityKind = Literal["weights", "source", "declared", "probe", "none"]
ColumnKind = Literal["class", "number", "multilabel"]
Mechanism = Literal["select", "apply", "render", "attack"]
Item = Literal["sample", "query", "pair", "episode"]
Status = Literal["measured", "not_measured", "not_applicable", "not_converged", "insufficient", "undecided", "suspect", "failed"]
Batch = Any  # a tensor of images or vectors, a list of texts, or an AudioBatch: see DESIGN and `Samples`
Array = np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Say what an encoder or a data set *is*, cheaply, so that stored results can be trusted."""

    kind: IdentityKind
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Hold an interval and how it was made; the bounds are NaN where none can be given."""

    low: float
    high: float
    level: float
    method: str
    n: int


# --- specs: what plugins register -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """Describe one registered thing.

    ``params`` maps each accepted parameter to its default and is the whitelist that users are checked against.
    ``protocol`` is raised by the author whenever a change of code can move a number.
    """

    name: str
    summary: str
    source: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    extra: str | None = None
    protocol: int = 1


@runtime_checkable
class Encoder(Protocol):
    """Turn batches into vectors.

    ``encode`` gives ``(B, dim)`` float tensors on the encoder's device, or a mapping of layer to such a tensor when ``layers`` is given.
    Resizing and normalisation happen inside, in torch, so that gradients reach the pixels.
    """

    dim: int

    def encode(
        self, batch: Batch, *, role: str = "document", layers: Sequence[str] | None = None
    ) -> torch.Tensor | dict[str, torch.Tensor]:
        """Embed one batch."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderSpec(Spec):
    """Describe an encoder; ``build(*, device, dtype, **params)`` makes it, ``identity(**params)`` is cheap.

    Empty ``modalities`` mean that the parameter ``modality`` says which one it is.
    ``precomputed`` marks vectors that exist for given ids only: the built encoder has ``lookup(ids, *, role) -> (B, D)`` in place of ``encode``, and no shift can reach it.
    """

    modalities: tuple[str, ...]
    build: Callable[..., Encoder]
    similarity: str = "cosine"
    differentiable: bool = False
    layers: tuple[str, ...] = ()
    training_augmentations: tuple[str, ...] | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)
    identity: Callable[..., Identity] | None = None
    precomputed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSpec(Spec):
    """Describe a data set; ``load(split, **params)`` gives a :class:`Dataset`.

    ``render(ids, factors, **params)`` is for generators: it makes the batch of the given ids with changed factors.
    ``identity(split, **params)`` is cheap and changes with the content; without it the plugin's own source stands in.
    """

    modalities: tuple[str, ...]
    splits: tuple[str, ...]
    load: Callable[..., Dataset]
    render: Callable[..., Batch] | None = None
    identity: Callable[..., Identity] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftSpec(Spec):
    """Describe a typed change of inputs.

    ``apply(inputs, severities, keys, *, model=None, labels=None, **params)`` gives one batch a severity.
    ``keys`` is ``(S, B)`` int64, one per severity and item, the only source of randomness.
    With mechanism ``render`` the inputs are a mapping of factor to ``(B,)`` values and so is each result.
    ``preserves`` names the target columns whose value survives, ``("*",)`` for all, or is a function of the parameters.
    ``access`` names the fields of :class:`AttackModel` that an attack reads, and ``gradient`` where it needs gradients of the encoder.
    """

    mechanism: Mechanism
    apply: Callable[..., list[Any]]
    kind: str
    shift_type: str
    modality: str
    severities: tuple[float, ...] = (1,)
    preserves: tuple[str, ...] | Callable[..., tuple[str, ...]] = ("*",)
    relabel: Callable[..., Any] | None = None
    access: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class AttackModel:
    """Hold what an attack may touch.

    ``encode``: inputs to ``(B, D)``, differentiable; ``clean``: ``(B, D)`` vectors of the clean inputs;
    ``logits``: inputs to ``(B, C)`` through the attacked head, or None; ``neighbours``: a gallery, or None; ``bounds``: the data range.
    """

    encode: Callable[[Any], torch.Tensor]
    clean: torch.Tensor
    logits: Callable[[Any], torch.Tensor] | None = None
    neighbours: Vectors | None = None
    bounds: tuple[float, float] = (0.0, 1.0)


@runtime_checkable
class Codec(Protocol):
    """Store vectors as something smaller; ``decode`` answers in the codec's own dimension."""

    def encode(self, vectors: torch.Tensor) -> torch.Tensor:
        """Turn ``(N, D)`` float32 into codes with N rows."""
        ...

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        """Turn codes with N rows into ``(N, M)`` float32."""
        ...

    def bytes_per_vector(self, n: int) -> float:
        """Return the bytes that one of ``n`` vectors takes, its share of codebooks and ranges included."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecSpec(Spec):
    """Describe a codec; ``fit(vectors (N, D), **params)`` learns it."""

    fit: Callable[..., Codec]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricInfo:
    """Describe a metric: a reducer over stored columns, its range and how its interval is made.

    ``reduce`` is the name of a reducer of ``evalharness.stats``, or a callable ``(*columns, weights (R, M)) -> (R,)`` exact under non-negative integer weights.
    ``reduce=None`` marks a statistic of the whole cloud, taken from the outcome's ``scalars`` and ``replicates``.
    ``chance`` is a number or the name of one of the outcome's scalars.
    """

    name: str
    columns: tuple[str, ...] = ()
    reduce: str | Callable[..., Array] | None = "mean"
    low: float = 0.0
    high: float = 1.0
    unit: str = "fraction"
    higher_is_better: bool | None = True
    chance: float | str | None = None
    interval: Literal["wilson", "bootstrap", "jackknife", "half-sample", "none"] = "bootstrap"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatorSpec(Spec):
    """Describe an evaluator.

    ``fit(train: Table, validation: Table | None, *, generator, **params) -> fitted``
    ``score(fitted, test: Side, *, clean=None, exact=None, base=None, generator, **params) -> list[Outcome]``
    ``head(fitted)`` gives a differentiable map of vectors (B, D) to logits (B, C), or None.
    ``needs`` is a subset of {train, validation, clean, exact, base}; ``main`` names the main metric, ``mains`` that of other target kinds.
    ``target_kinds`` lists the column kinds it can learn or score; empty means that it needs no target.
    """

    target_kinds: tuple[str, ...]
    metrics: tuple[MetricInfo, ...]
    main: str
    mains: Mapping[str, str] = field(default_factory=dict)
    needs: frozenset[str] = frozenset()
    fit: Callable[..., Any] | None = None
    score: Callable[..., list[Outcome]]
    head: Callable[[Any], Callable[[torch.Tensor], torch.Tensor] | None] | None = None

    def main_of(self, kind: str | None) -> str:
        """Return the main metric for a target of a kind."""
        return self.mains.get(kind, self.main) if kind else self.main


@dataclass(frozen=True, slots=True, kw_only=True)
class ReporterSpec(Spec):
    """Describe a leaderboard format; ``render(board) -> str``."""

    render: Callable[..., str]


# --- data ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Column:
    """Hold one value a row.

    ``class``: codes (N,) int64 into ``names``, -1 missing; ``number``: (N,) float64, NaN missing; ``multilabel``: (N, L) bool, ``names`` the L labels.
    """

    kind: ColumnKind
    values: Array
    names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.values)

    def take(self, at: Array) -> Column:
        """Return the rows at the given positions."""
        return Column(kind=self.kind, values=self.values[at], names=self.names)

    def labels(self) -> Array:
        """Return the names of a class column as an object array, None where missing."""
        return np.array([*self.names, None], dtype=object)[self.values]


def class_column(values: Iterable[Any]) -> Column:
    """Make a class column from labels; names are sorted, integers by value, and None or NaN is missing.

    >>> class_column(["b", "a", None]).values.tolist()
    [1, 0, -1]
    """
    labels = [None if value is None or (isinstance(value, float) and np.isnan(value)) else value for value in values]
    known = {value for value in labels if value is not None}
    whole = all(isinstance(value, (int, np.integer)) for value in known)
    order = sorted(known) if whole else sorted(known, key=str)
    names = [str(int(value)) if whole else str(value) for value in order]
    code = {value: at for at, value in enumerate(order)}
    codes = [-1 if value is None else code[value] for value in labels]
    return Column(kind="class", values=np.array(codes, dtype=np.int64), names=tuple(names))


def number_column(values: Iterable[Any]) -> Column:
    """Make a number column; None becomes NaN, which stands for a missing value."""
    return Column(kind="number", values=np.array([np.nan if value is None else value for value in values], dtype=np.float64))


@dataclass(slots=True, kw_only=True)
class AudioBatch:
    """Hold ``waveforms`` (B, T) float32 in [-1, 1], ``lengths`` (B,) int64 in samples, ``sample_rate`` in Hz."""

    waveforms: torch.Tensor
    lengths: torch.Tensor
    sample_rate: int


@dataclass(slots=True, kw_only=True)
class Samples:
    """Hold one part of a data set, decoded lazily.

    ``read(indices (B,) int64)`` gives a batch: images (B, 3, H, W) float32 in [0, 1], texts ``list[str]``, an :class:`AudioBatch`, or vectors (B, F) float32.
    Images of different sizes are read as a list of (3, H, W) tensors; the task's ``image_size`` brings them to one size.
    ``ids`` are unique strings, ``fingerprint`` is a digest of the content.
    """

    modality: str
    size: int
    read: Callable[[Array], Batch]
    ids: Array
    columns: Mapping[str, Column] = field(default_factory=dict)
    fingerprint: str = ""


@dataclass(slots=True, kw_only=True)
class Links:
    """Join rows of two parts: relevance judgements, pairs and image-caption links are all this.

    ``source`` and ``target`` name parts, ``rows`` is (L, 2) int64 into them, ``grades`` (L,) float64.
    """

    source: str
    target: str
    rows: Array
    grades: Array
    ids: Array
    columns: Mapping[str, Column] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Dataset:
    """Hold the parts of one split and their links: {"items"}, {"queries", "corpus"}, {"left", "right"}, {"images", "texts"}."""

    parts: Mapping[str, Samples]
    links: Mapping[str, Links] = field(default_factory=dict)


# --- what evaluators see and give ---------------------------------------------------------------------------------


@runtime_checkable
class Vectors(Protocol):
    """Give vectors to an evaluator, whatever they are stored as."""

    codes: Any
    codec: Codec | None
    similarity: str

    def __len__(self) -> int: ...

    def dense(self) -> torch.Tensor:
        """Return (N, M) float32, decoded."""
        ...

    def take(self, rows: Array) -> Vectors:
        """Return the vectors at the given positions."""
        ...

    def queries(self, mode: str = "float32") -> torch.Tensor:
        """Return (N, M) vectors to search with: ``float32`` as the encoder gave them, in the codec's space, or ``coded``."""
        ...

    def search(
        self, queries: Any, k: int, *, metric: str | None = None, exclude: Any = None, query_ids: Array | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return values and indices (Q, k) of the nearest rows, nearest first; ``exclude`` is (Q, X) int64, -1 for none, ``query_ids`` (Q,) are for messages."""
        ...


@dataclass(slots=True, kw_only=True)
class Table:
    """Hold rows of one part: ``vectors``, ``ids`` (N,) strings, ``rows`` (N,) int64 into the stored row set, ``target`` and all ``columns``.

    A validation table is ``carved`` where its rows were taken from the fit's own, so that a refit on both is within the declared rows.
    """

    vectors: Vectors
    ids: Array
    rows: Array
    target: Column | None = None
    columns: Mapping[str, Column] = field(default_factory=dict)
    carved: bool = False

    def __len__(self) -> int:
        return len(self.ids)

    def search(
        self, queries: Table, k: int, *, metric: str | None = None, mode: str = "float32", exclude: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return values and positions (Q, k) of the rows of this table nearest to each row of another, nearest first.

        Args:
            queries: the other table, Q rows.
            k: how many neighbours.
            metric: ``cosine``, ``dot`` or ``l2``; None for the encoder's own.
            mode: as in :meth:`Vectors.queries`.
            exclude: (Q, X) int64 positions in this table that a query must not find, -1 for none.

        Raises:
            VectorsError: a vector cannot be searched with, or for; the message names its id.
        """
        wanted = queries.vectors.queries(mode)
        barred = None if exclude is None else exclude.to(wanted.device)
        return self.vectors.search(wanted, k, metric=metric, exclude=barred, query_ids=queries.ids)

    def take(self, at: Array) -> Table:
        """Return the rows at the given positions."""
        return Table(
            vectors=self.vectors.take(at),
            ids=self.ids[at],
            rows=self.rows[at],
            target=None if self.target is None else self.target.take(at),
            columns={name: column.take(at) for name, column in self.columns.items()},
            carved=self.carved,
        )


@dataclass(slots=True, kw_only=True)
class Side:
    """Hold what is scored: tables by part, and the links between them."""

    parts: Mapping[str, Table]
    links: Mapping[str, Links] = field(default_factory=dict)

    @property
    def items(self) -> Table:
        """Return the table of a data set with a single part."""
        return self.parts["items"]


@dataclass(slots=True, kw_only=True)
class Outcome:
    """Hold what one evaluator saw, item by item; metrics are computed from it by the core.

    ``item`` says what an item is, ``part`` the part or links that ``rows`` (M,) int64 points into.
    ``columns`` maps names to (M,) arrays; ``truth`` and ``prediction`` are class codes of the scored table's target, which the core rewrites into the data set's own order of names.
    The first outcome of a list is the evaluator's main variant.
    ``clusters`` is (M,) or (M, way) int64 and names the independent unit of each item.
    ``scalars`` and ``replicates`` (name to (R,)) carry whole-cloud statistics; ``variant`` sets one outcome of several apart (``{"k": 20}``).
    """

    item: Item
    part: str
    rows: Array
    columns: Mapping[str, Any] = field(default_factory=dict)
    clusters: Array | None = None
    scalars: Mapping[str, float] = field(default_factory=dict)
    replicates: Mapping[str, Array] = field(default_factory=dict)
    variant: Mapping[str, Any] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)
    status: Status = "measured"
    reason: str | None = None


# --- events for observers -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """Tell observers about a run: its folder (None when nothing is written), encoders, tasks and number of units."""

    folder: Path | None
    encoders: tuple[str, ...]
    tasks: tuple[str, ...]
    num_units: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitInfo:
    """Tell observers about a finished unit: its key, what it was, how it ended and its records."""

    key: str
    task: str
    encoder: str
    evaluator: str
    status: str
    seconds: float
    records: tuple[Mapping[str, Any], ...]


def with_params(spec: Any, **params: Any) -> Any:
    """Return a spec whose defaults are overridden, as a reference with parameters in its name needs."""
    return replace(spec, params={**spec.params, **params})
