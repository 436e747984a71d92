"""The manifest of a folder: size and SHA-256 of every file in it, so that damage is found before it gives an answer.

A file is announced in the manifest before it is put in place, so that a killed process leaves a folder in which each
file fits either its old or its new entry. ``seal`` is called last and leaves one entry for each file.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import semimetric
from semimetric.core.errors import RunError
from semimetric.core.files import Piece, read_json, refuse_in_run, sha256_of, write_atomically, write_json, write_pieces
from semimetric.core.locks import NAME as LOCK

NAME = "manifest.json"
FORMAT = 1
"""Version of the manifest itself."""

PARTS = ("files", "pending")

LARGE = 1 << 22
"""Bytes of a file whose digest is computed in a thread of its own."""

State = Literal["whole", "damaged", "missing", "interrupted"]


class Entry(NamedTuple):
    """What a file is expected to be."""

    size: int
    sha256: str


EMPTY = Entry(0, hashlib.sha256().hexdigest())


@dataclass(frozen=True)
class Contents:
    """What a manifest says: entries of files, and those of files that were about to be written."""

    files: dict[str, Entry]
    pending: dict[str, Entry]


_digests: dict[str, tuple[tuple[int, ...], Entry]] = {}
"""Entries of files on disk by their path, each with the state of the file that it was computed for."""

_contents: dict[str, tuple[tuple[int, ...], Contents]] = {}
"""Contents of manifests in the same way."""


_ahead: dict[str, threading.Thread] = {}
"""Threads that compute entries which are going to be asked for, by the path of the file."""


def entry_of(path: Path) -> Entry:
    """Size and SHA-256 of a file; computed once for each state of the file."""
    name = os.path.abspath(path)
    if (thread := _ahead.pop(name, None)) is not None:
        thread.join()
    return _entry_of(path, name)


def _entry_of(path: Path, name: str) -> Entry:
    state = _state_of(path)
    known = _digests.get(name)
    if known is None or known[0] != state:
        known = _digests[name] = (state, Entry(state[1], sha256_of(path)))
    return known[1]


def _begin_entry(path: Path, name: str) -> None:
    with suppress(OSError):  # whoever asks for the entry is told
        _entry_of(path, name)


def _state_of(path: Path) -> tuple[int, ...]:
    found = os.stat(path)
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


class Manifest:
    """The manifest of ``folder``, and the only way to write files that it lists."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / NAME

    def contents(self) -> Contents:
        """What the manifest says; a folder without one is refused. It is read once for each state of the file."""
        if not self.path.is_file():
            raise RunError(
                f"{self.folder} is damaged: {NAME} is missing, so nothing in it can be verified. Restore it from a "
                "copy, or start again with another --out."
            )
        state, name = _state_of(self.path), os.path.abspath(self.path)
        known = _contents.get(name)
        if known is None or known[0] != state:
            known = _contents[name] = (state, self._read())
        return known[1]

    def _read(self) -> Contents:
        written = read_json(self.path)
        body = written.get("body") if isinstance(written, dict) else None
        if not isinstance(body, dict) or written.get("sha256") != _digest_of(body):
            raise RunError(f"{self.path} is damaged: it does not fit its own checksum. {_remedy(self.folder)}")
        if body.get("format") != FORMAT:
            raise RunError(
                f"{self.path} has the format {body.get('format')!r}, and semimetric {semimetric.__version__} reads "
                f"format {FORMAT}. Use the version that wrote it ({body.get('version')})."
            )
        try:
            return Contents(*({_plain(name): Entry(*entry) for name, entry in body[part].items()} for part in PARTS))
        except (KeyError, TypeError, AttributeError) as error:
            raise RunError(f"{self.path} is damaged: it lists no files. {_remedy(self.folder)}") from error

    def state(self, name: str) -> State:
        """Whether a file fits its entry. One that was about to be written may be there or not."""
        known = self.contents()
        path, expected = self.folder / name, [part[name] for part in (known.files, known.pending) if name in part]
        if not path.is_file():
            return "missing"
        if entry_of(path) in expected:
            return "whole"
        before = [EMPTY, *expected] if name not in known.files else expected
        return "whole" if name in known.pending and any(_grows(path, entry) for entry in before) else "damaged"

    def lost(self, name: str) -> bool:
        """Whether a file is listed and not there."""
        return name in self.contents().files and not (self.folder / name).is_file()

    def check(self, name: str) -> None:
        """Refuse a file that is not the one that was written."""
        state = self.state(name)
        if state != "whole":
            listed = name in self.contents().files
            what = "is missing" if state == "missing" else "does not fit" if listed else "is not listed"
            where = "" if state == "missing" else f" {'its SHA-256 ' if listed else ''}in {NAME}"
            raise RunError(f"{self.folder / name} is damaged: it {what}{where}. {_remedy(self.folder)}")

    def check_ahead(self, names: Iterable[str]) -> None:
        """Begin to compute the digests of large files that are going to be checked, beside other work."""
        for name in names:
            path = self.folder / name
            with suppress(OSError):
                if os.stat(path).st_size >= LARGE and os.path.abspath(path) not in _ahead:
                    given = path, os.path.abspath(path)
                    thread = _ahead[given[1]] = threading.Thread(target=_begin_entry, args=given, daemon=True)
                    thread.start()

    def put(self, name: str, *pieces: Piece) -> None:
        """Write a file atomically, of one piece or several, and its entry before it."""
        digest = hashlib.sha256()
        for piece in pieces:
            digest.update(piece)
        self._announce(name, Entry(sum(map(len, pieces)), digest.hexdigest()))
        write_atomically(self.folder / name, lambda temporary: write_pieces(temporary, pieces))

    def append(self, name: str, line: bytes) -> None:
        """Append a line to a file, with its entry before it."""
        path = self.folder / name
        before = path.read_bytes() if path.exists() else b""
        if before and not before.endswith(b"\n"):
            before = before[: before.rfind(b"\n") + 1]  # half a line of a killed process
            self.put(name, before)
        self._announce(name, Entry(len(before + line), hashlib.sha256(before + line).hexdigest()))
        with path.open("ab") as file:
            file.write(line)

    def record(self, name: str) -> None:
        """List a file that another library writes, as it is now."""
        self._write(Contents(self._settled() | {name: entry_of(self.folder / name)}, {}))

    def check_beginning(self, name: str) -> None:
        """Refuse a file that does not begin with what was recorded of it."""
        before = self.contents().files.get(name)
        if before is not None and _head((self.folder / name).read_bytes(), before.size) != before.sha256:
            raise RunError(
                f"{self.folder / name} is damaged: what was recorded of it does not fit its SHA-256 in {NAME}. Restore "
                "it from a copy, or choose another --out."
            )

    def seal(self) -> None:
        """Write the manifest last: one entry for each file, none is about to be written."""
        self._write(Contents(self._settled(), {}))

    def _announce(self, name: str, new: Entry) -> None:
        files, path = self._settled(), self.folder / name
        if name not in files and os.path.lexists(path):
            raise RunError(f"{path} is in the way: {NAME} does not list it, so semimetric did not write it. Move it.")
        if files.get(name) != new:
            self._write(Contents(files, {name: new}))

    def _settled(self) -> dict[str, Entry]:
        """Entries of all files, with those that were about to be written as far as they were."""
        known = self.contents() if self.path.is_file() else Contents({}, {})
        arrived = {
            name: entry
            for name, entry in known.pending.items()
            if (self.folder / name).is_file() and entry_of(self.folder / name) == entry
        }
        return known.files | arrived

    def _write(self, known: Contents) -> None:
        body = {"format": FORMAT, "version": semimetric.__version__, "files": known.files, "pending": known.pending}
        write_json(self.path, {"body": body, "sha256": _digest_of(body)})


def is_free(folder: Path) -> bool:
    """Return True if a run or study can be made there; a place inside of a run is refused.

    Nothing may be there, or a folder with no more than what a process left that was killed at its start: a lock, and a
    manifest that lists no file yet.
    """
    refuse_in_run(folder)
    if not folder.is_dir():
        return not folder.exists()
    left = [entry.name for entry in folder.iterdir() if entry.name != LOCK]
    with suppress(RunError):
        return not left or (left == [NAME] and not Manifest(folder).contents().files)
    return False


def _grows(path: Path, before: Entry) -> bool:
    """Whether a log is what it was, and after it at most one line that was being appended."""
    if path.suffix != ".jsonl":
        return False
    content = path.read_bytes()
    return _head(content, before.size) == before.sha256 and b"\n" not in content[before.size : -1]


def _head(content: bytes, size: int) -> str:
    return hashlib.sha256(content[:size]).hexdigest()


def _plain(name: str) -> str:
    """A name of a file in the folder itself: a manifest names no other."""
    if Path(name).name != name:
        raise TypeError(name)
    return name


def _digest_of(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _remedy(folder: Path) -> str:
    return f"'semimetric verify {folder}' tells what is whole and what can be made again."
