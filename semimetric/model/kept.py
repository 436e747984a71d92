"""What a run on own data keeps of its inputs: those of labelled examples, and ``Unknown``."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from semimetric.core.errors import InputError
from semimetric.model.unknown import Unknown
from semimetric.training import Run
from semimetric.training.optimizer import under

FILE = "inputs.safetensors"


def write_kept(run: Run, labelled_inputs: Tensor | None, unknown: Unknown | None) -> None:
    """Write both, where they are there."""
    if labelled_inputs is None:
        return
    parts = {} if unknown is None else {f"unknown.{name}": part for name, part in unknown.tensors().items()}
    run.write_tensors(FILE, {"labelled_inputs": labelled_inputs} | parts)


def read_kept(run: Run, labelled: int, classes: int, width: int) -> dict[str, Any]:
    """Fields of a fitted model with ``labelled`` labels of so many ``classes``, and inputs of ``width`` numbers."""
    if not run.has(FILE):
        return {}
    tensors, _ = run.read_tensors(FILE)
    shapes = {"labelled_inputs": (labelled, width), "unknown.means": (classes, width), "unknown.centre": (width,)}
    for name, shape in shapes.items():
        if name in tensors and tuple(tensors[name].shape) != shape:
            raise InputError(f"{name} in {FILE} has the shape {tuple(tensors[name].shape)}, and {shape} is wanted.")
    parts = under("unknown.", tensors)
    return {"labelled_inputs": tensors["labelled_inputs"], "unknown": Unknown(**parts) if parts else None}
