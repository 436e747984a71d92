import gzip
import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from semimetric.core.errors import DataError
from semimetric.data import Dataset, load_dataset


@pytest.fixture(autouse=True)
def _private_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the user's own cache out of every test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def benchmark_data() -> Callable[[str], Dataset]:
    """Load a benchmark, or skip where it is not at hand."""

    def load(name: str) -> Dataset:
        try:
            return load_dataset(name)
        except DataError as error:
            if "not found" not in str(error):
                raise
            pytest.skip(f"needs {name}: set SEMIMETRIC_DATA to the folder that holds it")

    return load


def idx_bytes(array: np.ndarray) -> bytes:
    header = bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">u4").tobytes()
    return header + array.astype(np.uint8).tobytes()


class TinyIdx:
    """A folder with four small idx files, and their checksums."""

    def __init__(self, folder: Path) -> None:
        rng = np.random.default_rng(0)
        self.folder = folder
        self.arrays = {
            "train-images-idx3-ubyte": rng.integers(0, 256, (6, 28, 28)),
            "train-labels-idx1-ubyte": np.arange(6) % 3,
            "t10k-images-idx3-ubyte": rng.integers(0, 256, (4, 28, 28)),
            "t10k-labels-idx1-ubyte": np.arange(4) % 3,
        }
        self.contents = {name: idx_bytes(array) for name, array in self.arrays.items()}
        self.checksums = {name: hashlib.sha256(content).hexdigest() for name, content in self.contents.items()}
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.contents.items():
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))


@pytest.fixture
def tiny_idx(tmp_path: Path) -> TinyIdx:
    return TinyIdx(tmp_path / "tiny")
