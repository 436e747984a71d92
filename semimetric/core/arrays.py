"""Checks of arrays at the public entry points; later code can rely on shapes and values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from semimetric.core.checks import refuse_masked
from semimetric.core.errors import InputError

_NUMBERS_AT_A_TIME = 1 << 24

DENSE_ROWS = 20_000
"""Most examples for which an N x N array is allocated."""


def _listed(indices: Tensor, most: int = 5) -> str:
    shown = ", ".join(str(int(i)) for i in indices[:most])
    return shown + (f" and {len(indices) - most} more" if len(indices) > most else "")


def as_tensor(value: Any, name: str) -> Tensor:
    """Tensor view of an array-like, without gradient."""
    if isinstance(value, Tensor):
        return value.detach()
    refuse_masked(value, name)
    try:
        array = np.asarray(value)
        return torch.as_tensor(array if array.flags.writeable else array.copy())
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{name} must be numbers, got {type(value).__name__} with text, missing values or mixed types in it. "
            "Encode what is not a number first."
        ) from error


def check_features(features: Any, name: str = "features") -> Tensor:
    """Features as a finite floating-point (N, d) tensor with at least two rows that are not all the same."""
    tensor = as_tensor(features, name)
    if tensor.ndim != 2 or tensor.shape[0] < 2 or tensor.shape[1] < 1:
        raise InputError(
            f"{name} must be a matrix with at least 2 rows and 1 column, got shape {tuple(tensor.shape)}. "
            "Put one example in each row."
        )
    if not tensor.is_floating_point():
        tensor = tensor.to(torch.get_default_dtype())
    check_finite(tensor, name)
    if bool((tensor == tensor[0]).all()):
        raise InputError(
            f"{name} is constant: all {len(tensor)} rows are the same, so no example is nearer than another. "
            "Check how the features were computed."
        )
    return tensor


def check_finite(tensor: Tensor, name: str) -> None:
    """Refuse NaN and infinite values and name their rows."""
    finite = _finite_rows(tensor) if tensor.ndim > 1 else torch.isfinite(tensor)
    if not bool(finite.all()):
        rows = (~finite).nonzero().flatten()
        raise InputError(
            f"{name} has NaN or infinite values in {len(rows)} of {len(tensor)} rows (rows {_listed(rows)}). "
            "Remove or impute those rows."
        )


def _finite_rows(tensor: Tensor) -> Tensor:
    """Mask of the finite rows, computed in blocks to save memory."""
    rows = max(1, _NUMBERS_AT_A_TIME // max(1, math.prod(tensor.shape[1:])))
    return torch.cat([torch.isfinite(piece).flatten(1).all(1) for piece in tensor.split(rows)])


def check_labels(labels: Any, length: int, name: str = "labels") -> Tensor:
    """Labels as an int64 (N,) tensor of class numbers, -1 = unlabelled."""
    try:
        tensor = as_tensor(labels, name)
    except InputError as error:
        raise InputError(
            f"{name} must be integers, and some are text or missing. Encode classes as 0, 1, 2, ..., for example with "
            "np.unique(names, return_inverse=True)[1], and put -1 where there is no label."
        ) from error
    if tensor.ndim != 1 or len(tensor) != length:
        raise InputError(
            f"{name} must have one entry per example, that is shape ({length},), got {tuple(tensor.shape)}. "
            "Use -1 for examples without a label."
        )
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise InputError(
            f"{name} must be integers, got {tensor.dtype}. Encode classes as 0, 1, 2, ... and put -1 where there is no "
            "label; NaN stands for nothing here."
        )
    tensor = tensor.long()
    if bool((tensor < -1).any()):
        rows = (tensor < -1).nonzero().flatten()
        raise InputError(
            f"{name} must be -1 (unlabelled) or a class number from 0, got {int(tensor[rows[0]])} "
            f"(rows {_listed(rows)})."
        )
    return tensor


def check_neighbors(neighbors: Any, name: str = "neighbors") -> Tensor:
    """Neighbour lists as an int64 (N, k) tensor of node numbers, self excluded."""
    tensor = as_tensor(neighbors, name)
    if tensor.ndim != 2 or tensor.is_floating_point() or tensor.shape[1] < 1:
        raise InputError(
            f"{name} must be an integer matrix (nodes, k), got {tensor.dtype} of shape {tuple(tensor.shape)}. "
            "Use nearest_neighbors(features, k)."
        )
    tensor = tensor.long()
    count = len(tensor)
    if count and (int(tensor.min()) < 0 or int(tensor.max()) >= count):
        raise InputError(f"{name} must name nodes from 0 to {count - 1}; some entry lies outside.")
    own = torch.arange(count, device=tensor.device)[:, None]
    if bool((tensor == own).any()):
        row = int((tensor == own).any(1).nonzero()[0])
        raise InputError(f"{name} lists node {row} as its own neighbour; leave each node out of its own list.")
    return tensor


def check_dense(rows: int, columns: int, instead: str) -> None:
    """Refuse an array of more than 20,000 x 20,000 entries; ``instead`` tells the user what to do."""
    if rows * columns > DENSE_ROWS**2:
        raise InputError(
            f"an array of {rows} x {columns} numbers would take {8 * rows * columns / 2**30:.0f} GiB; the limit is "
            f"{DENSE_ROWS} x {DENSE_ROWS}. {instead}"
        )
