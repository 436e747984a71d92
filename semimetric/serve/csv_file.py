"""CSV files whose texts no spreadsheet takes for formulas."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from semimetric.core.files import write_text

FORMULAS = ("=", "+", "-", "@", "\t", "\r")
"""What a cell begins with that a spreadsheet may run as a formula."""


def write_table(out: Path, header: list[str], rows: Iterable[Sequence[object]], raw: bool = False) -> None:
    """Write a CSV file atomically; for ``raw`` see ``table_text``."""
    write_text(out, table_text(header, rows, raw))


def table_text(header: list[str], rows: Iterable[Sequence[object]], raw: bool = False) -> str:
    """Rows as CSV.

    A text that a spreadsheet would take for a formula gets a "'" in front of it, unless ``raw``. Numbers stay.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header if raw else map(_inert, header))
    writer.writerows(rows if raw else (map(_inert, row) for row in rows))
    return text.getvalue()


def plain_text(cell: str) -> str:
    """The text of a cell as it was before ``table_text`` wrote it."""
    return cell[1:] if cell.startswith("'") and cell[1:].startswith(FORMULAS) else cell


def _inert(cell: object) -> object:
    if not (isinstance(cell, str) and cell.startswith(FORMULAS)):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell
