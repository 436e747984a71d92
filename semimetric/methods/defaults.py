"""Default settings and search spaces that several methods share."""

from __future__ import annotations

from typing import Any

from semimetric.core.space import Range, Space

Values = dict[str, Any]
"""Settings by name: of the method, its training, the encoder or the protocol."""

LR: Space = {"lr": Range(1e-4, 1e-2, log=True)}
SLOW: Space = {"lr": Range(1e-10, 1e-5, log=True)}
GRAPH: Space = {"k": Range(3, 20), "gamma": Range(0.8, 0.995)}

ADAMW: Values = {
    "optimizer": "adamw",
    "lr": 1e-3,
    "lr_schedule": "cosine",
    "weight_decay": 1e-4,
    "batch_size": 256,
    "epochs_per_partition": 1,
    "partition_size": 1_000_000,
    "selection": "last",
}
"""Training of methods whose loss is a mean over the batch."""

FROM_SCRATCH: Values = {"init": "he", "preprocess": "standardize", "pretrain_epochs": 0}
"""An image network without pretraining."""

HELD_OUT_CLASSES: Values = {"hold_back": 0.0, "selection": "validation"}
"""On photographs the test classes are new, so held-out classes choose the model instead of labels."""


def on_photographs(values: Values) -> dict[str, Values]:
    """The same values on both datasets of photographs."""
    return {"cub200": values, "cars196": values}


def extended(base: dict[str, Values], changes: dict[str, Values]) -> dict[str, Values]:
    """``base``, with ``changes`` to the values for each material or dataset."""
    return {where: base.get(where, {}) | changes.get(where, {}) for where in base | changes}
