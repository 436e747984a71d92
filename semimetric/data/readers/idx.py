"""The idx format of MNIST and its relatives: a short header, then bytes."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from semimetric.core.errors import DataError
from semimetric.data.benchmarks.official import check_content, find_file

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from semimetric.data.examples import Examples

_GZIP_MAGIC = b"\x1f\x8b"


def idx_variants(name: str) -> tuple[str, ...]:
    """The names that an official file, say ``train-images-idx3-ubyte``, may have; the first is the published one."""
    dotted = name.replace("-idx", ".idx")
    return (f"{name}.gz", name, f"{dotted}.gz", dotted)


def read_content(path: Path) -> bytes:
    """Read a file, uncompressed; its first bytes, not its name, say whether it is gzip."""
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if content.startswith(_GZIP_MAGIC) else content
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read or uncompressed: {error}.") from error


def parse_idx(content: bytes, path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Read bytes behind a header: 0, 0, type 8, number of dimensions, each length as a big-endian 32-bit integer."""
    import numpy as np

    header = 4 + 4 * dimensions
    if content[:4] != bytes((0, 0, 8, dimensions)):
        raise DataError(
            f"{path} is not an idx file of bytes with {dimensions} dimensions: it starts with "
            f"{content[:4].hex() or 'nothing'}, not 000008{dimensions:02x}."
        )
    if len(content) < header:
        raise DataError(f"{path} ends within its header: it has {len(content)} of {header} bytes.")
    shape = tuple(int(length) for length in np.frombuffer(content, ">u4", dimensions, offset=4))
    expected = header + math.prod(shape)
    if len(content) != expected:
        raise DataError(
            f"{path} is {'truncated' if len(content) < expected else 'too long'}: its header announces "
            f"{expected} bytes, but it has {len(content)}."
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape).copy()


def load_idx(folder: Path, checksums: Mapping[str, str]) -> tuple[Examples, Examples]:
    """Load training and test examples from the four files in ``checksums``, as images (N, 1, H, W)."""
    arrays = {}
    paths = {name: find_file(folder, name, idx_variants(name)) for name in checksums}
    for name, path in paths.items():
        content = read_content(path)
        arrays[name] = parse_idx(content, path, 3 if "images" in name else 1)
        check_content(content, checksums[name], path)
    train, test = (_pair_up(arrays, paths, part) for part in ("train", "t10k"))
    return train, test


def _pair_up(arrays: Mapping[str, NDArray[np.uint8]], paths: Mapping[str, Path], part: str) -> Examples:
    import torch

    from semimetric.data.examples import Examples

    name = f"{part}-images-idx3-ubyte"
    images, labels = arrays[name], arrays[f"{part}-labels-idx1-ubyte"]
    if len(images) != len(labels):
        raise DataError(f"{paths[name]} has {len(images)} images, but its labels file has {len(labels)} labels.")
    return Examples(torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels).long())
