"""How to train, whatever the method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from semimetric.core.checks import check_choice, check_not_negative, check_positive
from semimetric.core.errors import InputError
from semimetric.core.settings import setting


@dataclass(frozen=True)
class TrainingSettings:
    """Algorithm 1: partitions, alternation of metric and encoder, optimiser, model selection."""

    epochs: int = setting(50, "Epochs in all, an epoch being one graph and the passes over its constraints.")
    epochs_per_partition: int = setting(10, "Epochs on one random partition of the unlabelled data.")
    partition_size: int = setting(
        9000,
        "Most unlabelled examples in one partition; all labelled ones are always in. Methods that follow single "
        "examples always work on all.",
    )
    passes: int = setting(1, "Passes over the constraints in an epoch, before the graph is built anew.")
    batch_size: int = setting(100, "Constraints in one mini-batch.")
    optimizer: Literal["sgd", "adam", "adamw"] = setting("sgd", "Optimiser of the encoder.")
    lr: float = setting(1e-7, "Learning rate of the encoder; 0 freezes it, so that only the metric is learned.")
    lr_schedule: Literal["constant", "cosine"] = setting(
        "constant", "Keep the learning rate, or lower it from epoch to epoch along a half cosine."
    )
    momentum: float = setting(0.9, "Momentum of SGD.")
    weight_decay: float = setting(5e-4, "Weight decay of the encoder.")
    average: float = setting(
        0.0,
        "Share of its past that a running average of the weights keeps at each step, below 1; the averaged encoder "
        "builds the graph, is scored and is kept. 0 averages nothing.",
    )
    precision: Literal["float32", "bfloat16"] = setting("float32", "Arithmetic of the encoder while training.")
    hold_back: float = setting(
        0.0,
        "Share of each class's labels that judges the pseudo-labels, as if unknown, in the first half of training and "
        "is learned from in the second; at least one label of a class stays.",
    )
    metric_every: Literal["batch", "epoch"] = setting("epoch", "Update the metric before every batch or every epoch.")
    selection: Literal["labels", "validation", "last"] = setting(
        "labels",
        "What chooses the best model: leave-one-out recall of the labelled examples, withheld validation data, or "
        "nothing (the last epoch is kept).",
    )

    def __post_init__(self) -> None:
        for name in ("epochs_per_partition", "partition_size", "passes", "batch_size"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if self.epochs < 0:
            raise InputError(f"epochs must be at least 0, got {self.epochs}.")
        check_not_negative(self.lr, "lr")
        check_not_negative(self.weight_decay, "weight_decay")
        if not 0.0 <= self.momentum < 1.0:
            raise InputError(f"momentum must be in [0, 1), got {self.momentum}.")
        for name in ("average", "hold_back"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise InputError(f"{name} must be in [0, 1), got {getattr(self, name)}.")
        check_choice(self.optimizer, ("sgd", "adam", "adamw"), "optimizer")
        check_choice(self.lr_schedule, ("constant", "cosine"), "lr_schedule")
        check_choice(self.precision, ("float32", "bfloat16"), "precision")
        check_choice(self.metric_every, ("batch", "epoch"), "metric_every")
        check_choice(self.selection, ("labels", "validation", "last"), "selection")


@dataclass(frozen=True)
class PretrainSettings:
    """Softmax training on the labelled examples before Algorithm 1; off unless epochs are asked for."""

    pretrain_epochs: int = setting(0, "Epochs of softmax training on the labelled examples beforehand.")
    pretrain_lr: float = setting(0.01, "Learning rate of the softmax training.")
    pretrain_batch_size: int = setting(100, "Images in one mini-batch of the softmax training.")
    pretrain_weight_decay: float = setting(1e-4, "Weight decay of the softmax training.")
    pretrain_flip: bool = setting(False, "Mirror each image left-right with probability 1/2 in softmax training.")

    def __post_init__(self) -> None:
        if self.pretrain_epochs < 0 or self.pretrain_batch_size < 1:
            raise InputError(
                "pretrain_epochs must be at least 0 and pretrain_batch_size at least 1, "
                f"got {self.pretrain_epochs} and {self.pretrain_batch_size}."
            )
        check_positive(self.pretrain_lr, "pretrain_lr")
        check_not_negative(self.pretrain_weight_decay, "pretrain_weight_decay")
