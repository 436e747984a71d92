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
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray

from semimetric.core.checks import check_choice
from semimetric.core.errors import InputError
from semimetric.data.labels import is_missing
from semimetric.data.readers.delimited import as_number, listed

Array = NDArray[Any]
ColumnType = Literal["numeric", "categorical", "text"]

MOST_CATEGORIES, LEAST_SHARE = 32, 0.01
"""Most categories of a column that have a feature of their own, and the least share of the rows that each has."""
MOST_WORDS, TEXT_WIDTH = 10_000, 32
"""Most words of a column of text that count, and its features."""

UNWANTED, EMPTY, IDENTIFIER = "not wanted", "no value", "identifier"
"""Why a column is left out."""

_FEW_WORDS, _FEW_TEXTS = 3, 20  # on average, and different ones: fewer are categories
_ODD_SHARE = 0.1  # of a column of numbers, that may be something else
_SURE_ROWS, _FEWEST_IDS = 20, 5  # rows that must differ for an identifier: without and with a name that says so
_MEDIAN_ROWS = 10_000
_LARGEST = float(np.finfo(np.float32).max)
_WHOLE_NUMBER = re.compile(r"([+-]?[0-9]+)\.0+")
_DECIMAL_COMMA = re.compile(r"\s*[+-]?[0-9]*,[0-9]+\s*")
_ID_NAME = re.compile(
    r"(?i:(?:^|[\s_.-])(?:id|ids|uuid|guid|key|no|nr|num|number|index|idx|serial)$|^unnamed: 0$)|[a-z]I[dD]$"
)


@dataclass(frozen=True)
class ColumnChoice:
    """What a user says of the columns: some to leave out, the only ones to use, and types by name."""

    drop: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    types: Mapping[str, ColumnType] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, kind in self.types.items():
            check_choice(kind, get_args(ColumnType), f"the type of column {name!r}")

    def __bool__(self) -> bool:
        return bool(self.drop or self.columns or self.types)

    @property
    def declared(self) -> tuple[str, ...]:
        """Columns that are used whatever their values look like."""
        return *self.columns, *self.types


@dataclass(frozen=True)
class RawColumn:
    """A column of N values as read. ``typed`` gives its numbers, if its file says that it holds numbers.

    With ``is_text`` the file says that it holds text, which is then never read as numbers.
    """

    values: Callable[[], Sequence[object]]
    typed: Callable[[], Array] | None = None
    is_text: bool = False

    @cached_property
    def texts(self) -> list[str]:
        """The values as trimmed text; empty where one is missing, and 1 for 1.0."""
        return [_cell_text(value) for value in self.values()]

    @cached_property
    def numbers(self) -> Array:
        """The values as float64 (N,), NaN where there is none that is finite in float32."""
        found = self._parsed if self.typed is None else self.typed()
        with np.errstate(invalid="ignore"):
            return np.where(np.abs(found) <= _LARGEST, found, np.nan)

    @cached_property
    def _parsed(self) -> Array:
        numbers = (as_number(str(value)) for value in self.values())
        return np.array([np.nan if number is None else number for number in numbers], dtype=np.float64)

    @cached_property
    def odd(self) -> list[str]:
        """Texts that are neither numbers nor gaps."""
        if self.typed is not None or np.isfinite(self._parsed).all():
            return []
        unsure = zip(self.values(), self._parsed.tolist(), strict=True)
        texts = (str(value) for value, number in unsure if number != number)
        return [text for text in texts if not is_missing(text) and as_number(text) is None]

    def is_numeric(self) -> bool:
        """Whether these are numbers, apart from gaps and a few exceptions."""
        if self.typed is not None or self.is_text:
            return self.typed is not None
        count = int((~np.isnan(self._parsed)).sum())
        return count > 0 and len(self.odd) <= _ODD_SHARE * (count + len(self.odd))


def _cell_text(value: object) -> str:
    text = "" if value is None else str(value).strip()
    whole = _WHOLE_NUMBER.fullmatch(text)
    return "" if is_missing(text) else whole[1] if whole else text


class Column(ABC):
    """How one column becomes features (N, width); ``gaps`` adds one that tells where a value is missing."""

    kind: ClassVar[ColumnType]
    name: str
    gaps: bool

    @property
    @abstractmethod
    def width(self) -> int:
        """Features, without that of gaps."""

    @abstractmethod
    def encode(self, raw: RawColumn) -> Array:
        """Features (N, width), in float64."""

    @abstractmethod
    def missing(self, raw: RawColumn) -> Array:
        """Where (N,) there is no value."""

    @abstractmethod
    def changed(self, raw: RawColumn) -> str:
        """What new values are instead, as the end of a sentence; empty if they are of the same type."""

    @abstractmethod
    def as_dict(self) -> dict[str, Any]:
        """Everything but arrays, for JSON."""

    def arrays(self) -> dict[str, Array]:
        """Arrays by name."""
        return {}


@dataclass(frozen=True)
class NumericColumn(Column):
    """(value - centre) / spread, with ``fill`` for a gap."""

    kind = "numeric"
    name: str
    gaps: bool
    fill: float
    centre: float = 0.0
    spread: float = 1.0

    @classmethod
    def fit(cls, name: str, raw: RawColumn, scaled: bool) -> Self:
        """Median of the known values and, if ``scaled``, their mean and standard deviation."""
        known = raw.numbers[~np.isnan(raw.numbers)]
        fill = float(_medians(known))
        if not scaled:
            return cls(name, False, fill)
        centre, spread = float(known.mean()), float(known.std())
        return cls(name, len(known) < len(raw.numbers), fill, centre, spread if spread > 1e-12 * abs(centre) else 1.0)

    @property
    def is_plain(self) -> bool:
        """Whether numbers stay as they are."""
        return not self.gaps and (self.centre, self.spread) == (0.0, 1.0)

    @property
    def width(self) -> int:
        """One."""
        return 1

    def encode(self, raw: RawColumn) -> Array:
        """Scaled numbers (N, 1)."""
        filled = np.where(np.isnan(raw.numbers), self.fill, raw.numbers)
        return ((filled - self.centre) / self.spread)[:, None]

    def missing(self, raw: RawColumn) -> Array:
        """Where there is no number."""
        return np.isnan(raw.numbers)

    def changed(self, raw: RawColumn) -> str:
        """Whether most of it is no number."""
        odd, known = raw.odd, int((~np.isnan(raw.numbers)).sum())
        return f"holds text ({listed(dict.fromkeys(odd))}), and held numbers in training" if len(odd) > known else ""

    def as_dict(self) -> dict[str, Any]:
        """All numbers."""
        return {"gaps": self.gaps, "fill": self.fill, "centre": self.centre, "spread": self.spread}


@dataclass(frozen=True)
class CategoricalColumn(Column):
    """One feature for each of ``categories`` and, with ``other``, one for all others."""

    kind = "categorical"
    name: str
    gaps: bool
    categories: tuple[str, ...]
    other: bool

    @classmethod
    def fit(cls, name: str, raw: RawColumn) -> Self:
        """The most frequent categories, the most frequent first."""
        counts = Counter(text for text in raw.texts if text)
        least = LEAST_SHARE * len(raw.texts)
        ranked = sorted(counts, key=lambda text: (-counts[text], text))
        kept = tuple(text for text in ranked[:MOST_CATEGORIES] if counts[text] >= least)
        return cls(name, "" in raw.texts, kept, len(kept) < len(counts))

    @property
    def width(self) -> int:
        """Categories, and one more for others."""
        return len(self.categories) + self.other

    def encode(self, raw: RawColumn) -> Array:
        """One 1 in each row, or none where the value is missing or cannot be placed."""
        places = {text: place for place, text in enumerate(self.categories)}
        unknown = len(self.categories) if self.other else -1
        found = np.array([places.get(text, unknown) if text else -1 for text in raw.texts], dtype=np.int64)
        features = np.zeros((len(found), self.width))
        rows = np.flatnonzero(found >= 0)
        features[rows, found[rows]] = 1.0
        return features

    def missing(self, raw: RawColumn) -> Array:
        """Where the text is empty."""
        return np.array([not text for text in raw.texts], dtype=bool)

    def changed(self, raw: RawColumn) -> str:
        """Whether it has numbers, none of them known, and had other values."""
        new = {text for text in raw.texts if text}
        numbers = [text for text in new if as_number(text) is not None]
        words = [text for text in self.categories if as_number(text) is None]
        if not new or len(numbers) < len(new) or not words or new & {*self.categories}:
            return ""
        return f"holds numbers, and held categories in training ({listed(words)})"

    def as_dict(self) -> dict[str, Any]:
        """The categories."""
        return {"gaps": self.gaps, "categories": list(self.categories), "other": self.other}


@dataclass(frozen=True, eq=False)
class TextColumn(Column):
    """TF-IDF of ``terms`` (V) with the weights ``idf`` (V,), projected on ``components`` (width, V)."""

    kind = "text"
    name: str
    gaps: bool
    terms: tuple[str, ...]
    idf: Array
    components: Array

    @classmethod
    def fit(cls, name: str, raw: RawColumn) -> Self | None:
        """Words and their projection; None for a column without words."""
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import TfidfVectorizer

        few = len(raw.texts) <= TEXT_WIDTH
        vectorizer = TfidfVectorizer(sublinear_tf=True, max_features=TEXT_WIDTH if few else MOST_WORDS)
        try:
            weights = vectorizer.fit_transform(raw.texts)
        except ValueError:  # there is no word
            return None
        components = np.eye(weights.shape[1])
        if weights.shape[1] > TEXT_WIDTH:
            components = TruncatedSVD(TEXT_WIDTH, algorithm="arpack", random_state=0).fit(weights).components_
        spread = float((weights @ components.T).std(0).max())
        terms = tuple(str(term) for term in vectorizer.get_feature_names_out())
        return cls(name, "" in raw.texts, terms, vectorizer.idf_, components / (spread or 1.0))

    @cached_property
    def _vectorizer(self) -> Any:
        from sklearn.feature_extraction.text import TfidfVectorizer

        found = TfidfVectorizer(sublinear_tf=True, vocabulary=list(self.terms))
        found.idf_ = self.idf
        return found

    @property
    def width(self) -> int:
        """Components."""
        return len(self.components)

    def encode(self, raw: RawColumn) -> Array:
        """Projected weights; 0 for a text without a known word."""
        return np.asarray(self._vectorizer.transform(raw.texts) @ self.components.T)

    def missing(self, raw: RawColumn) -> Array:
        """Where the text is empty."""
        return np.array([not text for text in raw.texts], dtype=bool)

    def changed(self, raw: RawColumn) -> str:
        """Whether it has numbers alone."""
        new = [text for text in raw.texts if text]
        numbers = bool(new) and all(as_number(text) is not None for text in new)
        return "holds numbers, and held text in training" if numbers else ""

    def as_dict(self) -> dict[str, Any]:
        """The words."""
        return {"gaps": self.gaps, "terms": list(self.terms)}

    def arrays(self) -> dict[str, Array]:
        """Weights and projection."""
        return {"idf": self.idf, "components": self.components}


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
        fills = np.atleast_1d(_medians(matrix)).tolist() if len(matrix) else [0.0] * len(names)
        pairs = zip(names, fills, strict=True)
        found: tuple[Column, ...] = tuple(NumericColumn(name, False, fill) for name, fill in pairs)
    else:
        raw = array_columns(matrix)
        found = tuple(NumericColumn.fit(name, raw[name], scaled=True) for name in names if _any_number(raw[name]))
    kept = {column.name for column in found}
    return Schema(found, {name: EMPTY for name in names if name not in kept}, named=False)


def _any_number(raw: RawColumn) -> bool:
    return not bool(np.isnan(raw.numbers).all())


def _medians(values: Array) -> Array:
    """Medians over the rows, of evenly spaced ones where there are very many."""
    step = -(-len(values) // _MEDIAN_ROWS)
    return np.asarray(np.median(values[:: max(1, step)].astype(np.float64), axis=0))


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
