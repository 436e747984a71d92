"""One writer at a time: a lock of a folder that names its holder, and ends with the process that holds it."""

from __future__ import annotations

import atexit
import json
import os
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from semimetric.core.errors import RunError
from semimetric.core.files import try_lock

NAME = ".semimetric-lock"


class Lock:
    """The lock of ``folder``, which is made if needed; a lock that a dead process left is taken over.

    One that is still held when the process exits, as after an interruption at a bad moment, is given back then.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._path = folder, folder / NAME
        self._made = not folder.exists()
        self._handle: int | None = None

    def acquire(self) -> None:
        """Take the lock, or say who has it, and since when."""
        try:
            while self._handle is None:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._handle = self._try()
        except OSError as error:
            raise RunError(f"{self._folder} cannot be written: {error}. Choose another --out.") from error
        atexit.register(self._give_back_at_exit, os.getpid())
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        os.ftruncate(self._handle, 0)
        os.write(self._handle, json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": since}).encode())

    def _try(self) -> int | None:
        """The locked file; None if its holder has just removed it, or its folder."""
        try:
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        except FileNotFoundError:
            return None
        held_by = os.pread(handle, 4096, 0) if stat.S_ISREG(os.fstat(handle).st_mode) else b"a pipe"
        if held_by and not held_by.startswith(b'{"pid"'):
            os.close(handle)
            raise RunError(f"{self._path} was not made by semimetric. Move it, or choose another --out.")
        if try_lock(handle) is False:
            os.close(handle)
            raise RunError(f"{self._folder} is in use{_holder(held_by)}. Wait until it ends, or choose another --out.")
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), os.stat(self._path)):
                return handle
        os.close(handle)
        return None

    def release(self) -> None:
        """Give the lock back; a folder that was made for it and holds nothing else is removed."""
        if self._handle is None:
            return
        atexit.unregister(self._give_back_at_exit)
        with suppress(OSError):
            self._path.unlink()
        os.close(self._handle)
        self._handle = None
        if self._made:
            with suppress(OSError):
                self._folder.rmdir()

    def _give_back_at_exit(self, holder: int) -> None:
        if os.getpid() == holder:  # and not a process that was forked from it
            self.release()


def _holder(content: bytes) -> str:
    """Who holds a lock, as far as the file says it."""
    try:
        found = json.loads(content)
        return f" by process {int(found['pid'])} on {found['host']} since {found['since']}"
    except (ValueError, KeyError, TypeError, RecursionError):
        return " by another process"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder."""
    lock = Lock(folder)
    lock.acquire()
    try:
        yield
    finally:
        lock.release()
