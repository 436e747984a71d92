"""The label book of a run: its examples with the labels that people have given them since."""

from __future__ import annotations

import getpass
import hashlib
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import NamedTuple

from semimetric.core.errors import InputError, RunError
from semimetric.data.collection import tidy
from semimetric.data.label_book import RUN, SUFFIX, BookFile, ClassOf, Entry, Step
from semimetric.data.label_matches import matched
from semimetric.data.labels import SUGGESTED, is_no_label
from semimetric.model.fitted import FittedModel
from semimetric.serve.labels import given_labels
from semimetric.serve.pictures import Pictures

_AGAIN = re.compile(r"-again-[0-9]+$")

LONGEST = 200
"""Characters of a label or of a person's name."""


class Given(NamedTuple):
    """What a run brings to its book: N names, N labels, rows whose labels are no random sample, classes, N digests.

    ``learned`` is for a run that learned from the book: the ``identities`` of the classes at that moment, if known. The
    book has its labels and classes already, under the names that they have now.
    """

    names: Sequence[str]
    labels: Sequence[str | None]
    suggested: Collection[int] = ()
    classes: Sequence[str] = ()
    digests: Sequence[str] = ()
    learned: Mapping[str, tuple[int, str]] | None = None


class Change(NamedTuple):
    """What a request has changed: its number, and the rows."""

    number: int
    rows: tuple[int, ...]


class LabelBook:
    """The labels of a run's examples as people have changed them; safe to use from several threads.

    Parameters
    ----------
    path : of the file; it is made with the first change, and begins with the labels of the run
    given : what the run brings
    digest : of the content of an example as it is now, by its row; without it, that of the run
    reading : leave the file as it is
    """

    def __init__(
        self, path: Path, given: Given, digest: Callable[[int], str | None] | None = None, reading: bool = False
    ) -> None:
        self.path, self.file, self._lock = path, BookFile(path, reading), RLock()
        self.names: tuple[str, ...] = ()
        self.labels: list[str | None] = []
        self.sources: list[str] = []
        self._news: set[int] = set()
        said = repr((*given.names, *given.digests)).encode(errors="backslashreplace")
        self.key = hashlib.sha256(said).hexdigest()[:16]  # of the examples, for pages that were opened before a new fit
        self.grow(given, digest)

    def grow(self, given: Given, digest: Callable[[int], str | None] | None = None) -> None:
        """Take in what a run has beyond the examples of this book, which are its first; another run is refused."""
        with self._lock:
            known = len(self.names)
            if tuple(given.names[:known]) != self.names:
                raise RunError(f"the run has other examples than the labels in {self.path}. Serve it by itself.")
            self.names = tuple(given.names)
            self._now, self._given = digest, given
            self._digests: dict[int, str | None] = {}
            self._seen: dict[int, str | None] = {}
            for row, label in enumerate(given.labels[known:], known):
                self.sources.append("" if label is not None and row not in given.suggested else SUGGESTED)
                self.labels.append(None)
            self._brought = known, given
            self._bring()

    def _bring(self) -> None:
        """Note the labels and classes of the run where the book does not have them, and take all labels in."""
        first, given = self._brought
        labels, classes, digests = given.labels, given.classes, given.digests
        query = "SELECT example, digest, (SELECT name FROM classes c WHERE c.class = e.class) FROM events e "
        found = self.file.rows(query + "WHERE person = '' AND example IS NOT NULL ORDER BY number")
        before = {(example, digest): label for example, digest, label in found}
        keys = [(name, digests[row] if digests else None) for row, name in enumerate(self.names)]
        said = self.file.rows("SELECT DISTINCT example, digest FROM events WHERE person <> ''")
        learned = {(name, digest if digests else None) for name, digest in said}  # the run may have them from the book
        new = [row for row in range(first, len(labels)) if before.get(keys[row]) != labels[row]]
        new = [row for row in new if keys[row] not in learned and (given.learned is None or keys[row] not in before)]
        pairs = self.file.rows("SELECT class, name FROM classes")
        known = {name: pair[0] for name, pair in (given.learned or {}).items() if pair in pairs}
        firsts = {name for _, name in pairs} | known.keys()
        brought = (*classes, *filter(None, labels)) if given.learned is None else ()
        added = [name for name in dict.fromkeys(brought) if name not in firsts]
        if new or added:
            with self.file.step(RUN) as step:
                wanted = dict.fromkeys(filter(None, (*added, *(labels[row] for row in new))))
                numbers = {name: known.get(name) or step.class_of(name, added) for name in wanted}
                for row in new:
                    label = labels[row]
                    event, of = ("clear", None) if label is None else ("label", numbers[label])
                    step.add(event, *keys[row], of=of, source=self.sources[row])
        self._take_in()

    def _take_in(self) -> tuple[int, ...]:
        """Read all labels: the rows that have changed."""
        before = list(self.labels)
        self.matches = matched(self.file.entries(), self.names, self.digest)
        self.entries: dict[int, Entry] = self.matches.found
        for row in range(len(self.labels)):
            self.labels[row] = self.entries[row].label if row in self.entries else None
        self.changes: int = self.file.rows("SELECT count(DISTINCT step) FROM standing WHERE person <> ''")[0][0]
        self.last: int = self.file.rows("SELECT coalesce(max(number), 0) FROM events")[0][0]
        return tuple(row for row, label in enumerate(self.labels) if label != before[row])

    def digest(self, row: int) -> str | None:
        """The digest of an example; computed once, and again when it is labelled."""
        if row not in self._digests:
            self._digests[row] = self._digest(row)
        return self._digests[row]

    def _digest(self, row: int) -> str | None:
        """The digest of an example as it is now, or as the run knows it where that cannot be seen."""
        digests = self._given.digests
        return (self._now(row) if self._now else None) or (digests[row] if digests else None)

    def see(self, row: int) -> None:
        """Note that somebody is shown the content that an example has now: a label that comes is of that content."""
        self._seen[row] = self._digest(row)

    def refresh(self) -> tuple[int, ...]:
        """Take in what other programs have written: the rows whose labels have changed since the last call."""
        with self._lock:
            self._news |= {*self._take_in()} if self.file.changed() else set()
            rows = tuple(sorted(self._news))
            self._news.clear()
            return rows

    @contextmanager
    def _step(self, who: str) -> Iterator[Step]:
        """A step after all that others have written; what it changes must be taken in under the same lock."""
        who = check_name(who, "your name")
        self._news |= {*self.refresh()}
        with self.file.step(who) as step:
            yield step

    def label(self, rows: Sequence[int], label: str | None, who: str) -> Change:
        """Give examples a label, or take it away with None; it is on disk when this returns."""
        return self.label_each(dict.fromkeys(rows, label), who)

    def skip(self, rows: Sequence[int], who: str) -> Change:
        """Note that a person would not label these examples; a label of theirs no longer holds."""
        return self.label_each(dict.fromkeys(rows), who, "skip")

    def label_each(self, labels: Mapping[int, str | None], who: str, without: str = "clear") -> Change:
        """Give each row its label, or the event ``without`` one, as one change."""
        wanted = {row: None if label is None else check_label(label) for row, label in labels.items()}
        if not wanted or min(wanted) < 0 or max(wanted) >= len(self.names):
            raise InputError(f"rows must be numbers of examples, from 0 to {len(self.names) - 1}, at least one.")
        digests, found = {row: self._seen.get(row) or self._digest(row) for row in wanted}, {}
        with self._lock:
            with self._step(who) as step:
                numbers = {name: step.class_of(name) for name in dict.fromkeys(wanted.values()) if name is not None}
                for row, label in wanted.items():
                    event, of = (without, None) if label is None else ("label", numbers[label])
                    example = event, self.names[row], digests[row]
                    self.last, time = step.add(*example, of, source=self.sources[row])
                    found[row] = Entry(self.last, time, who, *example, self.sources[row], label)
            self._digests |= digests
            self.entries |= found
            self.changes += 1
            for row, label in wanted.items():
                self.labels[row] = label
        return Change(step.number, tuple(wanted))

    def undo(self, who: str) -> Change | None:
        """Take back the last change of this person that stands; None if there is none."""
        with self._lock:
            with self._step(who) as step:
                found = self.file.rows("SELECT max(step) FROM standing WHERE person = ?", tidy(who))[0][0]
                if found is None:
                    return None
                step.add("undo", value=found)
            return Change(step.number, self._take_in())

    def add_class(self, name: str, who: str) -> Change:
        """Add a class without an example."""
        return self._of_class(who, lambda step: step.class_of(check_label(name)))

    def rename_class(self, name: str, new: str, who: str) -> Change:
        """Give a class another name; no other class may have it."""
        return self._of_class(who, lambda step: step.add("rename class", of=self._number(name), value=check_label(new)))

    def merge_classes(self, name: str, into: str, who: str) -> Change:
        """Let the examples of a class be of another one."""

        def merge(step: Step) -> None:
            one, other = self._number(name), self._number(into)
            if one == other:
                raise InputError(f"{name!r} cannot be merged into itself. Name another class.")
            step.add("merge classes", of=one, value=other)
            step.add("add class", of=other)

        return self._of_class(who, merge)

    def delete_class(self, name: str, who: str) -> Change:
        """Take a class away, and the labels of its examples with it."""
        return self._of_class(who, lambda step: step.add("delete class", of=self._number(name)))

    def _of_class(self, who: str, act: Callable[[Step], object]) -> Change:
        with self._lock:
            with self._step(who) as step:
                act(step)
            return Change(step.number, self._take_in())

    def _number(self, name: str) -> int:
        found = next((entry.number for entry in self.classes() if entry.name == name), None)
        if found is None:
            raise InputError(f"there is no class {name!r}. Name one of those on the page.")
        return found

    def classes(self) -> list[ClassOf]:
        """The classes in use, in the order in which they were made."""
        return [found for found in self.file.classes() if found.used]

    def identities(self) -> dict[str, tuple[int, str]]:
        """Number and first name of each class in use, by its name now: neither changes."""
        query = "SELECT n.name, class, c.name FROM class_names n JOIN classes c USING (class) WHERE n.used"
        return {name: (number, first) for name, number, first in self.file.rows(query)}

    def names_of(self, given: Given) -> list[str | None]:
        """What the classes of a run are called now; None for one that was deleted."""
        rows = self.file.rows("SELECT class, first, name FROM first_names ORDER BY class DESC")
        now: dict[object, str] = {(number, first): name for number, first, name in rows}
        firsts = {first: (number, first) for number, first, _ in rows}  # of two classes the older one is the run's
        named = {found.name: found.name for found in self.classes()}
        found = ((name, (given.learned or {}).get(name), firsts.get(name)) for name in given.classes)
        return [
            now.get(pair if pair in now else first, None if first else named.get(name)) for name, pair, first in found
        ]

    @property
    def labelled(self) -> int:
        """How many examples have a label."""
        return sum(label is not None for label in self.labels)

    @property
    def skipped(self) -> set[int]:
        """Rows that a person has skipped."""
        return {row for row, entry in self.entries.items() if entry.event == "skip"}

    def evidence(self) -> list[str | None]:
        """The digest of the content that each example had when it was labelled, as far as it is known."""
        return [self.entries[row].digest if row in self.entries else None for row in range(len(self.names))]

    def choose(self, what: str) -> tuple[int, ...]:
        """After the file was moved: "write" it again, or "use" the one that is in its place now."""
        with self._lock:
            try:
                {"write": self.file.keep, "use": self.file.adopt}[what]()
            except FileExistsError as error:
                raise InputError(f"{self.path} is there. Move it to another place, or use it.") from error
            before, self._brought = list(self.labels), (0, self._brought[1])
            self._bring()
            return tuple(row for row, label in enumerate(self.labels) if label != before[row])

    def close(self) -> None:
        """Release the file."""
        self.file.close()


def labels_file(run: Path) -> Path:
    """The label book next to a run; for a run that learned again, that of the run before, unless it has its own."""
    resolved = run.resolve()
    own, before = (resolved.with_name(name + SUFFIX) for name in (resolved.name, _AGAIN.sub("", resolved.name)))
    return own if os.path.lexists(own) or not before.is_file() else before


def open_book(run: Path, fitted: FittedModel, pictures: Pictures, reading: bool = False) -> LabelBook:
    """The label book of a run; ``reading`` leaves its file as it is."""
    path, given = labels_file(run), of_run(fitted)
    if path.name != run.resolve().name + SUFFIX:
        given = given._replace(learned={})
    return LabelBook(path, given, pictures.digest, reading)


def login_name() -> str:
    """The name of the user of this machine."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # an account without a name
        return "someone on this machine"


def of_run(fitted: FittedModel) -> Given:
    """What a run brings to its label book."""
    found = fitted.examples
    names = [as_text(name) for name in found.names] or [str(row) for row in range(len(fitted.labels))]
    labels = [None if label is None else as_text(label) for label in given_labels(fitted)]
    return Given(names, labels, found.suggested, [as_text(name) for name in found.classes], found.digests)


def as_text(name: object) -> str:
    """A name that every file and page can hold; half a character is written out."""
    return str(name).encode(errors="backslashreplace").decode()


def check_label(label: str) -> str:
    """A label that people gave, tidied; what is no label, or hides something, is refused."""
    tidied = tidy(label)
    if is_no_label(tidied):
        raise InputError(f"{label!r} means that there is no label. Give the class another name.")
    return check_name(tidied, "a class name")


def check_name(name: str, what: str) -> str:
    """The name of a class or of a person, tidied; what hides something is refused."""
    tidied = tidy(name)
    if not 1 <= len(tidied) <= LONGEST or not tidied.isprintable():
        raise InputError(f"{what} has 1 to {LONGEST} characters, all of them printable. Give another one.")
    if tidied[0] in "=+@" or (tidied[0] == "-" and not tidied[1:].replace(".", "").isdigit()):
        raise InputError(f"{what} must not begin with {tidied[0]!r}: a spreadsheet would take it for a formula.")
    return tidied
