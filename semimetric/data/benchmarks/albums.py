"""Albums: which photographs of a dataset are in a folder, and of which class each is, by lists or by class folders."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from semimetric.core.errors import DataError
from semimetric.data.readers.folder import IMAGE_SUFFIXES

_NAMED_AT_MOST = 5


@dataclass(frozen=True)
class Album:
    """The photographs of a dataset in a folder: N files, their class numbers from 0, and the names of all classes."""

    paths: tuple[Path, ...]
    labels: tuple[int, ...]
    class_names: tuple[str, ...]
    missing: tuple[Path, ...] = ()  # files that a list names and that do not exist
    note: str = ""  # a sentence on how the classes of folders were recognised

    def __len__(self) -> int:
        return len(self.paths)

    def absent_classes(self) -> list[str]:
        """Name the classes without any photograph."""
        there = set(self.labels)
        return [name for label, name in enumerate(self.class_names) if label not in there]

    def of_classes(self, labels: range) -> Album:
        """Keep the photographs of some classes, and all names."""
        rows = [row for row, label in enumerate(self.labels) if label in labels]
        return Album(tuple(self.paths[row] for row in rows), tuple(self.labels[row] for row in rows), self.class_names)


@dataclass(frozen=True)
class Lists:
    """Lists say which photograph is of which class."""

    needs: tuple[tuple[str, ...], ...]  # for each file or folder where it may be; the first is the mark of the layout
    album: Callable[[Path, int], Album]

    def missing_from(self, folder: Path, classes: int) -> tuple[str, ...] | None:
        """Return the files and folders that are not there."""
        missing = [places for places in self.needs if not any((folder / place).exists() for place in places)]
        return None if self.needs[0] in missing else tuple(places[0] for places in missing)

    def read(self, folder: Path, classes: int) -> Album:
        """List the photographs in the order of the lists."""
        missing = self.missing_from(folder, classes)
        if missing:
            raise DataError(f"{folder} lacks {', '.join(missing)}.")
        return self.album(folder, classes)


def album_of(photos: Iterable[tuple[Path, int]], names: Sequence[str], source: Path, note: str = "") -> Album:
    """Make an album of paths and class numbers from 1; ``source`` is the list that they come from."""
    there, missing = [], []
    for path, number in photos:
        if not 1 <= number <= len(names):
            raise DataError(f"{source} gives {path.name} the class {number}, which is not from 1 to {len(names)}.")
        if path.is_file():
            there.append((path, number - 1))
        else:
            missing.append(path)
    paths, labels = tuple(path for path, _ in there), tuple(label for _, label in there)
    return Album(paths, labels, tuple(names), tuple(missing), note)


def unknown_names(folder: Path, classes: int) -> list[str]:
    """What classes are called whose names are not known."""
    return [f"class {number}" for number in range(1, classes + 1)]


def first_few(names: Sequence[str]) -> str:
    """Name the first, and say how many more there are."""
    rest = f" and {len(names) - _NAMED_AT_MOST} more" if len(names) > _NAMED_AT_MOST else ""
    return ", ".join(names[:_NAMED_AT_MOST]) + rest


@dataclass(frozen=True)
class ClassFolders:
    """A folder for each class, all side by side or half of them in ``train`` and half in ``test``.

    Where ``train`` and ``test`` have classes in common, they are a split by photograph, for classification, and are
    put together. Which class a folder is, is told by the number in front of its name (from 1), else by the ``names``
    of the classes, where these are known, else by its place among the sorted names, if none is missing.
    """

    names: Callable[[Path, int], list[str]]

    def missing_from(self, folder: Path, classes: int) -> tuple[str, ...] | None:
        """Return the class folders that are not there; how many, where their names have no numbers."""
        parts = _parts(folder, classes)
        if not classes < 2 * sum(len(part.places) for part in parts):
            return None
        missing: list[str] = []
        for part in parts:
            told = _told(part, unknown_names(folder, classes))
            if told is None:
                missing.append(f"{len(part.labels)} class folders in {part.where.name} (it has {len(part.places)})")
            else:
                missing += (f"class folder {label + 1}" for label in part.labels if label not in told.folders)
        return tuple(missing)

    def read(self, folder: Path, classes: int) -> Album:
        """List the photographs by class, then sorted by name."""
        names, unknown = self.names(folder, classes), unknown_names(folder, classes)
        parts = _parts(folder, classes)
        found = [_told(part, names) for part in parts]
        photos: list[tuple[Path, int]] = []
        for part, told in zip(parts, found, strict=True):
            if told is None:
                raise DataError(
                    f"{part.where} must hold the classes {part.labels[0] + 1} to {part.labels[-1] + 1}, but has "
                    f"{len(part.places)} class folders for these {len(part.labels)} whose names do not tell, by a "
                    "number in front, which they are."
                )
            for label, name in sorted(told.folders.items()):
                names[label] = name if names[label] == unknown[label] else names[label]
                photos += ((path, label + 1) for place in part.places[name] for path in _photos_in(place))
        return album_of(photos, names, folder, _note(parts, [told for told in found if told]))


Layout = Lists | ClassFolders
"""How a dataset may be arranged; ``missing_from`` tells what a folder lacks, None if it is not arranged so at all."""


@dataclass(frozen=True)
class _Part:
    """Class folders beside each other: by name the places of each, sorted, and the labels that they may have."""

    where: Path
    places: Mapping[str, tuple[Path, ...]]
    labels: range


@dataclass(frozen=True)
class _Told:
    """The names of class folders by label, and what told the labels."""

    folders: Mapping[int, str]
    by: str


_BY_NUMBER, _BY_NAME, _BY_ORDER = "the number in front of their names", "their names", "their order alone"


def _parts(folder: Path, classes: int) -> list[_Part]:
    """Return the folders that hold class folders."""
    train, test, half = folder / "train", folder / "test", classes // 2
    if not (train.is_dir() and test.is_dir()):
        return [_Part(folder, _class_folders(folder), range(classes))]
    first, second = _class_folders(train), _class_folders(test)
    if first.keys() & second.keys():
        return [_Part(folder, _class_folders(train, test), range(classes))]
    return [_Part(train, first, range(half)), _Part(test, second, range(half, classes))]


def _told(part: _Part, names: Sequence[str]) -> _Told | None:
    """Tell which label each class folder has; None if that cannot be told. If most are numbered, others are none."""
    guesses = {_BY_NUMBER: {name: n - 1 for name in part.places if 1 <= (n := _leading_number(name)) <= len(names)}}
    if 2 * len(guesses[_BY_NUMBER]) <= len(part.places):
        by_name = {_letters(name): label for label, name in enumerate(names)}
        guesses = {_BY_NAME: {name: by_name.get(_letters(name), -1) for name in part.places}}
        if len(part.places) == len(part.labels):
            guesses[_BY_ORDER] = dict(zip(part.places, part.labels, strict=True))
    for by, labels in guesses.items():
        folders = {label: name for name, label in labels.items()}
        if folders and len(folders) == len(labels) and set(folders) <= set(part.labels):
            return _Told(folders, by)
    return None


def _note(parts: Sequence[_Part], found: Sequence[_Told]) -> str:
    """Say what was taken for the classes, for a reader who may have named another folder."""
    taken = [told.folders[label] for told in found for label in sorted(told.folders)]
    others = [name for part in parts for name in part.places if name not in taken]
    ways = " and ".join(dict.fromkeys(told.by for told in found))
    note = f"Its classes are {len(taken)} folders, from {taken[0]!r} to {taken[-1]!r}, told by {ways}"
    note += f"; left out are {first_few(others)}" if others else ""
    return f"{note}; check that they are the dataset's." if _BY_ORDER in ways else f"{note}."


def _class_folders(*folders: Path) -> dict[str, tuple[Path, ...]]:
    """Return the folders in ``folders`` by their names, in the order of number, then name, hidden ones left out."""
    places: dict[str, tuple[Path, ...]] = {}
    for place in (place for folder in folders for place in _folders_in(folder)):
        places[place.name] = (*places.get(place.name, ()), place)
    return {name: places[name] for name in sorted(places, key=lambda name: (_leading_number(name), name))}


def _folders_in(folder: Path) -> list[Path]:
    try:
        return [place for place in folder.iterdir() if not place.name.startswith((".", "__")) and place.is_dir()]
    except OSError:
        return []


def _photos_in(folder: Path) -> list[Path]:
    """Return the image files right in ``folder`` by name, hidden ones left out; folders in it are not entered."""
    try:
        found = [place for place in folder.iterdir() if place.suffix.lower() in IMAGE_SUFFIXES]
    except OSError as error:
        raise DataError(f"{folder} cannot be read: {error}.") from error
    return sorted(place for place in found if not place.name.startswith(".") and place.is_file())


def _leading_number(name: str) -> int:
    match = re.match(r"\d+", name, flags=re.ASCII)
    return int(match[0]) if match else 0


def _letters(name: str) -> str:
    """Compare names by letters and digits: 'Ram C/V Cargo Van' cannot be the name of a folder."""
    return re.sub(r"[\W_]", "", name).lower()
