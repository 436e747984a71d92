"""Photographs as tensors: image files of any kind decoded to one size, several at once, within a memory bound."""

from __future__ import annotations

import errno
import math
import os
import struct
import warnings
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semimetric.checks import as_tensor, check_choice, check_labels
from semimetric.data.examples import Examples
from semimetric.errors import DataError, InputError

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFile import ImageFile

Fit = Literal["crop", "squash"]
"""How a photograph becomes a square: the middle of it, or all of it out of proportion."""

Pixels = NDArray[np.uint8]

_OPEN_AT_ONCE = 128
_FAULTS_OF_THE_MACHINE = (errno.EMFILE, errno.ENFILE, errno.EIO, errno.ENOMEM)
_LOAD_WITHOUT_WARNINGS = {"JPEG", "MPO", "PNG", "WEBP", "AVIF", "GIF", "BMP"}
_EXIF_ORIENTATION = 0x0112


class _Undecodable(Exception):
    """Why an image file cannot be decoded, as the end of a sentence."""


def check_photo_options(side: int, fit: str, workers: int | None) -> None:
    """Refuse a size, a way to reach it or a number of threads that cannot be."""
    if side < 1:
        raise InputError(f"side must be at least 1 pixel, but is {side}; networks for photographs expect 224 or so.")
    check_choice(fit, get_args(Fit), "fit")
    if workers is not None and workers < 1:
        raise InputError(f"workers must be at least 1 thread, but is {workers}; leave it out for one per processor.")


def decode_image(source: Path, side: int, fit: Fit = "crop") -> Tensor:
    """Decode an image file to RGB, uint8 (3, side, side).

    ``source`` is a JPEG, PNG, WebP or what else pillow reads. The orientation that EXIF data tell is applied,
    transparency is put on white, of an animation the first frame is taken, and 16-bit grey is reduced to 8 bits;
    colour profiles are not applied. ``fit`` "crop" brings the shorter side to ``side`` and keeps the middle,
    "squash" brings both sides to it, by bicubic interpolation with antialiasing. To decode many, or in threads,
    use ``PhotoReader``.
    """
    check_photo_options(side, fit, workers=None)
    pixels = torch.empty(3, side, side, dtype=torch.uint8)
    try:
        _decode(pixels.numpy(), _open(Path(source), side), fit)
    except _Undecodable as error:
        raise DataError(f"{source} cannot be decoded: {error}.") from error
    return pixels


def _open(path: Path, side: int) -> ImageFile:
    """Read what an image file says of itself; a JPEG at least four times too large is to be decoded smaller.

    Pillow warns of odd files while it opens them, and warnings can be silenced for all threads only. So files are
    opened in the thread of the caller, and the threads of a pool do what is slow and silent, the decoding; the
    kinds that may warn even then are decoded here.
    """
    from PIL import Image

    with _explained(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _check_file(path)
        image = Image.open(path)
        try:
            if math.prod(image.size) > (Image.MAX_IMAGE_PIXELS or math.inf):
                raise Image.DecompressionBombError
            image.draft(None, (2 * side, 2 * side))
            if image.format not in _LOAD_WITHOUT_WARNINGS:
                image.load()
        except BaseException:
            image.close()
            raise
    return image


def _check_file(path: Path) -> None:
    if not path.is_file():  # opening a pipe would wait for ever
        raise _Undecodable("it is not a file" if path.exists() else "there is no such file")
    if path.stat().st_size == 0:
        raise _Undecodable("it is empty")


@contextmanager
def _explained() -> Iterator[None]:
    """Say of whatever a damaged file makes pillow raise what it means."""
    from PIL import Image, UnidentifiedImageError

    try:
        yield
    except (_Undecodable, MemoryError):
        raise
    except UnidentifiedImageError as error:
        raise _Undecodable("it is not an image that pillow knows, or cut off within its first bytes") from error
    except Image.DecompressionBombError as error:
        raise _Undecodable(f"it has more than pillow's limit of {Image.MAX_IMAGE_PIXELS} pixels") from error
    except PermissionError as error:
        raise _Undecodable("permission to read it is denied") from error
    except Exception as error:  # a damaged image can raise almost anything
        if isinstance(error, OSError) and error.errno in _FAULTS_OF_THE_MACHINE:
            raise
        raise _Undecodable(f"it is truncated or damaged ({str(error) or type(error).__name__})") from error


def _decode(target: Pixels, image: ImageFile, fit: Fit) -> None:
    """Bring an opened image into ``target`` (3, side, side), and close it."""
    from PIL.Image import Resampling

    with _explained(), image:
        image.load()
        upright = _turned(_as_rgb(image), _orientation(image.info.get("exif", b"")))
        width, height = upright.size
        kept = (min(upright.size),) * 2 if fit == "crop" else upright.size
        left, top = (width - kept[0]) / 2, (height - kept[1]) / 2
        box = (left, top, left + kept[0], top + kept[1])
        small = upright.resize(target.shape[1:], Resampling.BICUBIC, box=box)
        target[...] = np.asarray(small).transpose(2, 0, 1)


def _as_rgb(image: Image) -> Image:
    from PIL import Image as images

    if image.mode == "I" or image.mode.startswith("I;16"):
        return _from_16_bits(image)
    if image.mode == "F":
        raise _Undecodable("its values are floating-point numbers, of which black and white are not known")
    if image.has_transparency_data:
        white = images.new("RGBA", image.size, "white")
        return images.alpha_composite(white, image.convert("RGBA")).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def _from_16_bits(image: Image) -> Image:
    """Keep the upper 8 bits of grey values; the one that stands for transparent becomes white."""
    from PIL.Image import fromarray

    values = np.array(image, dtype=np.int64)
    if values.min() < 0 or values.max() > 0xFFFF:
        raise _Undecodable(f"its values go from {values.min()} to {values.max()}, beyond 16 bits")
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
            tag, _, _, value = struct.unpack_from(f"{order}HHIH", tiff, entry)
            if tag == _EXIF_ORIENTATION:
                return int(value)
    return 1


def _turned(image: Image, orientation: int) -> Image:
    from PIL.Image import Transpose as Turn

    mirrored = {2: Turn.FLIP_LEFT_RIGHT, 4: Turn.FLIP_TOP_BOTTOM, 5: Turn.TRANSPOSE, 7: Turn.TRANSVERSE}
    turn = ({3: Turn.ROTATE_180, 6: Turn.ROTATE_270, 8: Turn.ROTATE_90} | mirrored).get(orientation)
    return image if turn is None else image.transpose(turn)


class PhotoReader:
    """Reads photographs by number, in parallel, and keeps the last used ones decoded.

    Decoded photographs take N * 3 * side**2 bytes: 150 kB each at side 224. The reader holds at most
    ``cache_bytes`` of them, those decoded ahead of time included, and the one batch that it is filling; in
    addition each thread has one photograph in its original size, and of rare formats, such as PPM and TIFF, up to
    128 wait in theirs. It is meant for one thread at a time.

    Parameters
    ----------
    paths : sequence of paths
        The photographs; a row is a position in it.
    side, fit : as for ``decode_image``
    workers : int, optional
        Threads that decode (pillow lets them run at once); one per processor unless given.
    cache_bytes : int
        Bound on what is kept and what is decoded ahead; with less than a batch nothing is decoded ahead.

    Attributes
    ----------
    skipped : dict of path to str
        The files that could not be decoded so far, and why.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        side: int,
        fit: Fit = "crop",
        workers: int | None = None,
        cache_bytes: int = 1 << 30,
    ) -> None:
        check_photo_options(side, fit, workers)
        if cache_bytes < 0:
            raise InputError(f"cache_bytes must be at least 0, but is {cache_bytes}; 0 keeps nothing.")
        self.paths = tuple(Path(path) for path in paths)
        self.side, self.fit = side, fit
        self.workers = workers or os.cpu_count() or 1
        self.skipped: dict[Path, str] = {}
        self._capacity = cache_bytes // (3 * side**2)
        self._ahead = 0  # photographs of the capacity that streams may decode ahead
        self._cache: OrderedDict[int, Pixels] = OrderedDict()

    def __len__(self) -> int:
        return len(self.paths)

    def batch(self, rows: Sequence[int] | Tensor) -> Tensor:
        """Return the photographs at ``rows`` (n,) as uint8 (n, 3, side, side).

        One that cannot be decoded is an error here, since it cannot be left out.
        """
        numbers = self._check_rows(rows)
        images = self._empty(len(numbers))
        with ThreadPoolExecutor(self.workers) as pool:
            decoded = list(self._decode_each(pool, zip(numbers, images.numpy(), strict=True)))
        if not all(decoded):
            path = self.paths[numbers[decoded.index(False)]]
            raise DataError(
                f"{decoded.count(False)} of {len(decoded)} photographs cannot be decoded, the first of them {path}: "
                f"{self.skipped[path]}. Leave out the rows of what is in `skipped`."
            )
        return images

    def stream(self, batch_size: int = 64) -> Iterator[tuple[Tensor, Tensor]]:
        """Go through all photographs in order, decoding the next ones meanwhile.

        Yields
        ------
        rows : Tensor
            int64 (n,), at most ``batch_size``; what cannot be decoded is left out and named in ``skipped``.
        images : Tensor
            uint8 (n, 3, side, side).
        """
        if batch_size < 1:
            raise InputError(f"batch_size must be at least 1, but is {batch_size}.")
        return self._stream([range(len(self))[i : i + batch_size] for i in range(0, len(self), batch_size)])

    def _stream(self, batches: list[range]) -> Iterator[tuple[Tensor, Tensor]]:
        size = len(batches[0]) if batches else 1
        ahead = size * min(self._capacity // size, -(-_OPEN_AT_ONCE // size))
        runs = [batches] if ahead else [[batch] for batch in batches]
        self._ahead += ahead
        self._make_room(0)
        try:
            with ThreadPoolExecutor(self.workers) as pool:
                for run in runs:
                    yield from self._run(pool, run, min(_OPEN_AT_ONCE, ahead or size))
        finally:
            self._ahead -= ahead

    def _run(self, pool: ThreadPoolExecutor, batches: list[range], most: int) -> Iterator[tuple[Tensor, Tensor]]:
        buffers: deque[Tensor] = deque()

        def jobs() -> Iterator[tuple[int, Pixels]]:
            for rows in batches:
                buffers.append(self._empty(len(rows)))
                yield from zip(rows, buffers[-1].numpy(), strict=True)

        decoded = self._decode_each(pool, jobs(), most)
        for rows in batches:
            kept = [i for i, good in enumerate(islice(decoded, len(rows))) if good]
            if kept:
                yield torch.tensor(rows)[kept], _moved_up(buffers.popleft(), kept)
            else:
                buffers.popleft()

    def _decode_each(
        self, pool: ThreadPoolExecutor, jobs: Iterable[tuple[int, Pixels]], most: int = _OPEN_AT_ONCE
    ) -> Iterator[bool]:
        """Decode rows into their targets (3, side, side), with ``most`` others under way besides each.

        Yields in order, once for each job, whether the target is filled.
        """
        begun: deque[tuple[int, Pixels, Future[None]]] = deque()
        for row, target in jobs:
            begun.append((row, target, self._begin(pool, row, target)))
            if len(begun) > most:
                yield self._finish(*begun.popleft())
        while begun:
            yield self._finish(*begun.popleft())

    def _begin(self, pool: ThreadPoolExecutor, row: int, target: Pixels) -> Future[None]:
        done: Future[None] = Future()
        path = self.paths[row]
        try:
            if row in self._cache:
                target[...] = self._cache[row]
                done.set_result(None)
            elif path in self.skipped:
                raise _Undecodable(self.skipped[path])
            else:
                return pool.submit(_decode, target, _open(path, self.side), self.fit)
        except _Undecodable as error:
            done.set_exception(error)
        return done

    def _finish(self, row: int, target: Pixels, job: Future[None]) -> bool:
        try:
            job.result()
        except _Undecodable as error:
            self.skipped[self.paths[row]] = str(error)
            return False
        self._keep(row, target)
        return True

    def _keep(self, row: int, pixels: Pixels) -> None:
        if row not in self._cache and self._capacity > self._ahead:
            self._make_room(1)
            self._cache[row] = pixels.copy()
        if row in self._cache:
            self._cache.move_to_end(row)

    def _make_room(self, images: int) -> None:
        """Forget the least recently used until that many more fit in."""
        while self._cache and len(self._cache) + images > self._capacity - self._ahead:
            self._cache.popitem(last=False)

    def _empty(self, count: int) -> Tensor:
        return torch.empty(count, 3, self.side, self.side, dtype=torch.uint8)

    def _check_rows(self, rows: Sequence[int] | Tensor) -> list[int]:
        numbers: list[Any] = as_tensor(rows, "rows").flatten().tolist()
        for number in numbers:
            if type(number) is not int or not 0 <= number < len(self):
                raise InputError(f"rows must be whole numbers from 0 to {len(self) - 1}, but one is {number}.")
        return numbers


def _moved_up(images: Tensor, kept: Sequence[int]) -> Tensor:
    """Close the gaps between the ``kept`` (ascending) images in place: a copy would take the memory twice."""
    for position, row in enumerate(kept):
        if position != row:
            images[position] = images[row]
    return images[: len(kept)]


def read_photos(
    paths: Sequence[Path],
    labels: Any,
    side: int,
    fit: Fit = "crop",
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Examples, dict[Path, str]]:
    """Read photographs and their labels (N,) into memory: N * 3 * side**2 bytes, 1.8 GB for 12,000 at side 224.

    Returns the ones that can be decoded, in order, as uint8 (n, 3, side, side), and why the others cannot be.

    Parameters
    ----------
    paths, side, fit, workers
        As for ``PhotoReader``.
    progress : callable, optional
        Called after each photograph with how many are done, of how many.
    """
    reader = PhotoReader(paths, side, fit, workers, cache_bytes=0)
    if len(reader) == 0:
        raise InputError("paths must name at least one photograph, but is empty.")
    classes = check_labels(labels, len(reader))
    images = reader._empty(len(reader))
    kept = []
    with ThreadPoolExecutor(reader.workers) as pool:
        for row, good in enumerate(reader._decode_each(pool, enumerate(images.numpy()))):
            if good:
                kept.append(row)
            if progress is not None:
                progress(row + 1, len(reader))
    if not kept:
        path, reason = next(iter(reader.skipped.items()))
        raise DataError(f"None of {len(reader)} photographs can be decoded; the first, {path}: {reason}.")
    return Examples(_moved_up(images, kept), classes[kept]), reader.skipped
