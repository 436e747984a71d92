"""``semimetric evaluate``: the test scores of a run on a benchmark."""

from __future__ import annotations

from typing import Annotated

import typer

from semimetric.cli.console import (
    AsJson,
    DataDir,
    Device,
    NoCache,
    Quiet,
    RunFolder,
    Verbose,
    print_json,
    showing_progress,
    stdout,
)


def evaluate(
    run: RunFolder,
    components: Annotated[
        int | None, typer.Option(help="Keep this many dimensions of the metric, those of its largest eigenvalues.")
    ] = None,
    device: Device = "auto",
    no_cache: NoCache = False,
    data_dir: DataDir = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Score the best model of a run on the test set of its dataset."""
    from semimetric.pipeline.benchmark import evaluate_run
    from semimetric.reporting.tables import score_table

    with showing_progress(quiet=quiet, verbose=verbose) as progress:
        outcome = evaluate_run(run, data_dir, device, components, progress)
    if as_json:
        print_json(outcome)
        return
    title = f"{outcome['method']} on {outcome['dataset']}, seed {outcome['seed']}: test set, per cent"
    row = f"Epoch {outcome['epoch']}, {outcome['components']} dimensions"
    stdout.print(score_table({row: outcome["scores"]}, title))
