"""Which examples the entries of a label book belong to: by name and content, or by content where the name has moved."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from semimetric.core.files import sha256_of
from semimetric.data.collection import Collection
from semimetric.data.label_book import RUN, BookFile, Entry
from semimetric.data.label_file import is_database
from semimetric.data.labels import SUGGESTED

if TYPE_CHECKING:
    from numpy.typing import NDArray

DIGITS = 16
"""Hexadecimal digits of the digest of an example."""

ROWS_AT_ONCE, SHOWN = 4096, 5


class Matches(NamedTuple):
    """Entries by the row of their example, and those whose example is gone or has changed."""

    found: dict[int, Entry]
    unused: list[Entry]

    def note(self, path: Path) -> list[str]:
        """A sentence on labels that people gave and that are not used."""
        lost = [entry for entry in self.unused if entry.person != RUN and entry.label is not None]
        if not lost:
            return []
        shown = ", ".join(f"{entry.example} ({entry.label})" for entry in lost[:SHOWN])
        more = f" and {len(lost) - SHOWN} more" if len(lost) > SHOWN else ""
        count = "1 label" if len(lost) == 1 else f"{len(lost)} labels"
        return [
            f"not used: {count} of {path}, of examples that have changed, are gone or are there twice: {shown}{more}."
        ]


def matched(entries: Sequence[Entry], names: Sequence[str], digest: Callable[[int], str | None]) -> Matches:
    """Find the example of each entry; later entries win.

    Parameters
    ----------
    entries : in their order
    names : (N,) of the examples
    digest : of the content of example number i; None where it is not known, so that the name decides
    """
    rows = {name: row for row, name in enumerate(names)}
    found: dict[int, Entry] = {}
    astray = []
    for entry in entries:
        row = rows.get(entry.example)
        if row is not None and (entry.digest is None or digest(row) in (None, entry.digest)):
            found[row] = entry
        else:
            astray.append(entry)
    if not any(entry.digest for entry in astray):
        return Matches(found, astray)
    places: dict[str | None, list[int]] = {}
    for row in range(len(names)):
        places.setdefault(digest(row), []).append(row)
    unused = []
    for entry in astray:
        same = places.get(entry.digest, []) if entry.digest else []
        if len(same) != 1:
            unused.append(entry)
        elif same[0] not in found or _order(entry) > _order(found[same[0]]):
            found[same[0]] = entry
    return Matches(found, unused)


def _order(entry: Entry) -> tuple[bool, int]:
    return entry.person != RUN, entry.number


def labelled_by(collection: Collection, book: Path) -> Collection:
    """The collection with the labels of a label book; a row that the book does not have keeps its own."""
    with BookFile(book) as opened:
        entries = opened.entries()
    if collection.features is not None:  # the labels that the run had are in the table itself
        entries = [entry for entry in entries if entry.person != RUN]
    found = matched(entries, collection.names, collection.digest)
    given = {row: entry.label for row, entry in found.found.items()}
    suggested = {collection.names[row] for row, entry in found.found.items() if entry.source == SUGGESTED}
    labels = tuple(given.get(row, label) for row, label in enumerate(collection.labels))
    notes = (*collection.notes, *found.note(book))
    return dataclasses.replace(collection, labels=labels, notes=notes, suggested=frozenset(suggested))


def is_book(labels: Path | None) -> bool:
    """Return True for a file that is to be read as a label book."""
    return labels is not None and is_database(labels)


def digest_of_file(path: Path) -> str:
    """The digest of the content of a file."""
    return sha256_of(path)[:DIGITS]


def digests_of_rows(numbers: Sequence[NDArray[Any]], texts: Sequence[Sequence[str]], rows: int) -> tuple[str, ...]:
    """The digests of the rows of a table, given its columns of numbers and of texts."""
    import numpy as np

    found = []
    for start in range(0, rows, ROWS_AT_ONCE):
        some = slice(start, min(start + ROWS_AT_ONCE, rows))
        matrix = np.empty((some.stop - start, len(numbers)))
        for place, column in enumerate(numbers):
            matrix[:, place] = column[some]
        words = zip(*(column[some] for column in texts), strict=True) if texts else [()] * len(matrix)
        for row, cells in zip(matrix, words, strict=True):
            digest = hashlib.sha256(row.tobytes() + (repr(cells).encode(errors="backslashreplace") if cells else b""))
            found.append(digest.hexdigest()[:DIGITS])
    return tuple(found)
