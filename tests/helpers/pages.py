"""Programs, each in a process of its own that begins without seconds of imports."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path


def _run(code: str, folder: str, said: str) -> None:
    """What the process does."""
    with open(said, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(folder)
    exec(compile(code, "<page>", "exec"), {"__name__": "__main__"})


def run_program(code: str, folder: Path, said: Path) -> int | None:
    """The exit status of a program that runs in ``folder``; the file ``said`` gets what it prints."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "sklearn.datasets", "sklearn.neighbors"])
    process = context.Process(target=_run, args=(code, str(folder), str(said)))
    process.start()
    process.join()
    return process.exitcode
