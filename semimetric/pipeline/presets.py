"""Settings by dataset: the paper's, and our own where nobody has said otherwise."""

from __future__ import annotations

from typing import Any, Literal, get_args

from semimetric.core.checks import check_choice
from semimetric.core.errors import InputError
from semimetric.core.settings import build_settings
from semimetric.methods import method_names
from semimetric.training import TrainingSettings

Values = dict[str, Any]

Material = Literal["vectors", "images", "descriptors", "pretrained"]
"""What a network of your own data sees: vectors, images, descriptors of photographs, or images and pretrained."""

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
"""What is the same for all methods on a dataset, unless a method says otherwise."""

FIXED: dict[str, Values] = {"default": {}, "paper": {"validation_share": 0.15, "selection": "validation"}}
"""What belongs to the protocol, whatever a method says."""

_PAPER_TRIPLETS: Values = {"components": 64, "k": 10, "gamma": 0.99, "alpha": 40.0, "lr": 1e-9}


def _on_photographs(values: Values) -> dict[str, Values]:
    """A method on the two datasets of photographs, alike."""
    return {"cub200": values, "cars196": values}


def _classical(digits: float, mnist: float, fashion_mnist: float, cifar10: float) -> dict[str, Values]:
    """Learning rates of a classical method; on the large datasets its best epochs lie within the first thirty.

    On photographs it learns a metric of the descriptors, once: an epoch more would learn the same again.
    """
    large = {"mnist": mnist, "fashion-mnist": fashion_mnist, "cifar10": cifar10}
    once = _on_photographs({"lr": 0.0, "epochs": 1})
    return {"digits": {"lr": digits}} | {dataset: {"lr": lr, "epochs": 30} for dataset, lr in large.items()} | once


_CONSENSUS_TRAINING: Values = {
    "optimizer": "adamw",
    "lr": 1e-3,
    "lr_schedule": "cosine",
    "weight_decay": 1e-4,
    "average": 0.995,
    "batch_size": 256,
    "passes": 2,
    "epochs": 40,
    "epochs_per_partition": 1,
    "partition_size": 1_000_000,
    "hold_back": 0.2,
    "selection": "last",
}

_CONSENSUS_IMAGES: Values = _CONSENSUS_TRAINING | {
    "init": "he",
    "preprocess": "standardize",
    "validation_share": 0.0,
    "pretrain_epochs": 0,
    "selective": False,
}

_CONSENSUS_VECTORS: Values = {"k": 5, "gamma": 0.95, "head_share": 0.3, "instance": 0.2, "selective": False}
"""Chosen on three small tables, see docs/results.md."""

_GOOD_FEATURES: Values = {"gamma": 0.95, "relative": True, "metric": "within"}
"""For features that are good already: what varies within a class is told from what tells classes apart."""

_GENTLY: Values = {"augmentation": "photographs", "lr": 3e-5, "average": 0.99, "batch_size": 128, "passes": 1}
"""For a pretrained network that is trained: small steps and weak views, as it knows much already."""

_CONSENSUS_ON: dict[Material, Values] = {
    "vectors": _CONSENSUS_VECTORS,
    "descriptors": _GOOD_FEATURES,
    "pretrained": _GOOD_FEATURES | _GENTLY | {"epochs": 5, "instance": 0.1},
}

_SMALL_STEPS: Values = {"lr": 3e-5, "epochs": 5, "batch_size": 64}
"""For a baseline that trains a pretrained network; of large images, several views each, few fit into memory."""

_BASELINE_ON: dict[Material, Values] = {"descriptors": {"lr": 1e-5}, "pretrained": _SMALL_STEPS}
"""Features that are good already bear small steps only; 1e-5 was the best of three rates on CUB-200."""

_TRAINED_NETWORK: Values = _SMALL_STEPS | {
    "backbone": "",
    "encoder": "googlenet",
    "preprocess": "imagenet",
    "side": 224,
    "precision": "bfloat16",
}
"""Images that can be turned, instead of descriptors that cannot."""

_CONSENSUS_PHOTOGRAPHS: Values = _CONSENSUS_ON["pretrained"] | {
    "backbone": "",
    "encoder": "googlenet-rmac",
    "preprocess": "imagenet",
    "precision": "bfloat16",
    "components": 128,
}

_CONSENSUS_DESCRIBED: Values = {
    "encoder": "linear",
    "preprocess": "none",
    "augmentation": "auto",
    "precision": "float32",
    "lr": 1e-4,
    "epochs": 10,
}
"""What changes where a backbone is named, which stays as it is: a matrix on descriptors bears a larger rate."""

_HELD_OUT_CLASSES: Values = {"hold_back": 0.0, "selection": "validation"}
"""On photographs withheld classes judge and choose: labels say little about classes that are new."""

_BASELINE_TRAINING: Values = {
    "optimizer": "adamw",
    "lr": 1e-3,
    "lr_schedule": "cosine",
    "weight_decay": 1e-4,
    "batch_size": 256,
    "epochs": 30,
    "epochs_per_partition": 1,
    "partition_size": 1_000_000,
    "selection": "last",
}

_BASELINE_IMAGES: Values = _BASELINE_TRAINING | {
    "init": "he",
    "preprocess": "standardize",
    "pretrain_epochs": 0,
}

_SUPERVISED: Values = {"batch_size": 100, "passes": 50}
"""There are few labelled examples: many batches of them between one score and the next."""

BASELINES: dict[str, Values] = {
    "triplet": _SUPERVISED,
    "angular": _SUPERVISED,
    "exemplar": {"passes": 5},
    "rotation": {},
    "instance": {},
    "deepcluster": {},
    "synthetic": {"lr": 1e-5},
}
"""What each baseline changes in the training that they share."""

_BASELINES_ON_DIGITS: dict[str, Values] = {
    "rotation": {"lr": 1e-4, "epochs": 10},
    "instance": {"passes": 10, "temperature": 0.2},
    "deepcluster": {"passes": 10, "lr": 3e-3, "epochs": 8},
}
"""A pass over so few examples is a handful of steps."""

_BASELINES_ON_MNIST: dict[str, Values] = {
    "rotation": {"lr": 3e-3},
    "instance": {"lr": 3e-4},
    "synthetic": {"lr": 1e-6},
}
"""The best of three learning rates on withheld examples of MNIST; Fashion-MNIST takes the same."""

_BASELINES_ON_CIFAR10: dict[str, Values] = {
    "triplet": {"lr": 3e-4, "epochs": 20},
    "angular": {"lr": 3e-4, "epochs": 20},
    "exemplar": {"lr": 3e-4},
    "instance": {"lr": 1e-4},
    "deepcluster": {"views": "strong", "head_rate": 10.0, "passes": 4, "epochs": 15},
    "synthetic": {"lr": 1e-6},
}
"""Likewise, but for instance and deepcluster, which were chosen on a part of the images.

With weak views, or a head that has too few steps, deepcluster lost recall.
"""


def _baseline(method: str, clothes: Values) -> dict[str, Values]:
    """A baseline on all datasets, with an embedding as wide as that of the paper's method."""
    own = BASELINES[method]
    return {
        "digits": _BASELINE_TRAINING | {"components": 32} | own | _BASELINES_ON_DIGITS.get(method, {}),
        "mnist": _BASELINE_IMAGES | {"components": 64} | own | _BASELINES_ON_MNIST.get(method, {}),
        "fashion-mnist": _BASELINE_IMAGES | {"components": 64} | clothes | own | _BASELINES_ON_MNIST.get(method, {}),
        "cifar10": _BASELINE_IMAGES | {"components": 32, "epochs": 60} | own | _BASELINES_ON_CIFAR10.get(method, {}),
    } | _on_photographs(
        _BASELINE_TRAINING
        | _HELD_OUT_CLASSES
        | own
        | {"components": 128, "start": "principal", **_BASELINE_ON["descriptors"]}
        | (_TRAINED_NETWORK if method == "rotation" else {})
    )


_SERAPH = _classical(digits=1e-6, mnist=1e-7, fashion_mnist=1e-8, cifar10=1e-7)

BY_METHOD: dict[str, dict[str, Values]] = {
    "consensus": {
        "digits": _CONSENSUS_TRAINING | {"average": 0.99, "selective": False},
        "mnist": _CONSENSUS_IMAGES | {"epochs": 30},
        "fashion-mnist": _CONSENSUS_IMAGES | {"epochs": 20, "passes": 4, "augmentation": "objects", "instance": 0.5},
        "cifar10": _CONSENSUS_IMAGES | {"epochs": 200, "precision": "bfloat16"},
    }
    | _on_photographs(_CONSENSUS_TRAINING | _HELD_OUT_CLASSES | _CONSENSUS_PHOTOGRAPHS),
    "affinity-triplets": {
        "digits": {"components": 32, "lr": 3e-7},
        "mnist": _PAPER_TRIPLETS,
        "fashion-mnist": _PAPER_TRIPLETS | {"lr": 1e-8},
        "cifar10": _PAPER_TRIPLETS | {"components": 32},
    }
    | _on_photographs({"components": 128, "k": 50, "gamma": 0.99, "alpha": 45.0, "start": "classes"}),
    "lrml": _classical(digits=1e-6, mnist=1e-10, fashion_mnist=1e-10, cifar10=1e-9),
    "seraph": _SERAPH | {"digits": _SERAPH["digits"] | {"iterations": 10}},
    "isdml": _classical(digits=1e-8, mnist=1e-10, fashion_mnist=1e-10, cifar10=1e-9),
    "apllr": _classical(digits=1e-7, mnist=1e-8, fashion_mnist=1e-9, cifar10=1e-8),
    "apit": _classical(digits=1e-8, mnist=1e-9, fashion_mnist=1e-9, cifar10=1e-9),
}
"""What a method adds to that, chosen on validation data."""

for _name in BASELINES:
    _unmirrored = _name in ("rotation", "synthetic")  # these make no views of clothes
    BY_METHOD[_name] = _baseline(_name, {} if _unmirrored else {"augmentation": "objects"})


def training_settings(method: str, **changes: Any) -> TrainingSettings:
    """How to train ``method`` on data of your own, with ``changes``."""
    return build_settings(TrainingSettings, _own_training(method) | changes, "training")


def own_values(method: str, material: Material) -> Values:
    """Settings of the method and of its training, other than their defaults, for data of your own."""
    check_choice(material, get_args(Material), "material")
    values = _own_training(method)
    if method == "consensus":
        return values | _CONSENSUS_ON.get(material, {})
    gentle: Values = _BASELINE_ON.get(material, {}) if method in BASELINES else {}
    return values | gentle | ({"lr": min(values["lr"], gentle["lr"])} if gentle else {})


def _own_training(method: str) -> Values:
    check_choice(method, method_names(), "method")
    if method in BASELINES:
        return _BASELINE_TRAINING | BASELINES[method]
    return _CONSENSUS_TRAINING if method == "consensus" else {}


def preset_names() -> tuple[str, ...]:
    """Names of the presets."""
    return tuple(PRESETS)


def preset_values(name: str, dataset: str, method: str, backbone: str = "") -> Values:
    """Settings of a preset for a method on a dataset, where a ``backbone`` is named for one on its descriptors."""
    check_choice(name, preset_names(), "preset")
    if name == "paper" and method == "consensus":
        raise InputError(
            "preset 'paper' has no settings for method 'consensus', which is not the paper's. Use --preset default."
        )
    if dataset not in PRESETS[name]:
        raise InputError(
            f"preset {name!r} has no settings for dataset {dataset!r}; it has them for {', '.join(PRESETS[name])}. "
            "Use --preset default."
        )
    ours = {"start"} if name == "paper" else set()  # the paper's L starts at random
    own = {key: value for key, value in BY_METHOD.get(method, {}).get(dataset, {}).items() if key not in ours}
    described = _CONSENSUS_DESCRIBED if backbone and method == "consensus" and own.get("backbone") == "" else {}
    return PRESETS[name][dataset] | own | described | FIXED[name]
