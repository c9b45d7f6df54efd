"""Progress bars on standard error: what is done, rate and time left."""

from __future__ import annotations

import sys
import time


class Bars:
    """Show one bar at a time on a terminal; elsewhere print a line when a step ends that took a second or more."""

    def __init__(self) -> None:
        self._bar: object | None = None
        self._task: object | None = None
        self._what = ""
        self._total = 0
        self._count = 0
        self._started = 0.0

    def start(self, what: str, total: int) -> None:
        """Begin a bar of ``total`` steps."""
        self._what, self._total, self._count, self._started = what, total, 0, time.monotonic()
        if not sys.stderr.isatty():
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        bar.start()
        self._bar, self._task = bar, bar.add_task(what, total=total, rate="")

    def advance(self, count: int) -> None:
        """Move on by ``count`` steps."""
        self._count += count
        if self._bar is not None:
            rate = self._count / max(time.monotonic() - self._started, 1e-9)
            self._bar.update(self._task, advance=count, rate=f"{rate:,.0f}/s")  # type: ignore[attr-defined]

    def stop(self) -> None:
        """End the bar."""
        seconds = time.monotonic() - self._started
        if self._bar is not None:
            self._bar.stop()  # type: ignore[attr-defined]
            self._bar = None
        if seconds >= 1:
            self.say(f"{self._what}: {self._count} in {seconds:.1f} s")

    def say(self, text: str) -> None:
        """Print a line."""
        print(text, file=sys.stderr, flush=True)
