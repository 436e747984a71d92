"""One column of a table, and how it becomes features: numbers, categories or text."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
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

_ODD_SHARE = 0.1  # of a column of numbers, that may be something else
_MEDIAN_ROWS = 10_000
_LARGEST = float(np.finfo(np.float32).max)
_WHOLE_NUMBER = re.compile(r"([+-]?[0-9]+)\.0+")


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
    def features(self) -> list[str]:
        """Names of the features, without that of gaps."""

    @property
    def width(self) -> int:
        """Features, without that of gaps."""
        return len(self.features)

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


def _check_parts(column: Column, whole: bool) -> None:
    """Refuse a column that a damaged file tells."""
    if not (whole and isinstance(column.name, str) and isinstance(column.gaps, bool)):
        raise InputError(f"column {listed([str(column.name)])} of type {column.kind} has parts that do not fit.")


@dataclass(frozen=True)
class NumericColumn(Column):
    """(value - centre) / spread, with ``fill`` for a gap."""

    kind = "numeric"
    name: str
    gaps: bool
    fill: float
    centre: float = 0.0
    spread: float = 1.0

    def __post_init__(self) -> None:
        numbers = (self.fill, self.centre, self.spread)
        _check_parts(self, all(isinstance(number, int | float) for number in numbers) and self.spread > 0)

    @classmethod
    def fit(cls, name: str, raw: RawColumn, scaled: bool) -> Self:
        """Median of the known values and, if ``scaled``, their mean and standard deviation."""
        known = raw.numbers[~np.isnan(raw.numbers)]
        fill = float(medians(known))
        if not scaled:
            return cls(name, False, fill)
        centre, spread = float(known.mean()), float(known.std())
        return cls(name, len(known) < len(raw.numbers), fill, centre, spread if spread > 1e-12 * abs(centre) else 1.0)

    @property
    def is_plain(self) -> bool:
        """Whether numbers stay as they are."""
        return not self.gaps and (self.centre, self.spread) == (0.0, 1.0)

    @property
    def features(self) -> list[str]:
        """One, of the same name."""
        return [self.name]

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

    def __post_init__(self) -> None:
        _check_parts(self, all(isinstance(text, str) for text in self.categories))

    @classmethod
    def fit(cls, name: str, raw: RawColumn) -> Self:
        """The most frequent categories, the most frequent first."""
        counts = Counter(text for text in raw.texts if text)
        least = LEAST_SHARE * len(raw.texts)
        ranked = sorted(counts, key=lambda text: (-counts[text], text))
        kept = tuple(text for text in ranked[:MOST_CATEGORIES] if counts[text] >= least)
        return cls(name, "" in raw.texts, kept, len(kept) < len(counts))

    @property
    def features(self) -> list[str]:
        """Categories, and one more for others."""
        return [f"{self.name}: {text}" for text in (*self.categories, *(["others"] if self.other else []))]

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

    def __post_init__(self) -> None:
        fits = self.idf.shape == self.components.shape[1:] == (len(self.terms),)
        _check_parts(self, fits and all(isinstance(term, str) for term in self.terms))

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
    def features(self) -> list[str]:
        """Components."""
        return [f"{self.name} {place + 1}" for place in range(len(self.components))]

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


def medians(values: Array) -> Array:
    """Medians over the rows, of evenly spaced ones where there are very many."""
    step = -(-len(values) // _MEDIAN_ROWS)
    return np.asarray(np.median(values[:: max(1, step)].astype(np.float64), axis=0))
