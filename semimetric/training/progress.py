"""Progress events of a training run. By default they are logged, and only warnings are shown."""

from __future__ import annotations

import logging
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

LOGGER = logging.getLogger("semimetric")
"""Every line of progress of the Python interface, at level INFO."""

SECONDS_BETWEEN = 10.0
"""Seconds from one line of progress to the next."""

SCORES = {"selection_nmi": "NMI", "selection_recall@1": "R@1"}
"""Scores of the log that the line of an epoch shows, in per cent, and what they are called there."""

COLLAPSING, DEGRADING, VIOLATED = SIGNS = ("collapsing", "degrading", "constraints violated")
"""Signs in the log that the training of an epoch went wrong."""


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
    """Progress as lines of text, for a terminal, a file, a pipe, a log or a notebook.

    Parameters
    ----------
    write : receives each line
    every : seconds from one line to the next; work that takes less has none
    each_epoch : also a line for every epoch and every step
    clock : seconds since some time
    epochs_every : seconds from one line of an epoch to the next, if not ``every``
    """

    def __init__(
        self,
        write: Callable[[str], object],
        every: float = SECONDS_BETWEEN,
        each_epoch: bool = False,
        clock: Callable[[], float] = time.monotonic,
        epochs_every: float | None = None,
    ) -> None:
        self._write, self._every, self._each_epoch, self._clock = write, every, each_epoch, clock
        self._epochs_every = every if epochs_every is None else epochs_every
        self._judged: tuple[int, float] | None = None
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
        self._judged = None

    def batch(self, epoch: int, done: int, total: int) -> None:
        """A line within a long epoch."""
        self._tell(f"epoch {epoch} of {self._epochs}: batch {done} of {total}")

    def epoch(self, record: dict[str, Any]) -> None:
        """A line for an epoch: what it logged, and the time left."""
        epoch = record["epoch"]
        self._judged = (epoch - 1, record["held_back_accuracy"]) if "held_back_accuracy" in record else self._judged
        if epoch <= self._first:
            return
        left = (self._clock() - self._began) / (epoch - self._first) * (self._epochs - epoch)
        line = epoch_line(record, self._epochs, left, self._judged)
        last = epoch == self._epochs and self._epochs_every < self._every
        self._tell(line, self._each_epoch or last, self._epochs_every)

    def end(self) -> None:
        """What follows is no training."""
        self._epochs = 0

    def _tell(self, line: str, now: bool = False, every: float | None = None) -> None:
        if now or self._clock() - self._told >= (self._every if every is None else every):
            self._told = self._clock()
            self._write(line)

    def tell(self, message: str) -> None:
        """A line at once."""
        self._write(message)


def epoch_line(record: Mapping[str, Any], epochs: int, left: float, judged: tuple[int, float] | None = None) -> str:
    """What an epoch logged, in one line: loss, effective rank, signs of a collapse, scores, and the time left.

    Parameters
    ----------
    record : the epoch's line in the log
    epochs : of the whole training
    left : seconds until its end
    judged : the last epoch whose model predicted held-out labels, and the share that was right
    """
    scores = [f"{name} {100 * record[key]:5.1f}" for key, name in SCORES.items() if key in record]
    if judged is not None:
        earlier = f" (epoch {judged[0]})" if judged[0] + 1 < record["epoch"] else ""
        scores.append(f"held-out {100 * judged[1]:5.1f}{earlier}")
    loss = [f"loss {record['training_loss']:#.4g}"] if "training_loss" in record else []
    rank = [f"rank {record['effective_rank']:4.1f}"] if "effective_rank" in record else []
    signs = [sign.upper() for sign in record.get("signs", ())]
    end = [f"{duration(left)} left"] if record["epoch"] < epochs else []
    return "  ".join([f"epoch {record['epoch']:{len(str(epochs))}} of {epochs}", *loss, *rank, *signs, *scores, *end])


def duration(seconds: float) -> str:
    """A duration in words: 45 s, 12 min, 3.5 h."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5970 else f"{seconds / 3600:.1f} h"


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
