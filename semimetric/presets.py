"""Settings by dataset: the paper's, and our own where nobody has said otherwise."""

from __future__ import annotations

from typing import Any

from semimetric.checks import check_choice
from semimetric.errors import InputError

Values = dict[str, Any]

_PAPER_MNIST: Values = {
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
    "components": 64,
    "k": 10,
    "gamma": 0.99,
    "alpha": 40.0,
    "metric_every": "epoch",
    "lr": 1e-9,
}

_PAPER_CIFAR10: Values = _PAPER_MNIST | {
    "encoder": "paper-cifar10",
    "preprocess": "whiten",
    "labels_per_class": 100,
    "components": 32,
    "pretrain_epochs": 30,
    "pretrain_lr": 0.003,
    "pretrain_flip": True,
}

_PAPER_FASHION: Values = _PAPER_MNIST | {"lr": 1e-8}

_UNLABELLED_VALIDATION: Values = {"validation_share": 0.0, "selection": "labels"}

PRESETS: dict[str, dict[str, Values]] = {
    "default": {
        "digits": {
            "encoder": "small-cnn",
            "preprocess": "standardize",
            "labels_per_class": 5,
            "components": 32,
            "lr": 3e-7,
            "epochs": 6,
        },
        "mnist": _PAPER_MNIST | _UNLABELLED_VALIDATION,
        "fashion-mnist": _PAPER_FASHION | _UNLABELLED_VALIDATION,
        "cifar10": _PAPER_CIFAR10 | _UNLABELLED_VALIDATION,
    },
    "paper": {"mnist": _PAPER_MNIST, "fashion-mnist": _PAPER_FASHION, "cifar10": _PAPER_CIFAR10},
}


def preset_names() -> tuple[str, ...]:
    """Names of the presets."""
    return tuple(PRESETS)


def preset_values(name: str, dataset: str) -> Values:
    """Settings of a preset for a dataset."""
    check_choice(name, preset_names(), "preset")
    if dataset not in PRESETS[name]:
        raise InputError(
            f"preset {name!r} has no settings for dataset {dataset!r}; it has them for {', '.join(PRESETS[name])}. "
            "Use --preset default."
        )
    return dict(PRESETS[name][dataset])
