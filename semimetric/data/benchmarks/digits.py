"""The digits of scikit-learn; every third example of a class is a test example, whatever the seed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from semimetric.data.benchmarks.spec import DatasetSpec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from semimetric.data.examples import Examples


def _read() -> tuple[Examples, Examples]:
    import torch

    from semimetric.data.examples import Examples

    images, targets = _digits()
    labels = torch.from_numpy(targets)
    examples = Examples(torch.from_numpy(images).unsqueeze(1), labels)
    is_test = torch.zeros(len(labels), dtype=torch.bool)
    for label in range(DIGITS.classes):
        is_test[(labels == label).nonzero().squeeze(1)[2::3]] = True
    return examples.subset((~is_test).nonzero().squeeze(1)), examples.subset(is_test.nonzero().squeeze(1))


def _digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images (N, 8, 8) and classes (N,), from the file of scikit-learn, whose import takes longer than to read it."""
    import numpy as np

    package = find_spec("sklearn")
    places = (package.submodule_search_locations if package is not None else None) or [""]
    file = Path(places[0]) / "datasets" / "data" / "digits.csv.gz"
    if file.is_file():
        rows = np.loadtxt(file, delimiter=",", dtype=np.int64)
        return rows[:, :-1].reshape(-1, 8, 8).astype(np.uint8), rows[:, -1].copy()
    from sklearn.datasets import load_digits

    digits = load_digits()  # another version may have it elsewhere
    return digits.images.astype(np.uint8), digits.target.astype(np.int64)


_DEFAULT = {"encoder": "small-cnn", "preprocess": "standardize", "labels_per_class": 5, "epochs": 6}

DIGITS = DatasetSpec(
    name="digits",
    summary="handwritten digits, small (values 0 to 16)",
    train_size=1_201,
    test_size=596,
    shape=(1, 8, 8),
    class_names=tuple("0123456789"),
    read=_read,
    origin="inside scikit-learn",
    presets={
        "default": _DEFAULT,
        "paper": _DEFAULT | {"labels_per_class": 10, "epochs": 50, "epochs_per_partition": 10},
    },
)
