"""``semimetric methods`` and ``semimetric datasets``: what there is, and downloads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from semimetric.cli.console import AsJson, DataDir, print_json, say, stderr, stdout

datasets_app = typer.Typer(help="List the benchmark datasets, or fetch one.", invoke_without_command=True)


def methods(as_json: AsJson = False) -> None:
    """List the methods, what each needs and where it comes from."""
    from semimetric.methods.registry import METHODS

    rows = [
        {
            "name": name,
            "summary": kind.summary,
            "needs": kind.needs.words(kind.labels_optional),
            "reference": kind.reference,
        }
        for name, kind in METHODS.items()
    ]
    _print_rows(rows, as_json)


@datasets_app.callback()
def datasets(context: typer.Context, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the benchmark datasets and where each was found."""
    if context.invoked_subcommand is not None:
        return
    from semimetric.data.benchmarks.registry import describe_datasets

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
        say(f"Download a missing one ({', '.join(to_fetch)}) with: semimetric datasets fetch NAME")
    for listing in lacking:
        if listing.source is not None:
            say(f"Get {listing.name} yourself from {listing.source}")


@datasets_app.command()
def fetch(
    context: typer.Context, name: Annotated[str, typer.Argument(help="Dataset to download.")], data_dir: DataDir = None
) -> None:
    """Download a dataset, resuming where a download broke off, and check its SHA-256."""
    from rich.progress import Progress, TaskID

    from semimetric.data.benchmarks.fetch import fetch_dataset

    if data_dir is None and context.parent is not None:
        data_dir = context.parent.params["data_dir"]
    tasks: dict[str, TaskID] = {}
    with Progress(console=stderr, disable=not stderr.is_terminal) as bar:

        def show(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = bar.add_task(file, total=total)
            bar.update(tasks[file], completed=done, total=total)

        folder: Path = fetch_dataset(name, data_dir, show)
    say(f"{name}: {folder}")


def _print_rows(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json(rows)
        return
    table = Table()
    for name in rows[0]:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(Text("not found" if value is None else str(value)) for value in row.values()))
    stdout.print(table, soft_wrap=False)
