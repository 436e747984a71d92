"""Modes of a neighbour graph: the nodes around which examples crowd."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from semimetric.core.arrays import as_tensor, check_neighbors
from semimetric.core.errors import InputError


def neighbor_density(features: Tensor, neighbors: Tensor) -> Tensor:
    """Density (N,) of each node: the inverse of the mean distance to its neighbours."""
    distances: Tensor = torch.linalg.vector_norm(features[:, None, :] - features[neighbors], dim=2).mean(1)
    return distances.clamp_min(torch.finfo(features.dtype).tiny).reciprocal()


def graph_modes(neighbors: Any, density: Any) -> Tensor:
    """Nodes at least as dense as all of their neighbours, in ascending order.

    Of two neighbours of equal density the lower number wins, so a plateau keeps one mode and not all of it.

    Parameters
    ----------
    neighbors : (N, k) neighbour lists
    density : (N,) any score of how crowded a node is, for example ``neighbor_density``
    """
    neighbors = check_neighbors(neighbors)
    score = as_tensor(density, "density").to(neighbors.device)
    if score.shape != neighbors.shape[:1]:
        raise InputError(f"density must have one entry per node ({len(neighbors)}), got {tuple(score.shape)}.")
    around = score[neighbors]
    own = torch.arange(len(neighbors), device=neighbors.device)[:, None]
    loses: Tensor = (around > score[:, None]) | ((around == score[:, None]) & (neighbors < own))
    return loses.any(1).logical_not().nonzero().flatten()
