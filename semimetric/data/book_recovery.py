"""What can still be read of a damaged label book: its rows, page by page, each with the right checksum."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from semimetric.core.errors import InputError, RunError
from semimetric.core.files import check_output, write_new
from semimetric.data.label_book import SCHEMA, crc_of

PAGE, LEAF = 4096, 13
"""Bytes of a page, and the mark of one that holds rows, in the format of SQLite 3."""

WIDTHS = {"classes": 5, "events": 11}
SIZES = (0, 1, 2, 3, 4, 6, 8, 8, 0, 0)
"""Bytes of a number by its type; from type 12 on a value is text."""

Value = int | str | None


def recover(book: Path, copy: Path) -> dict[str, int]:
    """Write every whole row of a damaged book to a new one: how many of each table there are."""
    check_output(copy, [book], option="--recover")
    if book.is_symlink() or not book.is_file():
        raise InputError(f"{book} is not a file, so there is nothing to recover.")
    found = list(_rows(book.read_bytes()))
    found += _lost_classes([row for row in found if len(row) == WIDTHS["events"]])
    db = sqlite3.connect(":memory:", isolation_level=None)
    db.executescript(SCHEMA)
    counts = {}
    for table, width in WIDTHS.items():
        rows = dict.fromkeys(row for row in found if len(row) == width)
        db.executemany(f"INSERT OR IGNORE INTO {table} VALUES ({', '.join('?' * width)})", rows)
        counts[table] = len({row[0] for row in rows})
    if not counts["events"]:
        raise RunError(f"{book} has no event that can be read. Restore it from a copy.")
    write_new(copy, db.serialize())
    last = db.execute("SELECT max(number) FROM events").fetchone()[0]  # numbers go up by one
    return counts | {"lost": last - counts["events"]}


def _rows(content: bytes) -> Iterator[tuple[Value, ...]]:
    for start in range(0, len(content), PAGE):
        page, head = content[start : start + PAGE], 0 if start else 100
        if len(page) < PAGE or page[head] != LEAF:
            continue
        for cell in range(int.from_bytes(page[head + 3 : head + 5], "big")):
            at = head + 8 + 2 * cell
            with suppress(IndexError, ValueError):  # a damaged row
                row = _row(page, int.from_bytes(page[at : at + 2], "big"))
                if len(row) in WIDTHS.values() and crc_of(row[:-1]) == row[-1]:
                    yield row


def _lost_classes(events: list[tuple[Value, ...]]) -> list[tuple[Value, ...]]:
    """Classes by the events that added them, without the keys that they had."""
    added = {row[7]: row[8] for row in reversed(events) if row[4] == "add class" and row[8] is not None}
    rows = [(number, name, None, int(number or 0) - 1) for number, name in added.items()]
    return [(*row, crc_of(row)) for row in rows]


def _row(page: bytes, at: int) -> tuple[Value, ...]:
    """The values of a cell; its first column is the number of the row, which the format leaves out."""
    _, at = _number(page, at)
    row, at = _number(page, at)
    size, place = _number(page, at)
    kinds, end = [], at + size
    while place < end:
        kind, place = _number(page, place)
        kinds.append(kind)
    values: list[Value] = []
    for kind in kinds:
        width = (kind - 12) // 2 if kind >= 12 else SIZES[kind]
        piece, place = page[place : place + width], place + width
        number = kind - 8 if kind in (8, 9) else int.from_bytes(piece, "big", signed=True)
        values.append(piece.decode() if kind >= 12 else number if kind else None)
    return (row, *values[1:])


def _number(page: bytes, at: int) -> tuple[int, int]:
    """A number of variable length, and where it ends."""
    value = 0
    for place in range(at, at + 9):
        value = (value << 7) | (page[place] & 127)
        if page[place] < 128:
            return value, place + 1
    raise ValueError("no number")
