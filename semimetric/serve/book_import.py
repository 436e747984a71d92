"""Labels of a CSV file, taken into the label book of a run."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from semimetric.core.errors import InputError
from semimetric.data.collection import label_texts
from semimetric.data.readers.delimited import read_delimited
from semimetric.data.readers.folder import BOOK_COLUMNS, SOURCE_COLUMN, list_columns
from semimetric.serve.book import LabelBook
from semimetric.serve.csv_file import plain_text


class Imported(NamedTuple):
    """How many labels a file has set and cleared, and the names in it that no example has."""

    labelled: int
    cleared: int
    unknown: tuple[str, ...]


def import_labels(
    book: LabelBook, path: Path, who: str, label_column: str | None = None, id_column: str | None = None
) -> Imported:
    """Take the labels of a CSV file into the book, as one change of each person.

    A label that says "unlabelled", or an empty one of a file that the page itself wrote, is taken away; any other empty
    one says nothing. Where the file has a column of sources, an empty one means that the example was drawn at random.
    """
    given = _listed(path, who, label_column, id_column)
    rows = {name: row for row, name in enumerate(book.names)}
    unknown = tuple(name for name in given if name not in rows)
    if given and len(unknown) == len(given):
        raise InputError(
            f"{path} names no example of the run. Names are as in 'semimetric labels', such as {book.names[0]}."
        )
    new = {rows[name]: entry for name, entry in given.items() if name in rows and entry[0] != book.labels[rows[name]]}
    for row, (_, _, source) in new.items():
        book.sources[row] = book.sources[row] if source is None else source
    for person in dict.fromkeys(entry[1] for entry in new.values()):
        book.label_each({row: entry[0] for row, entry in new.items() if entry[1] == person}, person)
    labelled = sum(entry[0] is not None for entry in new.values())
    return Imported(labelled, len(new) - labelled, unknown)


def _listed(
    path: Path, who: str, label_column: str | None, id_column: str | None
) -> dict[str, tuple[str | None, str, str | None]]:
    """Label, person and source of each example in a CSV file; two labels for the same example are refused."""
    table = read_delimited(path)
    columns = list(table.columns)
    names, texts = (table.columns[column] for column in list_columns(columns, label_column, id_column, path))
    is_log = {*BOOK_COLUMNS} <= {*columns}
    persons = table.columns.get("who", ()) if is_log else ()
    lines = zip_longest(
        names, texts, label_texts(map(plain_text, texts)), persons, table.columns.get(SOURCE_COLUMN, ())
    )
    found: dict[str, tuple[str | None, str, str | None]] = {}
    for cell, text, label, person, source in lines:
        name = plain_text(cell)
        if not is_log and not text.strip():
            continue
        if not is_log and name in found and found[name][0] != label:
            raise InputError(f"{path} has two labels for {name}: {found[name][0]!r} and {label!r}. Remove one row.")
        found[name] = label, who if person in (None, "run") else person, source
    return found
