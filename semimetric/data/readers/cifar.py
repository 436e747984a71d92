"""The two official layouts of CIFAR-10: binary batches, and batches pickled from Python."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semimetric.core.errors import DataError
from semimetric.data.benchmarks.official import check_content, find_file

if TYPE_CHECKING:
    import numpy as np

    from semimetric.data.examples import Examples

_PIXELS, _CLASSES = 3 * 32 * 32, 10
_ROW = 1 + _PIXELS


def cifar_variants(name: str) -> tuple[str, ...]:
    """The relative paths under which a batch, say ``data_batch_1.bin``, may be."""
    pickled = name.removesuffix(".bin")
    return (name, f"cifar-10-batches-bin/{name}", pickled, f"cifar-10-batches-py/{pickled}")


def read_rows(path: Path) -> bytes:
    """Read a batch as rows of one label byte and 3072 pixel bytes, the same for both layouts."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}.") from error
    return content if path.suffix == ".bin" else _rows_of_pickle(content, path)


def parse_rows(rows: bytes, path: Path) -> Examples:
    """Turn rows into images (N, 3, 32, 32), red, green, blue, and labels; ``path`` is for the messages."""
    import numpy as np
    import torch

    from semimetric.data.examples import Examples

    if not rows or len(rows) % _ROW:
        raise DataError(
            f"{path} is truncated or not a CIFAR-10 batch: it has {len(rows)} bytes, not a multiple of {_ROW}."
        )
    table = np.frombuffer(rows, np.uint8).reshape(-1, _ROW)
    if int(table[:, 0].max()) >= _CLASSES:
        raise DataError(f"{path} is not a CIFAR-10 batch: it has label {table[:, 0].max()}, above 9.")
    images = torch.from_numpy(table[:, 1:].reshape(-1, 3, 32, 32).copy())
    return Examples(images, torch.from_numpy(table[:, 0].astype(np.int64)))


def load_cifar(folder: Path, checksums: Mapping[str, str]) -> tuple[Examples, Examples]:
    """Load training and test examples from the batches in ``checksums``; ``test_batch.bin`` is the test set."""
    import torch

    from semimetric.data.examples import Examples

    batches = {}
    for name, sha256 in checksums.items():
        path = find_file(folder, name, cifar_variants(name))
        rows = read_rows(path)
        batches[name] = parse_rows(rows, path)
        check_content(rows, sha256, path)
    test = batches.pop("test_batch.bin")
    train = [batches[name] for name in sorted(batches)]
    inputs = torch.cat([batch.inputs for batch in train])
    return Examples(inputs, torch.cat([batch.labels for batch in train])), test


def _byte_dtype(kind: str, *_: object) -> np.dtype[np.uint8]:
    import numpy as np

    if kind not in ("u1", "|u1"):
        raise pickle.UnpicklingError(f"pixels are of type {kind!r}, not bytes")
    return np.dtype(np.uint8)


def _allowed_names() -> dict[tuple[str, str], Callable[..., Any]]:
    """All that a pickled batch may name: what rebuilds an array of bytes, under old and new module names."""
    import numpy as np

    reconstruct: Any = np.empty(0, np.uint8).__reduce__()[0]
    rebuild = {(f"numpy.{core}.multiarray", "_reconstruct"): reconstruct for core in ("core", "_core")}
    return {**rebuild, ("numpy", "ndarray"): np.ndarray, ("numpy", "dtype"): _byte_dtype}


class _BatchUnpickler(pickle.Unpickler):
    """Unpickles arrays of bytes, numbers, strings, lists and dictionaries, and refuses any other name."""

    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        allowed = _allowed_names()
        if (module, name) not in allowed:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which a CIFAR-10 batch never needs")
        return allowed[module, name]


def _rows_of_pickle(content: bytes, path: Path) -> bytes:
    import numpy as np

    try:
        batch = _BatchUnpickler(io.BytesIO(content), encoding="latin1").load()
    except Exception as error:  # a damaged pickle can raise almost anything
        raise DataError(f"{path} cannot be read as a CIFAR-10 batch: {error}.") from error
    pixels, labels = _field(batch, "data", path), _field(batch, "labels", path)
    is_table = isinstance(pixels, np.ndarray) and pixels.dtype == np.uint8 and pixels.shape[1:] == (_PIXELS,)
    if not is_table or not _are_labels(labels) or len(pixels) != len(labels):
        raise DataError(
            f"{path} is not a CIFAR-10 batch: 'data' must be (N, {_PIXELS}) bytes, 'labels' N class numbers."
        )
    return np.column_stack((np.asarray(labels, np.uint8), pixels)).tobytes()


def _field(batch: object, name: str, path: Path) -> Any:
    """Look a field up under its name as text or, where Python 3 wrote bytes, as bytes."""
    for key in (name, name.encode()):
        if isinstance(batch, dict) and key in batch:
            return batch[key]
    raise DataError(f"{path} is not a CIFAR-10 batch: it has no {name!r}.")


def _are_labels(labels: object) -> bool:
    return isinstance(labels, list) and all(type(k) is int and 0 <= k < _CLASSES for k in labels)
