"""CUB-200-2011 and Cars-196: photographs whose first half of classes is for training, the second for the test.

Metric learning is judged on classes that training never saw, which is why the split by photograph that both datasets
come with is not used here (Oh Song et al., Deep metric learning via lifted structured feature embedding, CVPR 2016).
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from semimetric.data.examples import Dataset, Examples
from semimetric.data.official import find_file
from semimetric.data.photos import Fit, check_photo_options, read_photos
from semimetric.errors import DataError, DataWarning

_SUFFIXES = (".jpg", ".jpeg", ".jfif", ".png", ".webp", ".avif", ".gif", ".bmp", ".tif", ".tiff", ".jp2", ".ppm")
_NAMED_AT_MOST = 5


@dataclass(frozen=True)
class Album:
    """The photographs of a dataset that are there: N paths, N class numbers from 0, the names of all classes."""

    paths: tuple[Path, ...]
    labels: tuple[int, ...]
    class_names: tuple[str, ...]

    def absent_classes(self) -> list[str]:
        """Name the classes without any photograph."""
        there = set(self.labels)
        return [name for label, name in enumerate(self.class_names) if label not in there]

    def of_classes(self, labels: range) -> Album:
        """Keep the photographs of some classes, and all names."""
        rows = [row for row, label in enumerate(self.labels) if label in labels]
        return Album(tuple(self.paths[row] for row in rows), tuple(self.labels[row] for row in rows), self.class_names)


class Layout(Protocol):
    """A way in which the files of a dataset may be arranged in a folder."""

    def missing_from(self, folder: Path, classes: int) -> tuple[str, ...] | None:
        """Return what ``folder`` lacks of this layout, by presence alone; None if it is not arranged so at all."""

    def read(self, folder: Path, classes: int) -> Album:
        """List the photographs, in the order of publication or else sorted by name."""


@dataclass(frozen=True)
class Lists:
    """Lists say which photograph is of which class.

    ``needs`` has for each file or folder the relative paths under which it may be; the first of them is the mark
    of the layout.
    """

    needs: tuple[tuple[str, ...], ...]
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


def _album(photos: Iterable[tuple[Path, int]], names: Sequence[str], source: Path) -> Album:
    """Make an album of paths and class numbers from 1; ``source`` is the list that they come from."""
    there = []
    for path, number in photos:
        if not 1 <= number <= len(names):
            raise DataError(f"{source} gives {path.name} the class {number}, which is not from 1 to {len(names)}.")
        if path.is_file():
            there.append((path, number - 1))
    return Album(tuple(path for path, _ in there), tuple(label for _, label in there), tuple(names))


def _cub_album(folder: Path, classes: int) -> Album:
    names = _numbered_lines(folder / "classes.txt")
    if sorted(names) != list(range(1, classes + 1)):
        raise DataError(f"{folder / 'classes.txt'} must number classes from 1 to {classes}, but has {len(names)}.")
    source = folder / "image_class_labels.txt"
    numbers = _numbered_lines(source)
    images = sorted(_numbered_lines(folder / "images.txt").items())
    without = [image for image, _ in images if not numbers.get(image, "").isdecimal()]
    if without:
        raise DataError(f"{source} has no class for {len(without)} images of images.txt, the first is {without[0]}.")
    photos = ((folder / "images" / path, int(numbers[image])) for image, path in images)
    return _album(photos, [names[number] for number in range(1, classes + 1)], source)


def _numbered_lines(path: Path) -> dict[int, str]:
    """Read lines of a number and a text, in which there may be spaces."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}.") from error
    found = {}
    for count, line in enumerate(lines, start=1):
        number, _, text = line.strip().partition(" ")
        if number.isdecimal() and text:
            found[int(number)] = text.strip()
        elif line.strip():
            raise DataError(f"{path}, line {count}, must be a number and a text, but is {line!r}.")
    return found


def _cars_album(folder: Path, classes: int) -> Album:
    source = folder / "cars_annos.mat"
    photos = ((folder / name, number) for name, number in _annotations(source, "relative_im_path"))
    return _album(photos, _car_names(folder, classes), source)


def _cars_album_in_two(folder: Path, classes: int) -> Album:
    photos: list[tuple[Path, int]] = []
    for images, lists in (("cars_train", _CARS_TRAIN_LISTS), ("cars_test", _CARS_TEST_LISTS)):
        source = find_file(folder, lists[0], lists)
        photos += ((folder / images / name, number) for name, number in _annotations(source, "fname"))
    return _album(photos, _car_names(folder, classes), source)


def _annotations(path: Path, field: str) -> list[tuple[str, int]]:
    """Read from a MATLAB file the name, in ``field``, and the class number of each photograph."""
    annotations = _matlab(path).get("annotations")
    fields = getattr(getattr(annotations, "dtype", None), "names", None) or ()
    if annotations is None or field not in fields or "class" not in fields:
        raise DataError(f"{path} must have 'annotations' with the fields {field!r} and 'class'; it has not.")
    try:
        return [(str(row[field]), int(row["class"])) for row in np.atleast_1d(annotations)]
    except (TypeError, ValueError) as error:
        raise DataError(f"{path} has a photograph whose class is not a number: {error}.") from error


def _car_names(folder: Path, classes: int) -> list[str]:
    """Look the class names up; without the file that has them, the classes are called by their numbers."""
    for place in ("devkit/cars_meta.mat", "cars_meta.mat", "cars_annos.mat"):
        names = _matlab(folder / place).get("class_names") if (folder / place).is_file() else None
        if names is not None and np.size(names) == classes:
            return [str(name) for name in np.atleast_1d(names)]
    return _unknown_names(folder, classes)


def _unknown_names(folder: Path, classes: int) -> list[str]:
    return [f"class {number}" for number in range(1, classes + 1)]


def _matlab(path: Path) -> Mapping[str, Any]:
    from scipy.io import loadmat

    try:
        content: Mapping[str, Any] = loadmat(path, squeeze_me=True)
    except Exception as error:  # a damaged file can raise almost anything
        raise DataError(f"{path} cannot be read as a MATLAB file: {error}.") from error
    return content


@dataclass(frozen=True)
class ClassFolders:
    """A folder for each class, all side by side or half of them in ``train`` and half in ``test``.

    Which class a folder is, is told by the number in front of its name (from 1), else by the ``names`` of the
    classes, where these are known, else by its place among the sorted names, if none is missing.
    """

    names: Callable[[Path, int], list[str]]

    def missing_from(self, folder: Path, classes: int) -> tuple[str, ...] | None:
        """Return the class folders that are not there; how many, where their names have no numbers."""
        parts = _parts(folder, classes)
        if not classes < 2 * sum(len(found) for _, found, _ in parts):
            return None
        missing: list[str] = []
        for part, found, labels in parts:
            known = _labelled(found, labels, _unknown_names(folder, classes))
            if known is None:
                missing.append(f"{len(labels)} class folders in {part.name} (it has {len(found)})")
            else:
                missing += (f"class folder {label + 1}" for label in labels if label not in known)
        return tuple(missing)

    def read(self, folder: Path, classes: int) -> Album:
        """List the photographs by class, then sorted by name."""
        names, unknown = self.names(folder, classes), _unknown_names(folder, classes)
        photos: list[tuple[Path, int]] = []
        for part, found, labels in _parts(folder, classes):
            known = _labelled(found, labels, names)
            if known is None:
                raise DataError(
                    f"{part} must hold the classes {labels[0] + 1} to {labels[-1] + 1}, but has {len(found)} class "
                    f"folders for these {len(labels)} whose names do not tell, by a number in front, which they are."
                )
            for label, place in sorted(known.items()):
                names[label] = place.name if names[label] == unknown[label] else names[label]
                photos += ((path, label + 1) for path in _photos_in(place))
        return _album(photos, names, folder)


def _labelled(found: Sequence[Path], labels: range, names: Sequence[str]) -> dict[int, Path] | None:
    """Tell which of ``labels`` each class folder has; None if that cannot be told.

    Where most folders are numbered, one without a number is no class.
    """
    numbers = [(_leading_number(place.name) or 0, place) for place in found]
    numbered = [(number - 1, place) for number, place in numbers if 1 <= number <= len(names)]
    if 2 * len(numbered) > len(found):
        return _matched([label for label, _ in numbered], [place for _, place in numbered], labels)
    by_name = {_letters(name): label for label, name in enumerate(names)}
    known = _matched([by_name.get(_letters(place.name), -1) for place in found], found, labels)
    return known or _matched(labels, found, labels)


def _matched(guess: Sequence[int], found: Sequence[Path], labels: range) -> dict[int, Path] | None:
    """Pair guessed labels with folders; None if a label is none of ``labels`` or not given to just one folder."""
    if len(guess) != len(found) or len(set(guess)) != len(guess) or not set(guess) <= set(labels):
        return None
    return dict(zip(guess, found, strict=True))


def _parts(folder: Path, classes: int) -> list[tuple[Path, list[Path], range]]:
    """Return the folders that hold class folders, each with these and the labels that they may have."""
    train, test, half = folder / "train", folder / "test", classes // 2
    if train.is_dir() and test.is_dir():
        return [(train, _folders_in(train), range(half)), (test, _folders_in(test), range(half, classes))]
    return [(folder, _folders_in(folder), range(classes))]


def _folders_in(folder: Path) -> list[Path]:
    """Return the folders in ``folder`` by number, then by name, hidden ones left out."""
    try:
        found = [place for place in folder.iterdir() if not place.name.startswith((".", "__")) and place.is_dir()]
    except OSError:
        return []
    return sorted(found, key=lambda place: (_leading_number(place.name) or 0, place.name))


def _photos_in(folder: Path) -> list[Path]:
    """Return the image files right in ``folder`` by name, hidden ones left out; folders in it are not entered."""
    try:
        found = [place for place in folder.iterdir() if place.suffix.lower() in _SUFFIXES]
    except OSError as error:
        raise DataError(f"{folder} cannot be read: {error}.") from error
    return sorted(place for place in found if not place.name.startswith(".") and place.is_file())


def _leading_number(name: str) -> int | None:
    match = re.match(r"\d+(?=\D|$)", name, flags=re.ASCII)
    return int(match[0]) if match else None


def _letters(name: str) -> str:
    """Compare names by letters and digits: 'Ram C/V Cargo Van' cannot be the name of a folder."""
    return re.sub(r"[\W_]", "", name).lower()


@dataclass(frozen=True)
class PhotoBenchmark:
    """What is known of a dataset of photographs before it is loaded, and how to load it.

    Answers the same questions as ``Benchmark``, but has no checksums: copies come re-compressed and in several
    arrangements. What is compared with the publication is the number of photographs.

    ``layouts`` are looked for in each of ``roots``, relative to the dataset's folder; ``source`` is a web page.
    """

    name: str
    summary: str
    train_size: int
    test_size: int
    classes: int
    source: str
    roots: tuple[str, ...]
    layouts: tuple[Layout, ...]
    side: int = 256
    shared_folders: tuple[Path, ...] = ()

    needs_folder = True

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a photograph unless another side is asked for."""
        return (3, self.side, self.side)

    @property
    def remedy(self) -> str:
        """How to get the dataset."""
        return f"Get it from {self.source} (its licence is for non-commercial research)"

    def missing_from(self, folder: Path) -> tuple[str, ...] | None:
        """Return what ``folder`` lacks in the layout that it has most of; None if it has nothing of the dataset."""
        arrangement = self._arrangement(folder)
        return None if arrangement is None else arrangement[0]

    def _arrangement(self, folder: Path) -> tuple[tuple[str, ...], Path, Layout] | None:
        found = []
        for layout in self.layouts:
            for root in self.roots:
                missing = layout.missing_from(folder / root, self.classes)
                if missing is not None:
                    found.append((missing, folder / root, layout))
        return min(found, key=lambda arrangement: len(arrangement[0]), default=None)

    def check_options(self, side: int | None, fit: Fit, workers: int | None) -> None:
        """Refuse options that photographs cannot be read with."""
        check_photo_options(self.side if side is None else side, fit, workers)

    def album(self, folder: Path) -> Album:
        """List the photographs in ``folder`` without reading them."""
        arrangement = self._arrangement(folder)
        if arrangement is None:
            raise DataError(f"{folder} holds nothing of {self.name}. {self.remedy}.")
        _, root, layout = arrangement
        try:
            return layout.read(root, self.classes)
        except DataError as error:
            raise DataError(f"{error} {self.remedy}.") from error

    def load(self, folder: Path, side: int | None, fit: Fit, workers: int | None) -> Dataset:
        """Read all photographs; the labels of the test examples go on where those of the training examples end."""
        self.check_options(side, fit, workers)
        album = self.album(folder)
        half, side = self.classes // 2, self.side if side is None else side
        halves: list[Examples] = []
        skipped: dict[Path, str] = {}
        for which, labels in (("training", range(half)), ("test", range(half, self.classes))):
            part = album.of_classes(labels)
            if not part.paths:
                raise DataError(f"{folder} has no {which} photographs of {self.name}. {self.remedy}.")
            examples, undecodable = read_photos(part.paths, part.labels, side, fit, workers)
            halves.append(examples)
            skipped |= undecodable
        train, test = halves
        self._compare(folder, album, len(train), len(test), skipped)
        return Dataset(self.name, train, test, album.class_names)

    def _compare(self, folder: Path, album: Album, train: int, test: int, skipped: Mapping[Path, str]) -> None:
        """Warn, in one message, of every way in which the dataset is not as published."""
        absent = album.absent_classes()
        if (train, test) == (self.train_size, self.test_size) and not absent and not skipped:
            return
        parts = [
            f"{self.name} in {folder} has {train} of {self.train_size} training and {test} of {self.test_size} test "
            "photographs; compare its scores with published ones with care."
        ]
        if absent:
            parts.append(f"{len(absent)} classes have none: {_first(absent)}.")
        if skipped:
            named = _first([f"{path} ({reason})" for path, reason in skipped.items()])
            parts.append(f"{len(skipped)} cannot be decoded: {named}.")
        warnings.warn(" ".join(parts), DataWarning, stacklevel=4)


def _first(names: Sequence[str]) -> str:
    rest = f" and {len(names) - _NAMED_AT_MOST} more" if len(names) > _NAMED_AT_MOST else ""
    return ", ".join(names[:_NAMED_AT_MOST]) + rest


_CARS_TRAIN_LISTS = ("devkit/cars_train_annos.mat", "cars_train_annos.mat")
_CARS_TEST_LISTS = ("devkit/cars_test_annos_withlabels.mat", "cars_test_annos_withlabels.mat")

CUB200 = PhotoBenchmark(
    name="cub200",
    summary="photographs of birds; test classes are new",
    train_size=5_864,
    test_size=5_924,
    classes=200,
    source="https://data.caltech.edu/records/65de6-vp158",
    roots=("", "CUB_200_2011", "images", "CUB_200_2011/images"),
    layouts=(
        Lists((("images.txt",), ("image_class_labels.txt",), ("classes.txt",), ("images",)), _cub_album),
        ClassFolders(_unknown_names),
    ),
)

CARS196 = PhotoBenchmark(
    name="cars196",
    summary="photographs of cars; test classes are new",
    train_size=8_054,
    test_size=8_131,
    classes=196,
    source="https://ai.stanford.edu/~jkrause/cars/car_dataset.html",
    roots=("", "stanford_cars"),
    layouts=(
        Lists((("cars_annos.mat",), ("car_ims",)), _cars_album),
        Lists((("cars_train",), ("cars_test",), _CARS_TRAIN_LISTS, _CARS_TEST_LISTS), _cars_album_in_two),
        ClassFolders(_car_names),
    ),
)
