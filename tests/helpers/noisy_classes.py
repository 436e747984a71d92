"""Features of many classes that differ in a few directions, under noise that is large in others."""

from __future__ import annotations

import torch
from torch import Tensor

from semimetric.encoders import unit_features

CLASSES, WIDTH, KEPT, LOUD = 12, 20, 6, 4
"""Of the directions the first ``KEPT`` tell classes apart, and the next ``LOUD`` are noisier than the others."""


def noisy_classes(per_class: int = 20, labelled: int = 2, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Unit features; labels of ``labelled`` examples of each class, -1 for the others; true classes."""
    generator = torch.Generator().manual_seed(seed)
    classes = torch.arange(CLASSES).repeat(per_class)
    centres = torch.zeros(CLASSES, WIDTH)
    centres[:, :KEPT] = torch.randn(CLASSES, KEPT, generator=generator)
    noise = torch.randn(len(classes), WIDTH, generator=generator) * 0.2
    noise[:, KEPT : KEPT + LOUD] *= 6
    labels = torch.where(torch.arange(len(classes)) < labelled * CLASSES, classes, -1)
    return unit_features(centres[classes] + noise), labels, classes
