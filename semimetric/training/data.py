"""Training data, and the part of it that a method may see."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from semimetric.core.arrays import as_tensor, check_finite, check_labels
from semimetric.core.errors import InputError
from semimetric.data.stored import Images, Inputs, pieces_of, some_of
from semimetric.methods import LearnsMetric, Method, PredictsClasses, is_taught
from semimetric.training.settings import TrainingSettings


@dataclass(frozen=True)
class TrainingData:
    """Preprocessed examples with their known labels.

    Parameters
    ----------
    inputs : (N, ...) floating-point array
        Labelled and unlabelled examples; many images may be ``Images``, which are kept as bytes.
    labels : (N,) int array
        Class numbers, -1 = unlabelled.
    validation_inputs, validation_labels : arrays, optional
        Held-out examples that only score models. They are in no graph and no constraint.
    classes : (N,) int array, optional
        True classes of all examples, for benchmarks. They only reach the log, as shares of correct constraints.
    suggested : (N,) bool array, optional
        Labels that ``suggest`` had chosen. They are no random sample, so they are never held out.
    """

    inputs: Inputs
    labels: Tensor
    validation_inputs: Inputs | None = None
    validation_labels: Tensor | None = None
    classes: Tensor | None = None
    suggested: Tensor | None = None

    def __post_init__(self) -> None:
        self._keep("inputs", _check_inputs(self.inputs, "inputs"))
        self._keep("labels", check_labels(self.labels, len(self.inputs)))
        first = self.inputs[0]
        if all(bool((piece == first).all()) for piece in pieces_of(self.inputs)):
            raise InputError(f"inputs are constant: all {len(self.inputs)} examples are the same. Check the data.")
        if self.classes is not None:
            self._keep("classes", check_labels(self.classes, len(self.inputs), "classes"))
        if (self.validation_inputs is None) != (self.validation_labels is None):
            raise InputError("validation_inputs and validation_labels go together; give both or neither.")
        if self.validation_inputs is not None:
            self._keep("validation_inputs", _check_inputs(self.validation_inputs, "validation_inputs"))
            labels = check_labels(self.validation_labels, len(self.validation_inputs), "validation_labels")
            self._keep("validation_labels", labels)
            if len(torch.unique(labels[labels >= 0])) < 2:
                raise InputError("validation_labels must hold at least 2 classes. Withhold more examples.")

    def _keep(self, name: str, value: Inputs) -> None:
        object.__setattr__(self, name, value)

    @property
    def labelled(self) -> Tensor:
        """Rows with a label."""
        return (self.labels >= 0).nonzero().flatten()

    @property
    def unlabelled(self) -> Tensor:
        """Rows without a label."""
        return (self.labels < 0).nonzero().flatten()

    def to(self, device: torch.device) -> TrainingData:
        """The same data on ``device``."""
        held = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return dataclasses.replace(self, **{name: t.to(device) for name, t in held.items() if t is not None})


def _check_inputs(inputs: Any, name: str) -> Inputs:
    if isinstance(inputs, Images) and len(inputs) > 1 and inputs.scaling is not None:
        return inputs  # bytes are finite
    tensor = as_tensor(inputs[:] if isinstance(inputs, Images) else inputs, name)
    if tensor.ndim < 2 or len(tensor) < 2:
        raise InputError(f"{name} must be at least 2 examples (N, ...), got shape {tuple(tensor.shape)}.")
    if not tensor.is_floating_point():
        raise InputError(f"{name} must be floating-point, got {tensor.dtype}. Scale or convert them first.")
    check_finite(tensor, name)
    return tensor.float()


def check_trainable(method: Method[Any], settings: TrainingSettings) -> None:
    """Refuse settings under which the method has nothing to train, nothing to learn from, or nothing to keep."""
    if settings.renew == "partition":
        reason = _why_renewed(method)
        if reason:
            raise InputError(
                f"renew 'partition' keeps the graph of a partition, and method {method.name!r} {reason}. "
                "Use renew 'epoch'."
            )
    if settings.lr == 0 and not isinstance(method, LearnsMetric):
        raise InputError(
            f"lr is 0, which freezes the encoder, and method {method.name!r} trains nothing else. Set lr above 0, or "
            "use a method that learns a metric, such as 'lrml'."
        )
    if settings.metric_every == "batch" and isinstance(method, LearnsMetric) and method.metric_after_steps:
        raise InputError(
            f"metric_every is 'batch', but {method.name!r} learns this metric for the result alone (consensus: metric "
            "'whitened'): only that of the last batch would be kept. Set metric_every to 'epoch'."
        )
    if is_taught(method) and settings.average == 0:
        raise InputError(
            f"method {method.name!r} learns from the running average of the weights, and average is 0, which keeps "
            "none. Set average to a number below 1, such as 0.99."
        )


def _why_renewed(method: Method[Any]) -> str:
    """Why a method needs new constraints in each epoch; "" if they may be kept, and mined again after a crash."""
    if isinstance(method, PredictsClasses):
        return "renews its predictions in every epoch"
    if not (method.needs.graph and isinstance(method, LearnsMetric)):
        return "learns no metric from a graph"
    return ""


def data_for(method: Method[Any], data: TrainingData) -> TrainingData:
    """The data that the method may see; data that it cannot use raises an error before training.

    A method that needs no labels gets none, and one that needs no unlabelled examples gets none. Validation data stays.
    """
    method.check_labels(data.labels)
    if not method.needs.labels:
        return dataclasses.replace(data, labels=torch.full_like(data.labels, -1))
    if not method.needs.unlabelled:
        rows = data.labelled
        optional = {"classes": data.classes, "suggested": data.suggested}
        kept = {name: None if values is None else values[rows] for name, values in optional.items()}
        return dataclasses.replace(data, inputs=some_of(data.inputs, rows), labels=data.labels[rows], **kept)
    if len(data.unlabelled) == 0 and not method.unlabelled_optional:
        raise InputError(
            f"method {method.name!r} learns from unlabelled examples and there is none: no label is -1. "
            "Add unlabelled examples, ask for fewer labels per class, or use a method that learns from labelled ones "
            "alone, such as 'triplet'."
        )
    return data
