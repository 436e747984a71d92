"""Training progress in a terminal: a bar with rate and remaining time, and warnings."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from semimetric.reporting.terminal import marked
from semimetric.training import progress


class RichProgress(progress.Progress):
    """A progress bar on ``console``; if that is not a terminal, only warnings are printed."""

    def __init__(self, console: Console) -> None:
        self._console = console
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
            disable=not console.is_terminal,
            transient=True,
        )
        self._task = self._bar.add_task("", total=None, rate="", note="", unit="")
        self._epochs = 0
        self._best = 0.0

    def stage(self, what: str, done: int = 0, total: int | None = None) -> None:
        """Show the name of the current step; outside of training the bar counts ``done`` of ``total``."""
        if self._epochs:
            self._bar.update(self._task, description=what)
        else:
            self._bar.update(self._task, description=what, completed=done, total=total, unit="")
            self._bar.start()

    def begin(self, epochs: int, done: int) -> None:
        """Show the bar of the epochs."""
        self._epochs = epochs
        self._bar.reset(self._task, description="training", total=epochs, completed=done)
        self._bar.update(self._task, unit="epochs")
        self._bar.start()

    def batch(self, epoch: int, done: int, total: int) -> None:
        """Advance within an epoch."""
        speed = self._bar.tasks[0].speed
        rate = f"{speed * total:.0f} batches/s" if speed else ""
        self._bar.update(self._task, description="training", completed=epoch - 1 + done / total, rate=rate)

    def epoch(self, record: dict[str, Any]) -> None:
        """Advance to the end of an epoch and show its selection score and the best one."""
        shown = record.get("selection_recall@1")
        note = ""
        if shown is not None:
            self._best = shown if record["best"] else self._best
            note = f"selection R@1 {100 * shown:.1f}, of the best model {100 * self._best:.1f}"
        self._bar.update(self._task, completed=record["epoch"], note=note)

    def warn(self, message: str) -> None:
        """Print a warning above the bar."""
        self._bar.console.print(marked("warning:", "yellow", message))

    def end(self) -> None:
        """Remove the bar."""
        self._epochs = 0
        self._bar.stop()
