"""The command line: ``semimetric``, all its commands, and of them ``fit``, ``evaluate``, ``methods``, ``datasets``."""

from __future__ import annotations

import json
import re
import sys
import warnings
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.markup import escape
from rich.progress import Progress, TaskID
from rich.table import Table
from rich.text import Text

import semimetric
from semimetric.cli import runs
from semimetric.cli.console import AsJson, DataDir, Device, print_json, show_warning, stderr, stdout
from semimetric.cli.options import settings_options, with_options
from semimetric.cli.own import fit_own, own_estimator, refuse_of_benchmarks
from semimetric.core.errors import InputError, SemimetricError
from semimetric.encoders import takes_photographs
from semimetric.methods import METHODS
from semimetric.pipeline.experiment import evaluate_run, plan, run_experiment
from semimetric.pipeline.presets import preset_names
from semimetric.pipeline.protocol import ProtocolSettings
from semimetric.reporting.progress import RichProgress
from semimetric.reporting.tables import score_table
from semimetric.training import PretrainSettings, Run, TrainingSettings, choose_device

app = typer.Typer(
    help="Semi-supervised deep metric learning: an embedding from a few labels and many unlabelled examples.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
datasets_app = typer.Typer(help="List the benchmark datasets, or fetch one.", invoke_without_command=True)
app.add_typer(datasets_app, name="datasets")
for _command in (runs.embed, runs.predict, runs.search, runs.index, runs.suggest, runs.export):
    app.command()(_command)

Dataset = Annotated[
    str | None,
    typer.Option(help="Benchmark dataset; 'semimetric datasets' lists them. (Default digits.)", show_default=False),
]
Labels = Annotated[
    Path | None,
    typer.Option(help="CSV file with the labels of photographs, columns path and label.", rich_help_panel="Own data"),
]
LabelColumn = Annotated[
    str | None, typer.Option(help="Column with the labels; empty is unlabelled.", rich_help_panel="Own data")
]
IdColumn = Annotated[
    str | None, typer.Option(help="Column with the names of a table's rows.", rich_help_panel="Own data")
]
FineTune = Annotated[
    bool, typer.Option("--fine-tune", help="Train the pretrained network itself.", rich_help_panel="Own data")
]
Threads = Annotated[
    int | None, typer.Option(min=1, help="CPU threads of torch; on a busy machine 1 can be several times faster.")
]

_FIT_OPTIONS = settings_options(
    [
        ("Protocol", ProtocolSettings),
        ("Training", TrainingSettings),
        ("Softmax training beforehand", PretrainSettings),
        *((f"Method {name}", kind.Settings) for name, kind in METHODS.items()),
    ]
)


@app.command()
@with_options(_FIT_OPTIONS)
def fit(
    data: Annotated[
        Path | None,
        typer.Argument(
            help="Your own data: a folder of photographs, with a sub-folder for each class, or a table (.npz, .npy, "
            ".csv, .parquet); without it a benchmark dataset.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for the run; new or empty, unless --resume.")
    ] = None,
    dataset: Dataset = None,
    method: Annotated[str, typer.Option(help="Method; 'semimetric methods' lists them.")] = "consensus",
    preset: Annotated[str, typer.Option(help=f"Settings to start from: {', '.join(preset_names())}.")] = "default",
    labels: Labels = None,
    label_column: LabelColumn = None,
    id_column: IdColumn = None,
    fine_tune: FineTune = False,
    seed: Annotated[int, typer.Option(help="Seed of split, weights, partitions and batches.")] = 0,
    device: Device = "auto",
    threads: Threads = None,
    data_dir: DataDir = None,
    resume: Annotated[
        bool, typer.Option(help="Continue the run in --out where it stopped; where there is none, start it.")
    ] = False,
    show_settings: Annotated[
        bool, typer.Option("--show-settings", help="Print all settings in force, as JSON, and stop.")
    ] = False,
    as_json: AsJson = False,
    **settings: Any,
) -> None:
    """Train a method: on your own data, or on a benchmark dataset, whose test set is scored before and after."""
    if threads is not None:
        torch.set_num_threads(threads)
    given = {name: value for name, value in settings.items() if value is not None}
    if data is not None:
        other = None if preset == "default" else preset
        refuse_of_benchmarks(dataset=dataset, preset=other, data_dir=data_dir, show_settings=show_settings)
        estimator = own_estimator(method, seed, device, fine_tune, given)
        fit_own(estimator, data, _named(out), labels, label_column, id_column, resume, as_json)
        return
    _refuse_of_own_data(labels, label_column, id_column, fine_tune)
    dataset = dataset or "digits"
    experiment = plan(dataset, method, seed, preset, **given)
    if show_settings:
        sys.stdout.write(json.dumps(experiment.config(), indent=2) + "\n")
        return
    out = _named(out)
    progress = RichProgress(stderr)
    if takes_photographs(experiment.protocol.encoder) and choose_device(device).type == "cpu":
        progress.warn(
            f"{experiment.protocol.encoder} itself is trained here, which takes hours on a CPU. With --backbone a "
            "network stays as it is, and something small is learned from its descriptors."
        )
    if stderr.is_terminal:
        protocol, training = experiment.protocol, experiment.training
        stderr.print(
            f"{method} on {dataset}: {protocol.labels_per_class} labels per class, {training.epochs} epochs, "
            f"lr {training.lr:g}; all settings in {out / 'config.json'}",
            highlight=False,
            markup=False,
        )
    try:
        outcome = run_experiment(experiment, out, data_dir, device, resume, progress)
    except KeyboardInterrupt:
        begun = (out / "config.json").exists()
        kept = "continue with the same command and --resume" if begun else "nothing is kept yet"
        stderr.print(f"interrupted outside of training; {kept}", highlight=False)
        raise typer.Exit(130) from None
    finally:
        progress.end()
    _print_outcome(outcome, as_json)
    if outcome["interrupted"]:
        stderr.print(
            f"interrupted after epoch {outcome['epochs']}; the model that would be kept so far is in {out}. "
            "Continue with the same command and --resume.",
            highlight=False,
            markup=False,
        )
        raise typer.Exit(130)


def _refuse_of_own_data(labels: Path | None, label_column: str | None, id_column: str | None, fine_tune: bool) -> None:
    if labels or label_column or id_column or fine_tune:
        raise InputError(
            "--labels, --label-column, --id-column and --fine-tune are for data of your own. Name its folder or table, "
            "or leave them out."
        )


def _named(out: Path | None) -> Path:
    if out is None:
        raise InputError("--out is missing: name a folder for the run.")
    return out


@app.command()
@with_options(_FIT_OPTIONS)
def tune(
    data: Annotated[
        Path | None, typer.Argument(help="Your own data, as for fit; without it --dataset.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for the study; one that is there is continued.")
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="Finished trials in all, those of before among them.")] = 30,
    dataset: Dataset = None,
    method: Annotated[str, typer.Option(help="Method; 'semimetric methods' lists them.")] = "consensus",
    labels: Labels = None,
    label_column: LabelColumn = None,
    id_column: IdColumn = None,
    fine_tune: FineTune = False,
    seed: Annotated[int, typer.Option(help="Seed of the study, and of every trial.")] = 0,
    device: Device = "auto",
    threads: Threads = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
    **settings: Any,
) -> None:
    """Choose settings on validation data; those that are given stay as they are. Interrupted, the study continues."""
    from semimetric.cli.tune import Asked, tune_benchmark, tune_own

    if threads is not None:
        torch.set_num_threads(threads)
    given = {name: value for name, value in settings.items() if value is not None}
    asked = Asked(method, seed, device, given, _named(out), trials, as_json)
    if data is None:
        _refuse_of_own_data(labels, label_column, id_column, fine_tune)
        tune_benchmark(asked, dataset or "digits", data_dir)
    else:
        refuse_of_benchmarks(dataset=dataset, data_dir=data_dir)
        options = {"labels": labels, "label_column": label_column, "id_column": id_column}
        tune_own(asked, data, options, fine_tune)


def _print_outcome(outcome: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(outcome)
        return
    title = f"{outcome['method']} on {outcome['dataset']}, seed {outcome['seed']}: test set, per cent"
    title += f", {outcome['components']} dimensions"
    initial, final = outcome["initial"], outcome["final"]
    stdout.print(score_table({"Initial": initial, "Final": final}, title))
    if outcome["best_epoch"] == 0 < outcome["epochs"]:
        stdout.print("No epoch beat the start: the model before training is kept.", highlight=False)
    if all(final[name] < initial[name] for name in ("nmi", "recall@1")):
        stdout.print(
            f"Training made it worse. docs/methods/{outcome['method']}.md says when that happens; fewer or more epochs "
            "or another lr may help.",
            highlight=False,
        )
    if outcome["trust"]:
        trust = outcome["trust"]
        stdout.print(f"Pseudo-labels after epoch {trust['epoch']}: {trust['sentence']}", highlight=False)
    if outcome["guards"]:
        where = f"docs/methods/{outcome['method']}.md"
        stdout.print(f"guards at work (see {where}): {', '.join(outcome['guards'])}", highlight=False)
    if outcome["skipped"]:
        name, reason = next(iter(outcome["skipped_files"].items()))
        stdout.print(
            f"{outcome['skipped']} photographs are left out, the first {name} ({reason}); more in result.json",
            markup=False,
            highlight=False,
        )
    which = "last" if outcome["selection"] == "last" else "best"
    stdout.print(
        f"{which} epoch {outcome['best_epoch']} of {outcome['planned_epochs']}, {outcome['seconds']:.0f} s on "
        f"{outcome['device']}, run in {outcome['run']}",
        highlight=False,
        markup=False,
    )


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="Run folder, the --out of 'fit'.")],
    components: Annotated[
        int | None,
        typer.Option(
            help="Keep this many dimensions of the metric, those of its largest eigenvalues; all unless given."
        ),
    ] = None,
    device: Device = "auto",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Score the best model of a run on the test set of its dataset."""
    if "dataset" not in Run.open(run).config():
        raise InputError(f"{run} is of data of your own, which has no test set to score. Use 'semimetric predict'.")
    progress = RichProgress(stderr)
    try:
        outcome = evaluate_run(run, data_dir, device, components, progress)
    finally:
        progress.end()
    if as_json:
        print_json(outcome)
        return
    title = f"{outcome['method']} on {outcome['dataset']}, seed {outcome['seed']}: test set, per cent"
    row = f"Epoch {outcome['epoch']}, {outcome['components']} dimensions"
    stdout.print(score_table({row: outcome["scores"]}, title))


@app.command()
def methods(as_json: AsJson = False) -> None:
    """List the methods, what each needs and where it comes from."""
    rows = [
        {"name": name, "summary": kind.summary, "needs": kind.needs.words(), "reference": kind.reference}
        for name, kind in METHODS.items()
    ]
    _print_rows(rows, as_json)


@datasets_app.callback()
def datasets(context: typer.Context, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the benchmark datasets and where each was found."""
    if context.invoked_subcommand is not None:
        return
    from semimetric.data import describe_datasets

    listings = describe_datasets(data_dir)
    rows = [
        {
            "name": listing.name,
            "what": listing.summary,
            "train": listing.train_size,
            "test": listing.test_size,
            "classes": listing.classes,
            "shape": "x".join(map(str, listing.shape)),
            "found": listing.found,
            "missing": ", ".join(listing.missing),
        }
        for listing in listings
    ]
    _print_rows(rows, as_json)
    lacking = [listing for listing in listings if listing.found is None and not as_json]
    to_fetch = [listing.name for listing in lacking if listing.source is None]
    if to_fetch:
        names = ", ".join(to_fetch)
        stdout.print(f"Download a missing one ({names}) with: semimetric datasets fetch NAME", highlight=False)
    for listing in lacking:
        if listing.source is not None:
            stdout.print(f"Get {listing.name} yourself from {listing.source}", highlight=False)


@datasets_app.command()
def fetch(
    context: typer.Context, name: Annotated[str, typer.Argument(help="Dataset to download.")], data_dir: DataDir = None
) -> None:
    """Download a dataset, resuming where a download broke off, and check its SHA-256."""
    from semimetric.data import fetch_dataset

    if data_dir is None and context.parent is not None:
        data_dir = context.parent.params["data_dir"]
    tasks: dict[str, TaskID] = {}
    with Progress(console=stderr, disable=not stderr.is_terminal) as bar:

        def show(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = bar.add_task(file, total=total)
            bar.update(tasks[file], completed=done, total=total)

        folder = fetch_dataset(name, data_dir, show)
    stdout.print(f"{name}: {folder}", highlight=False, markup=False)


def _print_rows(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(rows) + "\n")
        return
    table = Table()
    for name in rows[0]:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(Text("not found" if value is None else str(value)) for value in row.values()))
    stdout.print(table, soft_wrap=False)


def _show_version(value: bool) -> None:
    if value:
        stdout.print(semimetric.__version__, highlight=False)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Version.")] = False,
) -> None:
    pass


def _with_flags(message: str) -> str:
    """Arguments of ``read_collection`` by the names that they have here."""
    return re.sub(r"\b(label|id)_column\b", r"--\1-column", message)


def main() -> None:
    """Run the command line; errors raised on purpose are one sentence, without a traceback, and so are warnings."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a file name may be no text
    try:
        with warnings.catch_warnings():
            warnings.showwarning = show_warning
            app()
    except SemimetricError as error:
        stderr.print(f"[red]error:[/red] {escape(_with_flags(str(error)))}", highlight=False)
        raise SystemExit(2) from error
    except OSError as error:
        stderr.print(f"[red]error:[/red] {escape(str(error))}. Check that path and its permissions.", highlight=False)
        raise SystemExit(2) from error
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "memory" not in str(error):
            raise
        reason = str(error).splitlines()[-1]
        stderr.print(
            f"[red]error:[/red] memory ran out: {escape(reason)} Take smaller batches, fewer examples or smaller "
            "settings.",
            highlight=False,
        )
        raise SystemExit(2) from error
