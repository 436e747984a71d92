"""Text tables with a header, as spreadsheets and programs write them: delimited by commas, semicolons or tabs."""

from __future__ import annotations

import csv
import difflib
import io
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from semimetric.core.errors import InputError
from semimetric.core.files import check_input

_DELIMITERS, _HEAD = "\t;,", 2**16
_SHOWN_COLUMNS, _SHOWN_LETTERS = 8, 40


@dataclass(frozen=True)
class Delimited:
    """The rows of a text table that are not blank."""

    numbers: tuple[int, ...]  # of each row, as a spreadsheet counts them: the header is row 1
    columns: dict[str, tuple[str, ...]]  # the fields of each column, one for each row, by its trimmed name
    skipped: dict[str, str]  # rows with too few or too many fields, and why they are left out


def read_delimited(path: Path) -> Delimited:
    """Read UTF-8 text, with or without a byte order mark, and find out the delimiter."""
    text = _text_of(path)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(text))
    try:
        header = _header(next(reader, []), path)
        numbers, rows, skipped = [], [], {}
        for number, fields in enumerate(reader, start=2):
            row = _without_blank_end(fields, len(header))
            if len(row) == len(header):
                numbers.append(number)
                rows.append(row)
            elif row:
                skipped[f"row {number}"] = f"its number of fields is {len(row)}, that of the header {len(header)}"
    except csv.Error as error:
        raise InputError(
            f"{path}, line {reader.line_num}, cannot be read as a table: {error}. Often a quotation mark before it is "
            "never closed."
        ) from error
    columns = zip(*rows, strict=True) if rows else ((),) * len(header)
    return Delimited(tuple(numbers), dict(zip(header, columns, strict=True)), skipped)


def _text_of(path: Path) -> str:
    check_input(path, "a table or list in UTF-8, such as .csv")
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{path} must be UTF-8 text, but byte {error.object[error.start]:#04x} in line {line} is not. Save it as "
            "UTF-8, in a spreadsheet as 'CSV UTF-8'."
        ) from error
    if "\0" in text:
        raise InputError(f"{path} must be UTF-8 text, but has zero bytes in it, as UTF-16 has. Save it as UTF-8.")
    return text


def _delimiter(text: str) -> str:
    """Choose what is most frequent in the header, outside of quotation marks, and as frequent in the next line."""
    lines = [line for line in re.sub(r'"[^"]*"', "", text[:_HEAD]).splitlines() if line.strip()]
    header, following = (*lines[:2], "", "")[:2]
    return max(_DELIMITERS, key=lambda mark: (0 < header.count(mark) == following.count(mark), header.count(mark)))


def _header(fields: Sequence[str], path: Path) -> tuple[str, ...]:
    names = tuple(name.strip() for name in fields)
    while names and not names[-1]:
        names = names[:-1]
    if not names:
        raise InputError(f"{path} must have the names of its columns in the first row, but that is empty.")
    if all(as_number(name) is not None for name in names):
        raise InputError(
            f"{path} must have the names of its columns in the first row, but that has numbers: {listed(names)}. Add a "
            "row with names on top."
        )
    check_columns(names, path)
    return names


def check_columns(names: Sequence[str], path: Path) -> None:
    """Refuse columns without a name, or with that of another."""
    if "" in names:
        raise InputError(
            f"{path} has no name for column {names.index('') + 1}. Name it or take it out; pandas leaves an index "
            "away with to_csv(index=False)."
        )
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise InputError(f"{path} has {count} columns of the name {name!r}. Rename or remove all but one.")


def _without_blank_end(fields: Sequence[str], width: int) -> Sequence[str]:
    """Take away empty fields beyond the header, and all fields of a row that is blank."""
    if not any(field.strip() for field in fields):
        return ()
    return fields if any(field.strip() for field in fields[width:]) else fields[:width]


def find_column(
    names: Sequence[str], wanted: str | None, usual: Sequence[str], argument: str, path: Path
) -> str | None:
    """Find the column ``wanted``, which ``argument`` names and must exist, or the first usual one; case counts last."""
    for candidate in usual if wanted is None else (wanted.strip(),):
        if candidate in names:
            return candidate
        for name in names:
            if name.casefold() == candidate.casefold():
                return name
    if wanted is not None:
        near = difflib.get_close_matches(wanted.strip(), names, 1)
        remedy = f"Did you mean {near[0]!r}?" if near else "Name one of these."
        raise InputError(f"{argument} {wanted!r} is not in {path}, which has {listed(names)}. {remedy}")
    return None


def listed(names: Iterable[str]) -> str:
    """Name the first few, each cut where it is very long."""
    every = [name if len(name) <= _SHOWN_LETTERS else name[: _SHOWN_LETTERS - 1] + "…" for name in names]
    rest = f" and {len(every) - _SHOWN_COLUMNS} more" if len(every) > _SHOWN_COLUMNS else ""
    return ", ".join(repr(name) for name in every[:_SHOWN_COLUMNS]) + rest


def as_number(text: str) -> float | None:
    """Read a number as tables have them, or None; 2019_01 is one for Python alone."""
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None
