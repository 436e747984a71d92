"""Cars-196 (Krause et al., 2013), in either of its official layouts or in class folders."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from semimetric.core.errors import DataError
from semimetric.data.benchmarks.albums import Album, ClassFolders, Lists, album_of, unknown_names
from semimetric.data.benchmarks.official import find_file
from semimetric.data.benchmarks.photographs import PhotoSpec
from semimetric.data.benchmarks.protocols import PHOTOGRAPH_PRESETS

_TRAIN_LISTS = ("devkit/cars_train_annos.mat", "cars_train_annos.mat")
_TEST_LISTS = ("devkit/cars_test_annos_withlabels.mat", "cars_test_annos_withlabels.mat")


def _album(folder: Path, classes: int) -> Album:
    source = folder / "cars_annos.mat"
    photos = ((folder / name, number) for name, number in _annotations(source, "relative_im_path"))
    return album_of(photos, _class_names(folder, classes), source)


def _album_in_two(folder: Path, classes: int) -> Album:
    photos: list[tuple[Path, int]] = []
    for images, lists in (("cars_train", _TRAIN_LISTS), ("cars_test", _TEST_LISTS)):
        source = find_file(folder, lists[0], lists)
        photos += ((folder / images / name, number) for name, number in _annotations(source, "fname"))
    return album_of(photos, _class_names(folder, classes), source)


def _annotations(path: Path, field: str) -> list[tuple[str, int]]:
    """Read from a MATLAB file the name, in ``field``, and the class number of each photograph."""
    import numpy as np

    annotations = _matlab(path).get("annotations")
    fields = getattr(getattr(annotations, "dtype", None), "names", None) or ()
    if annotations is None or field not in fields or "class" not in fields:
        raise DataError(f"{path} must have 'annotations' with the fields {field!r} and 'class'; it has not.")
    try:
        return [(str(row[field]), int(row["class"])) for row in np.atleast_1d(annotations)]
    except (TypeError, ValueError) as error:
        raise DataError(f"{path} has a photograph whose class is not a number: {error}.") from error


def _class_names(folder: Path, classes: int) -> list[str]:
    """Names of the classes; their numbers if no file in ``folder`` has the names."""
    import numpy as np

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


CARS196 = PhotoSpec(
    name="cars196",
    summary="photographs of cars; test classes are new",
    presets=PHOTOGRAPH_PRESETS,
    train_size=8_054,
    test_size=8_131,
    classes=196,
    source="https://ai.stanford.edu/~jkrause/cars/car_dataset.html",
    roots=("", "stanford_cars"),
    layouts=(
        Lists((("cars_annos.mat",), ("car_ims",)), _album),
        Lists((("cars_train",), ("cars_test",), _TRAIN_LISTS, _TEST_LISTS), _album_in_two),
        ClassFolders(_class_names),
    ),
)
