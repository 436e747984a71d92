import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from semimetric.core.errors import DataError
from semimetric.data.readers.idx import load_idx, parse_idx, read_content

IMAGES = "train-images-idx3-ubyte"


def test_loads_images_and_labels(tiny_idx: Any) -> None:
    train, test = load_idx(tiny_idx.folder, tiny_idx.checksums)
    np.testing.assert_array_equal(train.inputs[:, 0], tiny_idx.arrays[IMAGES])
    assert train.inputs.shape == (6, 1, 28, 28)
    assert train.labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert test.inputs.shape == (4, 1, 28, 28)
    np.testing.assert_array_equal(test.inputs[:, 0], tiny_idx.arrays["t10k-images-idx3-ubyte"])


@pytest.mark.parametrize("name", [IMAGES, "train-images.idx3-ubyte", "train-images.idx3-ubyte.gz"])
@pytest.mark.parametrize("pack", [gzip.compress, bytes])
def test_accepts_other_names_plain_or_gzip(tiny_idx: Any, name: str, pack: Callable[[bytes], bytes]) -> None:
    (tiny_idx.folder / f"{IMAGES}.gz").unlink()
    (tiny_idx.folder / name).write_bytes(pack(tiny_idx.contents[IMAGES]))
    train, _ = load_idx(tiny_idx.folder, tiny_idx.checksums)
    np.testing.assert_array_equal(train.inputs[:, 0], tiny_idx.arrays[IMAGES])


def test_names_the_missing_file(tiny_idx: Any) -> None:
    (tiny_idx.folder / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match="lacks t10k-labels-idx1-ubyte"):
        load_idx(tiny_idx.folder, tiny_idx.checksums)


def flip_a_byte_of_the_crc(packed: bytes) -> bytes:
    return packed[:-8] + bytes((packed[-8] ^ 1,)) + packed[-7:]


def flip_a_byte_inside(packed: bytes) -> bytes:
    middle = len(packed) // 2
    return packed[:middle] + bytes((packed[middle] ^ 255,)) + packed[middle + 1 :]


@pytest.mark.parametrize(
    "damage", [lambda packed: packed[:-200], flip_a_byte_of_the_crc, flip_a_byte_inside, lambda packed: packed[:1]]
)
def test_damaged_gzip_is_refused(tiny_idx: Any, damage: Callable[[bytes], bytes]) -> None:
    path = tiny_idx.folder / f"{IMAGES}.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz"):
        parse_idx(read_content(path), path, 3)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda plain: plain[:-1], "truncated: its header announces 4720 bytes, but it has 4719"),
        (lambda plain: plain + b"x", "too long: its header announces 4720 bytes, but it has 4721"),
        (lambda plain: b"\0\0\x0d\x03" + plain[4:], "starts with 00000d03, not 00000803"),
        (lambda plain: b"\0\0\x08\x01" + plain[4:], "starts with 00000801, not 00000803"),
        (lambda plain: plain[:10], "ends within its header: it has 10 of 16 bytes"),
        (lambda plain: b"", "starts with nothing"),
    ],
)
def test_malformed_files_are_refused(
    tmp_path: Path, tiny_idx: Any, damage: Callable[[bytes], bytes], message: str
) -> None:
    path = tmp_path / IMAGES
    path.write_bytes(damage(tiny_idx.contents[IMAGES]))
    with pytest.raises(DataError, match=message) as caught:
        parse_idx(read_content(path), path, 3)
    assert str(path) in str(caught.value)


def test_well_formed_but_unofficial_content_is_refused(tiny_idx: Any) -> None:
    changed = bytearray(tiny_idx.contents[IMAGES])
    changed[-1] ^= 1
    (tiny_idx.folder / f"{IMAGES}.gz").write_bytes(gzip.compress(bytes(changed)))
    with pytest.raises(DataError, match="does not hold the official content"):
        load_idx(tiny_idx.folder, tiny_idx.checksums)


def test_counts_must_agree(tiny_idx: Any) -> None:
    labels = "train-labels-idx1-ubyte"
    shorter = (tiny_idx.folder / "t10k-labels-idx1-ubyte.gz").read_bytes()
    (tiny_idx.folder / f"{labels}.gz").write_bytes(shorter)
    checksums = {**tiny_idx.checksums, labels: tiny_idx.checksums["t10k-labels-idx1-ubyte"]}
    with pytest.raises(DataError, match="has 6 images, but its labels file has 4 labels"):
        load_idx(tiny_idx.folder, checksums)
