"""The benchmark datasets by name: where they may be, and how to load them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from semimetric.core.errors import DataError
from semimetric.core.registry import Registry
from semimetric.data.benchmarks.official import FileSpec
from semimetric.data.benchmarks.photographs import Photographs, PhotoSpec
from semimetric.data.benchmarks.spec import Count, DatasetSpec

if TYPE_CHECKING:
    from semimetric.data.examples import Dataset
    from semimetric.data.photographs.images import Fit

DATA_VARIABLE = "SEMIMETRIC_DATA"

FolderSpec = FileSpec | PhotoSpec
Spec = DatasetSpec | FolderSpec

DATASETS: Registry[Spec] = Registry(
    "dataset",
    "semimetric.datasets",
    {
        "digits": "semimetric.data.benchmarks.digits:DIGITS",
        "mnist": "semimetric.data.benchmarks.mnist:MNIST",
        "fashion-mnist": "semimetric.data.benchmarks.fashion_mnist:FASHION_MNIST",
        "cifar10": "semimetric.data.benchmarks.cifar10:CIFAR10",
        "cub200": "semimetric.data.benchmarks.cub200:CUB200",
        "cars196": "semimetric.data.benchmarks.cars196:CARS196",
    },
)


@dataclass(frozen=True)
class DatasetListing:
    """One line of a listing.

    Parameters
    ----------
    name, summary, train_size, test_size, classes, shape
        As in the dataset's spec.
    found : str or None
        The folder that holds it, or in words where it is; None if it was not found.
    missing : tuple of str
        What the folder lacks.
    source : str or None
        Web page from which people must get it themselves; None if ``fetch_dataset`` downloads it.
    """

    name: str
    summary: str
    train_size: int
    test_size: int
    classes: int
    shape: tuple[int, ...]
    found: str | None
    missing: tuple[str, ...]
    source: str | None


def register_dataset(spec: Spec) -> Spec:
    """Make a dataset known to ``load_dataset`` and the command line, and return its spec.

    An installed package offers one without a call, as an entry point of its name in the group ``semimetric.datasets``.

    Parameters
    ----------
    spec : DatasetSpec, FileSpec or PhotoSpec
        Its name must not be taken.
    """
    return DATASETS.register(spec.name, spec)


def dataset_names() -> tuple[str, ...]:
    """The names that ``load_dataset`` knows."""
    return tuple(DATASETS)


def check_dataset(name: str) -> None:
    """Refuse a name that ``load_dataset`` does not know; the error suggests the nearest."""
    DATASETS.check(name)


def base_folders(data_dir: Path | str | None) -> list[Path]:
    """The folders that hold datasets, in the order of lookup: given, environment, user cache."""
    named = [data_dir, os.environ.get(DATA_VARIABLE)]
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return [*(Path(folder).expanduser() for folder in named if folder), Path(cache) / "semimetric"]


def _places(spec: FolderSpec, data_dir: Path | str | None) -> list[Path]:
    *named, cache = base_folders(data_dir)
    others = set(DATASETS) - {spec.name}  # MNIST's files and Fashion-MNIST's have the same names
    inside_named = [place for folder in named for place in (folder / spec.name, folder) if place.name not in others]
    return [*inside_named, cache / spec.name, *spec.shared_folders]


def _locate(spec: FolderSpec, data_dir: Path | str | None) -> Path | None:
    """The first place with the whole dataset, else the first with a part of it, else None."""
    missing = {place: spec.missing_from(place) for place in _places(spec, data_dir)}
    found = [place for place in missing if missing[place] is not None]
    return min(found, key=lambda place: missing[place] != (), default=None)


def describe_datasets(data_dir: Path | str | None = None) -> list[DatasetListing]:
    """List every dataset and where it is, by the presence of its files alone (loading checks the content).

    Parameters
    ----------
    data_dir : path, optional
        As for ``load_dataset``.
    """
    return [_describe(spec, data_dir) for spec in DATASETS.values()]


def _describe(spec: Spec, data_dir: Path | str | None) -> DatasetListing:
    folder, missing = None, None
    if isinstance(spec, FolderSpec) and (folder := _locate(spec, data_dir)):
        missing = spec.missing_from(folder)
    found, sizes = str(folder) if folder else spec.origin, (spec.train_size, spec.test_size, spec.classes)
    return DatasetListing(spec.name, spec.summary, *sizes, spec.shape, found, missing or (), spec.source)


def load_dataset(
    name: str,
    data_dir: Path | str | None = None,
    side: int | None = None,
    fit: Fit = "crop",
    workers: int | None = None,
    progress: Count | None = None,
) -> Dataset:
    """Load a benchmark dataset; images are uint8.

    Official files must have the published SHA-256. Photographs have none: a ``DataWarning`` says which are missing or
    cannot be decoded. All examples are held in memory; photographs take N * 3 * side**2 bytes, 2.3 GB for the 11,788
    of cub200 at side 256.

    Parameters
    ----------
    name : str
        One of ``dataset_names()``.
    data_dir : path, optional
        Folder that is, or has in it, the dataset's folder. Without it, or if the dataset is not there, the folder that
        the environment variable SEMIMETRIC_DATA names and the user cache are searched.
    side, fit : optional
        Size of photographs and how they are resized (see ``decode_image``); 256 unless given. Other datasets have
        their own size and refuse them.
    workers : int, optional
        Threads that decode photographs; one per processor unless given.
    progress : callable, optional
        Called after each photograph with the number done and the total.
    """
    spec = DATASETS.find(name)
    spec.check_options(side, fit, workers)
    folder = _folder_of(spec, data_dir) if isinstance(spec, FolderSpec) else Path()
    return spec.load(folder, side, fit, workers, progress)


def photograph_side(name: str, side: int = 0) -> int:
    """The side to which photographs of a dataset are resized: ``side``, or its own if that is 0; 0 if it has none."""
    spec = DATASETS.find(name)
    return (side or spec.side) if isinstance(spec, PhotoSpec) else 0


def find_photographs(name: str, data_dir: Path | str | None = None) -> Photographs | None:
    """List the photographs of a dataset without decoding them; None if it is not a dataset of photographs.

    Parameters
    ----------
    name, data_dir
        As for ``load_dataset``.
    """
    spec = DATASETS.find(name)
    return spec.photographs(_folder_of(spec, data_dir)) if isinstance(spec, PhotoSpec) else None


def _folder_of(spec: FolderSpec, data_dir: Path | str | None) -> Path:
    folder = _locate(spec, data_dir)
    if folder is None:
        places = ", ".join(str(place) for place in _places(spec, data_dir))
        raise DataError(
            f"Dataset {spec.name!r} was not found in any of: {places}. {spec.remedy}, or name the folder that holds it "
            f"with --data-dir or {DATA_VARIABLE}."
        )
    return folder
