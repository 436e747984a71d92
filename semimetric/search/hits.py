"""What a search returns, and the checks of what is stored and asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from semimetric.core.arrays import as_tensor, check_finite
from semimetric.core.errors import InputError


@dataclass(frozen=True)
class Hits:
    """The stored examples nearest to each of Q queries, nearest first.

    Attributes
    ----------
    rows : (Q, k) int64 tensor
        Numbers of stored examples, from 0, each at most once for a query.
    distances : (Q, k) float64 tensor
        Euclidean distances from the query to them.
    """

    rows: Tensor
    distances: Tensor


def check_rows(value: Any, name: str, width: int | None = None) -> Tensor:
    """Vectors as a finite floating-point (N, d) tensor with at least one row and one column.

    Unlike features to learn from, a single vector may be stored or asked for, and all may be the same.
    """
    tensor = as_tensor(value, name)
    if tensor.ndim != 2 or tensor.shape[0] < 1 or tensor.shape[1] < 1:
        raise InputError(
            f"{name} must be a matrix with at least 1 row and 1 column, got shape {tuple(tensor.shape)}. "
            "Put one vector in each row."
        )
    if width is not None and tensor.shape[1] != width:
        raise InputError(
            f"{name} must have {width} columns, as the vectors of this index have, got {tensor.shape[1]}. "
            "Embed them with the same run."
        )
    if not tensor.is_floating_point():
        tensor = tensor.to(torch.get_default_dtype())
    check_finite(tensor, name)
    return tensor


def single_precision(value: Any, name: str, width: int | None = None) -> Tensor:
    """Vectors on the CPU in float32, which is all that FAISS and Milvus store."""
    tensor = check_rows(value, name, width).to("cpu", torch.float32).contiguous()
    check_finite(tensor, f"{name} in single precision")
    return tensor


def check_k(k: int) -> int:
    """How many to find: a whole number from 1."""
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise InputError(f"k must be a whole number of at least 1, got {k!r}. Ask for the nearest one at least.")
    return int(k)


def nearest_first(distances: Tensor, rows: Tensor) -> Hits:
    """Sort each query's hits by distance, and by number where distances are equal."""
    rows, by_row = rows.sort(dim=1)
    distances, by_distance = distances.gather(1, by_row).sort(dim=1, stable=True)
    return Hits(rows.gather(1, by_distance), distances)


def joined(pieces: Sequence[Hits]) -> Hits:
    """Hits of several blocks of queries as those of all."""
    return Hits(torch.cat([hits.rows for hits in pieces]), torch.cat([hits.distances for hits in pieces]))
