"""What the commands share: where they print, and the options that several of them have."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from rich.table import Table
from rich.text import Text

from semimetric.cli.entry import INTERRUPTED, tell_interrupted
from semimetric.reporting.progress import RichProgress
from semimetric.reporting.terminal import PlainConsole, marked, visible

stdout = PlainConsole(soft_wrap=True, width=None if sys.stdout.isatty() else 160)
stderr = PlainConsole(stderr=True, soft_wrap=True)

UNLIMITED = 1 << 20
"""Width of a table that is not for a terminal: long names are never cut."""

DataDir = Annotated[
    Path | None, typer.Option(help="Folder that holds benchmark data; else the one SEMIMETRIC_DATA names.")
]
Source = Annotated[
    Path | None,
    typer.Option(help="Folder or table with the run's examples, for a run that was not made by you on this machine."),
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]


def _without_cache(context: typer.Context, value: bool) -> bool:
    """Switch the feature cache off until the command has ended."""
    if value:
        before = os.environ.get("SEMIMETRIC_CACHE")
        os.environ["SEMIMETRIC_CACHE"] = "off"
        context.call_on_close(lambda: _restore("SEMIMETRIC_CACHE", before))
    return value


def _restore(name: str, before: str | None) -> None:
    if before is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = before


NoCache = Annotated[
    bool,
    typer.Option(
        "--no-cache", callback=_without_cache, help="Neither read nor write the cache of photographs' features."
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress; warnings and results stay.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show a line for every epoch and step.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON as the last line of standard output.")]


def _existing_run(path: Path) -> Path:
    """Refuse what is no run folder, before a command imports torch."""
    from semimetric.training.run import Run

    return Run.open(path).path


RunFolder = Annotated[
    Path, typer.Argument(help="Run folder, the --out of 'fit'.", callback=_existing_run, show_default=False)
]


def say(text: str) -> None:
    """Print text; control characters other than line ends are shown, never sent."""
    stdout.print(text, highlight=False, markup=False)


def print_beside(text: str) -> None:
    """Print text on standard error, where standard output has results alone."""
    stderr.print(text, highlight=False, markup=False)


def show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning as a sentence, without the line of code that it came from: a ``warnings.showwarning``."""
    stderr.print(marked("warning:", "yellow", str(message)))


def counted(count: int, what: str, many: str = "") -> str:
    """A number of things: 1 example, 2 examples; ``many`` is the plural of what takes more than an s."""
    return f"{count} {what if count == 1 else many or what + 's'}"


def print_json(value: Any) -> None:
    """Print one JSON object as the last line."""
    sys.stdout.write(json.dumps(value) + "\n")


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None) -> None:
    """Print rows of texts, each as it is, whatever stands in it."""
    table = Table(box=None, title=None if title is None else Text(visible(title)), title_justify="left")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*(Text(visible(cell)) for cell in row))
    console = stdout if stdout.is_terminal else PlainConsole(width=UNLIMITED)
    console.print(table, soft_wrap=False)


def print_rows(columns: list[str], rows: Sequence[Sequence[object]], raw: bool = False) -> None:
    """Print a table on a terminal, and CSV where standard output is not one; for ``raw`` see ``table_text``."""
    if stdout.is_terminal:
        print_table(columns, ([_short(value) for value in row] for row in rows))
        return
    from semimetric.serve.csv_file import table_text

    sys.stdout.write(table_text(columns, rows, raw))


def _short(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


@contextmanager
def showing_progress(
    to_continue: Callable[[], str] = str, quiet: bool = False, verbose: bool = False
) -> Iterator[RichProgress]:
    """Progress on standard error during long work; after Ctrl-C it says how ``to_continue``."""
    progress = RichProgress(stderr, quiet, verbose)
    try:
        yield progress
    except KeyboardInterrupt:
        progress.end()
        how = to_continue()
        tell_interrupted(how)
        raise typer.Exit(INTERRUPTED) from None
    finally:
        progress.end()
