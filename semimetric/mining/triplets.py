"""Triplets mined from a neighbour graph and its propagated affinities."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from semimetric.core.arrays import as_tensor, check_finite, check_neighbors
from semimetric.core.errors import InputError

AFFINITY_GRAIN = 1e-12
"""Affinities closer than this are the same: they differ by the rounding of a linear solve, not by meaning."""


def mine_triplets(neighbors: Any, affinities: Any, anchors: Any = None) -> Tensor:
    """Pair the upper half of each anchor's neighbours, sorted by affinity, with the lower half.

    The k neighbours of an anchor are sorted by descending affinity; with h = floor(k / 2) the t-th of the upper
    half and the t-th of the lower half make the triplet (anchor, r_t, r_{h+t}) (Dutta, Harandi and Sekhar, AAAI
    2021). With odd k the neighbour in the middle belongs to neither half and is dropped. Neighbours of equal
    affinity keep their order in ``neighbors``, which is by distance and then by number.

    Parameters
    ----------
    neighbors : (N, k) neighbour lists, nearest first, k >= 2
    affinities : (N, k) affinities on those edges
    anchors : node numbers to mine around; all nodes when None

    Returns
    -------
    (T, 3) int64 tensor of anchor, positive, negative with T = floor(k / 2) per anchor, grouped by anchor
    """
    neighbors = check_neighbors(neighbors)
    weights = as_tensor(affinities, "affinities").to(neighbors.device)
    if weights.shape != neighbors.shape:
        raise InputError(
            f"affinities must have the shape of neighbors {tuple(neighbors.shape)}, got {tuple(weights.shape)}. "
            "Use propagate_affinities(neighbors, labels)."
        )
    check_finite(weights, "affinities")
    half = neighbors.shape[1] // 2
    if half == 0:
        raise InputError("mining needs at least 2 neighbours per node, got k = 1. Build the graph with k >= 2.")
    chosen = _check_anchors(anchors, neighbors)
    order = (weights[chosen] / AFFINITY_GRAIN).round().sort(dim=1, descending=True, stable=True).indices
    ranked = neighbors[chosen].gather(1, order)
    positives, negatives = ranked[:, :half], ranked[:, -half:]
    return torch.stack([chosen[:, None].expand_as(positives), positives, negatives], dim=2).reshape(-1, 3)


def _check_anchors(anchors: Any, neighbors: Tensor) -> Tensor:
    if anchors is None:
        return torch.arange(len(neighbors), device=neighbors.device)
    chosen = as_tensor(anchors, "anchors").to(neighbors.device)
    if chosen.ndim != 1 or chosen.is_floating_point() or len(chosen) == 0:
        raise InputError(
            f"anchors must be a non-empty list of node numbers, got shape {tuple(chosen.shape)}. Pass None for all."
        )
    if int(chosen.min()) < 0 or int(chosen.max()) >= len(neighbors):
        raise InputError(f"anchors must name nodes from 0 to {len(neighbors) - 1}; some entry lies outside.")
    return chosen.long()


def triplet_shares(triplets: Tensor, labels: Tensor) -> dict[str, float]:
    """How many mined triplets are right, as shares; needs the true labels, so only a benchmark can know.

    ``positive``: anchor and positive are of one class. ``negative``: anchor and negative are of two classes.
    ``both``: the triplet is right on both sides.
    """
    classes = labels[triplets]
    same = classes[:, 0] == classes[:, 1]
    other = classes[:, 0] != classes[:, 2]
    return {
        "positive": float(same.double().mean()),
        "negative": float(other.double().mean()),
        "both": float((same & other).double().mean()),
    }
