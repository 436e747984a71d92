"""Labels that look like mistakes, told before a training learns them."""

from __future__ import annotations

import dataclasses
import os
import re
import unicodedata
from collections import defaultdict
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import TypeVar

from semimetric.core.errors import InputError
from semimetric.core.files import sha256_of
from semimetric.data.collection import Collection
from semimetric.data.readers.delimited import listed

_PARTS_OF_A_SPLIT = ("train", "training", "test", "testing", "val", "valid", "validation", "dev")
_SHOWN = 3

T = TypeVar("T")
Labelled = tuple[str, str, Path]
"""Name, label and path of a photograph."""


def with_doubts(collection: Collection, strict: bool = False) -> Collection:
    """The collection with sentences on its labels; ``strict`` refuses it if there are any.

    Of photographs, files of one size are read and compared.
    """
    found = (*_alike(collection), *_split_folders(collection), *_twice(collection), *_empty(collection))
    doubts = (*found, *_single(collection))
    if strict and doubts:
        raise InputError(" ".join([*doubts, "Correct this, or leave --strict out."]))
    return dataclasses.replace(collection, doubts=doubts)


def _alike(collection: Collection) -> list[str]:
    """Names of classes that differ only in how they are written."""
    groups = _groups((_spelling(name), name) for name in collection.classes)
    told = [" and ".join(repr(name) for name in names) for names in groups if len(names) > 1]
    more = f" and {len(told) - _SHOWN} more" if len(told) > _SHOWN else ""
    return [f"classes that differ only in spelling: {'; '.join(told[:_SHOWN])}{more}. Are they one?"] if told else []


def _spelling(name: str) -> str:
    """The name without case, spaces, hyphens and underscores."""
    return re.sub(r"[\s_-]+", "", unicodedata.normalize("NFKC", name).casefold()) or name


def _groups(pairs: Iterable[tuple[Hashable, T]]) -> list[list[T]]:
    """The second entries of all pairs with the same first one."""
    found: dict[Hashable, list[T]] = defaultdict(list)
    for key, value in pairs:
        found[key].append(value)
    return list(found.values())


def _split_folders(collection: Collection) -> list[str]:
    """Classes of photographs that are named as the parts of a split."""
    if collection.paths is None:
        return []
    found = [name for name in collection.classes if name.lower() in _PARTS_OF_A_SPLIT]
    if not found:
        return []
    one = len(found) == 1
    told = f"{listed(found)} {'counts as a class' if one else 'count as classes'}. "
    part = "it is a part of a split" if one else "they are parts of a split"
    return [f"{told}If {part}, name the folder of one part instead."]


def _twice(collection: Collection) -> list[str]:
    """Photographs of the same content in different classes."""
    pairs = []
    for files in _groups((os.path.getsize(path), (name, label, path)) for name, label, path in _labelled(collection)):
        if len({label for _, label, _ in files}) > 1:
            same = _groups((sha256_of(path), (name, label)) for name, label, path in files)
            pairs += [group for group in same if len({label for _, label in group}) > 1]
    told = ["; ".join(f"{name} ({label})" for name, label in group[:_SHOWN]) for group in pairs[:_SHOWN]]
    more = f" and {len(pairs) - _SHOWN} more" if len(pairs) > _SHOWN else ""
    return [f"the same photograph in two classes: {' | '.join(told)}{more}. Only one can be right."] if pairs else []


def _labelled(collection: Collection) -> list[Labelled]:
    rows = zip(collection.names, collection.labels, collection.paths or (), strict=False)
    return [(name, label, path) for name, label, path in rows if label is not None]


def _empty(collection: Collection) -> list[str]:
    return [f"folders without a photograph: {listed(collection.empty)}."] if collection.empty else []


def _single(collection: Collection) -> list[str]:
    found = [name for name, count in collection.counts.items() if count == 1]
    return [f"classes with a single label, none of which can be held out: {listed(found)}."] if found else []
