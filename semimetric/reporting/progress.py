"""Training progress of a command: a bar with rate and remaining time, or plain lines, and warnings."""

from __future__ import annotations

from math import inf
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from semimetric.reporting.terminal import marked
from semimetric.training import progress


class RichProgress(progress.Progress):
    """A progress bar on ``console``, or a line about every ten seconds if that is not a terminal.

    Parameters
    ----------
    quiet : only warnings are printed
    verbose : also a line for every epoch and every step
    """

    def __init__(self, console: Console, quiet: bool = False, verbose: bool = False) -> None:
        self._quiet = quiet
        often = inf if quiet or console.is_terminal else progress.SECONDS_BETWEEN
        self._lines = progress.Lines(self._print, often, verbose)
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]}", markup=False),
            TextColumn("{task.fields[rate]}", markup=False),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            console=console,
            disable=quiet or not console.is_terminal,
            transient=True,
        )
        self._task = self._bar.add_task("", total=None, rate="", note="", unit="")
        self._epochs = 0
        self._best = 0.0

    def stage(self, what: str, done: int = 0, total: int | None = None) -> None:
        """Show the name of the current step; outside of training the bar counts ``done`` of ``total``."""
        self._lines.stage(what, done, total)
        if self._epochs:
            self._bar.update(self._task, description=what)
        else:
            self._bar.update(self._task, description=what, completed=done, total=total, unit="")
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
        """Advance to the end of an epoch and show its selection score and the best one."""
        self._lines.epoch(record)
        shown = record.get("selection_recall@1")
        note = ""
        if shown is not None:
            self._best = shown if record["best"] else self._best
            note = f"selection R@1 {100 * shown:.1f}, of the best model {100 * self._best:.1f}"
        self._bar.update(self._task, completed=record["epoch"], note=note)

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
        self._bar.console.print(line, highlight=False, markup=False)


def rate_of(speed: float) -> str:
    """Batches in a second or, if that is less than one, seconds for a batch."""
    if speed >= 10:
        return f"{speed:.0f} batches/s"
    return f"{speed:.1f} batches/s" if speed >= 1 else f"{1 / speed:.1f} s/batch"
