"""Images kept as bytes, in memory, on a GPU or in a file, and scaled when they are used.

A photograph of 224 pixels takes 150 kB as bytes and 600 kB as floats. Scaling is done by pixel, so that a batch is the
same, bit for bit, as one out of floats that were scaled all at once.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from semimetric.core.errors import DataError

if TYPE_CHECKING:
    from semimetric.data.photographs.images import Pixels
    from semimetric.data.preprocess import Preprocess

MOST_FLOATS = 1 << 28
"""Bytes of images as floats, above which they are kept as bytes."""

SHARE_OF_GPU = 4
"""One in so many free bytes of a GPU may be filled with images."""

_CHUNK = 4096  # the most examples that are looked at at a time, ...
_CHUNK_NUMBERS = 1 << 24  # ... and the most numbers in them: a hundred photographs
READERS = 8
"""Threads that read a file of images."""

T = TypeVar("T")


class PixelFile:
    """Images (N, C, H, W) as bytes in a temporary file without a name, which ends with the process.

    Parameters
    ----------
    count, shape : number of images, and the shape of one
    folder : where the file lies; the system's folder of temporary files unless given
    """

    def __init__(self, count: int, shape: tuple[int, ...], folder: Path | None = None) -> None:
        self.shape = torch.Size((count, *shape))
        self._size = prod(shape)
        try:
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._file = tempfile.TemporaryFile(dir=folder, prefix="semimetric-")  # noqa: SIM115 - open as long as it is read
            if hasattr(os, "posix_fallocate") and count:
                os.posix_fallocate(self._file.fileno(), 0, count * self._size)  # a full disk shows before any work
        except OSError as error:
            raise DataError(
                f"{count:,} photographs need {count * self._size / 1e9:.1f} GB in {folder or tempfile.gettempdir()}, "
                f"which cannot be had: {error}. SEMIMETRIC_CACHE names another folder, and SEMIMETRIC_MEMORY allows "
                "more in memory."
            ) from error
        weakref.finalize(self, self._file.close)
        self._pool = ThreadPoolExecutor(READERS)

    def __len__(self) -> int:
        return self.shape[0]

    def write(self, start: int, images: Tensor) -> None:
        """Put images (n, C, H, W) at the rows from ``start`` on."""
        left, place = memoryview(images.contiguous().numpy().data).cast("B"), start * self._size
        while left:
            written = os.pwrite(self._file.fileno(), left, place)
            left, place = left[written:], place + written

    def read_into(self, images: Tensor, rows: Tensor) -> None:
        """Read the images at some rows (n,) into ``images`` (n, C, H, W), by several threads."""
        jobs = [
            self._pool.submit(self._read_one, row, target)
            for row, target in zip(rows.tolist(), images.numpy(), strict=True)
        ]
        for job in jobs:
            job.result()

    def _read_one(self, row: int, target: Pixels) -> None:
        left, place = target.data.cast("B"), row * self._size
        while left:
            read = os.preadv(self._file.fileno(), [left], place)
            if not read:
                raise DataError("the temporary file of the photographs is shorter than it was. Start again.")
            left, place = left[read:], place + read

    def cut(self, count: int) -> PixelFile:
        """The same file with its first ``count`` images alone."""
        self.shape = torch.Size((count, *self.shape[1:]))
        return self


class Images:
    """Images (N, C, H, W) kept as bytes; what is taken out of them is on ``device`` and scaled.

    Parameters
    ----------
    pixels : uint8 images in memory, on the device, or in a file
    device : where they are used
    scaling : preprocessing by pixel; without one, bytes come out
    rows : some rows of the pixels, in their order; all unless given
    ahead : the thread that reads ahead; images that are made of others share theirs
    """

    ndim = 4

    def __init__(
        self,
        pixels: Tensor | PixelFile,
        device: torch.device | str = "cpu",
        scaling: Preprocess | None = None,
        rows: Tensor | None = None,
        ahead: ThreadPoolExecutor | None = None,
    ) -> None:
        self.pixels, self.device, self.scaling = pixels, torch.device(device), scaling
        where = pixels.device if isinstance(pixels, Tensor) else torch.device("cpu")
        self._rows = torch.arange(len(pixels), device=where) if rows is None else rows.to(where)
        self._ahead = ahead or ThreadPoolExecutor(1)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def shape(self) -> torch.Size:
        """(N, C, H, W)."""
        return torch.Size((len(self), *self.pixels.shape[1:]))

    @property
    def dtype(self) -> torch.dtype:
        """Of what is taken out."""
        return torch.uint8 if self.scaling is None else torch.float32

    @property
    def is_cuda(self) -> bool:
        """Whether they are used on a GPU."""
        return self.device.type == "cuda"

    @property
    def are_there(self) -> bool:
        """Whether the bytes are on the device, so that none has to be read ahead."""
        return isinstance(self.pixels, Tensor) and self.pixels.device.type == self.device.type

    def __getitem__(self, rows: Tensor | slice | int) -> Tensor:
        """Images (n, C, H, W) at some rows, or one (C, H, W)."""
        if isinstance(rows, int):
            return self[torch.tensor([rows])][0]
        return self.begin(rows)()

    def begin(self, rows: Tensor | slice) -> Callable[[], Tensor]:
        """Begin to read some rows; the function that is returned waits for them."""
        places = self._rows[self._at(rows)]
        if self.are_there:
            return lambda: self._used(places)
        shape = (len(places), *self.pixels.shape[1:])
        images = torch.empty(shape, dtype=torch.uint8, pin_memory=self.is_cuda)  # here: each thread keeps what it frees
        job = self._ahead.submit(self._read_into, images, places)
        return lambda: self._scaled(_after(job, images).to(self.device, non_blocking=True))

    def only(self, rows: Tensor | slice) -> Images:
        """Some of the images; nothing is read or copied."""
        return Images(self.pixels, self.device, self.scaling, self._rows[self._at(rows)], self._ahead)

    def _at(self, rows: Tensor | slice) -> Tensor | slice:
        return rows if isinstance(rows, slice) else rows.to(self._rows.device)

    def scaled_by(self, scaling: Preprocess) -> Images:
        """The same images, scaled when they are used."""
        return Images(self.pixels, self.device, scaling.to(self.device), self._rows, self._ahead)

    def to(self, device: torch.device | str) -> Images:
        """The same images, to be used on ``device``."""
        scaling = None if self.scaling is None else self.scaling.to(device)
        return Images(self.pixels, device, scaling, self._rows, self._ahead)

    def split(self, size: int) -> Iterator[Tensor]:
        """All images, ``size`` at a time; the next ones are read meanwhile."""
        places = (slice(start, start + size) for start in range(0, len(self), size))
        return (images for _, images in read_ahead(self, ((None, place) for place in places)))

    def _used(self, places: Tensor) -> Tensor:
        assert isinstance(self.pixels, Tensor)
        return self._scaled(self.pixels[places])

    def _read_into(self, images: Tensor, places: Tensor) -> None:
        if isinstance(self.pixels, PixelFile):
            self.pixels.read_into(images, places)
        elif self.pixels.is_cuda:
            images.copy_(self.pixels[places])
        else:
            torch.index_select(self.pixels, 0, places, out=images)

    @torch.no_grad()
    def _scaled(self, images: Tensor) -> Tensor:
        return images if self.scaling is None else self.scaling(images)


def _after(job: Future[None], images: Tensor) -> Tensor:
    """The images, once they are read."""
    job.result()
    return images


Inputs = Tensor | Images
"""Inputs (N, ...) of a model: a tensor, or many images kept as bytes. Both have rows, a length and a shape."""


def placed(inputs: Inputs, device: torch.device | str, as_bytes: bool = True) -> Inputs:
    """Unscaled inputs for a device: there as they are, or kept as bytes if they would take much memory as floats.

    Without ``as_bytes``, all of them are on the device.
    """
    device = torch.device(device)
    if isinstance(inputs, Images):
        return inputs.to(device) if as_bytes else inputs.to(device)[:]
    small = inputs.ndim != 4 or inputs.dtype != torch.uint8 or 4 * inputs.numel() <= MOST_FLOATS
    if small or not as_bytes:
        return inputs.to(device)
    fits = device.type != "cuda" or inputs.numel() <= torch.cuda.mem_get_info(device)[0] // SHARE_OF_GPU
    return Images(inputs.to(device) if fits else inputs, device)


def at_a_time(inputs: Inputs) -> int:
    """Examples that are looked at at a time, where all of them are."""
    return max(1, min(_CHUNK, _CHUNK_NUMBERS // max(1, prod(inputs.shape[1:]))))


def pieces_of(inputs: Inputs) -> Iterable[Tensor]:
    """All inputs in their order, some at a time."""
    return inputs.split(at_a_time(inputs))


def some_of(inputs: Inputs, rows: Tensor | slice) -> Inputs:
    """Some rows of inputs; images that are kept as bytes are not read for that."""
    return inputs.only(rows) if isinstance(inputs, Images) else inputs[rows]


def read_ahead(inputs: Inputs, wanted: Iterable[tuple[T, Tensor | slice]]) -> Iterator[tuple[T, Tensor]]:
    """``inputs[rows]`` for pairs of anything and rows; the next rows are read meanwhile where they are elsewhere."""
    if not isinstance(inputs, Images) or inputs.are_there:
        yield from ((what, inputs[rows]) for what, rows in wanted)
        return
    begun: tuple[T, Callable[[], Tensor]] | None = None
    for what, rows in wanted:
        following = (what, inputs.begin(rows))
        if begun is not None:
            yield begun[0], begun[1]()
        begun = following
    if begun is not None:
        yield begun[0], begun[1]()
