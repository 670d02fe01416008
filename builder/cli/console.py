"""Show events to a person: live bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, field
from typing import Any, Final, Self

from builder.core.display import duration, plain, size
from builder.core.events import Event, StepDone, StepLog, StepProgress, StepStarted

PLAIN_INTERVAL: Final = 15.0
"""Seconds between two progress lines of one step if there is no terminal."""


@dataclass
class Reporter:
    """Shows events on stderr, because stdout carries data. Stages get its `on_event`."""

    verbose: bool = False
    quiet: bool = False
    started: dict[str, float] = field(default_factory=dict)
    printed: dict[str, float] = field(default_factory=dict)
    progress: Any = None
    tasks: dict[str, Any] = field(default_factory=dict)

    def __enter__(self) -> Self:
        lines = os.environ.get("TERM") == "dumb" or os.environ.get("CI")
        if sys.stderr.isatty() and not lines and not self.quiet and not self.verbose:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

            self.progress = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[detail]}", style="dim"),
                console=Console(stderr=True),
                transient=True,
            )
            self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.progress is not None:
            self.progress.stop()

    def line(self, text: str) -> None:
        if self.quiet:
            return
        if self.progress is not None:
            self.progress.console.print(plain(text), markup=False, highlight=False)
        else:
            sys.stderr.write(plain(text) + "\n")
            sys.stderr.flush()

    def on_event(self, event: Event) -> None:
        match event:
            case StepStarted(name):
                self._start(name)
            case StepProgress(name, current, total, unit):
                self._advance(name, current, total, unit)
            case StepLog(name, text):
                if self.verbose:
                    self.line(f"    {text}")
                elif not text.startswith("{"):  # a probe's answer
                    text = " ".join(text.split())
                    self._show(name, text[: 60 if self.progress is not None else 100])
            case StepDone():
                self._done(event)

    def _start(self, name: str) -> None:
        self.started[name] = self.printed[name] = time.monotonic()
        if self.progress is not None:
            self.tasks[name] = self.progress.add_task(name, total=None, detail="")
        elif self.verbose:
            self.line(f"  > {name}")

    def _advance(self, name: str, current: int, total: int | None, unit: str) -> None:
        if name not in self.started:
            self._start(name)
        elapsed = time.monotonic() - self.started[name]
        text = size(current) if unit == "bytes" else str(current)
        if total:
            text += f" of {size(total) if unit == 'bytes' else total}"
            if elapsed > 3 and 0 < current < total:
                text += f", {duration(elapsed * (total - current) / current)} left"
        self._show(name, text, completed=current, total=total)

    def _show(self, name: str, detail: str, **bar: int | None) -> None:
        """Show what a step is doing: in its bar, or now and then in a line."""
        if self.progress is not None:
            if name in self.tasks:
                self.progress.update(self.tasks[name], detail=detail, **bar)
        elif name in self.printed and time.monotonic() - self.printed[name] >= PLAIN_INTERVAL:
            self.printed[name] = time.monotonic()
            self.line(f"    {name}: {detail}")

    def _done(self, event: StepDone) -> None:
        self.started.pop(event.name, None)
        if self.progress is not None and event.name in self.tasks:
            self.progress.remove_task(self.tasks.pop(event.name))
        mark = "x" if event.error else "="
        took = "cached" if event.cached else duration(event.seconds)
        detail = event.error or event.detail
        self.line(f"  {mark} {event.name}  {took}" + (f"  {detail}" if detail else ""))
