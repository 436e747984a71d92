"""Photographs to model inputs: decoded to a square and, with a frozen network, turned into its features."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from semimetric.data.photographs.images import Fit
from semimetric.data.photographs.photos import PhotoReader
from semimetric.data.preprocess import build_preprocess
from semimetric.encoders.feature_cache import identity_of, open_cache
from semimetric.encoders.features import encode

BATCH = 64  # photographs; the next batch is decoded meanwhile
BLOCK = 1024  # photographs that are looked up in the cache at a time


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
        found: dict[int, Tensor] = {}
        skipped: dict[Path, str] = {}
        for start in range(0, len(paths), BLOCK):
            block = [Path(path) for path in paths[start : start + BLOCK]]
            for some, values in self._read_block(block, device, skipped, workers):
                found.update(zip((start + row for row in some), values, strict=True))
                if progress is not None:
                    progress(len(found) + len(skipped), len(paths))
        rows = sorted(found)
        inputs = torch.stack([found[row] for row in rows]) if rows else torch.empty(0)
        return torch.tensor(rows, dtype=torch.int64), inputs, skipped

    def _read_block(
        self, paths: list[Path], device: torch.device | str, skipped: dict[Path, str], workers: int | None
    ) -> Iterator[tuple[list[int], Sequence[Tensor]]]:
        """Positions and inputs of photographs that can be decoded, those in the cache first."""
        cache = None if self._identity is None else open_cache(self._identity)
        photos, known = ([], {}) if cache is None else cache.find(paths)
        if known:
            yield list(known), list(known.values())
        left = [row for row in range(len(paths)) if row not in known]
        reader = PhotoReader([paths[row] for row in left], self.side, self.fit, workers, BATCH * 3 * self.side**2)
        for some, images in reader.stream(BATCH):
            rows = [left[row] for row in some.tolist()]
            values = self.inputs(images, device)
            if cache is not None:
                cache.keep([photos[row] for row in rows], values)
            skipped |= reader.skipped
            yield rows, list(values)
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
