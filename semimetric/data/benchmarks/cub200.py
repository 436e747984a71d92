"""CUB-200-2011 (Wah et al., 2011), in its official layout or in class folders."""

from __future__ import annotations

from pathlib import Path

from semimetric.core.errors import DataError
from semimetric.data.benchmarks.albums import Album, ClassFolders, Lists, album_of, unknown_names
from semimetric.data.benchmarks.photographs import PhotoSpec
from semimetric.data.benchmarks.protocols import PHOTOGRAPH_PRESETS


def _album(folder: Path, classes: int) -> Album:
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


CUB200 = PhotoSpec(
    name="cub200",
    summary="photographs of birds; test classes are new",
    presets=PHOTOGRAPH_PRESETS,
    train_size=5_864,
    test_size=5_924,
    classes=200,
    source="https://data.caltech.edu/records/65de6-vp158",
    roots=("", "CUB_200_2011", "images", "CUB_200_2011/images"),
    layouts=(
        Lists((("images.txt",), ("image_class_labels.txt",), ("classes.txt",), ("images",)), _album),
        ClassFolders(unknown_names),
    ),
)
