"""``semimetric evaluate``: the scores of a run on labelled examples, or on the test set of its benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from semimetric.cli.console import (
    AsJson,
    DataDir,
    Device,
    NoCache,
    Quiet,
    RunFolder,
    Verbose,
    counted,
    print_json,
    print_table,
    say,
    showing_progress,
    stderr,
    stdout,
)
from semimetric.cli.runs import IdColumn, LabelColumn, LabelFile, load
from semimetric.core.errors import InputError
from semimetric.core.files import check_outputs
from semimetric.reporting.tables import evaluation_table, score_table

SHOWN = 10
"""Mistakes, and pairs of confused classes, that the terminal shows; --json and --out have all."""

WIDEST_CONFUSION = 12
"""Classes, at most, whose confusion the terminal shows as a table."""

FILES = ("scores.json", "confusion.csv", "mistakes.csv", "confusion.png", "confusion.svg")

ScoresFolder = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        help=f"Folder for {', '.join(FILES)}; made if it is not there. Of a run without labels: scores.json alone.",
    ),
]
Weights = Annotated[Path | None, typer.Option(help="Benchmark: file with the weights of the run's backbone.")]
Descriptors = Annotated[Path | None, typer.Option(help="Benchmark: cache file for the features of the backbone.")]


def evaluate(
    run: RunFolder,
    data: Annotated[
        Path | None,
        typer.Argument(
            help="Labelled examples: a folder with a sub-folder for each class, a table with a column of labels, or "
            "shards with labels. Without them: the test set of the run's benchmark.",
            show_default=False,
        ),
    ] = None,
    labels: LabelFile = None,
    label_column: LabelColumn = None,
    id_column: IdColumn = None,
    out: ScoresFolder = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace files in --out.")] = False,
    components: Annotated[
        int | None,
        typer.Option(help="Benchmark: keep this many dimensions of the metric, those of its largest eigenvalues."),
    ] = None,
    weights: Weights = None,
    descriptors: Descriptors = None,
    device: Device = "auto",
    no_cache: NoCache = False,
    data_dir: DataDir = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Score a run on labelled examples, beside its inputs alone, or on the test set of its benchmark."""
    if data is None:
        if labels or label_column or id_column or out:
            raise InputError("--labels, --label-column, --id-column and --out need DATA. Name labelled examples.")
        from semimetric.pipeline.benchmark import evaluate_run

        with showing_progress(quiet=quiet, verbose=verbose) as progress:
            outcome = evaluate_run(run, data_dir, device, components, progress, weights, descriptors)
        _print_benchmark(outcome, as_json)
        return
    _refuse_for_data(components, data_dir, weights, descriptors)
    if out is not None:
        check_outputs(out, FILES, replace)
    from semimetric.serve.embed import new_examples
    from semimetric.serve.evaluate import evaluate_collection

    with showing_progress(quiet=quiet, verbose=verbose) as progress:
        loaded = load(run, device)
        examples = new_examples(loaded, data, label_column, id_column, progress, labels)
        found = evaluate_collection(loaded, examples, progress)
    written = [] if out is None else _write(found, out)
    if as_json:
        print_json(found.as_dict() | {"files": [str(path) for path in written]})
        return
    _print_evaluation(found, loaded.fitted.spec)
    for path in written:
        say(f"written: {path}")


def _refuse_for_data(*given: object) -> None:
    """Refuse options that mean nothing for examples of one's own."""
    if any(value is not None for value in given):
        raise InputError(
            "--components, --weights, --descriptors and --data-dir are for the test set of a benchmark. Leave them or "
            "DATA out."
        )


def _write(found: Any, out: Path) -> list[Path]:
    """Write the scores, the confusion and the mistakes; pictures where the extra ``figures`` is installed."""
    from importlib.util import find_spec

    from semimetric.core.files import write_json
    from semimetric.serve.csv_file import write_table

    out.mkdir(exist_ok=True)
    write_json(out / "scores.json", found.as_dict())
    if not found.predicted:
        for name in FILES[1:]:
            (out / name).unlink(missing_ok=True)  # of another run, with --replace
        return [out / "scores.json"]
    rows = [[true, *counts] for true, counts in zip(found.classes, found.confusion.tolist(), strict=True)]
    write_table(out / "confusion.csv", ["class", *found.predicted], rows)
    mistakes = [
        [line.name, line.label, line.predicted, round(line.probability, 6), round(line.label_probability, 6)]
        for line in found.mistakes
    ]
    header = ["name", "label", "predicted", "probability", "label_probability"]
    write_table(out / "mistakes.csv", header, mistakes)
    written = [out / name for name in FILES[:3]]
    if find_spec("matplotlib") is None:
        stderr.print("no picture of the confusion: it needs pip install 'semimetric[figures]'", markup=False)
        return written
    from semimetric.reporting.canvas import write_figure
    from semimetric.reporting.plots import plot_confusion

    names = (*found.predicted, *found.unknown)
    pairs = [
        (names.index(true), column)
        for true, counts in zip(found.classes, found.confusion.tolist(), strict=True)
        for column, count in enumerate(counts)
        for _ in range(count)
    ]
    truth, predicted = zip(*pairs, strict=True)
    return written + write_figure(plot_confusion(truth, predicted, names), out / "confusion")


def _print_evaluation(found: Any, spec: Any) -> None:
    headings, rows = evaluation_table(found.scores, spec)
    if rows:
        print_table(headings, rows)
    say(f"{counted(found.examples, 'labelled example')} of {len(found.classes)} classes")
    for note in found.notes:
        say(f"note: {note}")
    _print_confusion(found)
    if found.mistakes:
        shown = ((line.name, line.label, line.predicted, f"{line.probability:.2f}") for line in found.mistakes[:SHOWN])
        print_table(("worst mistakes", "class", "predicted", "probability"), shown)


def _print_confusion(found: Any) -> None:
    """All counts of a few classes; of many, the pairs that are confused most."""
    if not found.predicted:
        return
    if max(found.confusion.shape) <= WIDEST_CONFUSION:
        rows = [
            (true, *(str(count) if count else "." for count in counts))
            for true, counts in zip(found.classes, found.confusion.tolist(), strict=True)
        ]
        print_table(("class \\ predicted", *found.predicted), rows)
        return
    pairs = [(true, named, str(count)) for true, named, count in found.confusions()[:SHOWN]]
    if pairs:
        print_table(("confused: class", "predicted", "examples"), pairs)


def _print_benchmark(outcome: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(outcome)
        return
    title = f"{outcome['method']} on {outcome['dataset']}, seed {outcome['seed']}: test set, per cent"
    row = f"Epoch {outcome['epoch']}, {outcome['components']} dimensions"
    stdout.print(score_table({row: outcome["scores"]}, title))
