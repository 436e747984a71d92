"""Images and augmentations that the tests of augmented views share."""

from __future__ import annotations

import torch
from torch import Tensor

from semimetric.data import Augmentation

OPTIONAL = {
    "rotate": 25.0,
    "scale": 0.5,
    "shear": 0.3,
    "brightness": 0.7,
    "contrast": 0.6,
    "saturation": 0.8,
    "sharpness": 0.9,
    "invert": 1.0,
    "grey": 1.0,
}
ALWAYS = {"shift": 0.2, "flip": 0.5, "cutout": 0.4, "noise": 0.1, "drop": 0.1}
EVERYTHING = Augmentation(**OPTIONAL, **ALWAYS)
KINDS = ["digits", "objects", "photographs", "crops", "vectors"]
STRENGTHS = ["weak", "strong"]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pictures(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=dtype)


def same_picture(count: int, *shape: int) -> Tensor:
    return pictures(1, *shape).expand(count, *shape)
