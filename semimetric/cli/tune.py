"""``semimetric tune``: a study on the terminal, and the command line that its best settings make."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from semimetric.cli.console import print_json, say, showing_progress, stderr
from semimetric.cli.own import own_estimator, own_task
from semimetric.pipeline.study import Problem, tune
from semimetric.pipeline.tuning import benchmark_problem, own_problem
from semimetric.training import choose_device


class TrialBar:
    """Which trial of how many is under way, how its epochs score, and how the best did; nothing where it is piped."""

    def __init__(self) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=stderr,
            disable=not stderr.is_terminal,
            transient=True,
        )
        self._task = self._bar.add_task("", total=None, note="")
        self._best = ""

    def trial(self, number: int, trials: int, best: float | None) -> None:
        """Show that a trial begins."""
        self._best = "" if best is None else f"best so far {best:.4f}"
        self._bar.update(
            self._task, description=f"trial {number} of {trials}", completed=number - 1, total=trials, note=self._best
        )
        self._bar.start()

    def epoch(self, epoch: int, score: float) -> None:
        """Show how an epoch scored."""
        self._bar.update(self._task, note=f"epoch {epoch}: {score:.4f}  {self._best}")

    def end(self) -> None:
        """Take the bar away."""
        self._bar.stop()


@dataclass(frozen=True)
class Asked:
    """What is tuned and for how long; ``given`` settings stay as they are."""

    method: str
    seed: int
    device: str
    given: dict[str, Any]
    folder: Path
    trials: int
    as_json: bool

    def fit_command(self, *others: str) -> list[str]:
        """The beginning of the command that fits."""
        return ["semimetric", "fit", *others, *flags({"method": self.method, "seed": self.seed} | self.given)]


def tune_benchmark(asked: Asked, dataset: str, data_dir: Path | None) -> None:
    """Tune a method on a benchmark dataset."""

    def problem() -> Problem:
        device = choose_device(asked.device)
        with showing_progress() as progress:
            return benchmark_problem(dataset, asked.method, asked.seed, asked.given, device, data_dir, progress)

    _study(asked, problem, asked.fit_command(*flags({"dataset": dataset, "data_dir": data_dir})))


def tune_own(asked: Asked, data: Path, options: dict[str, Any], fine_tune: bool) -> None:
    """Tune a method on a user's own folder or table, which ``options`` say how to read."""

    def problem() -> Problem:
        estimator = own_estimator(asked.method, asked.seed, asked.device, fine_tune, asked.given)
        task = own_task(estimator, data, **options)
        if task.choice.why and not asked.as_json:
            say(task.choice.why)
        return own_problem(task, asked.given, choose_device(asked.device))

    tuned = ["--fine-tune"] if fine_tune else []
    _study(asked, problem, asked.fit_command(str(data), *flags(options), *tuned))


def _study(asked: Asked, problem: Callable[[], Problem], command: list[str]) -> None:
    """Run the study and print its outcome, with the command that fits with it."""
    bar = TrialBar()
    try:
        found = tune(problem(), asked.folder, asked.trials, asked.seed, bar)
    except KeyboardInterrupt:
        bar.end()
        stderr.print(
            f"interrupted; finished trials are kept in {asked.folder}. Continue with the same command.",
            highlight=False,
            markup=False,
        )
        raise typer.Exit(130) from None
    finally:
        bar.end()
    fit = shlex.join([*command, *flags(found["settings"]), "--out", str(asked.folder / "run")])
    if asked.as_json:
        print_json(found | {"study": str(asked.folder), "command": fit})
        return
    say(_told(found))
    say(f"fit with: {fit}")


def _told(found: dict[str, Any]) -> str:
    others = [
        f"{found[name]} {words}" for name, words in (("pruned", "cut short"), ("refused", "refused")) if found[name]
    ]
    trials = f"{found['trials']} trials" + (f" ({', '.join(others)})" if others else "")
    if found["start"] is None:
        return f"best of {trials}: validation score {found['score']:.4f}"
    if found["score"] == found["start"]:
        return f"no settings of {trials} beat the default ones: validation score {found['score']:.4f}"
    return f"best of {trials}: validation score {found['score']:.4f}, with the default settings {found['start']:.4f}"


def flags(settings: dict[str, Any]) -> list[str]:
    """Settings as options of the command line."""
    words: list[str] = []
    for name, value in settings.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None:
            words += [f"--{flag}", str(value)]
    return words
