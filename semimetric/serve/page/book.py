"""Labels that people give: an append-only CSV file next to the run, which ``fit --labels`` reads.

Each line is one label of one example, with who gave it, when, the number of the change that it belongs to, and its
source: "suggested" unless the label is a random one of the run. A change is undone by further lines, whose change is
the negative number. The last line of an example counts.
"""

from __future__ import annotations

import csv
import io
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock

from semimetric.core.errors import InputError, RunError
from semimetric.core.files import sync_folder, try_lock
from semimetric.data.collection import tidy
from semimetric.data.labels import SUGGESTED, is_no_label

COLUMNS = ("path", "label", "who", "when", "change")
SOURCE = "source"
"""A sixth column, which files of earlier versions do not have."""

LONGEST = 200
"""Characters of a label or of a person's name."""


@dataclass(frozen=True)
class Change:
    """Labels given at once: its number, the rows, and their labels before and after."""

    number: int
    rows: tuple[int, ...]
    before: tuple[str | None, ...]
    label: str | None


class LabelBook:
    """The labels of a run's examples as people have changed them; safe to use from several threads.

    Parameters
    ----------
    path : the file; it is made with the first change, and begins with the labels that the run has
    names : N names of examples
    labels : N labels of the run, None for unlabelled
    suggested : rows of the run whose labels are no random sample
    """

    def __init__(
        self, path: Path, names: Sequence[str], labels: Sequence[str | None], suggested: Collection[int] = ()
    ) -> None:
        self.path = path
        self.names: tuple[str, ...] = ()
        self.labels: list[str | None] = []
        self.sources: list[str] = []
        self._columns: tuple[str, ...] = (*COLUMNS, SOURCE)
        self._counts: Counter[str] = Counter()
        self.changes: list[Change] = []
        self.last = 0
        self._lock = Lock()
        self._file: int | None = None
        self.grow(names, labels, suggested)
        if path.exists():
            self._open()
            self._read()

    def grow(self, names: Sequence[str], labels: Sequence[str | None], suggested: Collection[int] = ()) -> None:
        """Take in what a run has beyond the examples of this book, which are its first; another run is refused."""
        with self._lock:
            known = len(self.names)
            if tuple(names[:known]) != self.names:
                raise RunError(f"the run has other examples than the labels in {self.path}. Serve it on its own.")
            self.names = tuple(names)
            for row, label in enumerate(labels[known:], known):
                self.sources.append("" if label is not None and row not in suggested else SUGGESTED)
                self.labels.append(None)
                self._put(row, label)

    def set(self, rows: Sequence[int], label: str | None, who: str) -> Change:
        """Give examples a label, or take it away with None; it is on disk when this returns."""
        label, who = None if label is None else check_label(label), check_name(who, "your name")
        chosen = tuple(dict.fromkeys(rows))
        if not chosen or min(chosen) < 0 or max(chosen) >= len(self.names):
            raise InputError(f"rows must be numbers of examples, from 0 to {len(self.names) - 1}, at least one.")
        with self._lock:
            change = Change(self.last + 1, chosen, tuple(self.labels[row] for row in chosen), label)
            self._append([(row, label) for row in chosen], who, change.number)
            self._apply(change)
            return change

    def undo(self, who: str) -> Change | None:
        """Take back the last change that stands; None if there is none."""
        who = check_name(who, "your name")
        with self._lock:
            if not self.changes:
                return None
            change = self.changes[-1]
            self._append(list(zip(change.rows, change.before, strict=True)), who, -change.number)
            self._revert(change)
            return change

    def classes(self) -> list[str]:
        """The labels in use, in the order in which they were first given."""
        return [label for label, count in self._counts.items() if count]

    @property
    def labelled(self) -> int:
        """How many examples have a label."""
        return sum(self._counts.values())

    def _put(self, row: int, label: str | None) -> None:
        """The one place that changes a label."""
        before = self.labels[row]
        if before is not None:
            self._counts[before] -= 1
        if label is not None:
            self._counts[label] += 1
        self.labels[row] = label

    def close(self) -> None:
        """Release the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _apply(self, change: Change) -> None:
        self.last = max(self.last, change.number)
        self.changes.append(change)
        for row in change.rows:
            self._put(row, change.label)

    def _revert(self, change: Change) -> None:
        self.changes.remove(change)
        for row, label in zip(change.rows, change.before, strict=True):
            self._put(row, label)

    def _append(self, entries: Sequence[tuple[int, str | None]], who: str, number: int) -> None:
        """Write all lines of a change with one call, and wait for the disk."""
        if self._file is None:
            self._create()
        self._write(self._lines(entries, who, number))

    def _lines(self, entries: Iterable[tuple[int, str | None]], who: str, number: int) -> str:
        """The lines of a change, with the columns that the file has."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        whole = ((self.names[row], label or "", who, now, number, self.sources[row]) for row, label in entries)
        return _text(line[: len(self._columns)] for line in whole)

    def _write(self, text: str) -> None:
        """Append whole lines to the file, or nothing: a disk may fill up in the middle of them."""
        assert self._file is not None
        before, content = os.fstat(self._file).st_size, text.encode()
        try:
            while content:
                content = content[os.write(self._file, content) :]
            os.fsync(self._file)
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._file, before)
            raise RunError(f"{self.path} cannot be written: {error}. Make room; the label was not saved.") from error

    def _create(self) -> None:
        """Make the file with the labels of the run; one that another page has made meanwhile stays."""
        try:
            self._open(os.O_CREAT | os.O_EXCL)
        except FileExistsError as error:
            raise RunError(
                f"{self.path} was made by another page of this run meanwhile. Close both, and open one again."
            ) from error
        except OSError as error:
            raise RunError(f"{self.path} cannot be written: {error}. The label was not saved.") from error
        try:
            self._begin()
        except RunError:
            self.path.unlink(missing_ok=True)
            self.close()
            raise
        sync_folder(self.path.parent)

    def _begin(self) -> None:
        given = [(row, label) for row, label in enumerate(self.labels) if label is not None]
        self._write(_text([self._columns]) + self._lines(given, "run", 0))

    def _open(self, flags: int = 0) -> None:
        self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | flags, 0o666)
        if try_lock(self._file) is False:
            self.close()
            raise RunError(f"{self.path} is in use by another page of this run. Close that one first.")

    def _read(self) -> None:
        """Replay the file; what a crash left of its last line is cut off."""
        assert self._file is not None
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.ftruncate(self._file, whole)
        if not whole:  # its maker was killed before anything was in it
            self._begin()
            return
        numbers = {name: row for row, name in enumerate(self.names)}
        try:
            text = content[:whole].decode()
            changes = list(_changes(text, self.path))
        except UnicodeDecodeError as error:
            raise RunError(f"{self.path} is damaged: it is no UTF-8 text ({error}). Move it away.") from error
        except csv.Error as error:
            raise RunError(f"{self.path} is damaged: {error}. Mend it, or move it away.") from error
        self._columns = (*COLUMNS, SOURCE) if SOURCE in _header(text) else COLUMNS
        for number, entries in changes:
            known = {numbers[name]: label for name, label in entries.items() if name in numbers}
            if number == 0:
                for row, label in known.items():
                    self._put(row, label)
            elif number > 0 and known:
                before = tuple(self.labels[row] for row in known)
                self._apply(Change(number, tuple(known), before, next(iter(known.values()))))
            else:
                for change in [change for change in self.changes if change.number == -number]:
                    self._revert(change)
            self.last = max(self.last, abs(number))


def _changes(text: str, path: Path) -> Iterator[tuple[int, Mapping[str, str | None]]]:
    """The changes of a file in their order: number, and label by name."""
    rows = csv.DictReader(io.StringIO(text))
    if not {*COLUMNS} <= {*_header(text)}:
        raise RunError(f"{path} is no file of labels: its columns are not {', '.join(COLUMNS)}. Move it away.")
    number = 0
    entries: dict[str, str | None] = {}
    for line, row in enumerate(rows, 2):
        try:
            now = int(row["change"])
        except (TypeError, ValueError) as error:
            raise RunError(f"{path} is damaged in line {line}: {row['change']!r} is no change. Mend it.") from error
        if now != number:
            yield number, entries
            number, entries = now, {}
        entries[row["path"]] = row["label"] or None
    yield number, entries


def _header(text: str) -> list[str]:
    """The columns of a file."""
    return next(csv.reader(io.StringIO(text)), [])


def _text(rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def check_label(label: str) -> str:
    """A label that people gave, tidied; what is no label, or hides something, is refused."""
    tidied = tidy(label)
    if is_no_label(tidied):
        raise InputError(f"{label!r} stands for no label. Give the class another name.")
    return check_name(tidied, "a class name")


def check_name(name: str, what: str) -> str:
    """The name of a class or of a person, tidied; what hides something is refused."""
    tidied = tidy(name)
    if not 1 <= len(tidied) <= LONGEST or not tidied.isprintable():
        raise InputError(f"{what} has 1 to {LONGEST} characters, all of them printable. Give another one.")
    if tidied[0] in "=+@" or (tidied[0] == "-" and not tidied[1:].replace(".", "").isdigit()):
        raise InputError(f"{what} must not begin with {tidied[0]!r}: a spreadsheet would take it for a formula.")
    return tidied
