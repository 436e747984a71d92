"""Folders of small generated photographs of two or three kinds that a network tells apart at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

COLOURS = {"red": (230, 30, 30), "green": (20, 200, 40), "blue": (30, 40, 220)}


def write_photo(path: Path, colour: tuple[int, int, int], seed: int, size: tuple[int, int] = (40, 32)) -> None:
    """A noisy photograph of one colour, in the format that the name says."""
    noise = np.random.default_rng(seed).normal(0, 25, (size[1], size[0], 3))
    pixels = (np.array(colour) + noise).clip(0, 255).astype(np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def write_folder(root: Path, labelled: int = 6, unlabelled: int = 20) -> Path:
    """A folder for each colour with ``labelled`` photographs, and ``unlabelled`` ones of all colours beside them."""
    names = list(COLOURS)
    for number in range(labelled * len(names)):
        name = names[number % len(names)]
        write_photo(root / name / f"photo {number}.jpg", COLOURS[name], number)
    for number in range(unlabelled):
        name = names[number % len(names)]
        write_photo(root / "unlabelled" / f"{name} ü {number}.png", COLOURS[name], 1000 + number)
    return root
