"""Progress events of a training run. By default only warnings are reported."""

from __future__ import annotations

import warnings
from typing import Any


class TrainingWarning(UserWarning):
    """A problem of a training run that the user should know about."""


class Progress:
    """Receives the events of a training run; a subclass overrides the ones it shows."""

    def stage(self, what: str, done: int = 0, total: int | None = None) -> None:
        """A step other than training on batches runs; ``done`` of ``total``, if known, are complete."""

    def begin(self, epochs: int, done: int) -> None:
        """Training starts after ``done`` epochs of an earlier run."""

    def batch(self, epoch: int, done: int, total: int) -> None:
        """``done`` of ``total`` batches of this epoch are complete."""

    def epoch(self, record: dict[str, Any]) -> None:
        """An epoch has ended; ``record`` is its line in the log."""

    def warn(self, message: str) -> None:
        """Show a warning."""

    def end(self) -> None:
        """Training has ended, normally or not."""


class Silent(Progress):
    """Shows no progress and issues warnings through Python's ``warnings``."""

    def warn(self, message: str) -> None:
        """Issue a ``TrainingWarning``."""
        warnings.warn(message, TrainingWarning, stacklevel=3)
