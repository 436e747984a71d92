"""What a training run tells while it runs. The default says nothing but its warnings."""

from __future__ import annotations

import warnings
from typing import Any, Protocol


class TrainingWarning(UserWarning):
    """Something about a training run that its user should know."""


class Progress(Protocol):
    """Listens to a training run."""

    def stage(self, what: str, done: int = 0, total: int | None = None) -> None:
        """Something other than training on batches is under way, ``done`` of ``total`` where that is known."""

    def begin(self, epochs: int, done: int) -> None:
        """Training starts; ``done`` epochs were already behind it."""

    def batch(self, epoch: int, done: int, total: int) -> None:
        """``done`` of ``total`` batches of this epoch are through."""

    def epoch(self, record: dict[str, Any]) -> None:
        """An epoch ended; ``record`` is its line in the log."""

    def warn(self, message: str) -> None:
        """Something the user should know."""

    def end(self) -> None:
        """Training ended, by itself or not."""


class Silent:
    """No progress; warnings go through Python's ``warnings``."""

    def stage(self, what: str, done: int = 0, total: int | None = None) -> None:
        """Say nothing."""

    def begin(self, epochs: int, done: int) -> None:
        """Say nothing."""

    def batch(self, epoch: int, done: int, total: int) -> None:
        """Say nothing."""

    def epoch(self, record: dict[str, Any]) -> None:
        """Say nothing."""

    def warn(self, message: str) -> None:
        """Warn through ``warnings``."""
        warnings.warn(message, TrainingWarning, stacklevel=3)

    def end(self) -> None:
        """Say nothing."""
