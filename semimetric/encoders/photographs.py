"""Photographs to model inputs: decoded to a square and, with a frozen network, turned into its features."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from semimetric.data.photographs.images import Fit
from semimetric.data.photographs.photos import PhotoReader
from semimetric.data.preprocess import build_preprocess
from semimetric.encoders.features import encode

BATCH = 64  # photographs; the next batch is decoded meanwhile


@dataclass(frozen=True)
class PhotoTransform:
    """How photographs become the inputs of a model.

    Parameters
    ----------
    side, fit : side of the square, and how a photograph is brought to it
    network : frozen network whose unit features (N, d) are the inputs; without one the inputs are the images
    """

    side: int
    fit: Fit = "crop"
    network: nn.Module | None = None

    def read(
        self,
        paths: Sequence[Path],
        device: torch.device | str,
        progress: Callable[[int, int], None] | None = None,
        workers: int | None = None,
    ) -> tuple[Tensor, Tensor, dict[Path, str]]:
        """Read photographs batch by batch: numbers (n,) of the decoded ones, their inputs, why the others are not."""
        reader = PhotoReader(paths, self.side, self.fit, workers, BATCH * 3 * self.side**2)
        rows, values = [torch.empty(0, dtype=torch.int64)], []
        for some, images in reader.stream(BATCH):
            rows.append(some)
            values.append(self.inputs(images, device))
            if progress is not None:
                progress(int(some[-1]) + 1, len(reader))
        return torch.cat(rows), torch.cat(values) if values else torch.empty(0), reader.skipped

    def inputs(self, images: Tensor, device: torch.device | str) -> Tensor:
        """Model inputs of images (N, 3, H, W) in the range 0 to 255, on the CPU."""
        if self.network is None:
            return images
        scaling = build_preprocess("imagenet", images)  # refuses values outside of the range
        network = nn.Sequential(scaling, self.network).train(self.network.training).to(device)
        return encode(network, images).cpu()
