"""Find, load, stamp, validate and list plugins."""

from __future__ import annotations

import collections.abc
import dataclasses
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import sys
import typing
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import ModuleType, UnionType
from typing import Any

import pluggy

from evalharness.errors import PluginError, UnknownNameError, UsageError, near_matches, unknown_name
from evalharness.hookspecs import PROJECT, HookSpecs
from evalharness.types import CodecSpec, DatasetSpec, EncoderSpec, EvaluatorSpec, ReporterSpec, ShiftSpec, Spec

KINDS: dict[str, type[Spec]] = {
    "encoder": EncoderSpec,
    "dataset": DatasetSpec,
    "shift": ShiftSpec,
    "codec": CodecSpec,
    "evaluator": EvaluatorSpec,
    "reporter": ReporterSpec,
}
_HOOKS = tuple(name for name in vars(HookSpecs) if name.startswith(PROJECT))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """Describe a loaded or broken plugin; ``local`` marks files and modules named by ``-p``, whose source is part of every key."""

    name: str
    origin: str
    module: ModuleType | None = None
    error: str | None = None
    local: bool = False

    @property
    def hooks(self) -> tuple[str, ...]:
        """Return the hooks that the plugin implements."""
        return tuple(hook for hook in _HOOKS if hasattr(self.module, hook)) if self.module else ()


class Registry:
    """Hold the plugins of one session and the specs they give."""

    def __init__(self) -> None:
        self._manager = pluggy.PluginManager(PROJECT)
        self._manager.add_hookspecs(HookSpecs)
        self._specs: dict[str, dict[str, Spec]] | None = None
        self._owner: dict[tuple[str, str], Plugin] = {}
        self.plugins: dict[str, Plugin] = {}
        self.requests: tuple[str, ...] = ()

    @property
    def hook(self) -> Any:
        """Return pluggy's hook caller."""
        return self._manager.hook

    def register(self, module: Any, name: str, *, origin: str = "this session", local: bool = False) -> None:
        """Register a module (or any object with hook functions) under a name.

        Raises:
            PluginError: the name is taken, a hook is misspelt or its marker is missing.
        """
        if name in self.plugins:
            raise PluginError(
                f"two plugins are named `{name}`: one from {self.plugins[name].origin}, one from {origin}; block or rename one"
            )
        _check_hooks(module, name)
        try:
            self._manager.register(module, name)
            self._manager.check_pending()
        except pluggy.PluginValidationError as error:
            raise PluginError(f"plugin `{name}` ({origin}) is not valid: {' '.join(str(error).split())}") from error
        self.plugins[name] = Plugin(name=name, origin=origin, module=module, local=local)
        self._specs = None

    def unregister(self, name: str) -> None:
        """Take a plugin out again."""
        self._manager.unregister(name=name)
        del self.plugins[name]
        self._specs = None
        self._owner.clear()
        self._resolved.clear()

    # --- reading --------------------------------------------------------------------------------------------------

    def specs(self, kind: str) -> dict[str, Spec]:
        """Return the registered specs of a kind, sorted by name.

        Raises:
            PluginError: a plugin raised, gave something else, or two plugins share a name.
        """
        if self._specs is None:
            self._specs = {name: self._collect(name) for name in KINDS}
        return self._specs[kind]

    def get(self, kind: str, reference: str) -> Any:
        """Return the spec of a registered name or of a reference that a plugin resolves.

        Raises:
            UnknownNameError: nobody knows the reference; near matches and broken plugins are named.
        """
        specs = self.specs(kind)
        if reference in specs:
            return specs[reference]
        if (kind, reference) not in self._owner:
            self._resolve(kind, reference)
        owner = self._owner.get((kind, reference))
        if owner is not None:
            return self._resolved[kind, reference]
        broken = [f"plugin `{plugin.name}` is broken: {plugin.error}" for plugin in self.plugins.values() if plugin.error]
        raise UnknownNameError("; ".join([unknown_name(kind, reference, specs), *broken]))

    def owner(self, kind: str, reference: str) -> Plugin:
        """Return the plugin that gave a spec."""
        self.get(kind, reference)
        return self._owner[kind, reference]

    def stamp(self, kind: str, reference: str) -> str:
        """Return what of a spec's code belongs into keys: its protocol, and for local plugins the digest of their source."""
        spec, owner = self.get(kind, reference), self.owner(kind, reference)
        return f"{spec.protocol}+{source_digest(owner.module)}" if owner.local else str(spec.protocol)

    def params(self, kind: str, reference: str, given: dict[str, Any], where: str = "") -> dict[str, Any]:
        """Return a spec's parameters with the given ones laid over its defaults.

        Raises:
            UsageError: a parameter is not known; near matches are offered.
        """
        spec = self.get(kind, reference)
        for name, value in given.items():
            if name not in spec.params:
                known = ", ".join(sorted(spec.params)) or "none"
                near = near_matches(name, spec.params)
                hint = f"did you mean `{near[0]}`?" if near else f"it takes: {known}"
                raise UsageError(f"{where}{kind} `{reference}` has no parameter `{name}`; {hint}")
            _check_kind(f"{where}{kind} `{reference}`", name, spec.params[name], value)
            _check_annotation(f"{where}{kind} `{reference}`", spec, name, value)
        return {**spec.params, **given}

    def task_paths(self) -> list[Path]:
        """Return the folders of task files that plugins ship."""
        return [Path(path) for _, values in self._results("evalharness_task_paths") for path in values]

    # --- collecting -----------------------------------------------------------------------------------------------

    @cached_property
    def _resolved(self) -> dict[tuple[str, str], Spec]:
        return {}

    def _results(self, hook: str, **arguments: str) -> Iterable[tuple[Plugin, list[Any]]]:
        for implementation in getattr(self.hook, hook).get_hookimpls():
            plugin = self.plugins[implementation.plugin_name]
            try:
                wanted = {name: arguments[name] for name in implementation.argnames}
                result = implementation.function(**wanted)
                yield plugin, list(result or ()) if not arguments else [result]
            except Exception as error:
                if type(error).__module__ == "evalharness.errors":
                    raise
                raise PluginError(f"plugin `{plugin.name}` ({plugin.origin}) raised in {hook}: {_reason(error)}") from error

    def _collect(self, kind: str) -> dict[str, Spec]:
        specs: dict[str, Spec] = {}
        for plugin, given in self._results(f"{PROJECT}_{kind}s"):
            for spec in given:
                if not isinstance(spec, KINDS[kind]):
                    raise PluginError(
                        f"plugin `{plugin.name}` ({plugin.origin}): expected {KINDS[kind].__name__} from `evalharness_{kind}s`, got {type(spec).__name__}"
                    )
                if not spec.name.isprintable():
                    raise PluginError(f"{kind} {spec.name!r} of plugin `{plugin.name}`: a name must be printable, without line breaks")
                if spec.name in specs:
                    other = self._owner[kind, spec.name]
                    raise PluginError(
                        f"{kind} `{spec.name}` is registered twice: by plugin `{other.name}` ({other.origin}) and by plugin `{plugin.name}` ({plugin.origin}); block one with `-p no:NAME`"
                    )
                specs[spec.name] = spec
                self._owner[kind, spec.name] = plugin
        return dict(sorted(specs.items()))

    def _resolve(self, kind: str, reference: str) -> None:
        for plugin, (spec,) in self._results("evalharness_resolve", kind=kind, reference=reference):
            if spec is None:
                continue
            if not isinstance(spec, KINDS[kind]):
                raise PluginError(f"plugin `{plugin.name}`: expected {KINDS[kind].__name__} for `{reference}`, got {type(spec).__name__}")
            self._resolved[kind, reference] = replace(spec, name=reference)
            self._owner[kind, reference] = plugin
            return


# --- loading ------------------------------------------------------------------------------------------------------


def load_registry(requests: Sequence[str] = (), *, installed: bool = True) -> Registry:
    """Load installed plugins and those named by ``-p``: ``FILE.py``, ``package.module``, or ``no:NAME`` to block one.

    Raises:
        PluginError: two packages give a plugin of one name, or a plugin named here cannot be loaded.
    """
    registry = Registry()
    registry.requests = tuple(requests)
    blocked = {request.removeprefix("no:") for request in requests if request.startswith("no:")}
    if installed:
        _load_installed(registry, blocked)
    for request in requests:
        if not request.startswith("no:"):
            _load_request(registry, request)
    if unknown := blocked - set(registry.plugins) - _blocked_names(blocked):
        raise UnknownNameError(unknown_name("plugin", min(unknown), registry.plugins))
    return registry


def _blocked_names(blocked: set[str]) -> set[str]:
    return blocked & {entry.name for entry in importlib.metadata.entry_points(group=PROJECT)}


def _load_installed(registry: Registry, blocked: set[str]) -> None:
    seen: dict[str, tuple[str, str]] = {}
    for distribution in importlib.metadata.distributions():
        for entry in distribution.entry_points:
            if entry.group != PROJECT or entry.name in blocked:
                continue
            origin = f"{distribution.metadata['Name']} {distribution.version}"
            if entry.name in seen and seen[entry.name] != (origin, entry.value):
                other = seen[entry.name][0]
                raise PluginError(
                    f"two packages give a plugin named `{entry.name}`: {other} and {origin}; uninstall one or block it with `-p no:{entry.name}`"
                )
            if entry.name not in seen:
                seen[entry.name] = origin, entry.value
                _load_entry(registry, entry, origin)


def _load_entry(registry: Registry, entry: importlib.metadata.EntryPoint, origin: str) -> None:
    try:
        module = entry.load()
    except Exception as error:  # noqa: BLE001 (any error of a stranger's import is reported, not raised)
        registry.plugins[entry.name] = Plugin(name=entry.name, origin=origin, error=_reason(error))
        return
    registry.register(module, entry.name, origin=origin)


def _load_request(registry: Registry, request: str) -> None:
    try:
        module, name = _load_file(Path(request)) if request.endswith(".py") else (importlib.import_module(request), request)
    except PluginError:
        raise
    except Exception as error:
        raise PluginError(f"plugin `{request}` cannot be loaded: {_reason(error)}") from error
    registry.register(module, name, origin=request, local=True)


def _load_file(path: Path) -> tuple[ModuleType, str]:
    if not path.is_file():
        raise PluginError(f"plugin file `{path}` does not exist")
    tag = hashlib.blake2b(str(path.resolve()).encode(), digest_size=4).hexdigest()
    name = f"evalharness_file_{path.stem.replace('-', '_')}_{tag}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise PluginError(f"plugin file `{path}` cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickling look a module up by its name
    spec.loader.exec_module(module)
    return module, path.stem


def source_digest(module: Any) -> str:
    """Return a digest of a module's source, of all its Python files when it is a package."""
    path = getattr(module, "__file__", None)
    if path is None:
        return "none"
    files = sorted(Path(path).parent.rglob("*.py")) if Path(path).name == "__init__.py" else [Path(path)]
    state = hashlib.blake2b(digest_size=8)
    for file in files:
        state.update(file.read_bytes())
    return state.hexdigest()


def _check_kind(what: str, name: str, default: Any, value: Any) -> None:
    """Refuse a word where the default is a number, and the like; lists and None are left to the plugin."""
    if isinstance(default, bool) and not isinstance(value, bool):
        raise UsageError(f"{what}: expected `{name}` to be true or false, got `{value}`")
    if isinstance(default, (int, float)) and (isinstance(value, (str, bool)) != isinstance(default, bool)):
        raise UsageError(f"{what}: expected `{name}` to be a number, got `{value}`")


def _check_annotation(what: str, spec: Spec, name: str, value: Any) -> None:
    """Refuse a value that is not of the type which a function of the spec declares for the parameter."""
    from pydantic import TypeAdapter, ValidationError

    for field in dataclasses.fields(spec):
        declared = _declared_type(getattr(spec, field.name), name)
        if declared is None:
            continue
        try:
            TypeAdapter(declared).validate_python(value, strict=True)
        except ValidationError as error:
            raise UsageError(f"{what}: expected `{name}` to be {_word_type(declared)}, got `{value}`") from error


def _declared_type(function: Any, name: str) -> Any:
    """Return the annotation of a parameter, None where there is none or it names what cannot be looked up here."""
    annotation = getattr(function, "__annotations__", {}).get(name)
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, {**vars(collections.abc), **vars(typing), **function.__globals__})  # noqa: S307 (the plugin's own code)
    except Exception:  # noqa: BLE001 (types that a module imports for checkers alone)
        return None


def _word_type(declared: Any, *, many: bool = False) -> str:
    """Return a type in words.

    >>> _word_type(int | collections.abc.Sequence[int])
    'a whole number or a list of whole numbers'
    """
    words = {int: "whole number", float: "number", str: "word", bool: "switch"}
    if declared in words:
        return f"{words[declared]}s" if many else "true or false" if declared is bool else f"a {words[declared]}"
    if declared is type(None):
        return "null"
    inner = typing.get_args(declared)
    if isinstance(declared, UnionType) or typing.get_origin(declared) is typing.Union:
        return " or ".join(_word_type(each) for each in inner)
    if inner and inspect.isclass(origin := typing.get_origin(declared)) and issubclass(origin, collections.abc.Sequence):
        return f"{'lists' if many else 'a list'} of {_word_type(inner[0], many=True)}"
    return str(getattr(declared, "__name__", declared))


def _check_hooks(module: Any, name: str) -> None:
    for attribute in vars(module) if isinstance(module, ModuleType) else dir(module):
        function = getattr(module, attribute, None)
        marked = callable(function) and hasattr(function, f"{PROJECT}_impl")
        if marked and attribute not in _HOOKS:
            near = near_matches(attribute, _HOOKS)
            hint = f"did you mean `{near[0]}`?" if near else f"hooks are: {', '.join(_HOOKS)}"
            raise PluginError(f"plugin `{name}` implements `{attribute}`, which is no hook; {hint}")
        if attribute in _HOOKS and callable(function) and not marked:
            raise PluginError(f"plugin `{name}` has `{attribute}` without `@hookimpl`; add the marker from `evalharness`")


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
