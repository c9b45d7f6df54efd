"""Stamps: what a data set or an encoder is, remembered on disk, so that planning and resume load nothing.

A data set's stamp holds ids, columns and fingerprints of one split; an encoder's identity is asked of its spec.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from evalharness.errors import DataError, EvalHarnessError, PluginError, StoreError
from evalharness.keys import digest, digest_bytes, digest_texts
from evalharness.registry import Registry, source_digest
from evalharness.selection import hash_ids
from evalharness.store.files import atomic_write, cache_folder
from evalharness.types import Array, Column, Dataset, DatasetSpec, EncoderSpec, Identity, Links

FORMAT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Name one split of a data set with its parameters; strings and numbers only."""

    dataset: str
    split: str
    params: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Return a digest of the reference."""
        return digest([self.dataset, self.split, self.params])


@dataclass(slots=True, kw_only=True)
class PartStamp:
    """Hold what is known of one part without its content."""

    modality: str
    ids: Array
    hashes: Array
    columns: dict[str, Column]
    fingerprint: str


@dataclass(slots=True, kw_only=True)
class SourceStamp:
    """Hold what is known of one split without its content."""

    source: Source
    stamp: str
    parts: dict[str, PartStamp]
    links: dict[str, Links]

    @property
    def fingerprint(self) -> str:
        """Return a digest over the fingerprints of all parts and links."""
        links = {
            name: digest_bytes(digest_texts(link.ids).encode(), link.rows.tobytes(), link.grades.tobytes())
            for name, link in self.links.items()
        }
        return digest({"parts": {name: part.fingerprint for name, part in self.parts.items()}, "links": links})


class Sources:
    """Load and stamp data sets; each is loaded at most once while it is in use."""

    def __init__(self, registry: Registry, folder: Path | None = None, *, keep: int = 4, persist: bool = True) -> None:
        self._registry = registry
        self._folder = (folder or cache_folder()) / "stamps"
        self._persist = persist
        self._stamps: dict[str, SourceStamp] = {}
        self._loaded: dict[str, Dataset] = {}
        self._keep = keep

    def splits(self, dataset: str) -> tuple[str, ...]:
        """Return the splits that a data set declares."""
        spec: DatasetSpec = self._registry.get("dataset", dataset)
        return spec.splits

    def load(self, source: Source) -> Dataset:
        """Load one split; the last few are kept.

        Raises:
            DataError: the data set is malformed.
            PluginError: the plugin raised.
        """
        if source.key not in self._loaded:
            while len(self._loaded) >= self._keep:
                self._loaded.pop(next(iter(self._loaded)))
            self._loaded[source.key] = self._load(source)
        return self._loaded[source.key]

    def _load(self, source: Source) -> Dataset:
        spec: DatasetSpec = self._registry.get("dataset", source.dataset)
        dataset = self._guard(source, lambda: spec.load(source.split, **source.params))
        if not isinstance(dataset, Dataset):
            raise PluginError(f"data set `{source.dataset}`: expected a Dataset from `load`, got {type(dataset).__name__}")
        for name, samples in dataset.parts.items():
            _check_samples(f"data set `{source.dataset}`, split `{source.split}`, part `{name}`", samples)
        return dataset

    def _guard(self, source: Source, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except EvalHarnessError:
            raise
        except Exception as error:
            owner = self._registry.owner("dataset", source.dataset)
            raise PluginError(
                f"data set `{source.dataset}` (plugin `{owner.name}`) raised while loading `{source.split}`: {type(error).__name__}: {error}"
            ) from error

    def render(self, source: Source, ids: Array, factors: Mapping[str, Array]) -> Any:
        """Make the batch of the given ids with changed factors."""
        spec: DatasetSpec = self._registry.get("dataset", source.dataset)
        if spec.render is None:
            raise DataError(f"data set `{source.dataset}` cannot be rendered with changed factors")
        render = spec.render
        return self._guard(source, lambda: render(ids, factors, **source.params))

    def stamp(self, source: Source) -> SourceStamp:
        """Return the stamp of a split, from memory, from disk, or by loading the split once."""
        if source.key not in self._stamps:
            identity = self._identity(source)
            key = digest([FORMAT, source.key, identity])
            path = self._folder / f"{key}.npz"
            stamp = _read_stamp(path, source, key) if "none" not in identity else None
            if stamp is None:
                stamp = _make_stamp(source, key, self.load(source))
                if self._persist and "none" not in identity:
                    _write_stamp(path, stamp)
            self._stamps[source.key] = stamp
        return self._stamps[source.key]

    def _identity(self, source: Source) -> list[str]:
        spec: DatasetSpec = self._registry.get("dataset", source.dataset)
        stamp = self._registry.stamp("dataset", source.dataset)
        if spec.identity is not None:
            identify = spec.identity
            identity: Identity = self._guard(source, lambda: identify(source.split, **source.params))
            return [stamp, identity.kind, identity.digest]
        return [stamp, "source", source_digest(self._registry.owner("dataset", source.dataset).module)]


def _check_samples(where: str, samples: Any) -> None:
    ids = np.asarray(samples.ids)
    if len(ids) != samples.size:
        raise DataError(f"{where}: {samples.size} samples but {len(ids)} ids")
    if len(np.unique(ids)) != len(ids):
        values, counts = np.unique(ids, return_counts=True)
        raise DataError(f"{where}: id `{values[counts.argmax()]}` stands {counts.max()} times; ids must be unique")
    for name, column in samples.columns.items():
        if len(column) != samples.size:
            raise DataError(f"{where}: column `{name}` has {len(column)} values for {samples.size} samples")
        if column.kind == "class" and len(column) and int(column.values.max()) >= len(column.names):
            raise DataError(f"{where}: column `{name}` has code {int(column.values.max())} but {len(column.names)} names")
        if column.kind == "number" and np.isinf(column.values).any():
            bad = samples.ids[np.flatnonzero(np.isinf(column.values))[0]]
            raise DataError(f"{where}: number column `{name}` has infinite values, id {bad} first; NaN stands for a missing one")


# --- stamps on disk -----------------------------------------------------------------------------------------------


def _make_stamp(source: Source, key: str, dataset: Dataset) -> SourceStamp:
    parts = {}
    for name, samples in dataset.parts.items():
        ids = np.asarray(samples.ids, dtype=str)
        fingerprint = samples.fingerprint or digest_texts(ids)
        parts[name] = PartStamp(
            modality=samples.modality, ids=ids, hashes=hash_ids(ids), columns=dict(samples.columns), fingerprint=fingerprint
        )
    return SourceStamp(source=source, stamp=key, parts=parts, links=dict(dataset.links))


def _write_stamp(path: Path, stamp: SourceStamp) -> None:
    arrays: dict[str, Array] = {}
    head: dict[str, Any] = {"parts": {}, "links": {}}
    for name, part in stamp.parts.items():
        arrays[f"part/{name}/ids"], arrays[f"part/{name}/hashes"] = part.ids, part.hashes
        head["parts"][name] = {
            "modality": part.modality,
            "fingerprint": part.fingerprint,
            "columns": _put_columns(arrays, f"part/{name}", part.columns),
        }
    for name, links in stamp.links.items():
        arrays |= {
            f"link/{name}/rows": links.rows,
            f"link/{name}/grades": links.grades,
            f"link/{name}/ids": np.asarray(links.ids, dtype=str),
        }
        head["links"][name] = {
            "source": links.source,
            "target": links.target,
            "columns": _put_columns(arrays, f"link/{name}", links.columns),
        }
    buffer = io.BytesIO()
    np.savez(buffer, head=np.frombuffer(json.dumps(head).encode(), dtype=np.uint8), **arrays)  # type: ignore[arg-type]
    try:
        with atomic_write(path) as stream:
            stream.write(buffer.getvalue())
    except StoreError:
        return  # a stamp that cannot be kept is made anew next time


def _put_columns(arrays: dict[str, Array], prefix: str, columns: Mapping[str, Column]) -> dict[str, Any]:
    for name, column in columns.items():
        arrays[f"{prefix}/column/{name}"] = column.values
    return {name: {"kind": column.kind, "names": list(column.names)} for name, column in columns.items()}


def _read_stamp(path: Path, source: Source, key: str) -> SourceStamp | None:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            head = json.loads(arrays["head"].tobytes())
            parts = {name: _read_part(arrays, name, entry) for name, entry in head["parts"].items()}
            links = {name: _read_links(arrays, name, entry) for name, entry in head["links"].items()}
    except (OSError, ValueError, KeyError):
        return None
    return SourceStamp(source=source, stamp=key, parts=parts, links=links)


def _read_part(arrays: Mapping[str, Array], name: str, entry: Mapping[str, Any]) -> PartStamp:
    return PartStamp(
        modality=entry["modality"],
        ids=arrays[f"part/{name}/ids"],
        hashes=arrays[f"part/{name}/hashes"],
        columns=_get_columns(arrays, f"part/{name}", entry["columns"]),
        fingerprint=entry["fingerprint"],
    )


def _read_links(arrays: Mapping[str, Array], name: str, entry: Mapping[str, Any]) -> Links:
    return Links(
        source=entry["source"],
        target=entry["target"],
        rows=arrays[f"link/{name}/rows"],
        grades=arrays[f"link/{name}/grades"],
        ids=arrays[f"link/{name}/ids"],
        columns=_get_columns(arrays, f"link/{name}", entry["columns"]),
    )


def _get_columns(arrays: Mapping[str, Array], prefix: str, columns: Mapping[str, Any]) -> dict[str, Column]:
    return {
        name: Column(kind=entry["kind"], values=arrays[f"{prefix}/column/{name}"], names=tuple(entry["names"]))
        for name, entry in columns.items()
    }


# --- encoders -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderUse:
    """One encoder as a run uses it: reference, parameters, layer and identity; ``label`` is what tables show."""

    label: str
    reference: str
    params: Mapping[str, Any]
    layer: str | None
    identity: Identity
    stamp: str
    cached: bool = True  # live modules keep their views in memory


def parse_encoder(text: str) -> tuple[str, dict[str, Any], str | None]:
    """Parse ``NAME[?param=value&param=value][@layer]`` into reference, parameters and layer.

    >>> parse_encoder("random-projection?dim=128@first")
    ('random-projection', {'dim': 128}, 'first')
    """
    head, mark, query = text.partition("?")
    body, at, layer = (query if mark else head).rpartition("@")
    if at and "/" not in layer and ":" not in layer and body:
        head, query = (head, body) if mark else (body, "")
    else:
        layer = ""
    params = {}
    for pair in filter(None, query.split("&")):
        key, equals, value = pair.partition("=")
        if not equals:
            raise DataError(f"expected `param=value` after `?` in encoder `{text}`, got `{pair}`")
        params[key] = _parse_value(value)
    return head, params, layer or None


def _parse_value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def use_encoder(registry: Registry, text: str) -> EncoderUse:
    """Resolve what ``-e`` names, check its parameters and ask for its identity.

    Raises:
        UnknownNameError: no such encoder or layer.
        UsageError: no such parameter.
    """
    from evalharness.errors import UnknownNameError, unknown_name

    reference, given, layer = parse_encoder(text)
    spec: EncoderSpec = registry.get("encoder", reference)
    params = registry.params("encoder", reference, given)
    if layer is not None and layer not in spec.layers:
        raise UnknownNameError(f"encoder `{reference}`: {unknown_name('layer', layer, spec.layers)}")
    return EncoderUse(
        label=text,
        reference=reference,
        params=params,
        layer=layer,
        identity=_identify(registry, spec, reference, params),
        stamp=registry.stamp("encoder", reference),
    )


def _identify(registry: Registry, spec: EncoderSpec, reference: str, params: Mapping[str, Any]) -> Identity:
    owner = registry.owner("encoder", reference)
    if spec.identity is None:
        return Identity(kind="source", digest=digest([source_digest(owner.module), params]))
    try:
        return spec.identity(**params)
    except EvalHarnessError:
        raise
    except Exception as error:
        raise PluginError(f"encoder `{reference}` (plugin `{owner.name}`) raised in `identity`: {type(error).__name__}: {error}") from error
