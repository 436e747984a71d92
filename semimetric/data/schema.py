"""Columns of a table: which hold numbers, categories or text, and how each becomes features.

A table of numbers without gaps stays as it is. In any other table all columns are brought to one scale, on which two
different rows are about sqrt(2) apart in each column:

numeric      (value - mean) / standard deviation; a gap is filled with the median
categorical  1 in the column of its category, else 0; rare categories share one column, unknown ones go there, too
text         TF-IDF of words, projected by truncated SVD, relative to the standard deviation of the first component
gaps         1 in a further column where the value is missing, if the training table has gaps in that column
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

import numpy as np

from semimetric.core.errors import InputError
from semimetric.data.columns import (
    Array,
    CategoricalColumn,
    Column,
    ColumnChoice,
    ColumnType,
    NumericColumn,
    RawColumn,
    TextColumn,
    medians,
)
from semimetric.data.readers.delimited import listed

UNWANTED, EMPTY, IDENTIFIER = "not wanted", "no value", "identifier"
"""Why a column is left out."""

_FEW_WORDS, _FEW_TEXTS = 3, 20  # on average, and different ones: fewer are categories
_SURE_ROWS, _FEWEST_IDS = 20, 5  # rows that must differ for an identifier: without and with a name that says so
_DECIMAL_COMMA = re.compile(r"\s*[+-]?[0-9]*,[0-9]+\s*")
_ID_NAME = re.compile(
    r"(?i:(?:^|[\s_.-])(?:id|ids|uuid|guid|key|no|nr|num|number|index|idx|serial)$|^unnamed: 0$)|[a-z]I[dD]$"
)


@dataclass(frozen=True)
class Schema:
    """The columns of a table that a model takes, in order, and those that were left out, with the reason.

    ``named`` is False for columns of an array, which go by their place.
    """

    columns: tuple[Column, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)
    named: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns; none of an array's."""
        return tuple(column.name for column in self.columns) if self.named else ()

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features; none of an array's."""
        named = ([*c.features, *([f"{c.name} missing"] if c.gaps else [])] for c in self.columns if self.named)
        return tuple(name for names in named for name in names)

    @property
    def encodes(self) -> bool:
        """Whether features are something else than the numbers of the table."""
        return not all(isinstance(column, NumericColumn) and column.is_plain for column in self.columns)

    @property
    def places(self) -> int:
        """Columns of the training table, those that were left out included."""
        return len(self.columns) + len(self.left_out)

    @property
    def width(self) -> int:
        """Features of one row."""
        return sum(column.width + column.gaps for column in self.columns)

    def encode(self, raw: Mapping[str, RawColumn], rows: int) -> tuple[Array, Array]:
        """Features float32 (N, width) of columns by name, and which rows (N,) have a value at all."""
        features, known = np.empty((rows, self.width), dtype=np.float32), np.zeros(rows, dtype=bool)
        place = 0
        for column in self.columns:
            cells = raw[column.name]
            missing = column.missing(cells)
            features[:, place : place + column.width] = column.encode(cells)
            place += column.width
            if column.gaps:
                features[:, place] = missing
                place += 1
            known |= ~missing
        return features, known

    def encode_matrix(self, matrix: Array) -> tuple[Array, Array]:
        """As ``encode``, of an array of numbers (N, d)."""
        if self.encodes:
            return self.encode(array_columns(matrix), len(matrix))
        with np.errstate(over="ignore"):
            features = matrix.astype(np.float32)
        gaps = ~np.isfinite(features)
        if gaps.any():
            features[gaps] = np.broadcast_to([getattr(column, "fill", 0) for column in self.columns], gaps.shape)[gaps]
        return features, np.logical_not(gaps.all(axis=1))

    def check_types(self, raw: Mapping[str, RawColumn], source: object) -> None:
        """Refuse new columns that hold something else than those of the training."""
        for column in self.columns:
            told = column.changed(raw[column.name])
            if told:
                raise InputError(f"column {listed([column.name])} of {source} {told}. Give values of the same type.")

    def new_gaps(self, raw: Mapping[str, RawColumn]) -> list[str]:
        """Sentences on gaps in columns that had none in training."""
        counts = {c.name: int(c.missing(raw[c.name]).sum()) for c in self.columns if not c.gaps}
        found = [name for name, count in counts.items() if count]
        return [f"gaps in columns that had none in training are filled: {listed(found)}."] if found else []

    def as_dict(self) -> dict[str, Any]:
        """Everything but arrays, for JSON."""
        columns = [{"name": column.name, "type": column.kind} | column.as_dict() for column in self.columns]
        return {"named": self.named, "left_out": dict(self.left_out), "columns": columns}

    def arrays(self) -> dict[str, Array]:
        """Arrays by the number of the column and their name there."""
        pairs = ((place, column.arrays()) for place, column in enumerate(self.columns))
        return {f"{place}.{name}": array for place, found in pairs for name, array in found.items()}

    @classmethod
    def restore(cls, written: Mapping[str, Any], arrays: Mapping[str, Array]) -> Schema:
        """The schema of ``as_dict`` and ``arrays``."""
        columns = tuple(_restored(entry, place, arrays) for place, entry in enumerate(written["columns"]))
        return cls(columns, dict(written["left_out"]), bool(written["named"]))

    @classmethod
    def of_numbers(cls, names: Iterable[str], named: bool) -> Schema:
        """Columns of numbers in which nothing may be missing."""
        return cls(tuple(NumericColumn(name, False, np.nan) for name in names), named=named)


_KINDS: dict[str, type[Any]] = {kind.kind: kind for kind in (NumericColumn, CategoricalColumn, TextColumn)}


def _restored(written: Mapping[str, Any], place: int, arrays: Mapping[str, Array]) -> Column:
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in written.items() if name != "type"
    }
    own = {name.split(".", 1)[1]: array for name, array in arrays.items() if name.split(".", 1)[0] == str(place)}
    found: Column = _KINDS[written["type"]](**fields | own)
    return found


def array_columns(matrix: Array) -> dict[str, RawColumn]:
    """The columns of an array of numbers (N, d), by their place."""

    def column(place: int) -> RawColumn:
        return RawColumn(lambda: matrix[:, place].tolist(), lambda: matrix[:, place].astype(np.float64))

    return {str(place): column(place) for place in range(matrix.shape[1])}


def fit_array(matrix: Array) -> Schema:
    """The schema of an array of numbers (N, d)."""
    names = [str(place) for place in range(matrix.shape[1])]
    with np.errstate(over="ignore"):
        plain = bool(np.isfinite(matrix.astype(np.float32, copy=False)).all())
    if plain:
        fills = np.atleast_1d(medians(matrix)).tolist() if len(matrix) else [0.0] * len(names)
        pairs = zip(names, fills, strict=True)
        found: tuple[Column, ...] = tuple(NumericColumn(name, False, fill) for name, fill in pairs)
    else:
        raw = array_columns(matrix)
        found = tuple(NumericColumn.fit(name, raw[name], scaled=True) for name in names if _any_number(raw[name]))
    kept = {column.name for column in found}
    return Schema(found, {name: EMPTY for name in names if name not in kept}, named=False)


def _any_number(raw: RawColumn) -> bool:
    return not bool(np.isnan(raw.numbers).all())


def fit_columns(raw: Mapping[str, RawColumn], choice: ColumnChoice, source: object) -> tuple[Schema, list[str]]:
    """The schema of a table whose columns are all features, and sentences on what was assumed.

    Parameters
    ----------
    raw : the columns by name, without those of labels and ids
    choice : what the user says of them
    source : what to call the table
    """
    left_out = {
        name: UNWANTED for name in raw if name in choice.drop or (choice.columns and name not in choice.columns)
    }
    types: dict[str, ColumnType] = {}
    for name in (name for name in raw if name not in left_out):
        found = choice.types.get(name) or _type_of(raw[name], name, source)
        if found is None:
            left_out[name] = EMPTY
        elif name not in choice.declared and _is_identifier(name, raw[name], found):
            left_out[name] = IDENTIFIER
        else:
            types[name] = found
    scaled = any(kind != "numeric" or np.isnan(raw[name].numbers).any() for name, kind in types.items())
    fitted = {name: _fitted(name, raw[name], kind, scaled) for name, kind in types.items()}
    left_out |= {name: EMPTY for name, column in fitted.items() if column is None}
    schema = Schema(tuple(column for column in fitted.values() if column is not None), left_out)
    return schema, [*_about_types(schema), *_about_gaps(schema, raw), *_about_left_out(schema)]


def _fitted(name: str, raw: RawColumn, kind: ColumnType, scaled: bool) -> Column | None:
    if kind == "numeric":
        return NumericColumn.fit(name, raw, scaled) if _any_number(raw) else None
    return CategoricalColumn.fit(name, raw) if kind == "categorical" else TextColumn.fit(name, raw)


def _type_of(raw: RawColumn, name: str, source: object) -> ColumnType | None:
    """What a column holds; None if it is empty."""
    if raw.is_numeric():
        return "numeric"
    filled = [text for text in raw.texts if text]
    if not filled:
        return None
    nested = next((value for value in raw.values() if isinstance(value, list | dict | tuple | bytes)), None)
    if nested is not None:
        raise InputError(
            f"column {listed([name])} of {source} has {type(nested).__name__} values, neither numbers nor text. Leave "
            "it out with --drop, or give it a column for each number."
        )
    if sum(_DECIMAL_COMMA.fullmatch(text) is not None for text in filled) > len(filled) / 2:
        raise InputError(
            f"column {listed([name])} of {source} has decimals with a comma ({filled[0]}). Write them with a point, or "
            "declare what it is with --types."
        )
    words = sum(len(text.split()) for text in filled) / len(filled)
    return "text" if words >= _FEW_WORDS and len(set(filled)) > _FEW_TEXTS else "categorical"


def _is_identifier(name: str, raw: RawColumn, kind: ColumnType) -> bool:
    """Whether all values differ, and are whole numbers or single words that name or count the rows."""
    named = _ID_NAME.search(name) is not None
    if kind == "numeric":
        values = raw.numbers[~np.isnan(raw.numbers)]
        counts_rows = len(values) >= _SURE_ROWS and bool((np.diff(values) == 1).all())
        enough = (named and len(values) >= _FEWEST_IDS) or counts_rows
        return enough and bool((values == np.round(values)).all()) and len(np.unique(values)) == len(values)
    texts = [text for text in raw.texts if text]
    enough = len(texts) >= (_FEWEST_IDS if named else _SURE_ROWS)
    return enough and kind == "categorical" and len(set(texts)) == len(texts)


def _about_left_out(schema: Schema) -> list[str]:
    groups = {why: [name for name, found in schema.left_out.items() if found == why] for why in (EMPTY, IDENTIFIER)}
    told = [f"left out, because it has no value: {listed(groups[EMPTY])}."] if groups[EMPTY] else []
    if groups[IDENTIFIER]:
        first = groups[IDENTIFIER][0]
        told.append(
            f"left out, because all values differ, as those of an identifier: {listed(groups[IDENTIFIER])}. Keep it "
            f"with --types {first}=TYPE (numeric, categorical or text), or name rows by it: --id-column {first}."
        )
    return told


def _about_types(schema: Schema) -> list[str]:
    kinds = {kind: [column.name for column in schema.columns if column.kind == kind] for kind in get_args(ColumnType)}
    if not schema.encodes or not (kinds["categorical"] or kinds["text"]):
        return []
    told = [f"{len(kinds['numeric'])} numeric"]
    told += [f"{len(kinds[kind])} {kind} ({listed(kinds[kind])})" for kind in ("categorical", "text") if kinds[kind]]
    return [f"columns: {', '.join(told)}. Another type is declared with --types NAME=TYPE."]


def _about_gaps(schema: Schema, raw: Mapping[str, RawColumn]) -> list[str]:
    gaps = {column.name: int(column.missing(raw[column.name]).sum()) for column in schema.columns if column.gaps}
    if not gaps:
        return []
    odd = {column.name: raw[column.name].odd for column in schema.columns if column.kind == "numeric"}
    told = [f"{sum(gaps.values())} gaps in {listed(gaps)} are filled and marked; no row is lost."]
    return told + [
        f"column {listed([name])} is numeric, but for {len(texts)} values that count as gaps: "
        f"{listed(dict.fromkeys(texts))}. Declare another type with --types."
        for name, texts in odd.items()
        if texts
    ]
