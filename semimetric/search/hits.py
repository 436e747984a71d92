"""Search results, and checks of stored vectors and queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from semimetric.core.arrays import as_tensor, check_finite
from semimetric.core.checks import check_whole
from semimetric.core.errors import InputError


@dataclass(frozen=True)
class Hits:
    """The stored vectors nearest to each of Q queries, nearest first.

    Attributes
    ----------
    rows : (Q, k) int64 tensor, row numbers of stored vectors, each at most once for a query
    distances : (Q, k) float64 tensor, their Euclidean distances from the query
    """

    rows: Tensor
    distances: Tensor


def check_rows(value: Any, name: str, width: int | None = None) -> Tensor:
    """Vectors as a finite floating-point (N, d) tensor; unlike for features, one row is enough and all may be equal."""
    tensor = as_tensor(value, name)
    if tensor.ndim != 2 or tensor.shape[0] < 1 or tensor.shape[1] < 1:
        raise InputError(
            f"{name} must be a matrix with at least 1 row and 1 column, got shape {tuple(tensor.shape)}. "
            "Put one vector in each row."
        )
    if width is not None and tensor.shape[1] != width:
        raise InputError(
            f"{name} must have {width} columns, the width of this index, got {tensor.shape[1]}. "
            "Embed them with the same run."
        )
    if not tensor.is_floating_point():
        tensor = tensor.to(torch.get_default_dtype())
    check_finite(tensor, name)
    return tensor


def single_precision(value: Any, name: str, width: int | None = None) -> Tensor:
    """Vectors on the CPU in float32, the precision of FAISS and Milvus."""
    tensor = check_rows(value, name, width).to("cpu", torch.float32).contiguous()
    check_finite(tensor, f"{name} in single precision")
    return tensor


def check_k(k: int) -> int:
    """Check the number of hits."""
    return check_whole(k, "k")


def joined(pieces: Sequence[Hits]) -> Hits:
    """Concatenate the hits of blocks of queries."""
    return Hits(torch.cat([hits.rows for hits in pieces]), torch.cat([hits.distances for hits in pieces]))
