"""Networks small enough for a test."""

from __future__ import annotations

from torch import nn


def tiny_cnn() -> nn.Sequential:
    """(N, 3, 8, 8) -> (N, 32), with batch normalisation."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 32),
    )
