"""Examples and datasets: inputs with labels, where -1 marks an unlabelled example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from semimetric.core.arrays import check_finite, check_labels
from semimetric.core.errors import InputError


@dataclass(frozen=True)
class Examples:
    """Inputs and their labels.

    Parameters
    ----------
    inputs : Tensor
        Images (N, C, H, W), as a rule uint8, or float vectors (N, d).
    labels : Tensor
        Class numbers (N,), kept as int64; -1 is unlabelled, as in scikit-learn.
    """

    inputs: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        _check_inputs(self.inputs)
        object.__setattr__(self, "labels", check_labels(self.labels, len(self.inputs)))

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, indices: Tensor | Sequence[int]) -> Examples:
        """Return the examples at ``indices`` (int64 positions), in that order."""
        rows = torch.as_tensor(indices, dtype=torch.int64)
        return Examples(self.inputs[rows.to(self.inputs.device)], self.labels[rows.to(self.labels.device)])


def _check_inputs(inputs: Tensor) -> None:
    if inputs.ndim < 2:
        raise InputError(
            f"inputs must be vectors (N, d) or images (N, C, H, W), but have shape {tuple(inputs.shape)}; "
            "add the missing dimensions."
        )
    if inputs.is_floating_point():
        check_finite(inputs, "inputs")


@dataclass(frozen=True)
class Dataset:
    """A benchmark: its training and test examples and what its class numbers mean."""

    name: str
    train: Examples
    test: Examples
    class_names: tuple[str, ...]
    skipped: Mapping[str, str] = field(default_factory=dict)  # files that gave no example, by name, and why
    train_names: tuple[str, ...] = ()  # the files of the training examples, where each has one
