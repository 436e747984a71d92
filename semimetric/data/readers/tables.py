"""A user's own tables: columns of features in .csv, .tsv, .parquet, .npy and .npz files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semimetric.core.errors import InputError
from semimetric.core.extras import import_extra
from semimetric.data.collection import Collection, label_texts, raw_texts, skipped_lines
from semimetric.data.columns import ColumnChoice, RawColumn
from semimetric.data.label_matches import digests_of_rows
from semimetric.data.labels import placeholder_notes
from semimetric.data.readers.arrays import ARRAY_SUFFIXES, read_arrays
from semimetric.data.readers.delimited import check_columns, find_column, listed, read_delimited
from semimetric.data.schema import Schema, array_columns, fit_array, fit_columns

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

LABEL_COLUMNS, ID_COLUMNS = ("label", "labels", "y", "class", "target"), ("id",)
"""Usual names of the columns with labels and with names of rows, in lower case."""
TABLE_SUFFIXES = (".csv", ".tsv", ".parquet", *ARRAY_SUFFIXES)

NO_VALUE = "it has no value in any column of features"
"""Why a row of a table is left out."""

_PANDAS_INDEX = re.compile(r"__index_level_[0-9]+__")


@dataclass(frozen=True)
class _Table:
    """N rows of a file with a header: their numbers there, the columns, and rows that were left out."""

    source: Path
    numbers: Sequence[int]
    columns: dict[str, RawColumn]
    skipped: dict[str, str]


@dataclass(frozen=True)
class _Rows:
    """N rows of a file: their numbers there, encoded features (N, d), and labels and ids (N,) where there are any.

    ``known`` (N,) tells which rows have a value at all.
    """

    source: Path
    numbers: Sequence[int]
    schema: Schema
    features: Array
    known: Array
    labels: Sequence[object] | None = None
    ids: Sequence[object] | None = None
    skipped: dict[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    digests: Sequence[str] = ()


def read_table(source: Path, label_column: str | None, id_column: str | None, choice: ColumnChoice) -> Collection:
    """Read a table, the kind of which its suffix tells; see ``read_collection``."""
    if source.suffix.lower() in ARRAY_SUFFIXES:
        if choice:
            raise InputError(
                f"drop, columns and types are for columns with names, and {source} has none. Leave them out."
            )
        matrix, labels, ids = read_arrays(source, label_column, id_column)
        schema = fit_array(matrix)
        return _collection(_array_rows(source, schema, matrix, schema.encode_matrix(matrix), labels, ids))
    table = _read(source)
    label = _label_column(list(table.columns), label_column, source)
    unclaimed = [name for name in table.columns if name != label]
    names = unclaimed if id_column is None else list(table.columns)
    identifier = find_column(names, id_column, ID_COLUMNS, "id_column", source)
    raw = {name: column for name, column in table.columns.items() if name not in (label, identifier)}
    schema, notes = fit_columns(raw, _checked(choice, raw, source), source)
    if not schema.columns:
        told = " ".join(["Add some.", *notes])
        raise InputError(f"{source} must have columns of features, but has only {listed(table.columns)}. {told}")
    if label is not None and label_column is None:
        notes = [f"labels are those of column {label!r}, by its name. Name another with --label-column.", *notes]
    return _collection(_rows_of(table, schema, raw, label, identifier, notes))


def read_new_table(
    source: Path,
    schema: Schema,
    label_column: str | None = None,
    id_column: str | None = None,
    usual: tuple[str, str] = ("", ""),
) -> Collection:
    """Read the columns of a schema from new data; other columns may be there, and labels need not.

    Parameters
    ----------
    schema : the columns of the training table
    label_column, id_column : columns of labels and of names, which must be there
    usual : columns of labels and of names in training, which may be there
    """
    if source.suffix.lower() in ARRAY_SUFFIXES:
        matrix, labels, ids = read_arrays(source, label_column, id_column)
        return _collection(_array_rows(source, schema, matrix, _encoded(schema, matrix, source), labels, ids))
    table = _read(source)
    others = [name for name in table.columns if name not in schema.names]
    label = find_column(others, label_column, [*filter(None, usual[:1]), *LABEL_COLUMNS], "label_column", source)
    unclaimed = [name for name in others if name != label]
    identifier = find_column(unclaimed, id_column, [*filter(None, usual[1:]), *ID_COLUMNS], "id_column", source)
    claimed = {label, identifier, *schema.left_out}
    if schema.named:
        lost = [name for name in schema.names if name not in table.columns]
        if lost:
            them = "column" if len(lost) == 1 else "columns"
            raise InputError(f"{source} lacks the {them} {listed(lost)}, which the run was trained on. Add it.")
        raw = {name: table.columns[name] for name in schema.names}
        unused = [name for name in others if name not in claimed]
    else:
        given = [column for name, column in table.columns.items() if name not in (label, identifier)]
        _check_width(schema, len(given))
        raw, unused = {str(place): column for place, column in enumerate(given)}, []
    schema.check_types(raw, source)
    notes = (
        [f"{source} has columns that the run does not know and that are not used: {listed(unused)}."] if unused else []
    )
    return _collection(_rows_of(table, schema, raw, label, identifier, [*notes, *schema.new_gaps(raw)]))


def _rows_of(
    table: _Table,
    schema: Schema,
    raw: Mapping[str, RawColumn],
    label: str | None,
    identifier: str | None,
    notes: Sequence[str],
) -> _Rows:
    labels, ids = (None if name is None else table.columns[name].values() for name in (label, identifier))
    encoded = schema.encode(raw, len(table.numbers))
    numbers = [raw[column.name].numbers for column in schema.columns if column.kind == "numeric"]
    texts = [raw[column.name].texts for column in schema.columns if column.kind != "numeric"]
    digests = digests_of_rows(numbers, texts, len(table.numbers))
    return _Rows(table.source, table.numbers, schema, *encoded, labels, ids, table.skipped, notes, digests)


def _array_rows(
    source: Path,
    schema: Schema,
    matrix: Array,
    encoded: tuple[Array, Array],
    labels: Sequence[object] | None,
    ids: Sequence[object] | None,
) -> _Rows:
    digests = digests_of_rows(list(matrix.T), (), len(matrix))
    return _Rows(source, range(len(matrix)), schema, *encoded, labels, ids, digests=digests)


def _encoded(schema: Schema, matrix: Array, source: Path) -> tuple[Array, Array]:
    """Features of an array, whose columns go by their place."""
    if not schema.named:
        _check_width(schema, matrix.shape[1])
        return schema.encode_matrix(matrix)
    others = [column.name for column in schema.columns if column.kind != "numeric"]
    if others or schema.left_out:
        told = others or list(schema.left_out)
        raise InputError(
            f"the run was trained on a table with names, and not all of its columns are features of numbers "
            f"({listed(told)}), so that the places in {source} tell nothing. Give a .csv, .tsv or .parquet table."
        )
    _check_width(schema, matrix.shape[1])
    return schema.encode(dict(zip(schema.names, array_columns(matrix).values(), strict=True)), len(matrix))


def _check_width(schema: Schema, found: int) -> None:
    wanted = schema.places
    if found != wanted:
        raise InputError(
            f"the run was trained on {wanted} features, and these have {found}. Give the same features in the same "
            "order."
        )


def _checked(choice: ColumnChoice, raw: Mapping[str, RawColumn], source: Path) -> ColumnChoice:
    """Refuse names of columns that are not there."""
    for option, names in (("drop", choice.drop), ("columns", choice.columns), ("types", tuple(choice.types))):
        odd = [name for name in names if name not in raw]
        if odd:
            raise InputError(
                f"--{option} names {listed(odd)}, which is not among the columns of features of {source}. These are "
                f"{listed(raw)}."
            )
    return choice


def _read(source: Path) -> _Table:
    """The columns by name, the numbers of the rows, and the rows that were left out."""
    if source.suffix.lower() == ".parquet":
        return _read_parquet(source)
    table = read_delimited(source)
    columns = {name: RawColumn(partial(list, texts)) for name, texts in table.columns.items()}
    return _Table(source, table.numbers, columns, dict(table.skipped))


def _read_parquet(source: Path) -> _Table:
    pyarrow, parquet = (import_extra(name, "tables", str(source)) for name in ("pyarrow", "pyarrow.parquet"))
    try:
        with parquet.ParquetFile(source) as file:
            table = file.read()
    except MemoryError:
        raise
    except Exception as error:  # a damaged file can raise almost anything
        raise InputError(f"{source} cannot be read as a Parquet file: {error}. Write it again.") from error
    check_columns(table.column_names, source)
    found = {name: table[name] for name in table.column_names if not _PANDAS_INDEX.fullmatch(name)}
    return _Table(
        source, range(len(table)), {name: _arrow_column(pyarrow, column) for name, column in found.items()}, {}
    )


def _arrow_column(pyarrow: Any, column: Any) -> RawColumn:
    kinds = pyarrow.types
    tests = (kinds.is_integer, kinds.is_floating, kinds.is_boolean, kinds.is_decimal)
    if not any(test(column.type) for test in tests):
        return RawColumn(column.to_pylist, is_text=True)
    return RawColumn(column.to_pylist, lambda: column.cast(pyarrow.float64(), safe=False).to_numpy())


def _label_column(names: Sequence[str], wanted: str | None, source: Path) -> str | None:
    usual = [name for name in names if name.lower() in LABEL_COLUMNS]
    if wanted is None and len(usual) > 1:
        raise InputError(
            f"{source} has several columns that may hold the labels: {listed(usual)}. Name the right one with "
            "label_column, and leave the others out with --drop if they give it away."
        )
    return find_column(names, wanted, LABEL_COLUMNS, "label_column", source)


def _collection(rows: _Rows) -> Collection:
    """Name the rows, and leave out those that have no value or none that can be filled."""
    import numpy as np
    import torch

    names, skipped = _names(rows), dict(rows.skipped)
    finite = np.isfinite(rows.features)
    usable = rows.known & finite.all(axis=1)
    for row in np.flatnonzero(~usable).tolist():
        skipped[names[row]] = _why(rows.schema, finite[row]) if rows.known[row] else NO_VALUE
    kept = np.flatnonzero(usable)
    if rows.features.size == 0 or kept.size == 0:
        raise InputError(
            f"{rows.source} must have rows of features, but none can be used. "
            + " ".join(line.strip() for line in skipped_lines(skipped))
        )
    labels = [None] * len(names) if rows.labels is None else label_texts(rows.labels)
    return Collection(
        tuple(names[row] for row in kept),
        tuple(labels[row] for row in kept),
        None,
        torch.from_numpy(rows.features if len(kept) == len(names) else rows.features[kept]),
        rows.schema.names,
        skipped,
        (*placeholder_notes(raw_texts(rows.labels or ())), *rows.notes),
        rows.schema,
        _order(rows, names),
        digests=tuple(rows.digests[row] for row in kept.tolist()),
    )


def _why(schema: Schema, finite: Array) -> str:
    """Why a row of numbers cannot be used, given which (d,) are finite."""
    place = int(finite.argmin())
    column = repr(schema.names[place]) if schema.named else place
    return f"its value in column {column} is missing or not a finite number"


def _order(rows: _Rows, names: Sequence[str]) -> tuple[str, ...]:
    """The names of all rows of the file, those that could not be read included."""
    numbered = dict(zip(rows.numbers, names, strict=True))
    unread = {int(name.removeprefix("row ")): name for name in rows.skipped}
    return tuple(name for _, name in sorted((numbered | unread).items()))


def _names(rows: _Rows) -> list[str]:
    """Name each row by its id or, where it has none, by its number."""
    ids = [None] * len(rows.numbers) if rows.ids is None else label_texts(rows.ids)
    names: dict[str, int] = {}
    for number, identifier in zip(rows.numbers, ids, strict=True):
        name = identifier or f"row {number}"
        if name in names:
            raise InputError(
                f"{rows.source} must give each row an id of its own, but rows {names[name]} and {number} both have "
                f"{name!r}. Correct one, or take the ids out to have the rows numbered."
            )
        names[name] = number
    return list(names)
