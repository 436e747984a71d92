"""``semimetric predict``: the classes of new examples."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from semimetric.cli.console import (
    AsJson,
    Device,
    NoCache,
    Quiet,
    RunFolder,
    Verbose,
    counted,
    print_beside,
    print_json,
    print_rows,
    say,
    showing_progress,
)
from semimetric.cli.outcome import tell_groups
from semimetric.cli.runs import IdColumn, LabelColumn, Raw, Replace, inputs_of, load, print_skipped
from semimetric.core.errors import InputError


def predict(
    run: RunFolder,
    data: Annotated[
        Path,
        typer.Argument(
            help="A photograph, a folder of them, a table (.csv, .tsv, .npz, .npy, .parquet), or shards of photographs "
            "(.tar, .parquet).",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="CSV file; without it the predictions are printed.")
    ] = None,
    risk: Annotated[
        str,
        typer.Option(
            help="Share of the examples of known classes that may lose their name so that examples of no known class "
            "get none; 0 or none names all."
        ),
    ] = "0.05",
    replace: Replace = False,
    raw: Raw = False,
    label_column: LabelColumn = None,
    id_column: IdColumn = None,
    device: Device = "auto",
    no_cache: NoCache = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Predict the classes of new examples from their nearest training examples. Some may get no name: see --risk."""
    from semimetric.serve.embed import examples_of
    from semimetric.serve.predict import COLUMNS, check_prediction, predict_collection, write_predictions

    lost = _risk(risk)
    if out is not None:
        check_prediction(out, inputs_of(data), replace)
    with showing_progress(quiet=quiet, verbose=verbose) as progress:
        loaded = load(run, device)
        examples = examples_of(loaded, data, label_column, id_column, progress)
        found = predict_collection(loaded, examples, lost, progress)
    if out is not None:
        write_predictions(found, out, raw)
    if as_json:
        facts = {"examples": found.named + len(found.unlike), "named": found.named, "new_groups": found.groups}
        facts |= {"risk": lost, "threshold": found.threshold}
        more = {"predictions": found.rows} if out is None else {"out": str(out)}
        print_json(facts | more | {"skipped": found.skipped})
        return
    if out is None:
        print_rows(list(COLUMNS), [[row[column] for column in COLUMNS] for row in found.rows], raw)
    _tell_predictions(found, out, lost)
    if any(label is not None for label in examples.labels):
        tell = say if out is not None else print_beside
        whose = "the sub-folders name classes" if data.is_dir() else "the table has labels"
        command = f"semimetric evaluate {shlex.quote(str(run))} {shlex.quote(str(data))}"
        tell(f"next: {whose}; score the run on them with: {command}")


def _risk(text: str) -> float:
    """The option --risk as a number."""
    try:
        risk = 0.0 if text.lower() == "none" else float(text)
    except ValueError:
        risk = -1.0
    if not 0 <= risk < 1:
        raise InputError(f"--risk must be a number from 0 to below 1, or none, got {text!r}.")
    return risk


def _tell_predictions(found: Any, out: Path | None, risk: float) -> None:
    """What was named and what was not: on standard output, or beside predictions on standard error."""
    tell = say if out is not None else print_beside
    if out is not None:
        tell(f"{counted(found.named + len(found.unlike), 'prediction')} written to {out}")
    if found.threshold is not None:
        count = len(found.unlike)
        who = (
            f"{counted(count, 'example')} {'looks' if count == 1 else 'look'} like no known class and got no name: the"
        )
        tell(
            f"{who if count else 'every example got a name: no'} score in the column unknown is above "
            f"{found.threshold:.3f} (--risk {risk:g}: about that share of the examples of known classes loses its "
            "name; --risk 0 names all)"
        )
    tell_groups(found.groups, tell)
    if risk and not found.judged:
        tell(
            "note: the run has no score of being of no known class, so all examples are named. It needs more labels, "
            "or a class was added to it after training: fit again."
        )
    print_skipped(found.skipped, tell)
