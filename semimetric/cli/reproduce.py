"""``semimetric reproduce``: the paper's tables and figures, ours beside the paper's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from semimetric.cli.console import (
    AsJson,
    DataDir,
    Device,
    Quiet,
    Verbose,
    counted,
    print_json,
    say,
    showing_progress,
    stdout,
)
from semimetric.core.checks import check_choice
from semimetric.core.errors import InputError
from semimetric.core.threads import bound_threads

if TYPE_CHECKING:
    from semimetric.paper.records import Reuse

Targets = Annotated[
    list[str],
    typer.Argument(
        help="stages, table1, table2, table3, table4, table5, alpha, convergence, tsne, retrieval, sweep, complexity, "
        "or all.",
        show_default=False,
    ),
]

Workers = Annotated[
    int | None, typer.Option(min=1, help="Fits side by side. (Default: 6 on a GPU, 1 on a CPU.)", show_default=False)
]


def reproduce(
    targets: Targets,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Folder for results, tables and figures; what it holds is reused. (Default reproduction, with --quick "
            "reproduction-quick.)",
            show_default=False,
        ),
    ] = None,
    datasets: Annotated[str, typer.Option(help="Only these datasets, separated by commas.", show_default=False)] = "",
    methods: Annotated[str, typer.Option(help="Only rows of these methods.", show_default=False)] = "",
    seeds: Annotated[
        str,
        typer.Option(help="Seeds, such as 0,1,2. (Default: three on photographs, five elsewhere.)", show_default=False),
    ] = "",
    quick: Annotated[bool, typer.Option("--quick", help="Digits, one seed, one epoch: does everything run?")] = False,
    weights: Annotated[
        Path | None, typer.Option(help="File with the weights of GoogLeNet, for photographs.", show_default=False)
    ] = None,
    device: Device = "auto",
    workers: Workers = None,
    threads: Annotated[int, typer.Option(min=1, callback=bound_threads, help="CPU threads of each fit.")] = 1,
    reuse: Annotated[
        str, typer.Option(help="Results to reuse: same-code, any-code (of other versions, too) or none.")
    ] = "same-code",
    photographs: Annotated[
        bool, typer.Option(help="Show photographs in the figure of retrieved examples, or name their classes.")
    ] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the fits that would run, and exit.")] = False,
    no_run: Annotated[
        bool, typer.Option("--no-run", help="Write tables and figures of the results in --out alone, of any version.")
    ] = False,
    data_dir: DataDir = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Repeat tables and figures of the paper: run what is missing, and show ours beside the paper's."""
    check_choice(reuse, ("same-code", "any-code", "none"), "reuse")
    from semimetric.paper.request import Request

    request = Request(tuple(targets), _words(datasets), _words(methods), _numbers(seeds), quick)
    from semimetric.paper.reproduce import plan_of, write_found
    from semimetric.paper.reproduce import reproduce as run
    from semimetric.paper.work import Place

    out = out or Path("reproduction-quick" if quick else "reproduction")
    place, chosen = Place(out, data_dir, weights, device, threads, photographs), cast("Reuse", reuse)
    if dry_run:
        _show_plan(plan_of(request, place, chosen), as_json)
        return
    with showing_progress(lambda: f"the same command goes on from what is in {out}", quiet, verbose) as progress:
        found = write_found(request, place, progress) if no_run else run(request, place, chosen, workers, progress)
    if no_run and not found.files:
        raise InputError(f"{out} holds no results of what is asked for. Leave --no-run out to run it.")
    _report(found, as_json)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in _words(text))
    except ValueError as error:
        raise InputError(f"--seeds must be whole numbers separated by commas, such as 0,1,2, got {text!r}.") from error


def _show_plan(grid: Any, as_json: bool) -> None:
    commands = [grid.cells[number].command() for number in grid.missing]
    if as_json:
        print_json({"found": len(grid.found), "missing": commands})
        return
    say(f"{counted(len(grid.found), 'result')} found, {counted(len(commands), 'fit')} to run.")
    for command in commands:
        say(command)


def _report(outcome: Any, as_json: bool) -> None:
    """Print the tables, and where everything is."""
    from semimetric.paper.tables import as_markdown

    if as_json:
        files = [str(path) for path in outcome.files]
        print_json({"files": files, "failed": outcome.failed, "ran": outcome.ran, "reused": outcome.reused})
    else:
        for name, lines in outcome.tables.items():
            say(f"{name}\n{as_markdown(lines) if lines else 'no results'}")
        say(f"{counted(outcome.ran, 'fit')} run, {counted(outcome.reused, 'result')} reused.")
        for path in outcome.files:
            say(str(path))
        for name, reason in outcome.failed.items():
            stdout.print(f"failed: {name}: {reason}", markup=False, highlight=False)
    if outcome.failed:
        raise typer.Exit(1)
