"""DataFrames in memory, of pandas or of what looks like it; neither is imported."""

from __future__ import annotations

from functools import partial
from numbers import Real
from typing import Any

import numpy as np

from semimetric.core.errors import InputError
from semimetric.data.columns import Array, ColumnChoice, RawColumn
from semimetric.data.labels import is_missing
from semimetric.data.readers.delimited import listed
from semimetric.data.schema import Schema, fit_columns


class ColumnWarning(UserWarning):
    """Columns of a DataFrame are left out."""


def is_frame(values: Any) -> bool:
    """Whether this is a table with names and types of columns."""
    return hasattr(values, "columns") and hasattr(values, "dtypes") and len(getattr(values, "shape", ())) == 2


def frame_columns(frame: Any) -> dict[str, RawColumn]:
    """The columns of a DataFrame by name."""
    names = [str(name) for name in frame.columns]
    if len({*names}) < len(names):
        raise InputError(f"X must have columns with different names, got {listed(names)}. Rename some.")
    return {str(name): _column(np.asarray(frame[name])) for name in frame.columns}


def _column(values: Array) -> RawColumn:
    if values.dtype.kind in "biuf":
        return RawColumn(values.tolist, partial(values.astype, np.float64))
    cells = values.tolist()
    known = [value for value in cells if value is not None and not is_missing(str(value))]
    if known and all(isinstance(value, Real) for value in known):
        return RawColumn(values.tolist, partial(_numbers, cells))
    return RawColumn(partial(list, cells), is_text=True)


def _numbers(cells: list[Any]) -> Array:
    return np.array([float(cell) if isinstance(cell, Real) else np.nan for cell in cells])


def needs_schema(raw: dict[str, RawColumn]) -> bool:
    """Whether there is more in these columns than numbers without gaps."""
    return any(column.typed is None or bool(np.isnan(column.numbers).any()) for column in raw.values())


def fit_frame(raw: dict[str, RawColumn]) -> tuple[Schema, list[str]]:
    """The schema of a DataFrame, and sentences on columns that were left out."""
    schema, _ = fit_columns(raw, ColumnChoice(), "X")
    if not schema.columns:
        raise InputError(f"X must have columns of features, but has only {listed(raw)}. Add some.")
    told = f"columns of X are left out, since they are empty or all their values differ: {listed(schema.left_out)}."
    return schema, [f"{told} Encode such a column yourself to use it."] if schema.left_out else []


def encode_frame(schema: Schema, raw: dict[str, RawColumn], rows: int) -> Array:
    """Features (N, width) of a DataFrame; other columns than those of the schema may be there."""
    lost = [name for name in schema.names if name not in raw]
    if lost:
        raise InputError(f"X lacks the columns {listed(lost)}, which the model was fitted on. Add them.")
    schema.check_types(raw, "X")
    return schema.encode(raw, rows)[0]


def encode_array(schema: Schema, values: Any) -> Array:
    """Features (N, width) of an array for a schema of columns without names."""
    matrix = np.asarray(values, dtype=np.float64)
    if schema.named:
        raise InputError(
            f"X must be a DataFrame with the columns {listed(schema.names)}, as in fit, got {type(values).__name__}."
        )
    if matrix.ndim != 2 or matrix.shape[1] != schema.places:
        raise InputError(f"X must be of shape (N, {schema.places}), as in fit, got {matrix.shape}.")
    return schema.encode_matrix(matrix)[0]
