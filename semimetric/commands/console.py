"""What the commands share: where they print, and the options that several of them have."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from semimetric.reporting.progress import RichProgress

stdout = Console(soft_wrap=True, width=None if sys.stdout.isatty() else 160)
stderr = Console(stderr=True, soft_wrap=True)

DataDir = Annotated[
    Path | None, typer.Option(help="Folder that holds benchmark data; else the one SEMIMETRIC_DATA names.")
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON as the last line of standard output.")]
RunFolder = Annotated[Path, typer.Argument(help="Run folder, the --out of 'fit'.", show_default=False)]


def say(text: str) -> None:
    """Print a line of text as it is."""
    stdout.print(text, highlight=False, markup=False)


def print_json(value: Any) -> None:
    """Print one JSON object as the last line."""
    sys.stdout.write(json.dumps(value) + "\n")


@contextmanager
def showing_progress() -> Iterator[RichProgress]:
    """Progress on standard error while something long is under way."""
    progress = RichProgress(stderr)
    try:
        yield progress
    finally:
        progress.end()
