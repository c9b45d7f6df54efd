"""Find, merge and check task and suite files."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from evalharness.errors import TaskFileError, UnknownNameError, near_matches, unknown_name
from evalharness.yaml import Document, read_documents

LOG = logging.getLogger(__name__)

Scalar = str | int | float | bool
AXES = ("fits", "shifts", "codecs", "groups", "targets")


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class _Open(_Model):
    """Keep keys that are parameters of the plugin that the entry uses."""

    model_config = ConfigDict(extra="allow", frozen=True)

    @property
    def params(self) -> dict[str, Any]:
        """Return the plugin's parameters."""
        return dict(self.model_extra or {})


class SplitFile(_Model):
    """Carve a split out of another: a share in stratified order, which the split it comes from then lacks."""

    source: str = Field(alias="from")
    share: float = Field(gt=0, lt=1)
    stratify: str | list[str] | None = None


class FoldsFile(_Model):
    """Join all splits and score every row once by a fit that never saw it."""

    folds: int = Field(ge=2)
    stratify: str | list[str] | None = None


class DataFile(_Model):
    """Say which rows a task is about."""

    dataset: str
    params: dict[str, Any] = {}
    inputs: dict[str, str | list[str]] | None = None
    target: str | list[str] | None = None
    id: str | None = None
    cluster: str | None = None
    pair_id: str | None = None
    calibrate: str | None = None
    revision: str | None = None
    image_size: int | None = Field(default=None, ge=8)
    sample_rate: int | None = None
    splits: dict[str, str | SplitFile] | FoldsFile | None = None

    @property
    def targets(self) -> tuple[str, ...]:
        """Return the target columns, the main one first."""
        return () if self.target is None else (self.target,) if isinstance(self.target, str) else tuple(self.target)


class FitFile(_Model):
    """Select the rows that an evaluator learns from."""

    where: dict[str, Scalar | list[Scalar]] = {}
    budget: float | str | None = None
    draws: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _check_draws(self) -> FitFile:
        if self.draws > 1 and self.budget is None:
            raise ValueError("`draws` draw a `budget` anew; without one all would be alike")
        return self

    @field_validator("budget")
    @classmethod
    def _check_budget(cls, value: float | str | None) -> float | str | None:
        if isinstance(value, str) and not re.fullmatch(r"[1-9]\d*/class", value):
            raise ValueError(f"expected a share in (0, 1] or `K/class`, got `{value}`")
        if isinstance(value, (int, float)) and not 0 < value <= 1:
            raise ValueError(f"expected a share in (0, 1] or `K/class`, got {value:g}")
        return value


class UseFile(_Open):
    """Use an evaluator with parameters, on the named fits; ``reach`` is the score whose label budget is asked for."""

    use: str
    fits: list[str] | None = None
    reach: float | None = None

    @field_validator("reach", mode="before")
    @classmethod
    def _check_reach(cls, value: Any) -> Any:
        if isinstance(value, bool):
            raise ValueError("expected a score")  # noqa: TRY004 (pydantic turns ValueError into a message)
        return value


class ShiftDataFile(_Model):
    """Score on another data set; ``labels`` maps its label names to those of the fit."""

    dataset: str
    params: dict[str, Any] = {}
    inputs: dict[str, str | list[str]] | None = None
    target: str | None = None
    id: str | None = None
    split: str = "test"
    labels: dict[str, str] | None = None


class ShiftFile(_Open):
    """Change the inputs (``use``), the rows (``select``) or the data set (``data``)."""

    use: str | None = None
    select: dict[str, Scalar | list[Scalar]] | None = None
    data: ShiftDataFile | None = None
    rows: dict[str, Scalar | list[Scalar]] | None = None
    severities: list[float] | None = None
    type: str | None = None

    @model_validator(mode="after")
    def _check_one(self) -> ShiftFile:
        if sum(part is not None for part in (self.use, self.select, self.data)) != 1:
            raise ValueError("expected exactly one of `use`, `select` and `data`")
        return self


class AttackFile(_Open):
    """Attack the encoder, or an evaluator's head through it."""

    use: str | None = None
    through: str = "encoder"
    budgets: list[float] | None = None


class CodecFile(_Open):
    """Use a codec with parameters."""

    use: str


class TaskFile(_Model):
    """One task: a data set, what learns from it and what is asked."""

    task: str
    version: int = Field(ge=1)
    modality: str | list[str]
    summary: str = ""
    data: DataFile
    fits: dict[str, FitFile] = {}
    evaluators: dict[str, UseFile] = Field(min_length=1)
    shifts: dict[str, ShiftFile] = {}
    attacks: dict[str, AttackFile] = {}
    robust: dict[str, list[str]] = {}
    checks: Literal["all", "none"] | list[str] = "none"
    codecs: list[str | CodecFile] = []
    groups: list[str | list[str]] = []
    cross: list[list[Literal["fits", "shifts", "codecs", "groups", "targets"]]] = []
    main: str
    margin: float | None = None
    seed: int = 0

    @property
    def modalities(self) -> tuple[str, ...]:
        """Return the modalities that an encoder must have."""
        return (self.modality,) if isinstance(self.modality, str) else tuple(self.modality)

    @field_validator("task")
    @classmethod
    def _check_name(cls, value: str) -> str:
        return _check_name(value)


class SuiteFile(_Model):
    """A list of tasks, and the encoders used when none are named."""

    suite: str
    version: int = Field(ge=1)
    summary: str = ""
    tasks: list[str] = Field(min_length=1)
    encoders: list[str] = []

    @field_validator("suite")
    @classmethod
    def _check_name(cls, value: str) -> str:
        return _check_name(value)


def _check_name(value: str) -> str:
    if not value or not re.fullmatch(r"[\w.+-]+", value):
        raise ValueError(f"expected letters, digits, `-`, `_`, `.` or `+`, got `{value}`")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Main:
    """The one cell that a task names: ``probe.accuracy @ fit=all``."""

    alias: str
    metric: str
    where: Mapping[str, str] = field(default_factory=dict)


def parse_fraction(text: str) -> float:
    """Return a number that may be written as a fraction.

    >>> parse_fraction("1/4")
    0.25
    """
    above, _, below = text.partition("/")
    return float(above) / float(below) if below else float(above)


MAIN_KEYS = ("fit", "shift", "severity", "codec", "target", "variant", "robust")


def parse_main(text: str) -> Main:
    """Parse ``ALIAS.METRIC [@ key=value, …]``.

    Raises:
        ValueError: the text has another form, or a key is not known.
    """
    head, _, tail = text.partition("@")
    alias, dot, metric = head.strip().partition(".")
    if not (alias and dot and metric):
        raise ValueError(f"expected `ALIAS.METRIC [@ key=value, …]`, got `{text}`")
    where: dict[str, str] = {}
    for pair in filter(None, (part.strip() for part in tail.split(","))):
        key, equals, value = (part.strip() for part in pair.partition("="))
        if key not in MAIN_KEYS and "variant" in where and list(where)[-1] == "variant":
            where["variant"] += f",{pair}"  # names of variants such as `head=ridge,shot=1` hold commas
            continue
        if not equals or key not in MAIN_KEYS:
            raise ValueError(f"expected one of {', '.join(MAIN_KEYS)} before `=`, got `{pair}`")
        where[key] = value
    return Main(alias=alias, metric=metric, where=where)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A checked task and the file it came from."""

    file: TaskFile
    document: Document
    main: Main

    @property
    def name(self) -> str:
        """Return the task's name."""
        return self.file.task

    def where(self, *place: str | int) -> str:
        """Return ``file:line`` of a place in the file."""
        return self.document.where(place)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What one command asks for: tasks under a suite's name, or single tasks (``suite`` is None)."""

    suite: str | None
    version: int | None
    tasks: tuple[Task, ...]
    encoders: tuple[str, ...] = ()


class Library:
    """Know the task and suite files of all folders; later folders override earlier ones."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._tasks: dict[str, Path] = {}
        self._suites: dict[str, Path] = {}
        for folder in folders:
            self._index(folder, self._tasks, "task")
            self._index(folder / "suites", self._suites, "suite")

    @property
    def tasks(self) -> list[str]:
        """Return the names of all tasks."""
        return sorted(self._tasks)

    @property
    def suites(self) -> list[str]:
        """Return the names of all suites."""
        return sorted(self._suites)

    def _index(self, folder: Path, known: dict[str, Path], kind: str) -> None:
        for path in sorted(folder.glob("*.yaml")):
            if path.stem.startswith("_"):
                continue
            if path.stem in known:
                LOG.warning("%s `%s` of %s overrides %s", kind, path.stem, path, known[path.stem])
            known[path.stem] = path

    def task(self, name: str) -> Task:
        """Read the task of a name.

        Raises:
            UnknownNameError: there is no such task.
            TaskFileError: the file does not hold exactly this task.
        """
        if name not in self._tasks:
            raise UnknownNameError(unknown_name("task", name, self._tasks))
        (task, *others) = read_tasks(self._tasks[name])
        if others or task.name != name:
            raise TaskFileError(f"{task.where('task')}: expected the single task `{name}`, as the file is named, got `{task.name}`")
        return task

    def suite(self, name: str) -> tuple[SuiteFile, Document]:
        """Read the suite of a name."""
        if name not in self._suites:
            raise UnknownNameError(unknown_name("suite", name, self._suites))
        return read_suite(self._suites[name])

    def select(self, names: Sequence[str]) -> list[Selection]:
        """Resolve suites, tasks and files, in that order of precedence, each once."""
        return [self._select_one(name) for name in dict.fromkeys(names)]

    def _select_one(self, name: str) -> Selection:
        if name.endswith((".yaml", ".yml")):
            return self._select_file(Path(name))
        if name in self._suites:
            return self._from_suite(*self.suite(name))
        if name in self._tasks:
            return Selection(suite=None, version=None, tasks=(self.task(name),))
        raise UnknownNameError(unknown_name("suite or task", name, [*self._suites, *self._tasks]))

    def _select_file(self, path: Path) -> Selection:
        if is_suite(path):
            return self._from_suite(*read_suite(path))
        return Selection(suite=None, version=None, tasks=tuple(read_tasks(path)))

    def _from_suite(self, file: SuiteFile, document: Document) -> Selection:
        tasks = []
        for at, name in enumerate(file.tasks):
            path = document.path.parent / name
            try:
                tasks += read_tasks(path) if name.endswith((".yaml", ".yml")) else [self.task(name)]
            except UnknownNameError as error:
                raise TaskFileError(f"{document.where(('tasks', at))}: {error}") from error
        return Selection(suite=file.suite, version=file.version, tasks=tuple(tasks), encoders=tuple(file.encoders))


# --- reading files ------------------------------------------------------------------------------------------------


def is_suite(path: Path) -> bool:
    """Say whether a file holds a suite."""
    return "suite" in read_documents(path)[0].data


def read_suite(path: Path) -> tuple[SuiteFile, Document]:
    """Read and check a suite file."""
    (document,) = read_documents(path)
    return _validate(SuiteFile, document), document


def read_tasks(path: Path) -> list[Task]:
    """Read and check every task of a file.

    Raises:
        TaskFileError: unknown key, wrong value or missing name, with file, line, what was expected and near matches.
    """
    tasks = []
    for document in read_documents(path):
        _include(document, seen=(path.resolve(),))
        file = _validate(TaskFile, document)
        tasks.append(_check_task(file, document))
    return tasks


def _include(document: Document, seen: tuple[Path, ...]) -> None:
    """Lay a document over the base file that it includes; mappings are merged, all else is replaced."""
    base = document.data.pop("include", None)
    if base is None:
        return
    path = document.path.parent / f"{base}.yaml"
    where = document.where(("include",))
    if path.resolve() in seen:
        raise TaskFileError(f"{where}: `include: {base}` makes a circle")
    if not path.name.startswith("_") or not path.is_file():
        raise TaskFileError(f"{where}: expected `include` to name a base file beside this one that starts with an underscore, got `{base}`")
    (parent,) = read_documents(path)
    _include(parent, (*seen, path.resolve()))
    document.data = _merge(parent.data, document.data)


def _merge(below: Any, above: Any) -> Any:
    if isinstance(below, dict) and isinstance(above, dict):
        return below | {key: _merge(below.get(key), value) for key, value in above.items()}
    return above


def _validate(model: type[Any], document: Document) -> Any:
    try:
        return model.model_validate(document.data)
    except ValidationError as error:
        first = max(error.errors(), key=lambda item: (len(_real_place(document, item["loc"])), item["type"] == "extra_forbidden"))
        place = _real_place(document, first["loc"])
        raise TaskFileError(f"{document.where(place)}: {_message(first, place, document)}") from error


def _real_place(document: Document, place: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """Drop the parts that name a member of a union rather than a key of the file."""
    real: tuple[str | int, ...] = ()
    for part in place:
        if (*real, part) in document.lines:
            real = (*real, part)
    missing = place[-1] if place else ""
    return real if not place or real[-1:] == (missing,) else (*real, missing)


def _message(error: Any, place: tuple[str | int, ...], document: Document) -> str:
    name = ".".join(str(part) for part in place)
    if error["type"] == "extra_forbidden":
        known = _known_keys(error["loc"], document)
        near = near_matches(str(place[-1]), known)
        return f"unknown key `{name}`; " + (f"did you mean `{near[0]}`?" if near else f"expected one of {', '.join(known)}")
    if error["type"] == "missing":
        return f"missing key `{name}`"
    got = error.get("input")
    shown = f", got `{got}`" if isinstance(got, (str, int, float, bool)) and "got" not in error["msg"] else ""
    return f"`{name}`: {error['msg'].removeprefix('Value error, ')}{shown}"


def _known_keys(place: tuple[str | int, ...], document: Document) -> list[str]:
    model: Any = SuiteFile if "suite" in document.data else TaskFile
    children = {
        "data": DataFile,
        "fits": FitFile,
        "evaluators": UseFile,
        "shifts": ShiftFile,
        "attacks": AttackFile,
        "codecs": CodecFile,
        "splits": SplitFile,
    }
    for part in place[:-1]:
        model = (
            FoldsFile if part == "FoldsFile" else ShiftDataFile if part == "data" and model is ShiftFile else children.get(str(part), model)
        )
    return sorted(field.alias or key for key, field in model.model_fields.items())


def _check_task(file: TaskFile, document: Document) -> Task:
    """Check what needs no registry: names that one part of the file uses of another."""
    fits = file.fits or {"all": FitFile()}
    for alias, use in file.evaluators.items():
        for at, name in enumerate(use.fits or []):
            _check_known(document, ("evaluators", alias, "fits", at), "fit", name, fits)
    for name, attack in file.attacks.items():
        if name != "defaults" and attack.use is None:
            raise TaskFileError(f"{document.where(('attacks', name))}: missing key `attacks.{name}.use`")
        if attack.through != "encoder":
            _check_known(document, ("attacks", name, "through"), "evaluator alias", attack.through, file.evaluators)
    for cell, names in file.robust.items():
        _check_known(document, ("robust", cell), "evaluator alias", cell.partition(".")[0], file.evaluators)
        for at, name in enumerate(names):
            _check_known(document, ("robust", cell, at), "attack", name, [key for key in file.attacks if key != "defaults"])
    try:
        main = parse_main(file.main)
    except ValueError as error:
        raise TaskFileError(f"{document.where(('main',))}: `main`: {error}") from error
    _check_known(document, ("main",), "evaluator alias", main.alias, file.evaluators)
    if "fit" in main.where:
        _check_known(document, ("main",), "fit", main.where["fit"].partition("/")[0], fits)
    if "shift" in main.where:
        _check_known(document, ("main",), "shift", main.where["shift"], [*file.shifts, *file.attacks, "clean"])
    return Task(file=file.model_copy(update={"fits": fits}), document=document, main=main)


def _check_known(document: Document, place: tuple[str | int, ...], kind: str, name: str, known: Iterable[str]) -> None:
    if name not in set(known):
        raise TaskFileError(f"{document.where(place)}: {unknown_name(kind, name, known)}")


def task_schema() -> dict[str, Any]:
    """Return the JSON schema of task files, for editors."""
    return TaskFile.model_json_schema(by_alias=True)
