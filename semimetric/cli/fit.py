"""``semimetric fit``: a method on a user's own data, or on a benchmark."""

from __future__ import annotations

import csv
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
)
from semimetric.cli.options import Components, ConfigFile, HelpAll, with_settings
from semimetric.cli.outcome import report
from semimetric.cli.ranks import Devices, Nodes, Ranks, Rendezvous, working_together
from semimetric.core.errors import InputError
from semimetric.core.threads import bound_threads
from semimetric.core.toml import as_toml
from semimetric.methods.registry import METHODS

if TYPE_CHECKING:
    from semimetric.data.schema import Schema
    from semimetric.pipeline.own import OwnRequest

Method = Annotated[str, typer.Option(help="Method; 'semimetric methods' lists them.")]
Dataset = Annotated[
    str | None,
    typer.Option(
        help="Benchmark in place of DATA; 'semimetric datasets' lists them. (Default digits.)", show_default=False
    ),
]
Labels = Annotated[
    Path | None,
    typer.Option(
        help="CSV file with the labels of photographs (columns path and label), or the label book of a run.",
        rich_help_panel="Own data",
    ),
]
LabelColumn = Annotated[
    str | None, typer.Option(help="Column with the labels; empty is unlabelled.", rich_help_panel="Own data")
]
IdColumn = Annotated[str | None, typer.Option(help="Column with the names of the rows.", rich_help_panel="Own data")]
Drop = Annotated[
    list[str] | None, typer.Option(help="Columns of a table to leave out: A,B.", rich_help_panel="Own data")
]
Columns = Annotated[
    list[str] | None, typer.Option(help="The only columns of a table to use: A,B.", rich_help_panel="Own data")
]
Types = Annotated[
    list[str] | None,
    typer.Option(
        help="Types of columns, where they are not recognised: A=numeric,B=categorical,C=text.",
        rich_help_panel="Own data",
    ),
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Refuse labels that look like mistakes: names spelt alike, one photograph in two classes, and the like.",
        rich_help_panel="Own data",
    ),
]
FineTune = Annotated[
    bool, typer.Option("--fine-tune", help="Train the pretrained network itself.", rich_help_panel="Own data")
]
From = Annotated[
    Path | None,
    typer.Option(
        "--from",
        help="Run to start from, after labels or examples were added: its settings hold, and an eighth of the epochs.",
        rich_help_panel="Own data",
    ),
]
Threads = Annotated[
    int | None, typer.Option(min=1, callback=bound_threads, help="Most CPU threads; on a busy machine 1 is faster.")
]
OwnSource = Annotated[
    Path | None,
    typer.Argument(
        help="Your own data: a folder of photographs with a sub-folder for each class, a table (.csv, .tsv, .npz, "
        ".npy, .parquet), or shards of photographs (.tar, .parquet, or a folder of them). Without it: the benchmark "
        "that --dataset names.",
        show_default=False,
    ),
]


@dataclass(frozen=True)
class Job:
    """What ``fit`` and ``tune`` share: the method with the settings that the user gave, and where results go."""

    method: str
    seed: int
    device: str
    settings: dict[str, Any]
    out: Path | None
    as_json: bool
    quiet: bool = False
    verbose: bool = False

    def folder(self) -> Path:
        """The folder ``--out``, which must be given."""
        if self.out is None:
            raise InputError("--out is missing: name a folder.")
        return self.out

    def benchmark(self, dataset: str | None) -> str:
        """The benchmark that is asked for, or the default one, which is told."""
        if dataset is None and not self.quiet:
            print_beside("neither DATA nor --dataset is given, so the data are the benchmark digits")
        return dataset or "digits"

    def request(self, fine_tune: bool, from_run: Path | None = None) -> OwnRequest:
        """What is asked for of the user's own data; settings that fit no data are refused."""
        from semimetric.pipeline.own import OwnRequest
        from semimetric.pipeline.warm import read_start

        start = None if from_run is None else read_start(from_run)
        request = OwnRequest(self.method, self.seed, self.device, fine_tune, self.settings, start)
        request.check()
        return request


@with_settings
def fit(
    data: OwnSource = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for the run; new or empty, unless --resume.")
    ] = None,
    dataset: Dataset = None,
    method: Method = "consensus",
    preset: Annotated[str, typer.Option(help="Settings of a benchmark to start from: default or paper.")] = "default",
    labels: Labels = None,
    label_column: LabelColumn = None,
    id_column: IdColumn = None,
    drop: Drop = None,
    columns: Columns = None,
    types: Types = None,
    strict: Strict = False,
    from_run: From = None,
    fine_tune: FineTune = False,
    components: Components = None,
    seed: Annotated[int, typer.Option(help="Seed of split, weights, partitions and batches.")] = 0,
    device: Device = "auto",
    no_cache: NoCache = False,
    devices: Devices = 1,
    nodes: Nodes = 1,
    rendezvous: Rendezvous = "",
    threads: Threads = None,
    data_dir: DataDir = None,
    resume: Annotated[bool, typer.Option(help="Continue the run in --out; where there is none, start it.")] = False,
    config: ConfigFile = None,
    show_settings: Annotated[
        bool, typer.Option("--show-settings", help="Print all settings in force as TOML (--json: as JSON), and exit.")
    ] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
    help_all: HelpAll = False,
    **settings: Any,
) -> None:
    """Train a method on your own data, or on a benchmark, whose test set is scored before and after."""
    job = Job(method, seed, device, given_settings(method, settings, components), out, as_json, quiet, verbose)
    ranks = Ranks(devices, nodes, rendezvous)
    if ranks.to_start() and not show_settings:
        raise typer.Exit(ranks.start())
    with working_together(device):
        if data is not None:
            check_data(data)
            refuse_for_benchmarks(job.settings, dataset=dataset, preset=preset != "default", data_dir=data_dir)
            named, request = (label_column, id_column), job.request(fine_tune, from_run)
            if not show_settings:
                from semimetric.pipeline.config import check_place

                check_place(job.folder(), resume)
            schema = None if request.start is None else request.start.schema
            collection = read_own_data(data, labels, *named, drop, columns, types, schema)
            _fit_own(job, request, collection, data, named, strict, resume, show_settings)
        else:
            refuse_for_own_data(labels, label_column, id_column, drop, columns, types, strict, fine_tune, from_run)
            _fit_benchmark(job, job.benchmark(dataset), preset, data_dir, resume, show_settings)


def given_settings(method: str, settings: dict[str, Any], components: int | None) -> dict[str, Any]:
    """The settings that the user gave, for a method that is known."""
    METHODS.check(method)
    return {name: value for name, value in (settings | {"components": components}).items() if value is not None}


def refuse_for_own_data(*given: object) -> None:
    """Refuse options that mean nothing for a benchmark."""
    if any(given):
        raise InputError(
            "--labels, --label-column, --id-column, --drop, --columns, --types, --strict, --fine-tune and --from are "
            "for data of your own. Name its folder or table, or leave them out."
        )


def refuse_for_benchmarks(given: dict[str, Any], **others: object) -> None:
    """Refuse options that mean nothing for data of one's own."""
    from semimetric.pipeline.plan import refuse_benchmark_settings, refuse_for_own

    def flag(name: str) -> str:
        return "--" + name.replace("_", "-")

    for name in (name for name, value in others.items() if value):
        refuse_for_own(name, flag)
    refuse_benchmark_settings(given, flag)


def check_data(data: Path) -> None:
    """Refuse data that is not there, before torch is imported; it may be the name of a benchmark."""
    from semimetric.data.benchmarks.registry import dataset_names
    from semimetric.data.readers.read import check_there

    if str(data) in dataset_names() and not data.exists():
        raise InputError(f"there is no folder or file {data}; for the benchmark say: --dataset {data}")
    check_there(data)


def read_own_data(
    data: Path,
    labels: Path | None,
    label_column: str | None,
    id_column: str | None,
    drop: list[str] | None,
    columns: list[str] | None,
    types: list[str] | None,
    schema: Schema | None = None,
) -> Any:
    """The collection in a folder or table.

    With a ``schema`` the columns of a table become features as those of an earlier one.
    """
    from semimetric.data.columns import ColumnChoice
    from semimetric.data.readers.read import read_collection

    pairs = [entry.rpartition("=")[::2] for entry in _names_in(types)]
    if any(not name for name, _ in pairs):
        raise InputError(f"--types must be NAME=TYPE, with numeric, categorical or text, got {', '.join(types or ())}.")
    kinds: Any = {name.strip(): kind.strip() for name, kind in pairs}
    choice = ColumnChoice(_names_in(drop), _names_in(columns), kinds)
    return read_collection(data, labels, label_column, id_column, choice, schema)


def _names_in(given: list[str] | None) -> tuple[str, ...]:
    """Names that commas separate, in one option or several; a name with commas is written in quotation marks."""
    return tuple(name.strip() for row in csv.reader(given or (), skipinitialspace=True) for name in row if name.strip())


def _fit_own(
    job: Job,
    request: OwnRequest,
    collection: Any,
    data: Path,
    columns: tuple[str | None, str | None],
    strict: bool,
    resume: bool,
    show_settings: bool,
) -> None:
    """Say what was found, fit it, and say what came out."""
    from semimetric.data.doubts import with_doubts
    from semimetric.pipeline.config import check_place
    from semimetric.pipeline.own import config_before, fit_own

    if not show_settings:
        check_place(job.folder(), resume, lambda: config_before(request, collection, data, job.folder()))
    collection = with_doubts(collection, strict)
    if show_settings:
        _print_settings(request.plan(collection), job.as_json)
        return
    out = job.folder()
    if not job.as_json:
        say(collection.summary())
    with showing_progress(lambda: _how_to_continue(out), job.quiet, job.verbose) as progress:

        def tell_damaged(kept: Any) -> None:
            if not job.as_json and len(kept) < len(collection):
                progress.end()
                lost = len(collection) - len(kept)
                say(f"{lost} of these cannot be decoded. What remains:\n{kept.summary(told=collection)}")

        outcome = fit_own(request, collection, data, out, resume, progress, tell_damaged, columns)
    report(outcome, out, job.as_json)


def _fit_benchmark(
    job: Job, dataset: str, preset: str, data_dir: Path | None, resume: bool, show_settings: bool
) -> None:
    from semimetric.encoders.registry import takes_photographs
    from semimetric.pipeline.benchmark import fit_benchmark
    from semimetric.pipeline.resolve import resolve_benchmark
    from semimetric.training.device import choose_device

    plan = resolve_benchmark(dataset, job.method, job.seed, preset, **job.settings)
    if show_settings:
        _print_settings(plan, job.as_json)
        return
    out = job.folder()
    with showing_progress(lambda: _how_to_continue(out), job.quiet, job.verbose) as progress:
        if takes_photographs(plan.network.encoder) and choose_device(job.device).type == "cpu":
            progress.warn(
                f"{plan.network.encoder} itself is trained here, which takes hours on a CPU. With --backbone a network "
                "stays frozen, and a small model of its features is trained."
            )
        if not job.quiet and plan.split is not None:
            epochs = "1 epoch" if plan.training.epochs == 1 else f"{plan.training.epochs} epochs"
            print_beside(
                f"{job.method} on {dataset}: {plan.split.labels_per_class} labels per class, {epochs}, "
                f"lr {plan.training.lr:g}; --show-settings prints all settings"
            )
        outcome = fit_benchmark(plan, out, data_dir, job.device, resume, progress)
    report(outcome, out, job.as_json)


def _print_settings(plan: Any, as_json: bool) -> None:
    if as_json:
        print_json(plan.as_dict())
    else:
        sys.stdout.write(as_toml(plan.as_options()))


def _how_to_continue(out: Path) -> str:
    begun = (out / "config.json").exists()
    return "continue with the same command and --resume" if begun else "no run is written yet"
