"""What a training run works on, checked against what its method needs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from semimetric.checks import check_finite, check_labels
from semimetric.errors import InputError
from semimetric.methods import Method


@dataclass(frozen=True)
class TrainingData:
    """Preprocessed examples with their known labels.

    ``labels`` is -1 where unknown. ``validation`` is withheld: it is never in a graph, never mined, and only
    scores models. ``classes`` are the true classes of all examples where a benchmark knows them; they reach the
    log (shares of right constraints) and nothing else.
    """

    inputs: Tensor
    labels: Tensor
    validation_inputs: Tensor | None = None
    validation_labels: Tensor | None = None
    classes: Tensor | None = None

    def __post_init__(self) -> None:
        check_labels(self.labels, len(self.inputs))
        if not self.inputs.is_floating_point():
            raise InputError(f"inputs must be floating-point, got {self.inputs.dtype}. Preprocess them first.")
        check_finite(self.inputs, "inputs")

    @property
    def labelled(self) -> Tensor:
        """Rows with a label."""
        return (self.labels >= 0).nonzero().flatten()

    @property
    def unlabelled(self) -> Tensor:
        """Rows without one."""
        return (self.labels < 0).nonzero().flatten()

    def to(self, device: torch.device) -> TrainingData:
        """The same data on ``device``."""
        held = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return dataclasses.replace(self, **{name: t.to(device) for name, t in held.items() if t is not None})


def check_needs(method: Method[Any], data: TrainingData) -> None:
    """Refuse, before anything is trained or written, data that the method cannot use."""
    known = data.labels[data.labelled]
    if method.needs.labels:
        if len(known) == 0:
            raise InputError(
                f"method {method.name!r} needs labels and there is none: every label is -1. "
                "Label a few examples of each class."
            )
        if len(torch.unique(known)) < 2:
            raise InputError(
                f"method {method.name!r} needs labelled examples of at least 2 classes, all {len(known)} are of class "
                f"{int(known[0])}. Label some of another class."
            )
    if method.needs.unlabelled and len(data.unlabelled) == 0:
        raise InputError(
            f"method {method.name!r} learns from unlabelled examples and there is none: no label is -1. "
            "Add unlabelled examples, or ask for fewer labels per class."
        )
