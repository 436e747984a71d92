"""Examples and datasets: inputs with labels, where -1 marks an unlabelled example."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from semimetric.errors import InputError

_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


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
        _check_labels(self.labels)
        if len(self.inputs) != len(self.labels):
            raise InputError(
                f"inputs and labels must have the same length, but there are {len(self.inputs)} inputs "
                f"and {len(self.labels)} labels; give each input one label, -1 where it has none."
            )
        object.__setattr__(self, "labels", self.labels.to(torch.int64))

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
    if inputs.is_floating_point() and not bool(torch.isfinite(inputs).all()):
        raise InputError("inputs must be finite, but contain NaN or infinity; remove or fill those examples.")


def _check_labels(labels: Tensor) -> None:
    if labels.ndim != 1 or labels.dtype not in _INTEGERS:
        raise InputError(
            f"labels must be a vector of integers, but have shape {tuple(labels.shape)} and type "
            f"{labels.dtype}; give one class number per example, -1 where there is none."
        )
    if len(labels) and int(labels.min()) < -1:
        raise InputError(
            f"labels must be -1 (unlabelled) or a class number from 0 on, but the smallest is "
            f"{int(labels.min())}; renumber the classes."
        )


@dataclass(frozen=True)
class Dataset:
    """A benchmark: its training and test examples and what its class numbers mean."""

    name: str
    train: Examples
    test: Examples
    class_names: tuple[str, ...]
