"""One image file as a tensor: any format, mode and orientation decoded to RGB of one size, or the reason why not."""

from __future__ import annotations

import errno
import math
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from semimetric.core.checks import check_choice
from semimetric.core.errors import DataError, InputError
from semimetric.data.photographs.heic import HEIC_SUFFIXES, NEEDS_EXTRA, reads_heic, teach_pillow_heic

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image
    from PIL.ImageFile import ImageFile
    from torch import Tensor

    Pixels = NDArray[np.uint8]

IMAGE_FORMATS = {".png": "PNG", ".webp": "WEBP", ".gif": "GIF", ".bmp": "BMP", ".avif": "AVIF", ".jp2": "JPEG2000"}
IMAGE_FORMATS |= dict.fromkeys((".jpg", ".jpeg", ".jfif"), "JPEG") | dict.fromkeys((".ppm", ".pgm"), "PPM")
IMAGE_FORMATS |= dict.fromkeys((".tif", ".tiff"), "TIFF") | dict.fromkeys(HEIC_SUFFIXES, "HEIF")
"""Pillow's name of the format by the end of a file's name. No other format is parsed, whatever the name of a file is:
pillow would hand PostScript to Ghostscript, which executes it."""

Fit = Literal["crop", "squash"]
"""How a photograph becomes a square: the middle of it, or all of it out of proportion."""

_FAULTS_OF_THE_MACHINE = (errno.EMFILE, errno.ENFILE, errno.EIO, errno.ENOMEM)
_LOAD_WITHOUT_WARNINGS = {"JPEG", "MPO", "PNG", "WEBP", "AVIF", "GIF", "BMP"}
_EXIF_ORIENTATION = 0x0112
_EXIF_FORMATS = {1: "B", 3: "H", 4: "I"}  # types of EXIF numbers, as ``struct`` reads them


class Undecodable(Exception):
    """Why an image file cannot be decoded, as the end of a sentence."""


def check_photo_options(side: int, fit: str, workers: int | None) -> None:
    """Refuse a size, a way to reach it or a number of threads that cannot be."""
    if side < 1:
        raise InputError(
            f"side must be at least 1 pixel, but is {side}; networks for photographs expect 224 to 320. Leave it out "
            "for that of the network."
        )
    check_choice(fit, get_args(Fit), "fit")
    if workers is not None and workers < 1:
        raise InputError(f"workers must be at least 1 thread, but is {workers}; leave it out for one per processor.")


def decode_image(source: Path, side: int, fit: Fit = "crop") -> Tensor:
    """Decode an image file to RGB, uint8 (3, side, side).

    ``source`` is of one of the ``IMAGE_FORMATS``. The orientation that EXIF data tell is applied, transparency is put
    on white, of an animation the first frame is taken, and 16-bit grey is reduced to 8 bits; colour profiles are not
    applied. ``fit`` "crop" brings the shorter side to ``side`` and keeps the middle, "squash" brings both sides to it,
    by bicubic interpolation with antialiasing. To decode many, or in threads, use ``PhotoReader``.
    """
    import torch

    check_photo_options(side, fit, workers=None)
    pixels = torch.empty(3, side, side, dtype=torch.uint8)
    try:
        image = open_image(Path(source), side)
        if not loads_in_threads(image):
            load_silently(image)
        decode_into(pixels.numpy(), image, fit)
    except Undecodable as error:
        raise DataError(f"{source} cannot be decoded: {error}.") from error
    return pixels


def open_image(path: Path, side: int) -> ImageFile:
    """Read what an image file says of itself; a JPEG at least four times too large is to be decoded smaller.

    Pillow may warn, which can be silenced for all threads only: the caller must open, and if need be load, in its own.
    """
    from PIL import Image

    with _explained(), warnings.catch_warnings(action="ignore"):
        _check_file(path)
        formats = {*IMAGE_FORMATS.values()} - {"HEIF"}
        if path.suffix.lower() in HEIC_SUFFIXES:
            if not reads_heic():
                raise Undecodable(NEEDS_EXTRA)
            teach_pillow_heic()
            formats.add("HEIF")
        image = Image.open(path, formats=sorted(formats))
        try:
            if math.prod(image.size) > (Image.MAX_IMAGE_PIXELS or math.inf):
                raise Image.DecompressionBombError
            image.draft(None, (2 * side, 2 * side))
        except BaseException:
            image.close()
            raise
    return image


def loads_in_threads(image: ImageFile) -> bool:
    """Whether an opened image is of a kind that is decoded without a warning, and so may be decoded in any thread."""
    return image.format in _LOAD_WITHOUT_WARNINGS


def load_silently(image: ImageFile) -> None:
    """Decode an opened image in its original size, without a warning; not for the threads of a pool."""
    with _explained(), warnings.catch_warnings(action="ignore"):
        try:
            image.load()
        except BaseException:
            image.close()
            raise


def _check_file(path: Path) -> None:
    if not path.is_file():  # opening a pipe would wait for ever
        raise Undecodable("it is not a file" if path.exists() else "there is no such file")
    if path.stat().st_size == 0:
        raise Undecodable("it is empty")


@contextmanager
def _explained() -> Iterator[None]:
    """Say of whatever a damaged file makes pillow raise what it means."""
    from PIL import Image, UnidentifiedImageError

    try:
        yield
    except (Undecodable, MemoryError):
        raise
    except UnidentifiedImageError as error:
        raise Undecodable("it is not an image of a kind that is read, or cut off within its first bytes") from error
    except Image.DecompressionBombError as error:
        raise Undecodable(f"it has more than pillow's limit of {Image.MAX_IMAGE_PIXELS} pixels") from error
    except PermissionError as error:
        raise Undecodable("permission to read it is denied") from error
    except Exception as error:  # a damaged image can raise almost anything
        if isinstance(error, OSError) and error.errno in _FAULTS_OF_THE_MACHINE:
            raise
        raise Undecodable(f"it is truncated or damaged ({str(error) or type(error).__name__})") from error


def decode_into(target: Pixels, image: ImageFile, fit: Fit) -> None:
    """Bring an opened image into ``target`` (3, side, side), and close it."""
    import numpy as np
    from PIL.Image import Resampling

    with _explained(), image:
        image.load()
        upright = _turned(_as_rgb(image), _orientation(image.info.get("exif") or b""))
        kept = (min(upright.size),) * 2 if fit == "crop" else upright.size
        left, top = (upright.width - kept[0]) / 2, (upright.height - kept[1]) / 2
        box = (left, top, left + kept[0], top + kept[1])
        small = upright.resize(target.shape[1:], Resampling.BICUBIC, box=box)
        target[...] = np.asarray(small).transpose(2, 0, 1)


def _as_rgb(image: Image) -> Image:
    from PIL import Image as images

    if image.mode == "I" or image.mode.startswith("I;16"):
        return _from_16_bits(image)
    if image.mode == "F":
        raise Undecodable("its values are floating-point numbers, of which black and white are not known")
    if image.has_transparency_data:
        white = images.new("RGBA", image.size, "white")
        return images.alpha_composite(white, image.convert("RGBA")).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def _from_16_bits(image: Image) -> Image:
    """Keep the upper 8 bits of grey values; the one that stands for transparent becomes white."""
    import numpy as np
    from PIL.Image import fromarray

    values = np.array(image, dtype=np.int64)
    if values.min() < 0 or values.max() > 0xFFFF:
        raise Undecodable(f"its values go from {values.min()} to {values.max()}, beyond 16 bits")
    values[values == image.info.get("transparency", -1)] = 0xFFFF
    return fromarray((values >> 8).astype(np.uint8)).convert("RGB")


def _orientation(exif: bytes) -> int:
    """Look the orientation (1 to 8; 1: upright) up in EXIF data, whatever else in them may be damaged."""
    tiff = exif.removeprefix(b"Exif\0\0")
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if order is None:
        return 1
    with suppress(struct.error):  # where the data end before the orientation
        (start,) = struct.unpack_from(f"{order}I", tiff, 4)
        (count,) = struct.unpack_from(f"{order}H", tiff, start)
        for entry in range(start + 2, start + 2 + 12 * count, 12):
            tag, kind = struct.unpack_from(f"{order}HH", tiff, entry)
            if tag == _EXIF_ORIENTATION:
                (value,) = struct.unpack_from(f"{order}{_EXIF_FORMATS.get(kind, 'H')}", tiff, entry + 8)
                return int(value)
    return 1


def _turned(image: Image, orientation: int) -> Image:
    from PIL.Image import Transpose as Turn

    mirrored = {2: Turn.FLIP_LEFT_RIGHT, 4: Turn.FLIP_TOP_BOTTOM, 5: Turn.TRANSPOSE, 7: Turn.TRANSVERSE}
    turn = ({3: Turn.ROTATE_180, 6: Turn.ROTATE_270, 8: Turn.ROTATE_90} | mirrored).get(orientation)
    return image if turn is None else image.transpose(turn)
