"""The label book: the labels that people give to the examples of a run, as events in one SQLite file.

Events are only added. What holds now is a view of them: an undo, a renamed, merged or deleted class changes what the
view says, and no event. A class keeps its key and its colour.
"""

from __future__ import annotations

import os
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from importlib.resources import files
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple
from urllib.parse import quote

from semimetric.core.errors import InputError, RunError
from semimetric.core.files import write_new
from semimetric.data.label_file import check_beside, place_of, recognised

SUFFIX = ".labels.sqlite"
KEYS = "1234567890qwertziopadfghjkycvbm"
"""Keys of classes: all that the page does not use itself."""

RUN = ""
"""The person of what a run brings with it; nobody can take that back."""

_KINDS: dict[str, tuple[Any, ...]] = {
    "classes": (int, str, str | None, int),
    "events": (int, int, str, str, str, str | None, str | None, int | None, int | str | None, str),
}
"""Types of the columns of both tables."""

_WAIT = 10.0  # seconds for another program that is writing

SCHEMA = files("semimetric.data").joinpath("label_book.sql").read_text(encoding="utf-8")


class MovedError(RunError):
    """The file of a book is not where it was opened."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"{path} was {what} while it was open, so nothing is saved there. Put it back, or choose.")
        self.path = path


class Entry(NamedTuple):
    """What holds of an example, as a row of the view ``labels``; ``label`` is None after a "clear" or a "skip"."""

    number: int
    time: str
    person: str
    event: str
    example: str
    digest: str | None
    source: str
    label: str | None


class ClassOf(NamedTuple):
    """A class as it is now: its number, key and colour, which it keeps, its name, and whether it is in use."""

    number: int
    key: str | None
    colour: int
    name: str
    used: int


class Step:
    """The events of one request, in a transaction; all of them are written, or none."""

    def __init__(self, db: sqlite3.Connection, person: str) -> None:
        self._db, self._person = db, person
        self._time = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._next = _only(db, "SELECT coalesce(max(number), 0) + 1 FROM events")
        self.number: int = self._next

    @property
    def has_events(self) -> bool:
        """Whether there is an event yet."""
        return bool(self._next > self.number)

    def add(
        self,
        event: str,
        example: str | None = None,
        digest: str | None = None,
        of: int | None = None,
        value: str | int | None = None,
        source: str = "",
    ) -> tuple[int, str]:
        """Add an event: its number and time. What a run brings is a step each, so that no undo takes it back."""
        step = self._next if self._person == RUN else self.number
        row = (self._next, step, self._time, self._person, event, example, digest, of, value, source)
        self._db.execute(f"INSERT INTO events VALUES ({'?, ' * 10}?)", (*row, crc_of(row)))
        self._next += 1
        return row[0], self._time

    def class_of(self, name: str, spared: Iterable[str] = ()) -> int:
        """The number of a class by its name; one that is not in use is added, with its own key or the next free one.

        Names in ``spared`` that are keys are left for the classes of these names.
        """
        every, first = classes_in(self._db), None
        if self._person == RUN:  # it knows the classes by their first names
            first = _only(self._db, "SELECT min(class) FROM classes WHERE name = ?", name)
        by_name = {found.name: found for found in sorted(every, key=lambda found: (found.used, -found.number))}
        same = [found for found in every if found.number == first and by_name[found.name] is found]
        same += filter(None, [by_name.get(name)])
        number = same[0].number if same else self._new_class(name, {*spared} - {name})
        if not same or not same[0].used:
            self.add("add class", of=number, value=name)
        return number

    def _new_class(self, name: str, spared: set[str]) -> int:
        taken = spared | {key for (key,) in self._db.execute("SELECT key FROM classes")}
        key = next((key for key in (name, *KEYS) if key in [*KEYS] and key not in taken), None)
        number: int = _only(self._db, "SELECT coalesce(max(class), 0) + 1 FROM classes")
        row = number, name, key, number - 1
        self._db.execute("INSERT INTO classes VALUES (?, ?, ?, ?, ?)", (*row, crc_of(row)))
        return number


class BookFile:
    """The file of a label book; made with the first step, and safe to use from several threads and programs.

    Parameters
    ----------
    path : of the file; a link, what is not a plain file, and a file of others are refused, and left as they are
    reading : go on in memory with what the file says, and leave it as it is
    """

    def __init__(self, path: Path, reading: bool = False) -> None:
        self.path, self._lock = path, RLock()
        self._place: tuple[int, int] | None = None  # device and inode; None before there is a file
        self._version = 0
        self.db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self.db.executescript(SCHEMA)
        if os.path.lexists(path):
            self.adopt()
            if reading:
                content, self._place = self.db.serialize(), None
                self.db.close()
                self.db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
                self.db.deserialize(content)

    def __enter__(self) -> BookFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the file."""
        self.db.close()

    def entries(self) -> list[Entry]:
        """What holds now, each example once for each content that had a label, in the order in which it was given."""
        with self._lock, self._explained("read"):
            found = self.db.execute("SELECT * FROM labels ORDER BY person <> '', number")
            return [Entry(*row) for row in found]

    def classes(self) -> list[ClassOf]:
        """All classes in the order in which they were made."""
        with self._lock, self._explained("read"):
            return classes_in(self.db)

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """What a query finds."""
        with self._lock, self._explained("read"):
            return self.db.execute(query, values).fetchall()

    def changed(self) -> bool:
        """Return True if another program has written to the book, or made it, since the last call."""
        with self._lock, self._explained("read"):
            if self._place is None and os.path.lexists(self.path):
                try:
                    self.adopt()
                except InputError as error:  # a file of others, made since this one was opened
                    raise MovedError(self.path, "taken by another file") from error
                return True
            before, self._version = self._version, _only(self.db, "PRAGMA data_version")
            return before != self._version

    @contextmanager
    def step(self, person: str) -> Iterator[Step]:
        """Write the events of a request; they are on disk, at the path of the book, when this ends."""
        with self._lock:
            before = self.db.serialize() if self._place is None else None
            with self._explained("written"):
                self._check_place()
                self.db.execute("BEGIN IMMEDIATE")
                try:
                    step = Step(self.db, person)
                    yield step
                    _check_names(self.db)
                    self._check_place()
                    self.db.execute("COMMIT")
                except BaseException:
                    with suppress(sqlite3.Error):
                        self.db.execute("ROLLBACK")
                    raise
                if before is None:
                    self._check_place()
                elif person != RUN and step.has_events:
                    self._make(before)

    def _make(self, before: bytes) -> None:
        """Make the file of what is in memory, or go back to what was ``before``."""
        try:
            self.keep()
        except BaseException as error:
            self.db.deserialize(before)
            if isinstance(error, FileExistsError):
                raise MovedError(self.path, "made by another program") from error
            raise

    def keep(self) -> None:
        """Write all events to a new file at the path of the book, and go on with it; a file there is not replaced."""
        with self._lock:
            if not os.path.lexists(self.path):
                check_beside(self.path, is_there=False)
            write_new(self.path, self.db.serialize())
            self.adopt()

    def adopt(self) -> None:
        """Go on with the file that is at the path of the book now."""
        with self._lock:
            db, place = self._opened()
            self.db.close()
            self.db, self._place, self._version = db, place, _only(db, "PRAGMA data_version")

    def _check_place(self) -> None:
        """Refuse to go on if the file was moved, removed or replaced."""
        if self._place is not None and place_of(self.path) != self._place:
            raise MovedError(self.path, "replaced" if os.path.lexists(self.path) else "moved or removed")

    def _opened(self) -> tuple[sqlite3.Connection, tuple[int, int]]:
        place = recognised(self.path)
        with self._explained("read"):
            uri = f"file:///{quote(os.fsencode(os.path.abspath(self.path)).lstrip(b'/'))}?mode=rw"
            db = sqlite3.connect(uri, _WAIT, uri=True, isolation_level=None, check_same_thread=False)
            try:
                db.executescript("PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON; PRAGMA synchronous = EXTRA")
                db.text_factory = partial(str, encoding="utf-8", errors="backslashreplace")
                _check_whole(db)
                db.execute("PRAGMA journal_mode = DELETE").fetchone()  # all of a book is in one file
                if place_of(self.path) != place:
                    raise MovedError(self.path, "replaced")
            except BaseException:
                db.close()
                raise
        return db, place

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        """Turn errors of SQLite and of the system into sentences that name the file."""
        try:
            yield
        except FileExistsError:
            raise
        except (sqlite3.OperationalError, OSError) as error:
            self._check_place()  # a journal that was left there is the other reason
            raise RunError(f"{self.path} cannot be {what}: {error}. Make room or wait; nothing was saved.") from error
        except sqlite3.DatabaseError as error:
            raise RunError(
                f"{self.path} is damaged: {error}. Write what can be read of it to a copy with 'semimetric labels RUN "
                "--recover COPY', and put that in its place."
            ) from error


def crc_of(row: Sequence[object]) -> int:
    """The checksum of a row."""
    return zlib.crc32(repr(tuple(row)).encode(errors="backslashreplace"))


def classes_in(db: sqlite3.Connection) -> list[ClassOf]:
    """All classes of a book."""
    found = db.execute("SELECT class, key, colour, name, used FROM class_names ORDER BY class")
    return [ClassOf(*row) for row in found]


def _only(db: sqlite3.Connection, query: str, *values: object) -> Any:
    return db.execute(query, values).fetchone()[0]


def _check_names(db: sqlite3.Connection) -> None:
    """Refuse a step after which two classes have one name."""
    twice = db.execute("SELECT name FROM class_names WHERE used GROUP BY name HAVING count(*) > 1").fetchone()
    if twice is not None:
        raise InputError(f"another class has the name {twice[0]!r} now. Give one of them another name first.")


def _check_whole(db: sqlite3.Connection) -> None:
    """Refuse a damaged file, and one whose tables are not those of a label book."""
    model = sqlite3.connect(":memory:")
    model.executescript(SCHEMA)
    tables = "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY name"
    if db.execute(tables).fetchall() != model.execute(tables).fetchall():
        raise sqlite3.DatabaseError("its tables are not those of a label book")
    model.close()
    state = _only(db, "PRAGMA integrity_check")
    if state != "ok":
        raise sqlite3.DatabaseError(state.splitlines()[0])
    for table in ("classes", "events"):
        for *row, crc in db.execute(f"SELECT * FROM {table}"):
            whole = all(isinstance(value, kind) for value, kind in zip(row, _KINDS[table], strict=True))
            if crc_of(row) != crc or not whole or (row[-6:-5] == ["rename class"] and not isinstance(row[-2], str)):
                raise sqlite3.DatabaseError(f"row {row[0]} of {table} does not fit its checksum")
