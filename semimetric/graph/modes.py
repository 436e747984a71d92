"""Modes of a neighbours graph: nodes of locally maximal density."""

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
    """Nodes that are at least as dense as all of their neighbours.

    Of two neighbours with equal density the lower number wins, so a plateau has one mode.

    Parameters
    ----------
    neighbors : (N, k) int array
        Neighbour lists, self excluded.
    density : (N,) array
        Density of each node, or any other score; for example that of ``neighbor_density``.

    Returns
    -------
    (M,) int64 tensor
        Node numbers of the modes, ascending.
    """
    neighbors = check_neighbors(neighbors)
    score = as_tensor(density, "density").to(neighbors.device)
    if score.shape != neighbors.shape[:1]:
        raise InputError(f"density must have one entry per node ({len(neighbors)}), got {tuple(score.shape)}.")
    around = score[neighbors]
    own = torch.arange(len(neighbors), device=neighbors.device)[:, None]
    loses: Tensor = (around > score[:, None]) | ((around == score[:, None]) & (neighbors < own))
    return loses.any(1).logical_not().nonzero().flatten()
