"""Progress events of a training run. By default they are logged, and only warnings are shown."""

from __future__ import annotations

import logging
import sys
import time
import warnings
from collections.abc import Callable
from functools import cached_property
from typing import Any

LOGGER = logging.getLogger("semimetric")
"""Every line of progress of the Python interface, at level INFO."""

SECONDS_BETWEEN = 10.0
"""Seconds from one line of progress to the next."""


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

    def tell(self, message: str) -> None:
        """Show a fact that is no problem."""

    def warn(self, message: str) -> None:
        """Show a warning."""

    def end(self) -> None:
        """Training has ended, normally or not."""


class Lines(Progress):
    """Progress as lines of text, for a file, a pipe, a log or a notebook.

    Parameters
    ----------
    write : receives each line
    every : seconds from one line to the next; work that takes less has none
    each_epoch : also a line for every epoch and every step
    clock : seconds since some time
    """

    def __init__(
        self,
        write: Callable[[str], object],
        every: float = SECONDS_BETWEEN,
        each_epoch: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write, self._every, self._each_epoch, self._clock = write, every, each_epoch, clock
        self._told = clock()
        self._stage = ""
        self._epochs = self._first = 0
        self._began = self._told

    def stage(self, what: str, done: int = 0, total: int | None = None) -> None:
        """A line for a step, with how much of it is complete; steps within training have none."""
        if not self._epochs:
            new, self._stage = what != self._stage, what
            self._tell(f"{what}: {done} of {total}" if total else what, self._each_epoch and new)

    def begin(self, epochs: int, done: int) -> None:
        """Take the time from here."""
        self._epochs, self._first, self._began = epochs, done, self._clock()

    def batch(self, epoch: int, done: int, total: int) -> None:
        """A line within a long epoch."""
        self._tell(f"epoch {epoch} of {self._epochs}: batch {done} of {total}")

    def epoch(self, record: dict[str, Any]) -> None:
        """A line for an epoch: the time left, and its selection score where there is one."""
        epoch = record["epoch"]
        if epoch <= self._first:
            return
        left = (self._clock() - self._began) / (epoch - self._first) * (self._epochs - epoch)
        score = record.get("selection_recall@1")
        note = "" if score is None else f", selection R@1 {100 * score:.1f}"
        self._tell(f"epoch {epoch} of {self._epochs}{note}, about {left:.0f} s left", self._each_epoch)

    def end(self) -> None:
        """What follows is no training."""
        self._epochs = 0

    def _tell(self, line: str, now: bool = False) -> None:
        if now or self._clock() - self._told >= self._every:
            self._told = self._clock()
            self._write(line)

    def tell(self, message: str) -> None:
        """A line at once."""
        self._write(message)


class Silent(Progress):
    """Shows nothing: progress is logged under the name ``semimetric``, and warnings are Python's."""

    @cached_property
    def _lines(self) -> Lines:
        return Lines(LOGGER.info)

    def stage(self, what: str, done: int = 0, total: int | None = None) -> None:
        """Log a step."""
        self._lines.stage(what, done, total)

    def begin(self, epochs: int, done: int) -> None:
        """Log the epochs from here."""
        self._lines.begin(epochs, done)

    def batch(self, epoch: int, done: int, total: int) -> None:
        """Log a long epoch."""
        self._lines.batch(epoch, done, total)

    def epoch(self, record: dict[str, Any]) -> None:
        """Log an epoch."""
        self._lines.epoch(record)

    def end(self) -> None:
        """Training has ended."""
        self._lines.end()

    def tell(self, message: str) -> None:
        """Log a fact."""
        self._lines.tell(message)

    def warn(self, message: str) -> None:
        """Issue a ``TrainingWarning``."""
        warnings.warn(message, TrainingWarning, stacklevel=3)


class Printed(Silent):
    """Progress as printed and logged lines: at most one a second, from ``verbose`` 2 on one for every epoch."""

    def __init__(self, verbose: int) -> None:
        self._verbose = verbose

    @cached_property
    def _lines(self) -> Lines:
        return Lines(self._show, every=1.0, each_epoch=self._verbose > 1)

    @staticmethod
    def _show(line: str) -> None:
        LOGGER.info(line)
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
