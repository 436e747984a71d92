"""The digits of scikit-learn; every third example of a class is a test example, whatever the seed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from semimetric.data.benchmarks.spec import DatasetSpec

if TYPE_CHECKING:
    from semimetric.data.examples import Examples


def _read() -> tuple[Examples, Examples]:
    import numpy as np
    import torch
    from sklearn.datasets import load_digits

    from semimetric.data.examples import Examples

    digits = load_digits()
    labels = torch.from_numpy(digits.target.astype(np.int64))
    examples = Examples(torch.from_numpy(digits.images.astype(np.uint8)).unsqueeze(1), labels)
    is_test = torch.zeros(len(labels), dtype=torch.bool)
    for label in range(DIGITS.classes):
        is_test[(labels == label).nonzero().squeeze(1)[2::3]] = True
    return examples.subset((~is_test).nonzero().squeeze(1)), examples.subset(is_test.nonzero().squeeze(1))


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
