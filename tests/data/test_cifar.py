import hashlib
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

from semimetric.core.errors import DataError
from semimetric.data.readers.cifar import load_cifar, parse_rows, read_rows

NAMES = [*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"]


def table(seed: int, rows: int = 3) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.column_stack((rng.integers(0, 10, rows), rng.integers(0, 256, (rows, 3072)))).astype(np.uint8)


TABLES = {name: table(k) for k, name in enumerate(NAMES)}
CHECKSUMS = {name: hashlib.sha256(rows.tobytes()).hexdigest() for name, rows in TABLES.items()}


def python2_pickle(rows: np.ndarray) -> bytes:
    """Assemble a batch the way Python 2 wrote the official ones: protocol 2, text as byte strings."""

    def text(value: bytes) -> bytes:
        return b"T" + struct.pack("<i", len(value)) + value

    def integer(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    dtype = b"cnumpy\ndtype\n" + text(b"u1") + integer(0) + integer(1) + b"\x87R"
    dtype_state = b"(" + integer(3) + text(b"|") + b"NNN" + integer(-1) + integer(-1) + integer(0) + b"tb"
    pixels = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n" + integer(0) + b"\x85" + text(b"b") + b"\x87R"
    shape = integer(len(rows)) + integer(3072) + b"\x86"
    state = b"(" + integer(1) + shape + dtype + dtype_state + b"\x89" + text(rows[:, 1:].tobytes()) + b"tb"
    labels = b"](" + b"".join(integer(int(label)) for label in rows[:, 0]) + b"e"
    label_text = text(b"batch_label") + text(b"training batch 1 of 5")
    return b"\x80\x02}(" + label_text + text(b"data") + pixels + state + text(b"labels") + labels + b"u."


def python3_pickle(rows: np.ndarray) -> bytes:
    return pickle.dumps({b"data": rows[:, 1:].copy(), b"labels": rows[:, 0].tolist()}, protocol=4)


def fill(folder: Path, layout: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in TABLES.items():
        if layout == "bin":
            (folder / name).write_bytes(rows.tobytes())
        else:
            write = python2_pickle if layout == "py2" else python3_pickle
            (folder / name.removesuffix(".bin")).write_bytes(write(rows))


@pytest.mark.parametrize("layout", ["bin", "py2", "py3"])
@pytest.mark.parametrize("nested", [True, False])
def test_every_layout_gives_the_same_examples(tmp_path: Path, layout: str, nested: bool) -> None:
    inside = {"bin": "cifar-10-batches-bin"}.get(layout, "cifar-10-batches-py")
    fill(tmp_path / inside if nested else tmp_path, layout)
    train, test = load_cifar(tmp_path, CHECKSUMS)
    rows = np.concatenate([TABLES[name] for name in NAMES[:5]])
    np.testing.assert_array_equal(train.inputs.flatten(1), rows[:, 1:])
    np.testing.assert_array_equal(train.labels, rows[:, 0])
    np.testing.assert_array_equal(test.inputs.flatten(1), TABLES["test_batch.bin"][:, 1:])
    assert train.inputs.shape == (15, 3, 32, 32)


class Malice:
    def __init__(self, function: object, *arguments: object) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self.function, self.arguments


@pytest.mark.parametrize(
    ("function", "name"), [(os.mkdir, "mkdir"), (eval, "builtins.eval"), (np.load, "load"), (getattr, "getattr")]
)
def test_a_malicious_pickle_is_refused_before_it_acts(tmp_path: Path, function: object, name: str) -> None:
    path = tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps({"data": Malice(function, str(tmp_path / "harm"))}))
    with pytest.raises(DataError, match=f"asks for .*{name}"):
        read_rows(path)
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"labels": [1]}, "no 'data'"),
        ({"data": np.zeros((1, 3072), np.uint8)}, "no 'labels'"),
        ([1, 2], "no 'data'"),
        ({"data": np.zeros((1, 7), np.uint8), "labels": [1]}, "'data' must be"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": [1, 2]}, "'labels' N class numbers"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": [10]}, "'labels' N class numbers"),
        ({"data": np.zeros((1, 3072), np.float32), "labels": [1]}, "type 'f4', not bytes"),
        ({"data": np.array([None]), "labels": [1]}, "type 'O8', not bytes"),
    ],
)
def test_pickles_of_other_things_are_refused(tmp_path: Path, batch: object, message: str) -> None:
    path = tmp_path / "test_batch"
    path.write_bytes(pickle.dumps(batch, protocol=4))
    with pytest.raises(DataError, match=message):
        read_rows(path)


@pytest.mark.parametrize("cut", [0, 1, 40, 5000])
def test_a_truncated_pickle_is_refused(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "test_batch"
    path.write_bytes(python2_pickle(table(0))[:cut])
    with pytest.raises(DataError, match="test_batch cannot be read"):
        read_rows(path)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (table(0).tobytes()[:-1], "9218 bytes, not a multiple of 3073"),
        (b"", "0 bytes"),
        (bytes([12]) + bytes(3072), "label 12"),
    ],
)
def test_malformed_rows_are_refused(rows: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        parse_rows(rows, Path("data_batch_1.bin"))


@pytest.mark.parametrize("layout", ["bin", "py2"])
def test_unofficial_content_is_refused(tmp_path: Path, layout: str) -> None:
    fill(tmp_path, layout)
    with pytest.raises(DataError, match=r"data_batch_3.* does not hold the official content"):
        load_cifar(tmp_path, {**CHECKSUMS, "data_batch_3.bin": "0" * 64})
