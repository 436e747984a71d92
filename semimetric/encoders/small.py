"""Encoders for feature vectors and thumbnails."""

from __future__ import annotations

from math import prod

import torch
from torch import nn

from semimetric.encoders.spec import EncoderSpec

BIAS, NARROW = 8.0, 4
"""The first biases of ``mlp`` are up to 8 / d for d columns, and for fewer than 4 columns up to 2."""


def linear(features: int) -> nn.Sequential:
    """(N, features) -> (N, features): a linear map that starts as the identity, for pretrained descriptors."""
    layer = nn.Linear(features, features, bias=False)
    nn.init.eye_(layer.weight)
    return nn.Sequential(nn.Flatten(), layer)


def mlp(features: int, width: int = 64, hidden: int = 512) -> nn.Sequential:
    """(N, features) -> (N, width): one hidden layer with ReLU, wide, so that it preserves neighbourhoods untrained.

    Features are scaled to unit length, and without biases a network maps x and 2 x to the same direction. The length of
    a row says much where columns are few, so biases are then larger than torch's, which are up to d^(-1/2).
    """
    first = nn.Linear(features, hidden)
    with torch.no_grad():
        first.bias.mul_(max(1.0, BIAS * features**0.5 / max(features, NARROW)))
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), nn.Linear(hidden, width))


def small_cnn(channels: int, width: int = 64) -> nn.Sequential:
    """(N, channels, H, W) -> (N, width) for images from 8 pixels up: three 3x3 convolutions, pooled to 2x2."""
    return nn.Sequential(
        *(nn.Conv2d(channels, 32, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2, 2)),
        *(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2)),
        *(nn.Flatten(), nn.Linear(256, width)),
    )


SMALL_CNN = EncoderSpec(name="small-cnn", build=lambda shape, init: small_cnn(shape[0]), smallest=8)
MLP = EncoderSpec(name="mlp", build=lambda shape, init: mlp(prod(shape)))
LINEAR = EncoderSpec(name="linear", build=lambda shape, init: linear(prod(shape)))
