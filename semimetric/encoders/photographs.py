"""How photographs become tensors: decoded to a square and, where there is a pretrained network, described by it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from semimetric.data import Fit, PhotoReader, build_preprocess
from semimetric.encoders import encode
from semimetric.pipeline.descriptors import PREPROCESS, seeing_bytes

BATCH = 64
CACHE_BYTES = 1 << 28
"""Photographs in one batch, and memory for those that are decoded ahead."""


@dataclass(frozen=True)
class Sight:
    """Side of the square and how photographs are brought to it, and the network that describes them, if any."""

    side: int
    fit: Fit = "crop"
    network: nn.Module | None = None

    def read(
        self,
        paths: Sequence[Path],
        device: torch.device,
        workers: int | None = None,
        advance: Callable[[int], None] | None = None,
    ) -> tuple[Tensor, Tensor, dict[Path, str]]:
        """Rows (n,) of what could be decoded, their images (n, 3, side, side) or descriptors (n, d), and the rest.

        The rest are paths with the reason why they cannot be decoded.
        """
        reader = PhotoReader(paths, self.side, self.fit, workers, CACHE_BYTES)
        rows, values = [torch.empty(0, dtype=torch.int64)], []
        for some, images in reader.stream(BATCH):
            rows.append(some)
            values.append(self.describe(images, device))
            if advance is not None:
                advance(int(some[-1]) + 1)
        return torch.cat(rows), torch.cat(values) if values else torch.empty(0), reader.skipped

    def describe(self, images: Tensor, device: torch.device) -> Tensor:
        """Descriptors (N, d) of images in memory (N, 3, H, W), bytes, or the images where nothing describes them."""
        if self.network is None:
            return images
        build_preprocess(PREPROCESS, images)  # refuses what is not in the range 0 to 255
        return encode(seeing_bytes(self.network).to(device), images).cpu()
