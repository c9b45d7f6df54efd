"""Checks that a plugin author runs on an encoder, data set, shift, codec or evaluator; each raises AssertionError with what is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from evalharness import stats
from evalharness.embed import PassSettings, build_encoder
from evalharness.numerics import keyed_normal
from evalharness.probes import sample_batch
from evalharness.registry import Registry
from evalharness.stamp import EncoderUse
from evalharness.types import (
    AttackModel,
    AudioBatch,
    Batch,
    CodecSpec,
    Column,
    Dataset,
    DatasetSpec,
    Encoder,
    EncoderSpec,
    EvaluatorSpec,
    Outcome,
    ShiftSpec,
    Side,
    Table,
)
from evalharness.vectors import code_vectors


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviations:
    """Hold the largest deviations of vectors, in units of the row norm."""

    dim: int
    rows: int
    batch: float
    order: float
    again: float


def take_batch(batch: Batch, rows: Sequence[int]) -> Batch:
    """Return some items of a batch."""
    if isinstance(batch, list):
        return [batch[row] for row in rows]
    if isinstance(batch, AudioBatch):
        at = torch.as_tensor(rows)
        return AudioBatch(waveforms=batch.waveforms[at], lengths=batch.lengths[at], sample_rate=batch.sample_rate)
    return batch[torch.as_tensor(rows)]


def _encode(encoder: Encoder, batch: Batch) -> torch.Tensor:
    with torch.no_grad():
        vectors = encoder.encode(batch, role="document")
    assert isinstance(vectors, torch.Tensor), f"expected a tensor from `encode`, got {type(vectors).__name__}"
    return vectors.detach().float().cpu()


def _deviation(one: torch.Tensor, other: torch.Tensor) -> float:
    return float(((one - other).norm(dim=1) / other.norm(dim=1).clamp_min(1e-12)).max())


def deviations(encoder: Encoder, batch: Batch, rows: int) -> Deviations:
    """Compare vectors of one batch with those of single items, of the reversed batch, and of the same batch again."""
    whole = _encode(encoder, batch)
    single = torch.cat([_encode(encoder, take_batch(batch, [row])) for row in range(rows)])
    back = _encode(encoder, take_batch(batch, list(range(rows))[::-1])).flip(0)
    return Deviations(
        dim=whole.shape[1],
        rows=rows,
        batch=_deviation(single, whole),
        order=_deviation(back, whole),
        again=_deviation(_encode(encoder, batch), whole),
    )


def encoder_deviations(registry: Registry, use: EncoderUse, modality: str, device: str) -> Deviations:
    """Build a registered encoder and measure its deviations on made-up items."""
    encoder = build_encoder(registry, use, PassSettings(device=device))
    batch = sample_batch(modality)
    rows = len(batch.lengths) if isinstance(batch, AudioBatch) else len(batch)
    moved = batch.to(device) if isinstance(batch, torch.Tensor) else batch
    return deviations(encoder, moved, rows)


def check_encoder(
    spec: EncoderSpec, *, device: str = "cpu", tolerance: float = 1e-5, batch: Batch | None = None, **params: Any
) -> Deviations:
    """Check that an encoder gives finite (B, D) vectors that depend on neither batch size nor order, and gradients where it promises them.

    Raises:
        AssertionError: it does not; the message says what and by how much.
    """
    encoder = spec.build(device=torch.device(device), dtype=torch.float32, **{**spec.params, **params})
    modality = spec.modalities[0] if spec.modalities else str({**spec.params, **params}["modality"])
    items = sample_batch(modality) if batch is None else batch
    rows = len(items.lengths) if isinstance(items, AudioBatch) else len(items)
    vectors = _encode(encoder, items)
    assert vectors.ndim == 2, f"expected vectors of shape ({rows}, D), got {tuple(vectors.shape)}"
    assert len(vectors) == rows, f"expected vectors of shape ({rows}, D), got {tuple(vectors.shape)}"
    assert torch.isfinite(vectors).all(), "vectors are not finite"
    found = deviations(encoder, items, rows)
    assert found.again == 0, f"the same batch gave other vectors, by {found.again:.2g} of the row norm"
    assert found.batch <= tolerance, f"vectors depend on the batch size, by {found.batch:.2g} of the row norm"
    assert found.order <= tolerance, f"vectors depend on the order of the batch, by {found.order:.2g} of the row norm"
    if spec.differentiable and isinstance(items, torch.Tensor):
        inputs = items.clone().requires_grad_()
        result = encoder.encode(inputs)
        assert isinstance(result, torch.Tensor)
        (gradient,) = torch.autograd.grad(result.square().sum(), inputs)
        assert torch.isfinite(gradient).all(), "gradients are not finite"
        assert gradient.abs().sum() > 0, "`differentiable` is declared, but no gradient reaches the inputs"
    return found


def check_dataset(spec: DatasetSpec, split: str | None = None, **params: Any) -> Dataset:
    """Check that a data set loads, reads lazily by any indices, has unique ids, whole columns, valid links, and is the same when loaded again.

    Raises:
        AssertionError: it does not.
    """
    split = split or spec.splits[0]
    given = {**spec.params, **params}
    dataset, again = spec.load(split, **given), spec.load(split, **given)
    assert dataset.parts, "a data set has at least one part"
    for name, samples in dataset.parts.items():
        assert samples.size == len(samples.ids), f"part `{name}`: {samples.size} samples, {len(samples.ids)} ids"
        assert len(set(map(str, samples.ids))) == samples.size, f"part `{name}`: ids are not unique"
        assert samples.fingerprint, f"part `{name}`: no fingerprint"
        assert samples.fingerprint == again.parts[name].fingerprint, f"part `{name}`: the fingerprint changed on the second load"
        for key, column in samples.columns.items():
            _check_column(f"part `{name}`, column `{key}`", column, samples.size)
        _check_reading(name, samples)
    for name, links in dataset.links.items():
        assert links.source in dataset.parts, f"links `{name}`: no part `{links.source}`"
        assert links.target in dataset.parts, f"links `{name}`: no part `{links.target}`"
        limits = [dataset.parts[links.source].size, dataset.parts[links.target].size]
        assert (links.rows < limits).all(), f"links `{name}`: a row outside its part"
        assert (links.rows >= 0).all(), f"links `{name}`: a negative row"
        assert len(links.grades) == len(links.rows) == len(links.ids), f"links `{name}`: lengths differ"
    return dataset


def _check_column(where: str, column: Column, size: int) -> None:
    assert len(column) == size, f"{where}: {len(column)} values for {size} samples"
    if column.kind == "class":
        assert int(column.values.max(initial=-1)) < len(column.names), f"{where}: a code beyond the names"
        assert int(column.values.min(initial=0)) >= -1, f"{where}: a code below -1"
        assert len(set(column.names)) == len(column.names), f"{where}: names are not unique"


def _check_reading(name: str, samples: Any) -> None:
    at = np.unique(np.linspace(0, samples.size - 1, min(4, samples.size)).astype(np.int64))
    batch, reverse = samples.read(at), samples.read(at[::-1].copy())
    for row in range(len(at)):
        one, other = take_batch(batch, [row]), take_batch(reverse, [len(at) - 1 - row])
        same = torch.equal(one[0], other[0]) if isinstance(one, (torch.Tensor, list)) and isinstance(one[0], torch.Tensor) else True
        same = one == other if isinstance(one, list) and isinstance(one[0], str) else same
        assert same, f"part `{name}`: an item depends on the indices it is read with"
    if isinstance(batch, torch.Tensor) and samples.modality == "image":
        assert batch.dtype == torch.float32, f"part `{name}`: images are {batch.dtype}, expected float32"
        assert batch.ndim == 4, f"part `{name}`: images have shape {tuple(batch.shape)}, expected (B, 3, H, W)"
        assert batch.shape[1] == 3, f"part `{name}`: images have shape {tuple(batch.shape)}, expected (B, 3, H, W)"
        assert float(batch.min()) >= 0, f"part `{name}`: images leave [0, 1]"
        assert float(batch.max()) <= 1, f"part `{name}`: images leave [0, 1]"


def check_shift(
    spec: ShiftSpec,
    *,
    batch: Batch | None = None,
    severities: Sequence[float] | None = None,
    model: AttackModel | None = None,
    **params: Any,
) -> list[Batch]:
    """Check that a shift gives one batch a severity, changes something, keeps image range and shape, and depends on items and keys alone.

    Raises:
        AssertionError: it does not.
    """
    items = sample_batch(spec.modality) if batch is None else batch
    levels = list(severities or spec.severities)
    rows = len(items)
    keys = torch.arange(len(levels) * rows).reshape(len(levels), rows) + 17
    given = {**spec.params, **params}
    shifted = spec.apply(items, levels, keys, model=model, **given)
    assert len(shifted) == len(levels), f"expected {len(levels)} batches, one a severity, got {len(shifted)}"
    for level, each in zip(levels, shifted, strict=True):
        if isinstance(each, torch.Tensor) and isinstance(items, torch.Tensor):
            assert each.shape == items.shape, f"severity {level:g}: shape {tuple(each.shape)}, expected {tuple(items.shape)}"
            assert float(each.min()) >= 0, f"severity {level:g}: values leave [0, 1]"
            assert float(each.max()) <= 1, f"severity {level:g}: values leave [0, 1]"
            assert not torch.equal(each, items), f"severity {level:g}: nothing changed"
    if spec.mechanism == "apply":
        part = spec.apply(take_batch(items, [rows - 1]), levels, keys[:, rows - 1 :], **given)
        for whole, single in zip(shifted, part, strict=True):
            one = take_batch(whole, [rows - 1])
            same = torch.allclose(one, single, atol=1e-6) if isinstance(one, torch.Tensor) else one == single
            assert same, "an item's shift depends on the rest of its batch"
    return shifted


def check_codec(spec: CodecSpec, *, dim: int = 48, rows: int = 300, **params: Any) -> float:
    """Check that a codec codes and decodes row by row, states its bytes, and is learned from calibration vectors alone.

    Returns:
        The mean cosine of decoded vectors and what the codec should represent, 1 for none lost; NaN where the dimension changes.

    Raises:
        AssertionError: it does not.
    """
    vectors: torch.Tensor = keyed_normal(torch.arange(rows), (dim,))
    codec = spec.fit(vectors[: rows // 2], **{**spec.params, **params})
    codes = codec.encode(vectors)
    assert len(codes) == rows, f"expected {rows} codes, got {len(codes)}"
    decoded = codec.decode(codes)
    assert decoded.ndim == 2, f"expected decoded vectors ({rows}, M), got {tuple(decoded.shape)}"
    assert decoded.dtype == torch.float32, f"expected float32 decoded vectors, got {decoded.dtype}"
    assert torch.isfinite(decoded).all(), "decoded vectors are not finite"
    assert torch.equal(codec.encode(vectors[5:7]), codes[5:7]), "the code of a row depends on the other rows"
    assert codec.bytes_per_vector(rows) > 0, "a vector takes a positive number of bytes"
    if decoded.shape[1] != dim:
        return float("nan")
    return float(torch.nn.functional.cosine_similarity(decoded, vectors).mean())


def sample_tables(*, rows: int = 240, classes: int = 4, dim: int = 12, seed: int = 0) -> tuple[Table, Table]:
    """Return training and test tables of Gaussian classes with a class target named ``c0`` …, the same on every machine."""
    keys = torch.arange(2 * rows) + 100_003 * seed
    labels = np.arange(2 * rows) // 2 % classes  # in pairs, so that every other row still holds every class
    centres: torch.Tensor = keyed_normal(torch.arange(classes) + 55_555, (dim,))
    vectors = centres[torch.from_numpy(labels)] + keyed_normal(keys, (dim,))
    target = Column(kind="class", values=labels.astype(np.int64), names=tuple(f"c{code}" for code in range(classes)))
    ids = np.array([f"row/{row}" for row in range(2 * rows)])
    at = np.arange(2 * rows)
    whole = Table(vectors=code_vectors(vectors, None, "cosine", ids), ids=ids, rows=at, target=target, columns={"label": target})
    return whole.take(at[:rows]), whole.take(at[rows:])


def check_evaluator(spec: EvaluatorSpec, *, train: Table | None = None, test: Side | None = None, **params: Any) -> list[Outcome]:
    """Check that an evaluator writes the columns its metrics read, one value an item, and gives values within their ranges.

    Raises:
        AssertionError: it does not.
    """
    own_train, own_test = sample_tables()
    train, side = train or own_train, test or Side(parts={"items": own_test})
    given = {**spec.params, **params}
    fitted = None
    if spec.fit is not None:
        half = np.arange(len(train))
        fitted = spec.fit(train.take(half[::2]), train.take(half[1::2]), generator=torch.Generator().manual_seed(1), **given)
    outcomes = spec.score(fitted, side, clean=side, exact=side, base=train, generator=torch.Generator().manual_seed(2), **given)
    assert outcomes, "expected at least one outcome"
    for main in (spec.main, *spec.mains.values()):
        assert any(metric.name == main for metric in spec.metrics), f"main metric `{main}` is not among the metrics"
    for outcome in outcomes:
        for name, values in outcome.columns.items():
            assert len(values) == len(outcome.rows), f"column `{name}`: {len(values)} values for {len(outcome.rows)} rows"
        _check_metrics(spec, outcome)
    return outcomes


def _check_metrics(spec: EvaluatorSpec, outcome: Outcome) -> None:
    found = list(metric_values(spec, outcome))
    assert found, f"the outcome has no column that a metric reads: {sorted(outcome.columns)}"
    for metric, value in found:
        assert not np.isfinite(value) or metric.low - 1e-6 <= value <= metric.high + 1e-6, (
            f"metric `{metric.name}`: {value:g} outside [{metric.low:g}, {metric.high:g}]"
        )


def metric_values(spec: EvaluatorSpec, outcome: Outcome) -> Iterable[tuple[Any, float]]:
    """Yield the metrics that an outcome gives, with their values."""
    columns: Mapping[str, Any] = {name: np.asarray(values) for name, values in outcome.columns.items()}
    for metric in spec.metrics:
        if metric.reduce is None:
            if metric.name in outcome.scalars:
                yield metric, float(outcome.scalars[metric.name])
        elif all(name in columns for name in metric.columns):
            weights = np.ones((1, len(outcome.rows)))
            yield metric, float(stats.get_reducer(metric.reduce)(*(columns[name] for name in metric.columns), weights)[0])
