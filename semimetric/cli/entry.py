"""Where the command ``semimetric`` begins: Ctrl-C and SIGTERM are one sentence at any moment, import and exit too.

Nothing heavy is imported here, so that hardly any time passes before signals are handled.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import time
from contextlib import suppress
from types import FrameType
from typing import Any

INTERRUPTED = 130
"""Exit code after Ctrl-C or SIGTERM."""

UNDISTURBED = ("importlib._bootstrap", "semimetric.core.locks")
"""Modules whose calls end before an interruption: libraries take an exception in an import for a part that is not
installed, and a lock that is being taken would stay."""

SPINS = "5000"
"""Rounds in which an idle thread of GNU's OpenMP waits before it sleeps, told before torch is loaded. Its own default
is far more: on a busy machine most of the time is then spent waiting."""

_state = {"asked": False, "told": False}


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Interrupt, or wait for the end of what must not be disturbed."""
    _state["asked"] = True
    if not _is_undisturbed(frame):
        raise KeyboardInterrupt
    _interrupt_soon()


def _is_undisturbed(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_globals.get("__name__") not in UNDISTURBED:
        frame = frame.f_back
    return frame is not None


def tell_interrupted(how_to_continue: str = "") -> None:
    """Say that the command was interrupted."""
    _state["told"] = True
    sys.stderr.write(f"interrupted{how_to_continue and '; '}{how_to_continue}\n")


def _unraisable(unraisable: Any) -> None:
    """An interruption inside of code that cannot raise is asked for again; other errors there concern nobody."""
    if isinstance(unraisable.exc_value, KeyboardInterrupt):
        _interrupt_soon()


def _interrupt_soon() -> None:
    """Interrupt again in a moment; at once, the interruption would be lost in the same place."""
    with suppress(RuntimeError):  # at the very end no thread can be started, and nothing is left to interrupt
        _thread.start_new_thread(_interrupt_again, ())


def _interrupt_again() -> None:
    time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)  # wakes what waits, unlike ``interrupt_main``


def main() -> None:
    """Run the command line in a process of its own."""
    sys.unraisablehook = _unraisable
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
    code: object = 1
    try:
        from semimetric.cli.main import main as run

        run()
        code = 0
    except SystemExit as ended:
        code = ended.code
    except BaseException as error:  # a library that is being imported may turn the interruption into another error
        if not _state["asked"]:
            _ignore_signals()
            if (sentence := out_of_memory(error)) is None:
                raise
            sys.stderr.write(f"error: {sentence}\n")
        code = INTERRUPTED if _state["asked"] else 2
    _ignore_signals()
    if _state["asked"] and code:
        code = INTERRUPTED
        if not _state["told"]:
            tell_interrupted()
    _leave(code)


NO_MEMORY: tuple[str, ...] = ("out of memory", "not enough memory", "allocate memory", "bad_alloc", "malloc of size")
NO_MEMORY += ("can't start new thread", "failed to map segment")
"""What errors say that there is no memory for an array, a thread or a library."""


def out_of_memory(error: BaseException) -> str | None:
    """Return the sentence of an error if it is that memory ran out, and forget what was in memory where it occurred."""
    said = str(error).strip().rpartition("\n")[2].rstrip(".")
    if not (isinstance(error, MemoryError) or any(sign in said.lower() for sign in NO_MEMORY)):
        return None
    found: BaseException | None = error
    while found is not None:
        found.__traceback__, found = None, found.__context__
    return f"memory ran out{said and ': '}{said}. Use smaller batches, fewer examples or smaller settings."


def _ignore_signals() -> None:
    """What is left to do is short and must not end in a traceback."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _leave(code: object) -> None:
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):  # nobody reads any more
        os._exit(code if isinstance(code, int) else 1)
    sys.exit(code)  # type: ignore[arg-type]
