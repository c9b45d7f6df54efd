"""Progress bars on standard error: what is done, rate and time left."""

from __future__ import annotations

import sys
import time
from typing import Any


class Bars:
    """Show bars on a terminal, an inner step in place of the outer; elsewhere print a line when a step ends that took a second or more."""

    def __init__(self) -> None:
        self._steps: list[_Step] = []

    def start(self, what: str, total: int) -> None:
        """Begin a step of ``total`` parts, inside the current one if there is one."""
        if self._steps:
            self._steps[-1].hide()
        step = _Step(what, total)
        self._steps.append(step)
        step.show()

    def advance(self, count: int) -> None:
        """Move the innermost step on by ``count`` parts."""
        self._steps[-1].advance(count)

    def stop(self) -> None:
        """End the innermost step."""
        step = self._steps.pop()
        step.hide()
        seconds = time.monotonic() - step.started
        if seconds >= 1:
            self.say(f"{step.what}: {step.count} in {seconds:.1f} s")
        if self._steps:
            self._steps[-1].show()

    def say(self, text: str) -> None:
        """Print a line."""
        print(text, file=sys.stderr, flush=True)


class _Step:
    """Hold one step and its bar."""

    def __init__(self, what: str, total: int) -> None:
        self.what, self.total, self.count, self.started = what, total, 0, time.monotonic()
        self._bar: Any = None
        self._task: Any = None

    def show(self) -> None:
        """Draw the bar, on a terminal."""
        if not sys.stderr.isatty():
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._bar.start()
        self._task = self._bar.add_task(self.what, total=self.total, completed=self.count, rate="")

    def hide(self) -> None:
        """Take the bar off the screen."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def advance(self, count: int) -> None:
        """Count, and redraw."""
        self.count += count
        if self._bar is not None:
            rate = self.count / max(time.monotonic() - self.started, 1e-9)
            self._bar.update(self._task, advance=count, rate=f"{rate:,.0f}/s")
