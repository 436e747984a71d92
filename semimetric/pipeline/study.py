"""A study of settings by Optuna: it can be interrupted and continued, and hopeless trials are cut short."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from semimetric.core.errors import DivergedError, InputError, RunError
from semimetric.core.extras import import_extra
from semimetric.core.files import json_text
from semimetric.core.locks import locked
from semimetric.core.manifest import NAME as MANIFEST
from semimetric.core.manifest import Manifest
from semimetric.core.space import Range, Space
from semimetric.pipeline.study_folder import check_free, drop_torn_line, open_folder

COMPLETE_BEFORE_PRUNING, EPOCHS_BEFORE_PRUNING = 5, 3
"""So many trials run to their end, and so many epochs of each, before one can be hopeless beside the median."""

DIGITS = 3
"""Significant digits of a setting: what is tried is what is printed."""


SURE = 2.0
"""Standard errors by which settings must beat the default ones: the best of many trials is partly luck."""

Report = Callable[[int, float], None]
"""Told the validation score of every epoch, from 1; it raises where the trial is hopeless."""


class Scored(NamedTuple):
    """A score on validation data, and ``parts``: the score without each of some groups of the data."""

    score: float
    parts: tuple[float, ...] = ()


Trial = Callable[[dict[str, Any], Report], Scored]
"""Settings to their score on validation data."""


@dataclass(frozen=True)
class Problem:
    """What is tuned: ``space`` is tried from ``start`` on, ``run`` scores settings, ``about`` tells it from others."""

    space: Space
    start: dict[str, Any]
    about: dict[str, Any]
    run: Trial


class Watcher(Protocol):
    """Listens to a study."""

    def trial(self, number: int, trials: int, best: float | None) -> None:
        """Trial ``number``, from 1, of ``trials`` begins; the best score so far, if there is one."""

    def epoch(self, epoch: int, score: float) -> None:
        """An epoch of the trial ended."""


class Unwatched:
    """Says nothing."""

    def trial(self, number: int, trials: int, best: float | None) -> None:
        """Say nothing."""

    def epoch(self, epoch: int, score: float) -> None:
        """Say nothing."""


def run_study(
    problem: Problem, folder: Path, trials: int, seed: int = 0, watcher: Watcher | None = None
) -> dict[str, Any]:
    """Run trials until the study in ``folder`` has ``trials`` finished ones, and return the best settings.

    The first trial is of the settings that are in force without tuning. A study that was interrupted continues as if it
    had not been: what a trial proposes depends on the seed and on the finished trials before it. A study of something
    else is refused.

    Returns
    -------
    dict
        ``settings`` with their validation ``score`` and its standard ``error``; the score of the ``start``; the
        ``best`` score of a trial, its ``gain`` over the start and the ``gain_error``. The settings are those of the
        start unless the gain is more than two standard errors. Then how many trials there are: ``trials`` finished, of
        them ``complete``, ``pruned`` and ``refused``. It is in the folder's best.json, too.
    """
    if trials < 1:
        raise InputError(f"trials must be at least 1, got {trials}.")
    if seed < 0:
        raise InputError(f"seed must be at least 0, got {seed}.")
    watcher = watcher or Unwatched()
    if not (folder / "study.json").exists():
        check_free(folder)
    with locked(folder):
        study = Study(problem, folder, seed)
        study.write()  # of the last trial, if the process was killed between its end and this
        while (done := len(study.finished())) < trials:
            watcher.trial(done + 1, trials, study.best_score())
            study.try_next(done, watcher)
            study.write()
        return study.outcome()


class Study:
    """An Optuna study in a folder: study.json says what it is of, study.log has its trials, best.json the outcome."""

    def __init__(self, problem: Problem, folder: Path, seed: int) -> None:
        self._optuna = _optuna()
        self._problem, self._folder, self._seed = problem, folder, seed
        self._states = self._optuna.trial.TrialState
        self._distributions = {name: self._distribution(values) for name, values in problem.space.items()}
        about = problem.about | {"seed": seed, "space": _as_json(problem.space)}
        self._manifest = Manifest(folder)
        open_folder(folder, about)
        self._study = self._open()

    def _distribution(self, values: Range | tuple[Any, ...]) -> Any:
        kinds = self._optuna.distributions
        if isinstance(values, tuple):
            return kinds.CategoricalDistribution(values)
        whole = isinstance(values.low, int) and isinstance(values.high, int)
        kind = kinds.IntDistribution if whole else kinds.FloatDistribution
        return kind(values.low, values.high, log=values.log)

    def _open(self) -> Any:
        """The study in the folder, or a new one; trials that were under way when it was killed have failed."""
        journal = self._folder / "study.log"
        self._manifest.check_beginning(journal.name)
        drop_torn_line(journal)
        try:
            # One process writes. Optuna's file locks turn a Ctrl-C inside of them into other errors and stay locked.
            backend = self._optuna.storages.journal.JournalFileBackend(str(journal), threading.Lock())
            study = self._optuna.create_study(
                storage=self._optuna.storages.JournalStorage(backend),
                study_name="semimetric",
                direction="maximize",
                load_if_exists=True,
                pruner=self._optuna.pruners.MedianPruner(COMPLETE_BEFORE_PRUNING, EPOCHS_BEFORE_PRUNING),
            )
            for trial in study.trials:
                if not trial.state.is_finished():
                    study.tell(trial.number, state=self._states.FAIL)
        except OSError:
            raise
        except Exception as error:  # Optuna replays what the file says, whatever that is
            raise RunError(f"{journal} cannot be read: {error!r}. It is damaged; choose another --out.") from error
        return study

    def finished(self) -> list[Any]:
        """Trials that came to an end, were cut short as hopeless, or whose settings were refused."""
        return [
            trial
            for trial in self._study.trials
            if trial.state in (self._states.COMPLETE, self._states.PRUNED) or "refused" in trial.user_attrs
        ]

    def _complete(self) -> list[Any]:
        return [trial for trial in self._study.trials if trial.state == self._states.COMPLETE]

    def best_score(self) -> float | None:
        """The best score of a complete trial."""
        return max((trial.value for trial in self._complete()), default=None)

    def try_next(self, done: int, watcher: Watcher) -> None:
        """Run the trial that follows ``done`` finished ones."""
        if done == 0 and all(value in self._problem.space[name] for name, value in self._problem.start.items()):
            self._try_start(watcher)
            return
        number = int(np.random.SeedSequence((self._seed, done)).generate_state(1)[0])
        self._study.sampler = self._optuna.samplers.TPESampler(seed=number)
        trial = self._study.ask(self._distributions)

        def report(epoch: int, score: float) -> None:
            watcher.epoch(epoch, score)
            trial.report(score, epoch)
            if trial.should_prune():
                raise self._optuna.TrialPruned

        try:
            scored = self._problem.run(rounded(trial.params), report)
            trial.set_user_attr("parts", scored.parts)
            self._study.tell(trial, scored.score)
        except (self._optuna.TrialPruned, DivergedError):
            self._study.tell(trial, state=self._states.PRUNED)
        except InputError as error:
            trial.set_user_attr("refused", str(error))
            self._study.tell(trial, state=self._states.FAIL)

    def _try_start(self, watcher: Watcher) -> None:
        """The settings that are in force without tuning; what refuses them refuses the data, and ends the study."""
        scores: dict[int, float] = {}

        def report(epoch: int, score: float) -> None:
            watcher.epoch(epoch, score)
            scores[epoch] = score

        ended: dict[str, Any]
        parts: tuple[float, ...] = ()
        try:
            score, parts = self._problem.run(self._problem.start, report)
            ended = {"value": score}
        except DivergedError:
            ended = {"state": self._states.PRUNED}
        except InputError:
            self._forget()
            raise
        self._study.add_trial(
            self._optuna.trial.create_trial(
                params=self._problem.start,
                distributions=self._distributions,
                intermediate_values=scores,
                user_attrs={"start": True, "parts": parts},
                **ended,
            )
        )

    def _forget(self) -> None:
        """Leave nothing of a study that cannot begin."""
        for name in ("study.log", "study.json", MANIFEST):
            (self._folder / name).unlink(missing_ok=True)

    def outcome(self) -> dict[str, Any]:
        """The best settings and how they were found."""
        finished, complete = self.finished(), self._complete()
        refused = [trial.user_attrs["refused"] for trial in finished if "refused" in trial.user_attrs]
        if not complete:
            reason = f"The first was refused: {refused[0]}" if refused else "All of them diverged; give a smaller lr."
            raise InputError(f"none of {len(finished)} trials came to an end. {reason}")
        best = max(complete, key=lambda trial: trial.value)
        start: Any = next((trial for trial in complete if "start" in trial.user_attrs), None)
        gain, doubt = (
            (None, None) if start is None else (best.value - start.value, gain_error(_parts(best), _parts(start)))
        )
        chosen = best if gain is None or doubt is None or gain > SURE * doubt else start
        return {
            "score": chosen.value,
            "error": standard_error(_parts(chosen)),
            "settings": chosen.params if chosen is start else rounded(chosen.params),
            "start": None if start is None else start.value,
            "best": best.value,
            "gain": gain,
            "gain_error": doubt,
            "trials": len(finished),
            "complete": len(complete),
            "pruned": len(finished) - len(complete) - len(refused),
            "refused": len(refused),
        }

    def write(self) -> None:
        """Write the outcome so far, once there is one, and what the log is now."""
        try:
            if self._complete():
                self._manifest.put("best.json", json_text(self._problem.about | self.outcome()).encode())
            self._manifest.record("study.log")
        except OSError as error:
            raise RunError(
                f"{self._folder} cannot be written: {error}. Finished trials are kept; make room and give the same "
                "command."
            ) from error


def _parts(trial: Any) -> tuple[float, ...]:
    return tuple(trial.user_attrs.get("parts", ()))


def standard_error(parts: Sequence[float]) -> float | None:
    """The jackknife's standard error of a score: ``parts`` are the scores without each of g groups of the data.

    sqrt((g - 1) / g * sum_j (s_j - mean)^2), after B. Efron and C. Stein, Annals of Statistics 9, 1981. None for less
    than two groups.
    """
    if len(parts) < 2:
        return None
    return float(np.sqrt((len(parts) - 1) * np.var(parts)))


def gain_error(parts: Sequence[float], others: Sequence[float]) -> float | None:
    """The standard error of the difference of two scores on the same data; None where one is not known."""
    if len(parts) != len(others):
        return None
    return standard_error([one - other for one, other in zip(parts, others, strict=True)])


def _optuna() -> Any:
    optuna: Any = import_extra("optuna", "tune", "tuning")
    optuna.logging.set_verbosity(logging.WARNING)
    return optuna


def _as_json(space: Space) -> dict[str, Any]:
    return {name: list(v) if isinstance(v, tuple) else dataclasses.asdict(v) for name, v in space.items()}


def rounded(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings as they are tried: numbers that are not whole have few digits."""
    return {
        name: float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value for name, value in settings.items()
    }
