"""Settings of training, common to all methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args, get_origin, get_type_hints

from semimetric.core.checks import check_at_least, check_choice, check_not_negative, check_positive
from semimetric.core.errors import InputError
from semimetric.core.settings import setting


@dataclass(frozen=True)
class TrainingSettings:
    """Settings of Algorithm 1: partitions, alternation of metric and encoder, optimiser, model selection."""

    epochs: int = setting(50, "Number of epochs. Each builds one graph and trains on its constraints.")
    epochs_per_partition: int = setting(10, "Epochs on each random partition of the unlabelled data.")
    partition_size: int = setting(
        9000,
        "Most unlabelled examples in a partition. All labelled examples are always included. Methods that keep state "
        "per example use all examples.",
    )
    passes: int = setting(1, "Passes over the constraints per epoch.")
    batch_size: int = setting(100, "Constraints per mini-batch.")
    optimizer: Literal["sgd", "adam", "adamw"] = setting("sgd", "Optimiser of the encoder.")
    lr: float = setting(1e-7, "Learning rate of the encoder. 0 freezes the encoder and trains only the metric.")
    lr_schedule: Literal["constant", "cosine", "slow-cosine"] = setting(
        "constant",
        "Constant learning rate, or decay over the epochs: along a half cosine towards 0, or along FixMatch's slower "
        "cosine towards a fifth of it.",
    )
    warmup: int = setting(0, "First epochs, in which the learning rate rises from 0 with every step.")
    momentum: float = setting(0.9, "Momentum of SGD.")
    nesterov: bool = setting(False, "Nesterov's momentum in SGD.")
    weight_decay: float = setting(5e-4, "Weight decay of the encoder.")
    decay: Literal["all", "matrices"] = setting(
        "all",
        "What weight decay acts on: all parameters, or those of at least two dimensions, which leaves out biases and "
        "normalisation.",
    )
    average: float = setting(
        0.0,
        "Decay of the exponential moving average of the weights, below 1. The averaged encoder builds the graph, is "
        "scored and is saved. 0 turns averaging off.",
    )
    average_warmup: bool = setting(
        True,
        "Let the average leave its start quickly: after t steps its decay is at most (1 + t) / (10 + t). Without, a "
        "teacher stays near a pretrained network for about 1 / (1 - average) steps.",
    )
    freeze_norm: bool = setting(
        False,
        "Keep the running statistics of batch normalisation and normalise by them, as for a pretrained network that is "
        "fine-tuned on few examples.",
    )
    precision: Literal["float32", "bfloat16", "auto"] = setting(
        "float32",
        "Arithmetic of the encoder in training; auto is bfloat16 for images on a CPU that has it, else float32.",
    )
    compile: bool = setting(
        False,
        "Compile encoder and loss with torch.compile, which takes about half a minute. Without effect on a CPU, with "
        "several processes, with a metric step per batch, and for methods whose steps cannot be recorded.",
    )
    hold_back: float = setting(
        0.0,
        "Share of each class's labels to hold out in the first half of training, to estimate the accuracy of "
        "pseudo-labels. The second half trains on them. At least one label of each class is kept.",
    )
    metric_every: Literal["batch", "epoch"] = setting("epoch", "Update the metric once per batch or once per epoch.")
    selection: Literal["labels", "validation", "last"] = setting(
        "labels",
        "Selection of the best model: by leave-one-out recall of the labelled examples, by validation data, or none "
        "(keep the last epoch).",
    )

    patience: int = setting(
        0, "Stop after this many epochs without a better score in the selection; 0 trains all epochs."
    )
    renew: Literal["epoch", "partition"] = setting(
        "epoch", "When the graph and its constraints are renewed: every epoch, or once for each partition."
    )

    def __post_init__(self) -> None:
        for name in ("epochs_per_partition", "partition_size", "passes", "batch_size"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}.")
        for name in ("epochs", "warmup"):
            check_at_least(getattr(self, name), 0, name)
        for name in ("lr", "weight_decay", "patience"):
            check_not_negative(getattr(self, name), name)
        if self.patience and self.selection == "last":
            raise InputError(
                "patience waits for a better score, and selection 'last' has none. Leave patience out, or select by "
                "labels or validation."
            )
        for name in ("momentum", "average", "hold_back"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise InputError(f"{name} must be in [0, 1), got {getattr(self, name)}.")
        for name, hint in get_type_hints(TrainingSettings).items():
            if get_origin(hint) is Literal:
                check_choice(getattr(self, name), get_args(hint), name)
        if self.nesterov and (self.optimizer != "sgd" or self.momentum == 0):
            got = "momentum 0" if self.optimizer == "sgd" else f"optimizer {self.optimizer!r}"
            raise InputError(
                f"nesterov is a momentum of SGD, got {got}. Leave nesterov out, or set optimizer to 'sgd' and momentum "
                "above 0."
            )


@dataclass(frozen=True)
class PretrainSettings:
    """Settings of softmax pretraining on the labelled examples, which is off by default."""

    pretrain_epochs: int = setting(0, "Epochs of softmax pretraining on the labelled examples.")
    pretrain_lr: float = setting(0.01, "Learning rate of softmax pretraining.")
    pretrain_batch_size: int = setting(100, "Images per mini-batch of softmax pretraining.")
    pretrain_weight_decay: float = setting(1e-4, "Weight decay of softmax pretraining.")
    pretrain_flip: bool = setting(False, "Mirror each image left-right with probability 1/2 in softmax pretraining.")

    def __post_init__(self) -> None:
        if self.pretrain_epochs < 0 or self.pretrain_batch_size < 1:
            raise InputError(
                "pretrain_epochs must be at least 0 and pretrain_batch_size at least 1, "
                f"got {self.pretrain_epochs} and {self.pretrain_batch_size}."
            )
        check_positive(self.pretrain_lr, "pretrain_lr")
        check_not_negative(self.pretrain_weight_decay, "pretrain_weight_decay")
