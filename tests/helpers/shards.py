"""Shards of small photographs: WebDataset archives, Parquet files, and archives that nobody should trust."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from helpers.own_photos import COLOURS
from PIL import Image


def photo(colour: str, seed: int) -> bytes:
    """A noisy photograph of one colour, as PNG."""
    noise = np.random.default_rng(seed).normal(0, 25, (24, 24, 3))
    content = io.BytesIO()
    Image.fromarray((np.array(COLOURS[colour]) + noise).clip(0, 255).astype(np.uint8)).save(content, "PNG")
    return content.getvalue()


def write_archive(path: Path, members: Iterable[tuple[str, bytes]]) -> Path:
    """A tar file of these members."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def write_shards(folder: Path, count: int = 2, each: int = 12) -> Path:
    """Archives of photographs; two of three examples have a label, in .cls or in .json."""
    for shard in range(count):
        members: list[tuple[str, bytes]] = []
        for number in range(each):
            colour = list(COLOURS)[number % 3]
            key = f"part/{number:03d}"
            members.append((f"{key}.png", photo(colour, 100 * shard + number)))
            if number % 9 < 3:
                members.append((f"{key}.cls", colour.encode()))
            elif number % 9 < 6:
                members.append((f"{key}.json", json.dumps({"label": colour, "size": 24}).encode()))
        write_archive(folder / f"shard-{shard}.tar", members)
    return folder


def write_parquet(path: Path, rows: int = 9, nested: bool = False) -> Path:
    """A Parquet file with image bytes, as they are or as the library ``datasets`` writes them."""
    import pyarrow
    import pyarrow.parquet

    colours = [list(COLOURS)[row % 3] for row in range(rows)]
    images: list[Any] = [photo(colour, row) for row, colour in enumerate(colours)]
    images = [{"bytes": image, "path": None} for image in images] if nested else images
    columns = {"id": [f"n{row}" for row in range(rows)], "image": images, "label": [*colours[:-3], "", "", ""]}
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path
