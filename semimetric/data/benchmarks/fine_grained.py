"""CUB-200-2011 and Cars-196: photographs whose first half of classes is for training, the second for the test.

Metric learning is judged on classes that training never saw, which is why the split by photograph that both datasets
come with is not used here (Oh Song et al., Deep metric learning via lifted structured feature embedding, CVPR 2016).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from semimetric.core.errors import DataError, DataWarning
from semimetric.data.benchmarks.albums import Album, ClassFolders, Layout, Lists, album_of, first_few, unknown_names
from semimetric.data.benchmarks.official import find_file
from semimetric.data.examples import Dataset, Examples
from semimetric.data.photographs.images import Fit, check_photo_options
from semimetric.data.photographs.photos import read_photos

Count = Callable[[int, int], None]
"""Told how many photographs are done, of how many."""


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
    return album_of(photos, [names[number] for number in range(1, classes + 1)], source)


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
    return album_of(photos, _car_names(folder, classes), source)


def _cars_album_in_two(folder: Path, classes: int) -> Album:
    photos: list[tuple[Path, int]] = []
    for images, lists in (("cars_train", _CARS_TRAIN_LISTS), ("cars_test", _CARS_TEST_LISTS)):
        source = find_file(folder, lists[0], lists)
        photos += ((folder / images / name, number) for name, number in _annotations(source, "fname"))
    return album_of(photos, _car_names(folder, classes), source)


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
    return unknown_names(folder, classes)


def _matlab(path: Path) -> Mapping[str, Any]:
    from scipy.io import loadmat

    try:
        content: Mapping[str, Any] = loadmat(path, squeeze_me=True)
    except Exception as error:  # a damaged file can raise almost anything
        raise DataError(f"{path} cannot be read as a MATLAB file: {error}.") from error
    return content


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

    def photographs(self, folder: Path) -> Photographs:
        """List the photographs in ``folder`` for training and test, neither of which may be empty."""
        found = Photographs(self, folder, self.album(folder))
        for name, part in found.parts().items():
            if not part.paths:
                raise DataError(f"{folder} has no {name} photographs of {self.name}. {self.remedy}.")
        return found

    def load(
        self, folder: Path, side: int | None, fit: Fit, workers: int | None, progress: Count | None = None
    ) -> Dataset:
        """Read all photographs; the labels of the test examples go on where those of the training examples end."""
        self.check_options(side, fit, workers)
        found = self.photographs(folder)
        examples: list[Examples] = []
        undecodable: dict[Path, str] = {}
        for _, part, count in found.counted(progress):
            read, skipped = read_photos(part.paths, part.labels, side or self.side, fit, workers, count)
            examples.append(read)
            undecodable |= skipped
        train, test = examples
        return found.dataset(train, test, undecodable)


@dataclass(frozen=True)
class Photographs:
    """The photographs of a dataset in a folder: listed, and not one of them decoded."""

    benchmark: PhotoBenchmark
    folder: Path
    album: Album

    def parts(self) -> dict[str, Album]:
        """The first half of the classes is for training, the second for the test."""
        half, classes = self.benchmark.classes // 2, self.benchmark.classes
        return {"training": self.album.of_classes(range(half)), "test": self.album.of_classes(range(half, classes))}

    def counted(self, progress: Count | None) -> Iterator[tuple[str, Album, Count | None]]:
        """Both parts by name, each with what tells ``progress`` how many photographs of both are done."""
        before = 0
        for name, part in self.parts().items():
            yield name, part, progress and _going_on(progress, before, len(self.album))
            before += len(part)

    def name_of(self, path: Path) -> str:
        """The path of a photograph within the folder."""
        return path.relative_to(self.folder).as_posix() if path.is_relative_to(self.folder) else str(path)

    def dataset(self, train: Examples, test: Examples, undecodable: Mapping[Path, str]) -> Dataset:
        """Examples made of the photographs as a dataset, with a warning where it is not as published."""
        self._compare(len(train), len(test), undecodable)
        reasons = dict.fromkeys(self.album.missing, "there is no such file") | dict(undecodable)
        skipped = {self.name_of(path): reason for path, reason in reasons.items()}
        names = tuple(self.name_of(path) for path in self.parts()["training"].paths if path not in undecodable)
        return Dataset(self.benchmark.name, train, test, self.album.class_names, skipped, names)

    def _compare(self, train: int, test: int, undecodable: Mapping[Path, str]) -> None:
        """Warn, in one message, of every way in which the dataset is not as published, and of what was taken for it."""
        known, absent = self.benchmark, self.album.absent_classes()
        if (train, test) == (known.train_size, known.test_size) and not absent and not undecodable:
            return
        parts = [
            f"{known.name} in {self.folder} has {train} of {known.train_size} training and {test} of "
            f"{known.test_size} test photographs; compare its scores with published ones with care."
        ]
        if absent:
            parts.append(f"{len(absent)} classes have none: {first_few(absent)}.")
        if undecodable:
            named = first_few([f"{path} ({reason})" for path, reason in undecodable.items()])
            parts.append(f"{len(undecodable)} cannot be decoded: {named}.")
        if self.album.note:
            parts.append(self.album.note)
        warnings.warn(" ".join(parts), DataWarning, stacklevel=5)


def _going_on(progress: Count, before: int, total: int) -> Count:
    return lambda done, _: progress(before + done, total)


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
        ClassFolders(unknown_names),
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
