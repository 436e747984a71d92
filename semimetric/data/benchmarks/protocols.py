"""Settings of presets that several datasets share."""

from __future__ import annotations

from typing import Any

Values = dict[str, Any]

UNLABELLED_VALIDATION: Values = {"validation_share": 0.0, "selection": "labels"}
"""All labels are trained on, and those of the training data choose the model."""

PAPER: Values = {
    "encoder": "paper-mnist",
    "init": "gaussian",
    "preprocess": "mean-image",
    "labels_per_class": 10,
    "validation_share": 0.15,
    "selection": "validation",
    "epochs": 50,
    "epochs_per_partition": 10,
    "partition_size": 9000,
    "batch_size": 100,
    "metric_every": "epoch",
}

FINE_GRAINED: Values = {
    "backbone": "googlenet-rmac",
    "encoder": "linear",
    "preprocess": "none",
    "labels_per_class": 5,
    "validation_share": 0.15,
    "withheld": "classes",
    "selection": "validation",
    "epochs": 200,
    "epochs_per_partition": 1,
    "partition_size": 1_000_000,
    "batch_size": 100,
    "metric_every": "epoch",
}

MNIST_PRESETS: dict[str, Values] = {"default": PAPER | UNLABELLED_VALIDATION, "paper": PAPER}
PHOTOGRAPH_PRESETS: dict[str, Values] = {"default": FINE_GRAINED, "paper": FINE_GRAINED | {"withheld": "examples"}}
