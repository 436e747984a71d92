"""What was found of a user's own data: names, labels as they were written, and what had to be left out."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semimetric.core.errors import InputError
from semimetric.data.labels import is_no_label

if TYPE_CHECKING:
    from torch import Tensor

    from semimetric.data.schema import Schema

NaturalKey = tuple[tuple[str | tuple[int, str], ...], str]

_WHOLE_NUMBER = re.compile(r"([+-]?[0-9]+)(?:\.0+)?")
_SHOWN_NAMES, _SHOWN_REASONS = 3, 5


@dataclass(frozen=True)
class Collection:
    """Examples with their names and, where known, their labels.

    Parameters
    ----------
    names : tuple of str
        N, each once: the path relative to the folder, with forward slashes, or the id or row of a table.
    labels : tuple of str or None
        N, trimmed text; None is unlabelled.
    paths : tuple of Path, optional
        N, of photographs.
    features : Tensor, optional
        float32 (N, d), of a table.
    columns : tuple of str
        The names of the d features, where they have any.
    skipped : dict
        What was left out, by its name or "row 17", and why, as the end of a sentence.
    notes : tuple of str
        Sentences on what was assumed.
    schema : Schema, optional
        How the columns of a table became features.
    order : tuple of str
        Names of all rows of a table, those that were left out included.
    empty : tuple of str
        Folders of classes without a photograph.
    doubts : tuple of str
        Sentences on labels that look like mistakes; ``semimetric.data.doubts`` finds them.
    suggested : frozenset of str
        Names of the labelled examples that ``suggest`` had chosen.
    digests : tuple of str
        N, of the values of a table's rows.
    """

    names: tuple[str, ...]
    labels: tuple[str | None, ...]
    paths: tuple[Path, ...] | None
    features: Tensor | None
    columns: tuple[str, ...]
    skipped: dict[str, str]
    notes: tuple[str, ...] = ()
    schema: Schema | None = None
    order: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    suggested: frozenset[str] = frozenset()
    digests: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        given = {"labels": self.labels, "paths": self.paths, "features": self.features}
        for name, values in given.items():
            if values is not None and len(values) != len(self.names):
                raise InputError(f"{name} must have one entry per name, that is {len(self.names)}, got {len(values)}.")
        if len(set(self.names)) < len(self.names):
            twice = Counter(self.names).most_common(1)[0][0]
            raise InputError(f"names must differ from each other, but {twice!r} is there twice.")

    def __len__(self) -> int:
        return len(self.names)

    def digest(self, row: int) -> str | None:
        """The digest of the content of an example: of the file of a photograph, or of the values of a row."""
        from semimetric.data.label_matches import digest_of_file

        if self.paths is not None:
            return digest_of_file(self.paths[row])
        return self.digests[row] if self.digests else None

    @property
    def counts(self) -> dict[str, int]:
        """How many examples each class has, the classes in natural order."""
        found = Counter(label for label in self.labels if label is not None)
        return {name: found[name] for name in sorted(found, key=natural_key)}

    @property
    def suggested_rows(self) -> tuple[int, ...]:
        """Rows of the labelled examples that ``suggest`` had chosen."""
        named = enumerate(zip(self.names, self.labels, strict=True))
        return tuple(row for row, (name, label) in named if label is not None and name in self.suggested)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes in natural order."""
        return tuple(self.counts)

    def as_dict(self) -> dict[str, Any]:
        """Return what ``summary`` tells, whole, for JSON."""
        counts = self.counts
        labelled = sum(counts.values())
        return {
            "examples": len(self),
            "features": None if self.features is None else self.features.shape[1],
            "labelled": labelled,
            "unlabelled": len(self) - labelled,
            "classes": counts,
            "skipped": dict(self.skipped),
            "notes": list(self.notes),
            "doubts": list(self.doubts),
        }

    def summary(self, told: Collection | None = None) -> str:
        """Say in a few lines what there is, of which classes, and what was skipped for which reasons.

        Notes and doubts of ``told``, whose summary came before, are not repeated.
        """
        found = self.as_dict()
        kind = _counted(len(self), "photograph" if self.features is None else "row")
        width = "" if self.features is None else f" of {_counted(found['features'], 'feature')}"
        lines = [f"{kind}{width}: {found['labelled']} labelled, {found['unlabelled']} unlabelled."]
        if found["classes"]:
            lines.append(_class_sizes(found["classes"]))
        said = () if told is None else (*told.notes, *told.doubts)
        lines += [line for line in (*self.notes, *self.doubts) if line not in said]
        return "\n".join([*lines, *skipped_lines(self.skipped)])


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")


def _class_sizes(counts: Mapping[str, int]) -> str:
    """Tell how many classes there are, and the smallest and the largest."""
    if len(counts) == 1:
        return f"1 class: {next(iter(counts))}."
    smallest, largest = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
    if counts[smallest] == counts[largest]:
        return f"{len(counts)} classes with {_counted(counts[smallest], 'label')} each."
    return f"{len(counts)} classes with {counts[smallest]} ({smallest}) to {counts[largest]} ({largest}) labels."


def skipped_lines(skipped: Mapping[str, str]) -> Iterable[str]:
    """Say how much was skipped, and the most frequent reasons with a few names each."""
    if not skipped:
        return
    yield f"{len(skipped)} skipped:"
    frequent = Counter(skipped.values()).most_common()
    for reason, count in frequent[:_SHOWN_REASONS]:
        names = [name for name, why in skipped.items() if why == reason]
        more = f" and {count - _SHOWN_NAMES} more" if count > _SHOWN_NAMES else ""
        yield f"  {', '.join(names[:_SHOWN_NAMES])}{more}: {reason}"
    if len(frequent) > _SHOWN_REASONS:
        yield f"  and {sum(count for _, count in frequent[_SHOWN_REASONS:])} more, for reasons of their own"


def natural_key(text: str) -> NaturalKey:
    """Order "img 2" before "img 10", by case only among equals; digits may be too many for an ``int``."""
    parts = [(part, part.lstrip("0")) for part in re.split(r"([0-9]+)", text.casefold())]
    return tuple((len(digits), digits) if place % 2 else part for place, (part, digits) in enumerate(parts)), text


def tidy(text: str) -> str:
    """Trim a label, and compose its characters: an é may be one of them or two, and looks the same."""
    return unicodedata.normalize("NFC", text).strip()


def label_texts(values: Iterable[object]) -> list[str | None]:
    """Write a column of labels as text; where ``is_no_label`` it is none; if all are whole numbers "1.0" is "1"."""
    texts = raw_texts(values)
    found = [None if is_no_label(text) else text for text in texts]
    whole = {text: match[1] for text in set(found) if text and (match := _WHOLE_NUMBER.fullmatch(text))}
    if any(text is not None and text not in whole for text in found):
        return found
    return [None if text is None else whole[text] for text in found]


def raw_texts(values: Iterable[object]) -> list[str]:
    """Labels as tidy text, whatever they mean; empty for None."""
    return ["" if value is None else _text(value) for value in values]


def _text(value: object) -> str:
    return tidy(value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value))
