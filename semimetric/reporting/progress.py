"""Training progress of a command: a line for each epoch above a bar with the time left, or plain lines; warnings."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from semimetric.reporting.terminal import marked, visible
from semimetric.training import progress

BRIEF = 0.3
"""Seconds that an epoch must take to have a line on a terminal; of briefer ones some have."""


class RichProgress(progress.Progress):
    """A line for each epoch above a bar on ``console``, or a line about every ten seconds if that is not a terminal.

    Parameters
    ----------
    quiet : only warnings are printed
    verbose : also a line for every epoch and every step
    clock : seconds since some time
    """

    def __init__(
        self,
        console: Console,
        quiet: bool = False,
        verbose: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._quiet = quiet
        live = console.is_terminal and not quiet
        often = inf if quiet or live else progress.SECONDS_BETWEEN
        self._lines = progress.Lines(self._print, often, verbose, clock, BRIEF if live else often)
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]}", markup=False),
            TextColumn("{task.fields[rate]}", markup=False),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not live,
            transient=True,
        )
        self._task = self._bar.add_task("", total=None, rate="", unit="")
        self._epochs = 0

    def stage(self, what: str, done: int = 0, total: int | None = None) -> None:
        """Show the name of the current step; outside of training the bar counts ``done`` of ``total``."""
        self._lines.stage(what, done, total)
        if self._epochs:
            self._bar.update(self._task, description=what)
        else:
            self._bar.update(self._task, description=what, completed=done, total=total, unit="", rate="")
            self._bar.start()

    def begin(self, epochs: int, done: int) -> None:
        """Show the bar of the epochs."""
        self._lines.begin(epochs, done)
        self._epochs = epochs
        self._bar.reset(self._task, description="training", total=epochs, completed=done)
        self._bar.update(self._task, unit="epochs")
        self._bar.start()

    def batch(self, epoch: int, done: int, total: int) -> None:
        """Advance within an epoch."""
        self._lines.batch(epoch, done, total)
        speed = self._bar.tasks[0].speed
        rate = rate_of(speed * total) if speed else ""
        self._bar.update(self._task, description="training", completed=epoch - 1 + done / total, rate=rate)

    def epoch(self, record: dict[str, Any]) -> None:
        """Advance to the end of an epoch, whose line stays above the bar."""
        self._lines.epoch(record)
        self._bar.update(self._task, completed=record["epoch"])

    def tell(self, message: str) -> None:
        """Print a fact above the bar."""
        if not self._quiet:
            self._print(f"note: {message}")

    def warn(self, message: str) -> None:
        """Print a warning above the bar."""
        self._bar.console.print(marked("warning:", "yellow", message))

    def end(self) -> None:
        """Remove the bar."""
        self._lines.end()
        self._epochs = 0
        self._bar.stop()

    def _print(self, line: str) -> None:
        self._bar.console.print(coloured(line))


def coloured(line: str) -> Text:
    """A line of progress, with the signs of a collapse in colour."""
    shown = Text(visible(line))
    shown.highlight_words([sign.upper() for sign in progress.SIGNS], "bold red")
    return shown


def rate_of(speed: float) -> str:
    """Batches in a second or, if that is less than one, seconds for a batch."""
    if speed >= 10:
        return f"{speed:.0f} batches/s"
    return f"{speed:.1f} batches/s" if speed >= 1 else f"{1 / speed:.1f} s/batch"
