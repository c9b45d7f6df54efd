"""One command's work: plan, find what is already done, do the rest; computing modules are imported only when something is to do."""

from __future__ import annotations

import datetime as dt
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalharness.errors import UsageError
from evalharness.facts import planned_lines, run_facts
from evalharness.plan import AcrossUnit, Plan, UnitPlan
from evalharness.planner import Planner
from evalharness.registry import Registry
from evalharness.stamp import EncoderUse, Sources, use_encoder
from evalharness.store.results import ResultsReader, RunWriter, UnitResult, check_writable
from evalharness.store.views import ViewCache
from evalharness.suites import Library, Selection
from evalharness.types import Encoder, Identity, RunInfo, UnitInfo

if TYPE_CHECKING:
    from evalharness.embed import Progress
    from evalharness.run import RunReport

LOG = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Settings:
    """What a user asks for beside tasks and encoders."""

    out: Path | None = None
    device: str = "auto"
    devices: tuple[str, ...] = ()
    dtype: str = "float32"
    batch_size: int | None = None
    limit: int | None = None
    seed: int | None = None
    force: bool = False
    command: str = ""
    live: Mapping[str, Encoder] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Pending:
    """What there is to do: cells, records over several cells, and finished units that only need their records under another suite's name."""

    units: list[UnitPlan]
    across: list[AcrossUnit]
    adopt: list[UnitPlan | AcrossUnit]


@dataclass(slots=True, kw_only=True)
class Outcome:
    """How a session ended: counts of units by status, and of those that needed nothing."""

    plan: Plan
    pending: int
    reused: int
    report: RunReport | None
    folder: Path | None


def builtin_folder() -> Path:
    """Return the folder of the task files that ship with the harness."""
    from importlib.resources import files

    return Path(str(files("evalharness.tasks").joinpath()))


def open_library(registry: Registry) -> Library:
    """Return the library of built-in task files and those that plugins ship."""
    return Library([builtin_folder(), *registry.task_paths()])


class Session:
    """Plan and run for one registry."""

    def __init__(self, registry: Registry, settings: Settings, progress: Progress) -> None:
        self.registry = registry
        self.settings = settings
        self.progress = progress
        self.sources = Sources(registry, persist=settings.out is not None)
        self._overrides: dict[str, Identity] = {}

    def plan(self, selections: Sequence[Selection], encoders: Sequence[str | EncoderUse]) -> Plan:
        """Return the whole plan, finished units included.

        Views are laid out over all units, so that a resumed run embeds the same batches as an undisturbed one.
        """
        uses = [self._use(encoder) for encoder in encoders]
        labels = [use.label for use in uses]
        if len(set(labels)) < len(labels):
            uses = list({use.label: use for use in uses}.values())
        planner = Planner(self.registry, self.sources, dtype=self.settings.dtype, limit=self.settings.limit, seed=self.settings.seed)
        return planner.make(selections, uses)

    def _use(self, encoder: str | EncoderUse) -> EncoderUse:
        use = use_encoder(self.registry, encoder) if isinstance(encoder, str) else encoder
        use = use if self.settings.out is not None else replace(use, cached=False)  # nothing is written without a results folder
        return replace(use, identity=self._overrides[use.label]) if use.label in self._overrides else use

    def pending(self, plan: Plan) -> Pending:
        """Return what there is to do: what is not finished, or failed, and what is made of it."""
        if self.settings.out is None or self.settings.force:
            return Pending(units=plan.units, across=plan.across, adopt=[])
        reader = ResultsReader([self.settings.out])
        finished = reader.finished()
        shown = {(record["suite"], record["unit"]) for record in reader.records()}
        done = {key for (_, key), line in finished.items() if line["status"] != "failed"}
        uncached = {label for label, use in plan.encoders.items() if use.identity.kind == "none"}
        todo = [unit for unit in plan.units if unit.encoder in uncached or unit.key not in done]
        again = {unit.key for unit in todo}
        across = [unit for unit in plan.across if unit.key not in done or any(member.key in again for member in unit.members)]
        again |= {unit.key for unit in across}

        def hidden(unit: UnitPlan | AcrossUnit) -> bool:
            """Say whether a unit is done, but under another suite's name, or hidden by a newer state of the same cell."""
            line = finished.get((unit.suite, unit.key))
            recorded = isinstance(unit, UnitPlan) or reader.has_records(unit.key)
            return line is None or line["status"] == "failed" or (recorded and (unit.suite, unit.key) not in shown)

        every: list[UnitPlan | AcrossUnit] = [*plan.units, *plan.across]
        adopt = [unit for unit in every if unit.key not in again and hidden(unit)]
        return Pending(units=todo, across=across, adopt=adopt)

    def run(self, selections: Sequence[Selection], encoders: Sequence[str | EncoderUse]) -> Outcome:
        """Do what is not done yet.

        Raises:
            EvalHarnessError: a mistake of the user, or a store that cannot be written.
        """
        while True:
            plan = self.plan(selections, encoders)
            if self.settings.out is not None:
                check_writable(self.settings.out)
            pending = self.pending(plan)
            todo, adopt = pending.units, pending.adopt
            writer = self._writer(plan)
            if adopt and writer is not None:
                self._adopt(writer, adopt)
            if not todo and not pending.across:
                return Outcome(
                    plan=plan,
                    pending=0,
                    reused=len(plan.units),
                    report=None,
                    folder=writer.folder if writer is not None and adopt else None,
                )
            report = self._execute(plan, pending, writer)
            if report is not None:
                return Outcome(
                    plan=plan,
                    pending=len(todo),
                    reused=len(plan.units) - len(todo),
                    report=report,
                    folder=writer.folder if writer else None,
                )

    def _execute(self, plan: Plan, pending: Pending, writer: RunWriter | None) -> RunReport | None:
        """Run the units; None means that an encoder turned out to be another one and all must be planned again."""
        from evalharness.embed import IdentityChangedError, PassSettings
        from evalharness.run import Runner

        settings = PassSettings(
            device=choose_device(self.settings.device),
            devices=self.settings.devices,
            dtype=self.settings.dtype,
            batch_size=self.settings.batch_size,
            plugins=self.registry.requests,
            live=self.settings.live,
        )
        info = RunInfo(
            folder=writer.folder if writer else None,
            encoders=tuple(plan.encoders),
            tasks=tuple(task.task.name for task in plan.tasks.values()),
            num_units=len(pending.units),
        )
        self._observe("evalharness_run_started", run=info)
        runner = Runner(
            self.registry, self.sources, plan, settings, self.progress, writer=writer, cache=ViewCache(), on_unit=self._unit_observer()
        )
        try:
            report = runner.run(pending.units, pending.across)
        except IdentityChangedError as error:
            self.progress.say(
                f"encoder `{error.label}` no longer gives the vectors stored for it: they are not used, and it is measured anew"
            )
            self._overrides[error.label] = error.identity
            return None
        self._observe("evalharness_run_finished", run=info)
        return report

    def _unit_observer(self) -> Callable[[UnitInfo], None]:
        return lambda info: self._observe("evalharness_unit_finished", unit=info)

    def _observe(self, hook: str, **event: Any) -> None:
        """Tell observers; their exceptions are logged, never fatal."""
        for implementation in getattr(self.registry.hook, hook).get_hookimpls():
            try:
                implementation.function(**{name: event[name] for name in implementation.argnames})
            except Exception:
                LOG.exception("observer of plugin `%s` raised in %s", implementation.plugin_name, hook)

    def _adopt(self, writer: RunWriter, units: Sequence[UnitPlan | AcrossUnit]) -> None:
        """Write the records of finished units again, under the suite's name; nothing is computed."""
        assert self.settings.out is not None
        reader = ResultsReader([self.settings.out])
        lines = {key: (suite, line) for (suite, key), line in reader.finished().items() if line["status"] != "failed"}
        results = []
        for unit in units:
            suite, line = lines[unit.key]
            named = {"suite": unit.suite, "suite_version": unit.suite_version}
            records = [{**record, **named} for record in reader.unit_records(unit.key, suite)]
            results.append(UnitResult(key=unit.key, line={**line, "suite": unit.suite}, records=records))
        writer.commit(units[0].task, units[0].encoder, results)

    def _writer(self, plan: Plan) -> RunWriter | None:
        if self.settings.out is None:
            return None
        now = dt.datetime.now(dt.UTC)
        name = f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
        return RunWriter(self.settings.out, name, run_facts(plan, self.settings, self.registry, now), planned_lines(plan))


def choose_device(name: str) -> str:
    """Return the device to compute on; ``auto`` takes CUDA, then MPS, then the CPU.

    Raises:
        UsageError: torch does not know the device, or it is not there.
    """
    import torch

    if name == "auto":
        return "cuda:0" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except Exception as error:
        raise UsageError(f"device `{name}` cannot be used: {' '.join(str(error).split())[:200]}") from error
    return name


class Silent:
    """Report no progress."""

    def start(self, what: str, total: int) -> None:
        """Begin nothing."""

    def advance(self, count: int) -> None:
        """Count nothing."""

    def stop(self) -> None:
        """End nothing."""

    def say(self, text: str) -> None:
        """Log a line."""
        LOG.warning("%s", text)
