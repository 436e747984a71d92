"""Many photographs as tensors: image files decoded to one size, several at once, within a memory bound."""

from __future__ import annotations

import os
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from threading import BoundedSemaphore
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from semimetric.core.arrays import as_tensor, check_labels
from semimetric.core.errors import DataError, InputError
from semimetric.data.examples import Examples
from semimetric.data.photographs.images import (
    Fit,
    Undecodable,
    check_photo_options,
    decode_into,
    load_silently,
    loads_in_threads,
    open_image,
)

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile

    from semimetric.data.photographs.images import Pixels

_OPEN_AT_ONCE = 128


class PhotoReader:
    """Reads photographs by number, in parallel, and keeps the last used ones decoded.

    Decoded photographs take 3 * side**2 bytes: 150 kB each at side 224. The reader holds at most ``cache_bytes`` of
    them, those decoded ahead included, the batch that it is filling, and for each thread one or two photographs in
    their original size. It is meant for one thread at a time.

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
        self, paths: Sequence[Path], side: int, fit: Fit = "crop", workers: int | None = None, cache_bytes: int = 2**30
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
        self._loaded = BoundedSemaphore(self.workers)  # photographs of rare formats that are in memory as they are

    def __len__(self) -> int:
        return len(self.paths)

    def batch(self, rows: Sequence[int] | Tensor) -> Tensor:
        """Photographs at ``rows`` (n,) as uint8 (n, 3, side, side); one that cannot be decoded is an error."""
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

        Yields rows, int64 (n,), at most ``batch_size``, and images, uint8 (n, 3, side, side). What cannot be decoded is
        left out and named in ``skipped``.
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
        """Decode rows into their targets, ``most`` more at a time; yield in order whether each target is filled."""
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
                raise Undecodable(self.skipped[path])
            else:
                return self._submit(pool, target, open_image(path, self.side))
        except Undecodable as error:
            done.set_exception(error)
        return done

    def _submit(self, pool: ThreadPoolExecutor, target: Pixels, image: ImageFile) -> Future[None]:
        """Let a thread decode the image; one that must be loaded here waits until few others are."""
        if loads_in_threads(image):
            return pool.submit(decode_into, target, image, self.fit)
        self._loaded.acquire()
        try:
            load_silently(image)
            job = pool.submit(decode_into, target, image, self.fit)
        except BaseException:
            self._loaded.release()
            raise
        job.add_done_callback(lambda _: self._loaded.release())
        return job

    def _finish(self, row: int, target: Pixels, job: Future[None]) -> bool:
        try:
            job.result()
        except Undecodable as error:
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
