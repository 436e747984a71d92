"""Default settings of ``consensus`` by data and by encoder, and the values that tuning tries."""

from __future__ import annotations

from semimetric.core.space import Range, Space
from semimetric.methods.defaults import FROM_SCRATCH, HELD_OUT_CLASSES, Values, on_photographs

SPACE: Space = {
    "head_share": Range(0.0, 1.0),
    "instance": Range(0.0, 1.0),
    "contrast_temperature": Range(0.05, 0.3, log=True),
    "selective": (True, False),
}

HALF_ON_CPU: Values = {"precision": "auto"}
IMAGES: Values = FROM_SCRATCH | {"validation_share": 0.0, "selective": False}

OBJECTS: Values = IMAGES | {"naming": "step", "mirror": True}
"""Unlike digits, objects may be mirrored; pseudo-labels of every step are more often right."""

WHITENED: Values = {"metric": "whitened", "shrinkage": 0.3}
"""A distance for the result alone, for the small network of Fashion-MNIST."""

GOOD_FEATURES: Values = {"gamma": 0.95, "relative": True, "metric": "within"}
"""For pretrained features: a metric that measures differences relative to those within classes."""

SMALL_STEPS: Values = {
    "lr": 3e-5,
    "average": 0.99,
    "batch_size": 128,
    "passes": 1,
    "epochs": 5,
    "freeze_norm": True,
}
FINE_TUNING: Values = GOOD_FEATURES | SMALL_STEPS | {"augmentation": "photographs", "instance": 0.1}
"""For a pretrained network that is trained: small steps and weak views."""

GOOGLENET: Values = {
    "encoder": "googlenet-rmac",
    "side": 320,
    "preprocess": "imagenet",
    "precision": "bfloat16",
    "mirror": True,
    "components": 128,
    "backbone": "",
}

BY_STEP: Values = {
    "naming": "step",
    "head_share": 0.7,
    "veto": False,
    "augmentation": "randaugment",
    "contrast": 0.5,
    "instance": 0.0,
    "metric": "whitened",
    "shrinkage": 3.0,
    "projection": 128,
    "selective": False,
    "optimizer": "sgd",
    "lr": 0.1,
    "nesterov": True,
    "decay": "matrices",
    "weight_decay": 5e-4,
    "lr_schedule": "cosine",
    "warmup": 1,
    "batch_size": 512,
    "passes": 8,
    "average": 0.999,
    "precision": "bfloat16",
    "compile": True,
    "epochs": 40,
}
"""For a residual network that starts from random weights: it can memorise pseudo-labels that stay for an epoch.

Its shrinkage is that of the method, and takes the place of that of Fashion-MNIST.
"""

LINEAR: Values = {"encoder": "linear", "preprocess": "none", "precision": "float32"}
DESCRIBED: Values = LINEAR | {"side": 0, "augmentation": "auto", "lr": 1e-4, "epochs": 10}
"""On descriptors, of photographs in the dataset's own size, only a matrix is trained: with a larger learning rate."""

ON: dict[str, Values] = {
    "vectors": {"k": 5, "gamma": 0.95, "head_share": 0.3, "instance": 0.2, "selective": False},
    "images": HALF_ON_CPU,
    "descriptors": GOOD_FEATURES,
    "pretrained": FINE_TUNING,
    "described": DESCRIBED,
    "digits": HALF_ON_CPU | {"average": 0.99, "selective": False},
    "mnist": IMAGES | {"epochs": 30},
    "fashion-mnist": OBJECTS
    | HALF_ON_CPU
    | WHITENED
    | {"epochs": 20, "passes": 4, "augmentation": "objects", "instance": 0.5},
    "cifar10": OBJECTS | {"epochs": 200, "precision": "bfloat16", "compile": True},
} | on_photographs(HELD_OUT_CLASSES | FINE_TUNING | GOOGLENET)
