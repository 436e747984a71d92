"""Small image files, ordinary and odd, and small copies of photo datasets in every layout."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from scipy.io import savemat
from torch import Tensor


def picture(width: int = 48, height: int = 32) -> Image.Image:
    """A smooth picture that looks different from each side: red grows to the right, green downwards."""
    x, y = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    return Image.fromarray(np.stack((x, y, 255 - x / 2 - y / 2), axis=2).round().astype(np.uint8))


def plain(colour: tuple[int, ...], size: tuple[int, int] = (12, 10), mode: str = "RGB") -> Image.Image:
    return Image.new(mode, size, colour)


def assert_plain(image: Tensor, colour: tuple[int, ...], atol: float = 2) -> None:
    assert (image.dtype, tuple(image.shape)) == (torch.uint8, (3, 16, 16))
    expected = torch.tensor(colour, dtype=torch.float32).reshape(3, 1, 1).expand(3, 16, 16)
    torch.testing.assert_close(image.float(), expected, atol=atol, rtol=0)


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    content = io.BytesIO()
    image.save(content, kind, **options)
    return content.getvalue()


def oriented(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def exif_of(orientation: int, order: str, kind: int) -> bytes:
    """EXIF data in an order of bytes (II or MM) with the orientation as a BYTE (1), SHORT (3) or LONG (4)."""
    mark = {"II": "<", "MM": ">"}[order]
    value = struct.pack(mark + {1: "B", 3: "H", 4: "I"}[kind], orientation).ljust(4, b"\0")
    entry = struct.pack(f"{mark}HHI", 0x0112, kind, 1) + value
    return b"Exif\0\0" + order.encode() + struct.pack(f"{mark}HIH", 42, 8, 1) + entry + bytes(4)


def damaged_exif(orientation: int) -> bytes:
    """EXIF data with an orientation and a text that ends far outside of them, of which pillow warns."""
    entries = struct.pack(">HHII", 0x010F, 2, 5000, 8) + struct.pack(">HHIHH", 0x0112, 3, 1, orientation, 0)
    return b"Exif\0\0MM\0*" + struct.pack(">IH", 8, 2) + entries + bytes(4)


def png_chunks(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    place = 8
    while place < len(content):
        (length,) = struct.unpack_from(">I", content, place)
        yield content[place + 4 : place + 8], content[place + 8 : place + 8 + length]
        place += 12 + length


def png_of(chunks: list[tuple[bytes, bytes]]) -> bytes:
    packed = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


def png_claiming(width: int, height: int) -> bytes:
    """A tiny PNG file whose header announces any size."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return png_of([(b"IHDR", header), (b"IDAT", zlib.compress(b"")), (b"IEND", b"")])


def colour_of(label: int, index: int) -> tuple[int, int, int]:
    return (20 + 30 * label, 20 + 30 * index, 100)


def photo(path: Path, label: int, index: int) -> Path:
    """Write a photograph whose colour tells its class and its number; the extension tells the format."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = {".jpg": "JPEG", ".png": "PNG", ".webp": "WEBP"}[path.suffix.lower()]
    options = {"JPEG": {"quality": 95, "subsampling": 0}, "WEBP": {"lossless": True}}.get(kind, {})
    path.write_bytes(encoded(plain(colour_of(label, index)), kind, **options))
    return path


def write_folders(folder: Path, names: list[str], first: int = 0, each: int = 2, suffix: str = ".jpg") -> None:
    """Class folders under ``names``, with the labels from ``first`` on."""
    for label, name in enumerate(names, start=first):
        for index in range(each):
            photo(folder / name / f"{index}{suffix}", label, index)


BIRDS = ["001.Black_footed_Albatross", "002.Auk", "003.Blåmes with spaces", "004.Wren"]
CARS = ["AM General Hummer SUV 2000", "Acura RL Sedan 2012", "Dodge Ram C/V Van 2012", "FIAT 500 Abarth 2012"]


def write_cub(folder: Path, each: int = 2) -> Path:
    """CUB-200-2011 as published, but with four classes; ids run against the alphabet within a class."""
    images = []
    for label, name in enumerate(BIRDS):
        for index in range(each):
            path = f"{name}/Bird no {each - index}.jpg"
            images.append(path)
            photo(folder / "images" / path, label, index)
    labels = [label + 1 for label in range(len(BIRDS)) for _ in range(each)]
    write_lines(folder / "images.txt", images)
    write_lines(folder / "image_class_labels.txt", labels)
    write_lines(folder / "classes.txt", BIRDS)
    return folder


def write_lines(path: Path, values: list[str] | list[int]) -> None:
    path.write_text("".join(f"{i} {value}\n" for i, value in enumerate(values, start=1)), encoding="utf-8")


def write_annotations(path: Path, field: str, names: list[str], numbers: list[int], **more: object) -> None:
    rows = np.zeros((1, len(names)), dtype=[(field, object), ("bbox_x1", object), ("class", object)])
    for i, (name, number) in enumerate(zip(names, numbers, strict=True)):
        rows[0, i] = (name, 1, number)
    path.parent.mkdir(parents=True, exist_ok=True)
    savemat(path, {"annotations": rows, **more})


def write_car_names(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    savemat(path, {"class_names": np.array([CARS], dtype=object)})


def write_cars(folder: Path, each: int = 2) -> Path:
    """Cars-196 in one folder, but with four classes."""
    names, numbers = [], []
    for label in range(len(CARS)):
        for index in range(each):
            names.append(f"car_ims/{len(names) + 1:06d}.jpg")
            numbers.append(label + 1)
            photo(folder / names[-1], label, index)
    classes = np.array([CARS], dtype=object)
    write_annotations(folder / "cars_annos.mat", "relative_im_path", names, numbers, class_names=classes)
    return folder


def write_cars_in_two(folder: Path, test_list: str = "devkit/cars_test_annos_withlabels.mat") -> Path:
    """Cars-196 split by photograph: the first of each class in cars_train, the second in cars_test."""
    for index, (part, path) in enumerate((("cars_train", "devkit/cars_train_annos.mat"), ("cars_test", test_list))):
        names = [f"{label + 1:05d}.jpg" for label in range(len(CARS))]
        for label, name in enumerate(names):
            photo(folder / part / name, label, index)
        write_annotations(folder / path, "fname", names, [label + 1 for label in range(len(CARS))])
    write_car_names(folder / "devkit" / "cars_meta.mat")
    return folder
