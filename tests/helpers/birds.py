"""A small dataset of photographs under the name of one that has a preset."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from PIL import Image

from semimetric.data.benchmarks.cub200 import CUB200
from semimetric.data.benchmarks.registry import DATASETS

CLASSES, EACH = 8, 6


def write_birds(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Class folders, a colour for each class, under the name cub200, which has as few classes from now on."""
    half = CLASSES * EACH // 2
    small = dataclasses.replace(CUB200, classes=CLASSES, train_size=half, test_size=half)
    monkeypatch.setitem(DATASETS._loaded, "cub200", small)
    generator = torch.Generator().manual_seed(0)
    for number in range(CLASSES):
        part = "train" if number < CLASSES // 2 else "test"
        place = folder / "cub200" / part / f"{number + 1:03d}.bird_{number}"
        place.mkdir(parents=True)
        colour = torch.rand(3, generator=torch.Generator().manual_seed(number)) * 200
        for image in range(EACH):
            pixels = (colour + 55 * torch.rand(70, 80, 3, generator=generator)).byte()
            Image.fromarray(pixels.numpy()).save(place / f"{image}.png")
    return folder
