"""Commands in processes that are killed: at a moment, or before the n-th change of a folder."""

from __future__ import annotations

import os
import signal
import sys
import time
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

CHANGES = ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree")


def run(arguments: list[str], begun: Event, folder: str, dies_at: int, changes: Any) -> None:
    """What the process does; ``changes`` counts what it does to the folder, and before number ``dies_at`` it dies."""
    from helpers.command import semimetric

    def watch(event: str, values: tuple[Any, ...]) -> None:
        if not (event in CHANGES or (event == "open" and values[1] == "a")):
            return
        if Path(str(values[0])).is_absolute() and folder not in str(values[0]):
            return
        changes.value += 1
        if changes.value == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    begun.set()
    done = semimetric(*arguments)
    if done.code:
        sys.exit(done.err)


class Killer:
    """Starts commands without seconds of imports, and kills them."""

    def __init__(self, context: ForkServerContext) -> None:
        context.set_forkserver_preload(["semimetric.cli.main", "torch._dynamo", "safetensors.torch", "PIL.Image"])
        self._context = context

    def _start(self, arguments: tuple[object, ...], folder: Path, dies_at: int) -> tuple[BaseProcess, Any]:
        begun, changes = self._context.Event(), self._context.Value("i", 0)
        texts = [str(argument) for argument in arguments]
        process = self._context.Process(target=run, args=(texts, begun, str(folder), dies_at, changes))
        process.start()
        assert begun.wait(100)
        return process, changes

    def undisturbed(self, *arguments: object, folder: Path) -> tuple[float, int]:
        """Seconds that a command takes, and how often it changes the folder."""
        process, changes = self._start(arguments, folder, 0)
        began = time.monotonic()
        process.join()
        assert process.exitcode == 0
        return time.monotonic() - began, changes.value

    def after(self, seconds: float, *arguments: object, folder: Path) -> bool:
        """Whether a command was still at it when it was killed, so many seconds after it began."""
        process, _ = self._start(arguments, folder, 0)
        process.join(seconds)
        process.kill()
        process.join()
        assert process.exitcode in (0, -signal.SIGKILL)
        return process.exitcode == -signal.SIGKILL

    def before_change(self, number: int, *arguments: object, folder: Path) -> None:
        """Kill a command before it changes the folder for that time."""
        process, _ = self._start(arguments, folder, number)
        process.join()
        assert process.exitcode == -signal.SIGKILL
