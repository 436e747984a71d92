"""Nearest neighbours of the rows of a matrix, on the CPU or a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from semimetric.core import ranks
from semimetric.core.arrays import check_features
from semimetric.core.checks import check_whole
from semimetric.core.errors import InputError
from semimetric.graph.nearest import NearestVectors


def nearest_neighbors(features: Any, k: int) -> Tensor:
    """The ``k`` nearest neighbours of every row by Euclidean distance, nearest first.

    A row is not its own neighbour. Ties are ordered by row number. Differences in float64 decide near ties.

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
    check_k(k, len(points))
    vectors, own = NearestVectors(points), torch.arange(len(points), device=points.device)
    return ranks.in_parts(lambda part: vectors.search(points[part], int(k), own[part]).rows, len(points))


def check_k(k: int, count: int) -> None:
    """Refuse a number of neighbours that ``count`` examples do not have."""
    if check_whole(k, "k") >= count:
        raise InputError(
            f"k must be at least 1 and below the number of examples ({count}), got {k}. "
            "Ask for fewer neighbours or pass more examples."
        )
