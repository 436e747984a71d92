"""``semimetric verify``: whether the files of a run are as they were written."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from semimetric.cli.console import AsJson, counted, print_json, print_table, say


def verify(
    run: Annotated[Path, typer.Argument(help="Run folder, the --out of 'fit'.", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Check every file of a run; say what is damaged, and what can be made again. Exit code 1 where something is."""
    from semimetric.model.verify import verify_run

    found = verify_run(run)
    if as_json:
        print_json({"files": found.files, "unlisted": found.unlisted, "advice": found.advice})
    else:
        if found.damaged:
            print_table(("file", "state"), ((name, found.files[name]) for name in found.damaged))
        for name in found.unlisted:
            say(f"not one of the run's own files, so not checked: {name}")
        say(f"{counted(len(found.files), 'file')}, {len(found.damaged)} damaged. {found.advice}")
    if found.damaged:
        raise typer.Exit(1)
