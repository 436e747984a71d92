"""``semimetric tune``: a study on the terminal, and the command line that its best settings make."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from semimetric.cli.console import (
    AsJson,
    DataDir,
    Device,
    NoCache,
    Quiet,
    Verbose,
    print_beside,
    print_json,
    say,
    showing_progress,
    stderr,
)
from semimetric.cli.entry import INTERRUPTED, tell_interrupted
from semimetric.cli.fit import (
    Columns,
    Dataset,
    Drop,
    FineTune,
    IdColumn,
    Job,
    LabelColumn,
    Labels,
    Method,
    OwnSource,
    Strict,
    Threads,
    Types,
    check_data,
    given_settings,
    read_own_data,
    refuse_for_benchmarks,
    refuse_for_own_data,
)
from semimetric.cli.options import Components, ConfigFile, HelpAll, with_settings
from semimetric.pipeline.study_folder import check_study
from semimetric.reporting.terminal import visible
from semimetric.training.progress import SECONDS_BETWEEN, Lines

if TYPE_CHECKING:
    from semimetric.pipeline.own import OwnRequest


class TrialBar:
    """A progress bar over trials, with the score of the last epoch and the best so far; lines when piped."""

    def __init__(self, quiet: bool = False, verbose: bool = False) -> None:
        often = inf if quiet or stderr.is_terminal else SECONDS_BETWEEN
        self._lines = Lines(print_beside, often, verbose)
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            console=stderr,
            disable=quiet or not stderr.is_terminal,
            transient=True,
        )
        self._task = self._bar.add_task("", total=None, note="")
        self._best = self._trial = ""

    def trial(self, number: int, trials: int, best: float | None) -> None:
        """Show that a trial begins."""
        self._best = "" if best is None else f"best so far {best:.4f}"
        self._trial = f"trial {number} of {trials}"
        self._lines.stage(" ".join([self._trial, self._best]).strip())
        self._bar.update(self._task, description=self._trial, completed=number - 1, total=trials, note=self._best)
        self._bar.start()

    def epoch(self, epoch: int, score: float) -> None:
        """Show how an epoch scored."""
        note = f"epoch {epoch}: {score:.4f}  {self._best}"
        self._lines.stage(f"{self._trial}, {note}")
        self._bar.update(self._task, note=note)

    def end(self) -> None:
        """Take the bar away."""
        self._bar.stop()


@with_settings
def tune(
    data: OwnSource = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for the study; one that is there is continued.")
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="Finished trials in all, earlier ones included.")] = 30,
    dataset: Dataset = None,
    method: Method = "consensus",
    labels: Labels = None,
    label_column: LabelColumn = None,
    id_column: IdColumn = None,
    drop: Drop = None,
    columns: Columns = None,
    types: Types = None,
    strict: Strict = False,
    fine_tune: FineTune = False,
    components: Components = None,
    seed: Annotated[int, typer.Option(help="Seed of the study, and of every trial.")] = 0,
    device: Device = "auto",
    no_cache: NoCache = False,
    threads: Threads = None,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
    help_all: HelpAll = False,
    **settings: Any,
) -> None:
    """Choose settings on validation data; given ones stay fixed. An interrupted study continues."""
    job = Job(method, seed, device, given_settings(method, settings, components), out, as_json, quiet, verbose)
    about = {"method": method, "seed": seed, "given": job.settings}
    check_study(job.folder(), about | ({"dataset": dataset or "digits"} if data is None else {}))
    if data is None:
        refuse_for_own_data(labels, label_column, id_column, drop, columns, types, strict, fine_tune)
        _tune_benchmark(job, job.benchmark(dataset), data_dir, trials)
    else:
        from semimetric.data.doubts import with_doubts

        check_data(data)
        refuse_for_benchmarks(job.settings, dataset=dataset, data_dir=data_dir)
        request = job.request(fine_tune)
        options: dict[str, Any] = {"labels": labels, "label_column": label_column, "id_column": id_column}
        collection = read_own_data(data, labels, label_column, id_column, drop, columns, types)
        lists = {"drop": drop, "columns": columns, "types": types}
        options |= {name: ",".join(given) for name, given in lists.items() if given}
        _tune_own(job, request, with_doubts(collection, strict), data, options, trials)


def _tune_benchmark(job: Job, dataset: str, data_dir: Path | None, trials: int) -> None:
    from semimetric.pipeline.tuning import benchmark_problem
    from semimetric.training.device import choose_device

    def problem() -> Any:
        device = choose_device(job.device)
        with showing_progress(quiet=job.quiet, verbose=job.verbose) as progress:
            return benchmark_problem(dataset, job.method, job.seed, job.settings, device, data_dir, progress)

    _study(job, problem, trials, *flags({"dataset": dataset, "data_dir": data_dir}))


def _tune_own(job: Job, request: OwnRequest, collection: Any, data: Path, options: dict[str, Any], trials: int) -> None:
    from semimetric.pipeline.own import read_own
    from semimetric.pipeline.tuning import own_problem
    from semimetric.training.device import choose_device

    def problem() -> Any:
        with showing_progress(quiet=job.quiet, verbose=job.verbose) as progress:
            own = read_own(request, collection, data, progress=None if job.as_json else progress)
        return own_problem(request, own, choose_device(job.device))

    _study(job, problem, trials, str(data), *flags(options), *(["--fine-tune"] if request.fine_tune else []))


def _study(job: Job, problem: Callable[[], Any], trials: int, *source: str) -> None:
    """Run the study and print its outcome, with the command that fits with it."""
    from semimetric.pipeline.study import run_study

    bar, folder = TrialBar(job.quiet, job.verbose), job.folder()
    try:
        found = run_study(problem(), folder, trials, job.seed, bar)
    except KeyboardInterrupt:
        bar.end()
        tell_interrupted(f"finished trials are kept in {visible(str(folder))}. Continue with the same command.")
        raise typer.Exit(INTERRUPTED) from None
    finally:
        bar.end()
    chosen = flags({"method": job.method, "seed": job.seed} | job.settings | found["settings"])
    fit = shlex.join(["semimetric", "fit", *source, *chosen, "--out", str(folder / "run")])
    if job.as_json:
        print_json(found | {"study": str(folder), "command": fit})
        return
    say(_told(found))
    say(f"fit with: {fit}")


def _told(found: dict[str, Any]) -> str:
    """The scores with their standard errors, and whether the default settings are kept."""
    others = [
        f"{found[name]} {words}" for name, words in (("pruned", "cut short"), ("refused", "refused")) if found[name]
    ]
    trials = f"{found['trials']} trials" + (f" ({', '.join(others)})" if others else "")
    score = f"validation score {_with_error(found['score'], found['error'])}"
    if found["start"] is None:
        return f"best of {trials}: {score}"
    if found["best"] == found["start"]:
        return f"no settings of {trials} beat the default ones: {score}"
    gain = f"gain of {_with_error(found['gain'], found['gain_error'])}"
    if found["score"] == found["start"]:
        return (
            f"the default settings are kept: {score}. The best of {trials} scores {found['best']:.4f}, and a {gain} is "
            "not beyond two standard errors. More labels would tell."
        )
    return f"best of {trials}: {score}, with the default settings {found['start']:.4f}: a {gain} (standard error)"


def _with_error(value: float, error: float | None) -> str:
    return f"{value:.4f}" + ("" if error is None else f" ± {error:.4f}")


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
