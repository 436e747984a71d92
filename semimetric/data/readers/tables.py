"""A user's own tables: feature vectors in .csv, .tsv, .parquet, .npy and .npz files."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from semimetric.core.errors import InputError
from semimetric.core.extras import import_extra
from semimetric.data.collection import Collection, label_texts, skipped_lines
from semimetric.data.readers.delimited import as_number, check_columns, find_column, listed, read_delimited

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

LABEL_COLUMNS, ID_COLUMNS = ("label", "y"), ("id",)
"""Usual names of the columns with labels and with names of rows, in lower case."""
FEATURE_ARRAYS, LABEL_ARRAYS, NAME_ARRAYS = ("X", "features"), ("y", "labels"), ("names", "ids")
_ARRAY_SUFFIXES = (".npy", ".npz")
TABLE_SUFFIXES = (".csv", ".tsv", ".parquet", *_ARRAY_SUFFIXES)

_PANDAS_INDEX = re.compile(r"__index_level_[0-9]+__")
_DECIMAL_COMMA = re.compile(r"\s*[+-]?[0-9]*,[0-9]+\s*")


@dataclass(frozen=True)
class _Column:
    """A column of N values, and these as float64 (N,), NaN for no number; None if it is not a column of numbers."""

    values: Callable[[], Sequence[object]]
    numbers: Callable[[], Array | None]


def _numbers_of_texts(texts: Sequence[str]) -> Array | None:
    """Numbers, if at least half of what is not empty is a number."""
    import numpy as np

    numbers = [as_number(text) for text in texts]
    known = sum(number is not None for number in numbers)
    if known == 0 or 2 * known < sum(bool(text.strip()) for text in texts):
        return None
    return np.array([np.nan if number is None else number for number in numbers], dtype=np.float64)


def _numbers_of_arrow(pyarrow: Any, column: Any) -> Array | None:
    """Numbers, if the type of the column is one of numbers."""
    kinds = pyarrow.types
    tests = (kinds.is_integer, kinds.is_floating, kinds.is_boolean, kinds.is_decimal)
    is_numeric = any(test(column.type) for test in tests)
    return column.cast(pyarrow.float64(), safe=False).to_numpy() if is_numeric else None


@dataclass(frozen=True)
class _Rows:
    """N rows of a file: their numbers there, features (N, d), and labels and ids (N,) where there are any."""

    source: Path
    numbers: Sequence[int]
    features: Array
    columns: tuple[str, ...] = ()
    labels: Sequence[object] | None = None
    ids: Sequence[object] | None = None


def read_table(source: Path, label_column: str | None, id_column: str | None) -> Collection:
    """Read a table, the kind of which its suffix tells; see ``read_collection``."""
    if source.suffix.lower() in _ARRAY_SUFFIXES:
        with source.open("rb") as file:
            return _collection(_rows_among(_arrays_in(file, source), source, label_column, id_column), {})
    columns, numbers, skipped = _columns(source)
    return _collection(_rows_of(source, numbers, columns, label_column, id_column), skipped)


def read_features(
    source: Path, features: Sequence[str], id_column: str | None = None, usual_id: str | None = None
) -> Collection:
    """Read the named columns of a .csv, .tsv or .parquet table, without labels; what else it has does not matter.

    Rows are named by ``id_column``, which must be there, or else by ``usual_id``, where the table has it.
    """
    columns, numbers, skipped = _columns(source)
    for name in features:
        if name not in columns:
            raise InputError(f"{source} lacks the column {name!r}, which the run was trained on. Add it.")
    others = [name for name in columns if name not in features]
    usual = ID_COLUMNS if usual_id is None else (usual_id, *ID_COLUMNS)
    identifier = find_column(others, id_column, usual, "id_column", source)
    kept = {name: columns[name] for name in [*features, *([identifier] if identifier else [])]}
    return _collection(_rows_of(source, numbers, kept, None, identifier, features), skipped)


def _columns(source: Path) -> tuple[dict[str, _Column], Sequence[int], dict[str, str]]:
    """The columns by name, the numbers of the rows, and the rows that were left out."""
    if source.suffix.lower() == ".parquet":
        return *_parquet_columns(source), {}
    table = read_delimited(source)
    fields = table.columns.items()
    columns = {name: _Column(partial(list, texts), partial(_numbers_of_texts, texts)) for name, texts in fields}
    return columns, table.numbers, dict(table.skipped)


def _parquet_columns(source: Path) -> tuple[dict[str, _Column], range]:
    pyarrow, parquet = (import_extra(name, "tables", str(source)) for name in ("pyarrow", "pyarrow.parquet"))
    try:
        with parquet.ParquetFile(source) as file:
            table = file.read()
    except Exception as error:  # a damaged file can raise almost anything
        raise InputError(f"{source} cannot be read as a Parquet file: {error}. Write it again.") from error
    check_columns(table.column_names, source)
    found = {name: table[name] for name in table.column_names if not _PANDAS_INDEX.fullmatch(name)}
    return {
        name: _Column(column.to_pylist, partial(_numbers_of_arrow, pyarrow, column)) for name, column in found.items()
    }, range(len(table))


def _rows_of(
    source: Path,
    numbers: Sequence[int],
    columns: Mapping[str, _Column],
    label_column: str | None,
    id_column: str | None,
    wanted: Sequence[str] = (),
) -> _Rows:
    """Tell the columns apart: one may hold labels, one ids, and all others, or those ``wanted``, must be numbers."""
    import numpy as np

    names = list(columns)
    label = None if wanted else _label_column(names, label_column, source)
    unclaimed = [name for name in names if name != label]
    identifier = find_column(unclaimed if id_column is None else names, id_column, ID_COLUMNS, "id_column", source)
    features = {name: columns[name].numbers() for name in names if name not in (label, identifier)}
    _check_numeric(source, {name: columns[name] for name, found in features.items() if found is None})
    if not features:
        raise InputError(f"{source} must have columns of features, but has only {listed(names)}. Add some.")
    labels, ids = (None if name is None else columns[name].values() for name in (label, identifier))
    matrix = np.stack([found for found in features.values() if found is not None], axis=1)
    return _Rows(source, numbers, matrix, tuple(features), labels, ids)


def _label_column(names: Sequence[str], wanted: str | None, source: Path) -> str | None:
    usual = [name for name in names if name.lower() in LABEL_COLUMNS]
    if wanted is None and len(usual) > 1:
        raise InputError(
            f"{source} has several columns that may hold the labels: {listed(usual)}. Name the right one with "
            "label_column, and take the others out if they give it away."
        )
    return find_column(names, wanted, LABEL_COLUMNS, "label_column", source)


def _check_numeric(source: Path, others: Mapping[str, _Column]) -> None:
    if not others:
        return
    values = (str(value) for column in others.values() for value in column.values())
    commas = any(_DECIMAL_COMMA.fullmatch(value) for value in values)
    raise InputError(
        f"{source} must have numbers in all columns of features, but has few or none in {listed(others)}. "
        + ("Write decimals with a point, not with a comma. " if commas else "")
        + "Name the column of labels with label_column and one that names the rows with id_column; take the others "
        "out, or write them as numbers."
    )


def _arrays_in(file: BinaryIO, source: Path) -> Mapping[str, Array]:
    """Open .npz without reading the arrays; the single array of .npy is called X."""
    import numpy as np

    try:
        loaded = np.load(file, allow_pickle=False)
    except Exception as error:  # a damaged file can raise almost anything
        raise _unreadable(source, error) from error
    return {"X": loaded} if isinstance(loaded, np.ndarray) else loaded


def _unreadable(what: object, error: Exception) -> InputError:
    if "Object arrays" in str(error):
        return InputError(
            f"{what} holds Python objects, which are never unpickled. Save numbers or text, for example "
            "labels.astype(str), with '' where there is no label."
        )
    return InputError(
        f"{what} cannot be read ({type(error).__name__}): it is damaged or was not written by NumPy. Write it again "
        "with np.save or np.savez; pickled objects are never loaded."
    )


def _rows_among(arrays: Mapping[str, Array], source: Path, label_column: str | None, id_column: str | None) -> _Rows:
    names = list(arrays)
    label = find_column(names, label_column, LABEL_ARRAYS, "label_column", source)
    identifier = find_column(names, id_column, NAME_ARRAYS, "id_column", source)
    features = _feature_array(arrays, [name for name in names if name not in (label, identifier)], source)
    wanted = (label, identifier)
    labels, ids = (None if name is None else _texts_of(arrays, name, len(features), source) for name in wanted)
    return _Rows(source, range(len(features)), features, (), labels, ids)


def _array(arrays: Mapping[str, Array], name: str, source: Path) -> Array:
    try:
        return arrays[name]
    except Exception as error:  # a damaged file can raise almost anything
        raise _unreadable(f"array {name!r} of {source}", error) from error


def _feature_array(arrays: Mapping[str, Array], names: Sequence[str], source: Path) -> Array:
    """Return the array under a usual name, or else the only one with two dimensions."""
    name = find_column(names, None, FEATURE_ARRAYS, "", source)
    if name is None:
        shapes = {name: _array(arrays, name, source).shape for name in names}
        matrices = [name for name, shape in shapes.items() if len(shape) == 2]
        if len(matrices) != 1:
            raise InputError(
                f"{source} must have an array X or features, or just one with two dimensions, but has "
                f"{', '.join(f'{name} {shape}' for name, shape in shapes.items()) or 'none'}. Save the features as X."
            )
        name = matrices[0]
    features = _array(arrays, name, source)
    if features.ndim != 2 or features.dtype.kind not in "biuf":
        raise InputError(
            f"{name} of {source} must be a matrix of numbers with a row for each example, but is {features.dtype} of "
            f"shape {features.shape}. Flatten it with X.reshape(len(X), -1), or turn it into numbers."
        )
    return features


def _texts_of(arrays: Mapping[str, Array], name: str, count: int, source: Path) -> Sequence[object]:
    values = _array(arrays, name, source)
    if values.shape not in ((count,), (count, 1)) or values.dtype.kind not in "biufUS":
        raise InputError(
            f"{name} of {source} must be text or numbers, one for each of {count} rows, but is {values.dtype} of shape "
            f"{values.shape}. Save an array of shape ({count},)."
        )
    return list(values.reshape(-1))


def _collection(rows: _Rows, skipped: dict[str, str]) -> Collection:
    """Leave out the rows with a feature that is not finite in float32, and name the others."""
    import numpy as np
    import torch

    with np.errstate(over="ignore"):
        features = rows.features.astype(np.float32)
    finite = np.isfinite(features)
    kept = np.flatnonzero(finite.all(axis=1))
    for row in np.flatnonzero(~finite.all(axis=1)).tolist():
        place = int(finite[row].argmin())
        column = repr(rows.columns[place]) if rows.columns else place
        skipped[f"row {rows.numbers[row]}"] = f"its value in column {column} is missing or not a finite number"
    if features.size == 0 or kept.size == 0:
        raise InputError(
            f"{rows.source} must have rows of features, but none can be used. "
            + " ".join(line.strip() for line in skipped_lines(skipped))
        )
    labels = [None] * len(features) if rows.labels is None else label_texts(rows.labels)
    all_names = _names(rows)
    names, known = tuple(all_names[row] for row in kept), tuple(labels[row] for row in kept)
    return Collection(names, known, None, torch.from_numpy(features[kept]), rows.columns, skipped)


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
