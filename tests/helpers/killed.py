"""Commands in processes that are killed: at a moment, or before the n-th change of a folder; or that lack room."""

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

from helpers.command import Done, semimetric

IMPORTED = [
    "semimetric.cli.main",
    "semimetric.cli.fit",
    "semimetric.pipeline.own",
    "semimetric.serve.add",
    "semimetric.serve.labels",
    "semimetric.serve.predict",
    "torch._dynamo",
    "safetensors.torch",
    "sklearn.cluster",
    "PIL.Image",
]
"""What the commands need, so that they do not spend seconds on imports."""

CHANGES = ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree")


def die_before(dies_at: int, folder: str, changes: Any) -> None:
    """Let ``changes`` count what this process does to the folder, and let it die before number ``dies_at``."""

    def watch(event: str, values: tuple[Any, ...]) -> None:
        if not (event in CHANGES or (event == "open" and values[1] == "a")):
            return
        if Path(str(values[0])).is_absolute() and folder not in str(values[0]):
            return
        changes.value += 1
        if changes.value == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


def run(arguments: list[str], begun: Event, folder: str, dies_at: int, changes: Any) -> None:
    """What the process does until it dies."""
    die_before(dies_at, folder, changes)
    begun.set()
    done = semimetric(*arguments)
    if done.code:
        sys.exit(done.err)


def enter(
    arguments: list[str], begun: Event, said: str, most_bytes: int, folder: str, dies_at: int, changes: Any
) -> None:
    """The command as it begins in a process of its own; ``begun`` is set when it handles signals.

    It prints to the files ``said``.out and ``said``.err. No file can grow beyond ``most_bytes``, if that is not 0.
    It dies before its change ``dies_at`` of the folder.
    """
    from semimetric.cli import entry

    for handle, suffix in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{said}.{suffix}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), handle)
    if most_bytes:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, resource.RLIM_INFINITY))
    die_before(dies_at, folder, changes)
    listen = signal.signal

    def told(number: signal.Signals, how: Any) -> Any:
        before = listen(number, how)
        if number == signal.SIGTERM and how is entry._interrupt:
            begun.set()
        return before

    signal.signal = told  # type: ignore[assignment]
    sys.argv = ["semimetric", *arguments]
    entry.main()


class Killer:
    """Starts commands without seconds of imports, and kills them."""

    def __init__(self, context: ForkServerContext, *further: str) -> None:
        context.set_forkserver_preload([*IMPORTED, *further])
        self._context = context

    def begin(
        self, said: Path, *arguments: object, folder: Path, most_bytes: int = 0, dies_at: int = 0
    ) -> tuple[BaseProcess, Any]:
        """A command that has begun to handle signals, as a user gives it, and how often it changes the folder."""
        begun, changes = self._context.Event(), self._context.Value("i", 0)
        texts = [str(argument) for argument in arguments]
        given = (texts, begun, str(said), most_bytes, str(folder), dies_at, changes)
        process = self._context.Process(target=enter, args=given)
        process.start()
        assert begun.wait(100)
        return process, changes

    @staticmethod
    def ended(process: BaseProcess, said: Path) -> Done:
        """What a process of ``begin`` returned and printed; a negative code is the signal that killed it."""
        process.join()
        return Done(
            process.exitcode or 0, *(Path(f"{said}.{end}").read_text(errors="replace") for end in ("out", "err"))
        )

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
