"""Exact nearest neighbours, computed in blocks of rows on the CPU or a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from semimetric.core.arrays import check_features
from semimetric.core.errors import InputError

BLOCK_ENTRIES = 1 << 25  # distances held at once: 256 MiB in float64


def nearest_neighbors(features: Any, k: int) -> Tensor:
    """The ``k`` nearest neighbours of every row by Euclidean distance, nearest first.

    A row is not its own neighbour. Ties are ordered by row number. Distances are computed in float64 after centring,
    because the expanded square |x|^2 - 2 xy + |y|^2 loses close neighbours in float32.

    Parameters
    ----------
    features : (N, d) floating-point array
        One example per row.
    k : int
        Number of neighbours, 1 <= k < N.

    Returns
    -------
    (N, k) int64 tensor
        Row numbers, on the device of ``features``.

    Examples
    --------
    >>> nearest_neighbors([[0.0], [1.0], [3.0]], k=1).tolist()
    [[1], [0], [1]]
    """
    points = check_features(features)
    count = len(points)
    if not 1 <= k < count:
        raise InputError(
            f"k must be at least 1 and below the number of examples ({count}), got {k}. "
            "Ask for fewer neighbours or pass more examples."
        )
    points = points.double()
    points = points - points.mean(0)
    norms = points.square().sum(1)
    rows = max(1, BLOCK_ENTRIES // count)
    return torch.cat([_block_neighbors(points, norms, start, rows, k) for start in range(0, count, rows)])


def _block_neighbors(points: Tensor, norms: Tensor, start: int, rows: int, k: int) -> Tensor:
    """Neighbours of the ``rows`` rows from ``start`` on."""
    block = points[start : start + rows]
    distances = torch.addmm(norms[None, :], block, points.T, alpha=-2.0)
    own = torch.arange(len(block), device=block.device)
    distances[own, own + start] = torch.inf
    return _smallest(distances, k)


def _smallest(distances: Tensor, k: int) -> Tensor:
    """Column numbers of the ``k`` smallest entries of each row, ordered by (value, column)."""
    values, columns = distances.topk(k, dim=1, largest=False)
    crowded = (distances <= values[:, -1:]).sum(1) > k
    if bool(crowded.any()):
        ordered = distances[crowded].sort(dim=1, stable=True)
        values[crowded], columns[crowded] = ordered.values[:, :k], ordered.indices[:, :k]
    columns, by_column = columns.sort(dim=1)
    by_value = values.gather(1, by_column).sort(dim=1, stable=True).indices
    return columns.gather(1, by_value)
