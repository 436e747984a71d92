"""Datasets of photographs: the first half of the classes is for training, the second for the test.

This is the split of Oh Song et al., Deep metric learning via lifted structured feature embedding, CVPR 2016.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from semimetric.core.errors import DataError, DataWarning
from semimetric.data.benchmarks.albums import Album, Layout, first_few
from semimetric.data.benchmarks.spec import BaseSpec, Count
from semimetric.data.photographs.images import Fit, check_photo_options

if TYPE_CHECKING:
    from semimetric.data.examples import Dataset, Examples


@dataclass(frozen=True, kw_only=True)
class PhotoSpec(BaseSpec):
    """A dataset of photographs, which people must get themselves.

    It has no checksums: copies come re-compressed and in several arrangements. What is compared with the publication is
    the number of photographs.

    Parameters
    ----------
    classes : int
        Number of classes, of training and test together.
    source : str
        Web page of the dataset.
    layouts : tuple of Layout
        Ways in which the files may be arranged.
    roots : tuple of str
        Folders to look for a layout in, relative to the dataset's folder.
    side : int
        Pixels to which photographs are resized unless another side is given.
    """

    classes: int
    source: str
    layouts: tuple[Layout, ...]
    roots: tuple[str, ...] = ("",)
    side: int = 256

    origin: ClassVar[None] = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a photograph unless another side is given."""
        return (3, self.side, self.side)

    @property
    def remedy(self) -> str:
        """How to get the dataset."""
        return f"Get it from {self.source} (its licence is for non-commercial research)"

    def not_fetched(self, folder: Path) -> str:
        """Why ``fetch_dataset`` cannot download it, and what to do."""
        return (
            f"{self.name} cannot be fetched for you, since its licence does not let others pass it on. {self.remedy} "
            f"and put it into {folder}, as published or as one folder for each class."
        )

    def missing_from(self, folder: Path) -> tuple[str, ...] | None:
        """What ``folder`` lacks in the layout that it has most of; None if it has nothing of the dataset."""
        arrangement = self._arrangement(folder)
        return None if arrangement is None else arrangement[0]

    def _arrangement(self, folder: Path) -> tuple[tuple[str, ...], Path, Layout] | None:
        places = [(folder / root, layout) for layout in self.layouts for root in self.roots]
        lacking = [(layout.missing_from(place, self.classes), place, layout) for place, layout in places]
        found = [(missing, place, layout) for missing, place, layout in lacking if missing is not None]
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

    def load(self, folder: Path, side: int | None, fit: Fit, workers: int | None, progress: Count | None) -> Dataset:
        """Read all photographs; the labels of the test examples go on where those of the training examples end."""
        from semimetric.data.photographs.photos import read_photos

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
    """The photographs of a dataset in a folder, listed but not decoded.

    Parameters
    ----------
    benchmark : PhotoSpec
        The dataset.
    folder : Path
        Where it was found.
    album : Album
        Paths and classes of the photographs.
    """

    benchmark: PhotoSpec
    folder: Path
    album: Album

    def parts(self) -> dict[str, Album]:
        """The first half of the classes is for training, the second for the test."""
        half, classes = self.benchmark.classes // 2, self.benchmark.classes
        return {"training": self.album.of_classes(range(half)), "test": self.album.of_classes(range(half, classes))}

    def counted(self, progress: Count | None) -> Iterator[tuple[str, Album, Count | None]]:
        """Both parts by name, each with a callback that counts its photographs after those of the parts before."""
        before = 0
        for name, part in self.parts().items():
            yield name, part, progress and _going_on(progress, before, len(self.album))
            before += len(part)

    def name_of(self, path: Path) -> str:
        """The path of a photograph within the folder."""
        return path.relative_to(self.folder).as_posix() if path.is_relative_to(self.folder) else str(path)

    def dataset(self, train: Examples, test: Examples, undecodable: Mapping[Path, str]) -> Dataset:
        """The dataset with these examples; warns if it is not as published."""
        from semimetric.data.examples import Dataset

        self._compare(len(train), len(test), undecodable)
        reasons = dict.fromkeys(self.album.missing, "there is no such file") | dict(undecodable)
        skipped = {self.name_of(path): reason for path, reason in reasons.items()}
        names = tuple(self.name_of(path) for path in self.parts()["training"].paths if path not in undecodable)
        return Dataset(self.benchmark.name, train, test, self.album.class_names, skipped, names)

    def _compare(self, train: int, test: int, undecodable: Mapping[Path, str]) -> None:
        """Warn, in one message, of every difference from the published dataset."""
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
