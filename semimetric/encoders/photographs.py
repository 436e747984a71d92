"""Photographs to model inputs: decoded to a square and, with a frozen network, turned into its features."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from semimetric.core import ranks
from semimetric.core.sizes import bytes_from_environment
from semimetric.data.photographs.images import Fit
from semimetric.data.photographs.photos import PhotoReader
from semimetric.data.preprocess import build_preprocess
from semimetric.data.stored import Images, Inputs, PixelFile
from semimetric.encoders.feature_cache import cache_folder, identity_of, open_cache
from semimetric.encoders.features import encode

BATCH = 64  # photographs; the next batch is decoded meanwhile
BLOCK = 1024  # photographs that are looked up in the cache at a time

MEMORY = "SEMIMETRIC_MEMORY"
"""Environment variable: the most bytes of decoded photographs in memory, such as 500MB or 2GiB."""

SHARE_OF_MEMORY = 4  # one in so many bytes of the machine's memory unless the variable says otherwise


@dataclass(frozen=True)
class PhotoTransform:
    """How photographs become the inputs of a model.

    Parameters
    ----------
    side, fit : side of the square, and how a photograph is brought to it
    network : frozen network whose unit features (N, d) are the inputs; without one the inputs are the images
    name : name of that network
    """

    side: int
    fit: Fit = "crop"
    network: nn.Module | None = None
    name: str = ""

    def read(
        self,
        paths: Sequence[Path],
        device: torch.device | str,
        progress: Callable[[int, int], None] | None = None,
        workers: int | None = None,
    ) -> tuple[Tensor, Tensor, dict[Path, str]]:
        """Read photographs batch by batch: numbers (n,) of the decoded ones, their inputs, why the others are not.

        Features of a frozen network are kept in the feature cache as they are made, and those in it are not made again.
        """
        rows, inputs, skipped = self.read_all(paths, device, progress, workers, in_memory=True)
        assert isinstance(inputs, Tensor)
        return rows, inputs, skipped

    def read_all(
        self,
        paths: Sequence[Path],
        device: torch.device | str,
        progress: Callable[[int, int], None] | None = None,
        workers: int | None = None,
        in_memory: bool = False,
    ) -> tuple[Tensor, Inputs, dict[Path, str]]:
        """As ``read``; images that take more memory than allowed are put into a file, unless ``in_memory``.

        Of several ranks each makes the features of its part.
        """
        if self.network is not None and ranks.world().size > 1:
            return self._read_together(paths, device, progress, workers)
        found = _Found(len(paths), None if in_memory else most_in_memory())
        skipped: dict[Path, str] = {}
        for start in range(0, len(paths), BLOCK):
            block = [Path(path) for path in paths[start : start + BLOCK]]
            for some, values in self._read_block(block, device, skipped, workers):
                found.put([start + row for row in some], values)
                if progress is not None:
                    progress(len(found.rows) + len(skipped), len(paths))
        return *found.in_order(), skipped

    def _read_together(
        self,
        paths: Sequence[Path],
        device: torch.device | str,
        progress: Callable[[int, int], None] | None,
        workers: int | None,
    ) -> tuple[Tensor, Tensor, dict[Path, str]]:
        part = ranks.part_of(len(paths))
        with ranks.alone():
            rows, inputs, left_out = self.read(paths[part], device, progress, workers)
        reasons = ranks.of_all({str(path): reason for path, reason in left_out.items()})
        skipped = {Path(path): reason for some in reasons for path, reason in some.items()}
        return ranks.rows_of_all(rows + part.start), ranks.rows_of_all(inputs), skipped

    def _read_block(
        self, paths: list[Path], device: torch.device | str, skipped: dict[Path, str], workers: int | None
    ) -> Iterator[tuple[list[int], Tensor]]:
        """Positions and inputs of photographs that can be decoded, those in the cache first."""
        cache = None if self._identity is None else open_cache(self._identity)
        photos, known = ([], {}) if cache is None else cache.find(paths)
        if known:
            yield list(known), torch.stack(list(known.values()))
        left = [row for row in range(len(paths)) if row not in known]
        reader = PhotoReader([paths[row] for row in left], self.side, self.fit, workers, BATCH * 3 * self.side**2)
        for some, images in reader.stream(BATCH):
            rows = [left[row] for row in some.tolist()]
            values = self.inputs(images, device)
            if cache is not None:
                cache.keep([photos[row] for row in rows], values)
            skipped |= reader.skipped
            yield rows, values
        skipped |= reader.skipped

    @cached_property
    def _identity(self) -> str | None:
        """What decides the features; None without a network."""
        return None if self.network is None else identity_of(self.name, self.network, self.side, self.fit)

    def inputs(self, images: Tensor, device: torch.device | str) -> Tensor:
        """Model inputs of images (N, 3, H, W) in the range 0 to 255, on the CPU."""
        if self.network is None:
            return images
        scaling = build_preprocess("imagenet", images)  # refuses values outside of the range
        network = nn.Sequential(scaling, self.network).train(self.network.training).to(device)
        return encode(network, images).cpu()


class _Found:
    """Inputs as they are read: in one buffer in memory, or in a file if they take more than ``most`` bytes."""

    def __init__(self, count: int, most: int | None) -> None:
        self.count, self.most = count, most
        self.rows: list[int] = []
        self._kept: Tensor | PixelFile | None = None

    def put(self, rows: list[int], values: Tensor) -> None:
        """Keep the inputs (n, ...) of these rows behind those that came before."""
        if self._kept is None:
            self._kept = self._place_for(values)
        if isinstance(self._kept, Tensor):
            self._kept[len(self.rows) : len(self.rows) + len(rows)] = values
        else:
            self._kept.write(len(self.rows), values)
        self.rows += rows

    def _place_for(self, values: Tensor) -> Tensor | PixelFile:
        size = self.count * values[0].numel()
        if values.dtype != torch.uint8 or self.most is None or size <= self.most or not hasattr(os, "preadv"):
            return torch.empty(self.count, *values.shape[1:], dtype=values.dtype)
        return PixelFile(self.count, tuple(values.shape[1:]), cache_folder())

    def in_order(self) -> tuple[Tensor, Inputs]:
        """Rows (n,) in ascending order, and their inputs."""
        rows = torch.tensor(self.rows, dtype=torch.int64)
        if self._kept is None:
            return rows, torch.empty(0)
        ascending, order = rows.sort()
        if isinstance(self._kept, PixelFile):
            return ascending, Images(self._kept.cut(len(rows)), rows=order)
        kept = self._kept[: len(rows)]
        return ascending, kept if bool((ascending == rows).all()) else kept[order]


def most_in_memory() -> int:
    """Bytes of decoded photographs, at most, that are kept in memory."""
    try:
        machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not told by the system
        machine = 8 << 30
    return bytes_from_environment(MEMORY, machine // SHARE_OF_MEMORY)
