"""Default settings by dataset and by kind of data; those of a method are in the method's own file."""

from __future__ import annotations

from typing import Any, Literal, get_args

from semimetric.core.checks import check_choice
from semimetric.core.errors import InputError
from semimetric.core.settings import build_settings
from semimetric.methods import METHODS
from semimetric.training import TrainingSettings

Values = dict[str, Any]

Material = Literal["vectors", "images", "descriptors", "pretrained"]
"""Input of the network on your own data; "pretrained" are images for a network that is fine-tuned."""

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
    "metric_every": "epoch",
}

_PAPER_CIFAR10: Values = _PAPER_MNIST | {
    "encoder": "paper-cifar10",
    "preprocess": "whiten",
    "labels_per_class": 100,
    "pretrain_epochs": 30,
    "pretrain_lr": 0.003,
    "pretrain_flip": True,
}

_FINE_GRAINED: Values = {
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

_UNLABELLED_VALIDATION: Values = {"validation_share": 0.0, "selection": "labels"}

PRESETS: dict[str, dict[str, Values]] = {
    "default": {
        "digits": {
            "encoder": "small-cnn",
            "preprocess": "standardize",
            "labels_per_class": 5,
            "epochs": 6,
        },
        "mnist": _PAPER_MNIST | _UNLABELLED_VALIDATION,
        "fashion-mnist": _PAPER_MNIST | _UNLABELLED_VALIDATION,
        "cifar10": _PAPER_CIFAR10 | _UNLABELLED_VALIDATION,
        "cub200": _FINE_GRAINED,
        "cars196": _FINE_GRAINED,
    },
    "paper": {
        "mnist": _PAPER_MNIST,
        "fashion-mnist": _PAPER_MNIST,
        "cifar10": _PAPER_CIFAR10,
        "cub200": _FINE_GRAINED | {"withheld": "examples"},
        "cars196": _FINE_GRAINED | {"withheld": "examples"},
    },
}
"""Settings of all methods on a dataset; ``Method.training_defaults`` and ``Method.defaults_on`` override them."""

FIXED: dict[str, Values] = {"default": {}, "paper": {"validation_share": 0.15, "selection": "validation"}}
"""Settings that belong to the protocol; no method overrides them."""


def training_settings(method: str, **changes: Any) -> TrainingSettings:
    """Training settings of ``method`` for your own data, with ``changes``."""
    return build_settings(TrainingSettings, METHODS.find(method).training_defaults | changes, "training")


def own_values(method: str, material: Material) -> Values:
    """Settings of the method and its training for your own data, where they differ from the general defaults."""
    check_choice(material, get_args(Material), "material")
    kind = METHODS.find(method)
    return kind.training_defaults | kind.defaults_on.get(material, {})


def preset_names() -> tuple[str, ...]:
    """Names of the presets."""
    return tuple(PRESETS)


def preset_values(name: str, dataset: str, method: str, backbone: str = "") -> Values:
    """Settings of a preset for a method on a dataset, or on the descriptors that ``backbone`` computes of it."""
    check_choice(name, preset_names(), "preset")
    kind = METHODS.find(method)
    if name == "paper" and not kind.in_paper:
        raise InputError(
            f"preset 'paper' has no settings for method {method!r}, which is not the paper's. Use --preset default."
        )
    if dataset not in PRESETS[name]:
        raise InputError(
            f"preset {name!r} has no settings for dataset {dataset!r}; it has them for {', '.join(PRESETS[name])}. "
            "Use --preset default."
        )
    general = PRESETS[name][dataset]
    material = "descriptors" if general.get("backbone") else "images"
    own = kind.defaults_on.get(dataset, kind.defaults_on.get(material, {}))
    described = kind.defaults_on.get("described", {}) if backbone and own.get("backbone") == "" else {}
    values = kind.training_defaults | own | described
    if name == "paper":
        values.pop("start", None)  # the paper's L starts at random
    return general | values | FIXED[name]
