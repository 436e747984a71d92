"""Training progress in a terminal: a bar with rate and time left, and the warnings."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class RichProgress:
    """A bar on ``console``; where that is not a terminal only warnings are printed."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("epochs"),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self._task = self._bar.add_task("training", total=None, rate="", note="")

    def pretraining(self, done: int, total: int) -> None:
        """Show the softmax training on the same bar."""
        self._bar.update(self._task, description="softmax training", total=total, completed=done)
        self._bar.start()

    def begin(self, epochs: int, done: int) -> None:
        """Show the bar."""
        self._bar.reset(self._task, description="training", total=epochs, completed=done)
        self._bar.start()

    def batch(self, epoch: int, done: int, total: int) -> None:
        """Advance within an epoch."""
        task = self._bar.tasks[0]
        speed = task.speed
        rate = f"{speed * total:.0f} batches/s" if speed else ""
        self._bar.update(self._task, completed=epoch - 1 + done / total, rate=rate)

    def epoch(self, record: dict[str, Any]) -> None:
        """Advance to the end of an epoch and show its selection score."""
        shown = record.get("selection_recall@1")
        note = "" if shown is None else f"selection R@1 {100 * shown:.1f}"
        self._bar.update(self._task, completed=record["epoch"], note=note)

    def warn(self, message: str) -> None:
        """Print a warning above the bar."""
        self._bar.console.print(f"[yellow]warning:[/yellow] {escape(message)}", highlight=False)

    def end(self) -> None:
        """Take the bar away."""
        self._bar.stop()
