"""How images reach pretrained networks: normalised by the statistics of ImageNet, and from there as each wants them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
"""Statistics of red, green and blue in 0..1, by which images come normalised."""


def conversion(mean: Sequence[float], std: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Scale and shift (3, 1, 1) that bring images as they come to ``(x / 255 - mean) / std``.

    They come as y = (p - m) / s of pixels p in 0..1, so that (p - mean) / std = y s / std + (m - mean) / std.
    """
    ours, spread, theirs, width = (
        torch.tensor(values)[:, None, None] for values in (IMAGENET_MEAN, IMAGENET_STD, tuple(mean), tuple(std))
    )
    return spread / width, (ours - theirs) / width
