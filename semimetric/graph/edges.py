"""Conversion of directed neighbour lists to an undirected graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from semimetric.core.arrays import as_tensor, check_neighbors
from semimetric.core.errors import InputError


def symmetric_edges(neighbors: Any, weights: Any = None) -> tuple[Tensor, Tensor]:
    """Unordered pairs (E, 2) of neighbours, i < j in ascending order, and their weights (E,), float64.

    Without ``weights`` a pair weighs 1 if either node lists the other: the binary graph of LRML (Hoi, Liu and Chang,
    CVPR 2008). With ``weights`` w (N, k) on the directed edges it weighs (w_ij + w_ji) / 2, where an unlisted direction
    counts as 0. The sum of w_ij ||x_i - x_j||^2 over directed edges is therefore twice the sum over pairs.
    """
    neighbors = check_neighbors(neighbors)
    count, k = neighbors.shape
    source = torch.arange(count, device=neighbors.device).repeat_interleave(k)
    target = neighbors.flatten()
    ordered = torch.minimum(source, target) * count + torch.maximum(source, target)
    keys, place = torch.unique(ordered, return_inverse=True)
    pairs = torch.stack([keys // count, keys % count], dim=1)
    if weights is None:
        return pairs, torch.ones(len(pairs), dtype=torch.float64, device=pairs.device)
    directed = _check_weights(weights, neighbors)
    # One slot for each direction of a pair: no accumulation, so the result is the same on every device.
    both = torch.zeros(2, len(pairs), dtype=torch.float64, device=pairs.device)
    both[(source < target).long(), place] = directed.flatten()
    return pairs, both.mean(0)


def node_degrees(pairs: Tensor, weights: Tensor, count: int) -> Tensor:
    """Degree (count,) of each node: the sum of the weights (E,) of its pairs (E, 2)."""
    order, starts = group_by_node(pairs.T.flatten(), count)
    table = weights.repeat(2)[:, None]
    degrees: Tensor = torch.nn.functional.embedding_bag(order, table, starts, mode="sum")
    return degrees.flatten()


def group_by_node(nodes: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Positions in the list ``nodes`` sorted by node, and the start of each node's run.

    Sums over runs have a fixed order, unlike scatter-add on a GPU.
    """
    ordered, positions = nodes.sort(stable=True)
    return positions, torch.searchsorted(ordered, torch.arange(count, device=nodes.device))


def _check_weights(weights: Any, neighbors: Tensor) -> Tensor:
    """Checked float64 weights, one for each directed edge."""
    tensor = as_tensor(weights, "weights").to(neighbors.device, torch.float64)
    if tensor.shape != neighbors.shape:
        raise InputError(
            f"weights must have one entry per directed edge, that is shape {tuple(neighbors.shape)}, "
            f"got {tuple(tensor.shape)}. Pass the weights in the order of the neighbour lists."
        )
    return tensor
