"""The rows of a task: its splits joined part by part, with roles (train, validation, test), folds and links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evalharness.errors import DataError, EvalHarnessError, TaskFileError, UnknownNameError, unknown_name
from evalharness.keys import digest, digest_texts
from evalharness.registry import Registry
from evalharness.selection import assign_folds, draw_keys, strata, stratified_order, take_cluster_share, take_share
from evalharness.stamp import Source, Sources, SourceStamp
from evalharness.store.results import row_set_digest
from evalharness.suites import DataFile, FoldsFile, SplitFile, Task
from evalharness.types import Array, Column, Links


def where_label(where: Mapping[str, Any]) -> str:
    """Return the readable form of a row filter, ``domain=photo``."""
    return ",".join(f"{key}={'|'.join(map(str, value)) if isinstance(value, list) else value}" for key, value in where.items())


@dataclass(slots=True, kw_only=True)
class Pool:
    """Hold one part of all splits of a task: row i is row ``row_of[i]`` of source ``source_of[i]``."""

    part: str
    modality: str
    sources: tuple[Source, ...]
    fingerprints: tuple[str, ...]
    source_of: Array
    row_of: Array
    ids: Array
    hashes: Array
    columns: dict[str, Column]
    shifted: dict[str, int] = field(default_factory=dict)  # shift by another data set -> its source

    def __len__(self) -> int:
        return len(self.ids)

    def keys(self, *about: object) -> Array:
        """Return the draw keys of all rows, (N,) uint64."""
        return draw_keys(self.hashes, *about, sorted(self.fingerprints))

    def strata(self, columns: Sequence[str]) -> Array:
        """Return the stratum of every row by the named columns."""
        return strata([self.columns[name] for name in columns], len(self))

    def labelled(self, target: str | None) -> Array:
        """Return a mask of the rows whose target is known."""
        if target is None:
            return np.ones(len(self), dtype=bool)
        column = self.columns[target]
        if column.kind == "class":
            return column.values >= 0
        return np.isfinite(column.values) if column.kind == "number" else np.ones(len(self), dtype=bool)

    def num_classes(self, target: str) -> int:
        """Return the number of classes of a target; 1 for other kinds."""
        column = self.columns[target]
        return len(column.names) if column.kind == "class" else 1

    def of_shift(self, name: str) -> Array:
        """Return a mask of the rows that another data set brings in."""
        return self.source_of == self.shifted[name]

    def clusters(self, name: str | None) -> Array | None:
        """Return the cluster of every row by a column; a row without a value is a cluster of its own."""
        if name is None:
            return None
        column = self.columns[name]
        return np.where(column.values < 0, len(column.names) + np.arange(len(self)), column.values)

    def share(self, rows: Array, share: float, columns: Sequence[str], cluster: str | None, *about: object) -> Array:
        """Return the positions among ``rows`` of a stratified share of them, whole clusters where a column names them."""
        keys, codes, clusters = self.keys(*about)[rows], self.strata(columns)[rows], self.clusters(cluster)
        return take_share(keys, codes, share) if clusters is None else take_cluster_share(keys, codes, share, clusters[rows])

    def segments(self, positions: Array) -> list[tuple[int, Array]]:
        """Split positions into (source, rows of that source), in ascending order of source."""
        found = self.source_of[positions]
        return [(int(source), self.row_of[positions[found == source]]) for source in np.unique(found)]

    def digest(self, positions: Array) -> str:
        """Return a digest of the ids at the given positions."""
        return digest_texts(self.ids[positions])


@dataclass(slots=True, kw_only=True)
class TaskData:
    """Hold all rows of a task and who plays which role."""

    pools: dict[str, Pool]
    links: dict[str, Links]
    roles: dict[str, Array]
    folds: Array | None
    joined: Array
    fingerprint: str
    test_label: str
    test_rows: dict[str, Array]

    def target(self, name: str) -> Column:
        """Return a target column, of the items or of the links.

        Raises:
            UnknownNameError: there is no such column.
        """
        columns = self.target_columns()
        if name not in columns:
            raise UnknownNameError(f"`data.target`: {unknown_name('column', name, columns)}")
        return columns[name]

    def target_columns(self) -> Mapping[str, Column]:
        """Return the columns that can be targets."""
        if "items" in self.pools:
            return self.pools["items"].columns
        columns: dict[str, Column] = {}
        for links in self.links.values():
            columns |= {"grade": Column(kind="number", values=links.grades), **links.columns}
        return columns

    def linked_rows(self, limit: int | None, seed: int) -> dict[str, Array]:
        """Return the scored rows of every part; a limit cuts the parts that links start from, never those they lead to."""
        rows = dict(self.test_rows)
        if limit is None:
            return rows
        for part in {links.source for links in self.links.values()}:
            pool = self.pools[part]
            keys = pool.keys(seed, "limit", None)[rows[part]]
            order = stratified_order(keys, np.zeros(len(keys), dtype=np.int64))
            rows[part] = np.sort(rows[part][order[:limit]])
        return rows


class PoolMaker:
    """Make the rows of a task from the stamps of its splits."""

    def __init__(self, registry: Registry, sources: Sources, task: Task) -> None:
        self._registry = registry
        self._sources = sources
        self._task = task
        self._file: DataFile = task.file.data

    def make(self, seed: int) -> TaskData:
        """Join the splits and give out the roles.

        Raises:
            TaskFileError: a split or column does not exist; file and line are named.
        """
        roles = self._role_splits()
        if not roles:
            raise TaskFileError(f"{self._task.where('data', 'splits')}: expected a `test` split or `folds`, got nothing")
        names = list(dict.fromkeys(split if isinstance(split, str) else split.source for split in roles.values()))
        stamps = [self._stamp(self._source(name)) for name in names]
        shifted = {name: shift.data for name, shift in self._task.file.shifts.items() if shift.data is not None}
        extra = [self._stamp(self._shift_source(entry)) for entry in shifted.values()]
        pools = self._pools(stamps, extra, list(shifted))
        data = TaskData(
            pools=pools,
            links=self._links(stamps, names, roles, pools),
            roles={},
            folds=None,
            joined=np.zeros(0, dtype=bool),
            fingerprint=digest(sorted(stamp.fingerprint for stamp in [*stamps, *extra])),
            test_label=self._test_label(roles),
            test_rows={},
        )
        self._give_roles(data, names, roles, seed)
        self._check_columns(data)
        return data

    # --- sources --------------------------------------------------------------------------------------------------

    def _source(self, split: str) -> Source:
        return Source(dataset=self._file.dataset, split=split, params=self._params(self._file.dataset, self._file, self._file.params))

    def _shift_source(self, entry: Any) -> Source:
        return Source(dataset=entry.dataset, split=entry.split, params=self._params(entry.dataset, entry, entry.params))

    def _params(self, dataset: str, file: Any, given: dict[str, Any]) -> dict[str, Any]:
        spec = self._registry.get("dataset", dataset)
        named = {
            "inputs": file.inputs,
            "id": file.id,
            "pair_id": self._file.pair_id,
            "revision": self._file.revision,
            "image_size": self._file.image_size,
            "sample_rate": self._file.sample_rate,
        }
        passed = {key: value for key, value in named.items() if value is not None and key in spec.params}
        if file.inputs is not None and "inputs" not in spec.params:
            raise TaskFileError(f"{self._task.where('data', 'inputs')}: data set `{dataset}` has fixed inputs; remove `data.inputs`")
        return self._registry.params("dataset", dataset, {**given, **passed})

    def _stamp(self, source: Source) -> SourceStamp:
        try:
            return self._sources.stamp(source)
        except EvalHarnessError as error:
            if str(error).startswith(str(self._task.document.path)):
                raise
            raise type(error)(f"{self._task.where('data')}: task `{self._task.name}`: {error}") from error

    def _role_splits(self) -> dict[str, str | SplitFile]:
        declared = self._file.splits
        own = self._sources.splits(self._file.dataset) or ("train", "test")  # a data set that is not at hand cannot be asked
        if isinstance(declared, FoldsFile):
            return {name: name for name in own} or {"all": "all"}
        if declared is not None:
            return dict(declared)
        return {name: name for name in ("train", "validation", "test") if name in own} or {name: name for name in own}

    def _test_label(self, roles: Mapping[str, str | SplitFile]) -> str:
        if isinstance(self._file.splits, FoldsFile):
            return f"folds={self._file.splits.folds}"
        test = roles.get("test", "test")
        return test if isinstance(test, str) else f"{test.source}:{test.share:g}"

    # --- pools ----------------------------------------------------------------------------------------------------

    def _pools(self, stamps: list[SourceStamp], extra: list[SourceStamp], shifts: list[str]) -> dict[str, Pool]:
        pools = {}
        for part in dict.fromkeys(name for stamp in stamps for name in stamp.parts):
            held = [stamp for stamp in [*stamps, *extra] if part in stamp.parts]
            pool = _join(part, held, self._label_maps(len(stamps), shifts))
            pool.shifted = {name: len(stamps) + at for at, name in enumerate(shifts)}
            pools[part] = pool
        return pools

    def _label_maps(self, offset: int, shifts: list[str]) -> dict[int, tuple[str, str, Mapping[str, str]]]:
        """Return, by source, the target column of another data set, its name here, and the map of its labels."""
        maps: dict[int, tuple[str, str, Mapping[str, str]]] = {}
        for at, name in enumerate(shifts):
            entry = self._task.file.shifts[name].data
            if entry is not None and self._file.targets:
                maps[offset + at] = (entry.target or self._file.targets[0], self._file.targets[0], entry.labels or {})
        return maps

    def _links(
        self, stamps: list[SourceStamp], names: list[str], roles: Mapping[str, str | SplitFile], pools: Mapping[str, Pool]
    ) -> dict[str, Links]:
        test = roles.get("test", names[-1])
        if not isinstance(test, str) or isinstance(self._file.splits, FoldsFile) or test not in names:
            return {}
        at = names.index(test)
        result = {}
        for name, links in stamps[at].links.items():
            shift = np.array([_offset(pools[part], at) for part in (links.source, links.target)])
            result[name] = Links(
                source=links.source, target=links.target, rows=links.rows + shift, grades=links.grades, ids=links.ids, columns=links.columns
            )
        return result

    # --- roles ----------------------------------------------------------------------------------------------------

    def _give_roles(self, data: TaskData, names: list[str], roles: Mapping[str, str | SplitFile], seed: int) -> None:
        if "items" not in data.pools:
            self._give_part_roles(data, names, roles)
            return
        pool = data.pools["items"]
        data.joined = pool.source_of < len(names)
        if isinstance(self._file.splits, FoldsFile):
            self._give_folds(data, pool, seed)
            return
        left = {split: np.flatnonzero(pool.source_of == at) for at, split in enumerate(names)}
        total = {split: len(rows) for split, rows in left.items()}
        whole = {}
        for role, entry in roles.items():
            if isinstance(entry, SplitFile):
                whole[role] = self._carve(pool, left[entry.source], total[entry.source], role, entry, seed)
                left[entry.source] = np.setdiff1d(left[entry.source], whole[role])
        whole |= {role: left[split] for role, split in roles.items() if isinstance(split, str)}
        if "test" not in whole:
            raise TaskFileError(
                f"{self._task.where('data', 'splits')}: task `{self._task.name}` has no test rows; name a `test` split or `folds` (splits here: {', '.join(names)})"
            )
        data.roles = {"train": np.empty(0, dtype=np.int64), **whole}
        data.test_rows = {"items": data.roles["test"]}

    def _give_part_roles(self, data: TaskData, names: list[str], roles: Mapping[str, str | SplitFile]) -> None:
        test = roles.get("test")
        if not isinstance(test, str):
            raise TaskFileError(f"{self._task.where('data', 'splits')}: task `{self._task.name}` has no `test` split")
        data.test_rows = {part: np.flatnonzero(pool.source_of == names.index(test)) for part, pool in data.pools.items()}

    def _give_folds(self, data: TaskData, pool: Pool, seed: int) -> None:
        splits = self._file.splits
        assert isinstance(splits, FoldsFile)
        columns = _columns_of(splits.stratify) or [name for name in self._file.targets[:1] if name in pool.columns]
        self._check_known(columns, pool, ("data", "splits"))
        joined = np.flatnonzero(data.joined)
        if self._file.cluster is not None:
            self._check_known([self._file.cluster], pool, ("data", "cluster"))
        clusters = pool.clusters(self._file.cluster)
        folds = np.full(len(pool), -1, dtype=np.int64)
        folds[joined] = assign_folds(
            pool.keys(seed, "folds", splits.folds)[joined],
            pool.strata(columns)[joined],
            splits.folds,
            None if clusters is None else clusters[joined],
        )
        for name in pool.shifted:  # rows of another data set are scored once too, each by the fit of one fold
            rows = np.flatnonzero(pool.of_shift(name))
            folds[rows[np.argsort(pool.keys(seed, "folds", name)[rows])]] = np.arange(len(rows)) % splits.folds
        data.folds = folds
        data.roles = {"train": joined, "test": joined}
        data.test_rows = {"items": joined}

    def _carve(self, pool: Pool, rows: Array, total: int, role: str, entry: SplitFile, seed: int) -> Array:
        """Take a role's share of a split out of the rows that are left of it; the share is one of the whole split."""
        columns = _columns_of(entry.stratify)
        self._check_known([*columns, *([self._file.cluster] if self._file.cluster else [])], pool, ("data", "splits", role))
        share = entry.share * total / max(len(rows), 1)
        if share > 1 + 1e-9:
            raise TaskFileError(f"{self._task.where('data', 'splits', role)}: the shares of split `{entry.source}` add up to more than 1")
        return rows[pool.share(rows, min(share, 1.0), columns, self._file.cluster, seed, "split", role)]

    # --- checks ---------------------------------------------------------------------------------------------------

    def _check_columns(self, data: TaskData) -> None:
        for name in self._file.targets:
            if name not in data.target_columns():
                raise TaskFileError(f"{self._task.where('data', 'target')}: {unknown_name('column', name, data.target_columns())}")
        groups = [name for group in self._task.file.groups for name in _columns_of(group)]
        for name in [*groups, *([self._file.cluster] if self._file.cluster else [])]:
            known = {**data.target_columns(), **{key: column for pool in data.pools.values() for key, column in pool.columns.items()}}
            if name not in known:
                raise TaskFileError(f"{self._task.where('groups')}: {unknown_name('column', name, known)}")

    def _check_known(self, columns: Sequence[str], pool: Pool, place: tuple[str, ...]) -> None:
        for name in columns:
            if name not in pool.columns:
                raise TaskFileError(f"{self._task.where(*place)}: {unknown_name('column', name, pool.columns)}")


def _columns_of(entry: str | Sequence[str] | None) -> list[str]:
    return [] if entry is None else [entry] if isinstance(entry, str) else list(entry)


def _offset(pool: Pool, source: int) -> int:
    return int(np.searchsorted(pool.source_of, source))


def _join(part: str, stamps: list[SourceStamp], maps: Mapping[int, tuple[str, str, Mapping[str, str]]]) -> Pool:
    held = [stamp.parts[part] for stamp in stamps]
    ids = np.concatenate([item.ids for item in held])
    if len({item.modality for item in held}) > 1:
        raise DataError(f"part `{part}` has several modalities: {sorted({item.modality for item in held})}")
    columns_of = [_renamed(dict(item.columns), maps.get(at)) for at, item in enumerate(held)]
    sizes = [len(item.ids) for item in held]
    names = dict.fromkeys(name for columns in columns_of for name in columns)
    return Pool(
        part=part,
        modality=held[0].modality,
        sources=tuple(stamp.source for stamp in stamps),
        fingerprints=tuple(item.fingerprint for item in held),
        source_of=np.repeat(np.arange(len(held)), sizes),
        row_of=np.concatenate([np.arange(size) for size in sizes]),
        ids=ids,
        hashes=np.concatenate([item.hashes for item in held]),
        columns={name: _merge([columns.get(name) for columns in columns_of], sizes, name) for name in names},
    )


def _renamed(columns: dict[str, Column], entry: tuple[str, str, Mapping[str, str]] | None) -> dict[str, Column]:
    if entry is None:
        return columns
    theirs, ours, labels = entry
    if theirs not in columns:
        raise UnknownNameError(unknown_name("target column", theirs, columns))
    column = columns[theirs]
    return {**columns, ours: Column(kind=column.kind, values=column.values, names=tuple(labels.get(name, name) for name in column.names))}


def _merge(columns: list[Column | None], sizes: list[int], name: str) -> Column:
    """Join a column over splits, class codes by name; a split that lacks it counts as missing."""
    kinds = {column.kind for column in columns if column is not None}
    if len(kinds) > 1:
        raise DataError(f"column `{name}` is of kind {' and of kind '.join(sorted(kinds))} in different splits")
    kind = kinds.pop()
    names = tuple(dict.fromkeys(label for column in columns if column is not None for label in column.names))
    parts = [_recode(column, kind, names, size) for column, size in zip(columns, sizes, strict=True)]
    return Column(kind=kind, values=np.concatenate(parts), names=names)


def _recode(column: Column | None, kind: str, names: tuple[str, ...], size: int) -> Array:
    if kind == "number":
        return np.full(size, np.nan) if column is None else column.values
    if kind == "multilabel":
        wide = np.zeros((size, len(names)), dtype=bool)
        if column is not None:
            wide[:, [names.index(label) for label in column.names]] = column.values
        return wide
    if column is None:
        return np.full(size, -1, dtype=np.int64)
    codes = {label: at for at, label in enumerate(names)}
    table = np.array([*[codes[label] for label in column.names], -1], dtype=np.int64)
    return table[column.values]


def row_table(data: TaskData, part: str, groups: Sequence[str | list[str]]) -> tuple[Array, dict[str, Column]]:
    """Return the ids of a part's or link's rows and the columns stored with them; links carry the group columns of the part they start from."""
    if part in data.pools:
        return data.pools[part].ids, data.pools[part].columns
    links = data.links[part]
    wanted = {name for entry in groups for name in ([entry] if isinstance(entry, str) else entry)}
    source = data.pools[links.source].columns
    inherited = {name: column.take(links.rows[:, 0]) for name, column in source.items() if name in wanted}
    return links.ids, {"grade": Column(kind="number", values=links.grades), **inherited, **links.columns}


def row_sets(data: TaskData, groups: Sequence[str | list[str]]) -> dict[str, str]:
    """Name the row set of every part and link by the digest of what it holds."""
    return {part: row_set_digest(*row_table(data, part, groups)) for part in [*data.pools, *data.links]}
