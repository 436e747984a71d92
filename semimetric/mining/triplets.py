"""Triplets mined from a neighbours graph and its propagated affinities."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from semimetric.core.arrays import as_tensor, check_finite, check_neighbors
from semimetric.core.errors import InputError

TIE_TOLERANCE = 1e-12
"""Affinities closer than this are ties: they differ only by rounding in the linear solver."""


def mine_triplets(neighbors: Any, affinities: Any, anchors: Any = None) -> Tensor:
    """Pair each anchor's neighbours of high affinity with those of low affinity.

    The k neighbours of an anchor are sorted by descending affinity. With h = floor(k / 2), the t-th neighbour of the
    upper half and the t-th of the lower half form the triplet (anchor, r_t, r_{h+t}). For odd k the middle neighbour is
    dropped. Ties keep the order of ``neighbors``, that is by distance and then by number.

    Parameters
    ----------
    neighbors : (N, k) int array
        Neighbour lists, nearest first, k >= 2.
    affinities : (N, k) array
        Affinities on those edges, for example those of ``propagate_affinities``.
    anchors : int array, optional
        Node numbers of the anchors; all nodes if None.

    Returns
    -------
    (T, 3) int64 tensor
        Anchor, positive and negative; floor(k / 2) triplets per anchor, grouped by anchor.

    References
    ----------
    Dutta, Harandi, Sekhar: Semi-supervised metric learning: a deep resurrection. AAAI 2021.
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
    order = (weights[chosen] / TIE_TOLERANCE).round().sort(dim=1, descending=True, stable=True).indices
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
    """Shares of the triplets that are correct under the true labels (for benchmarks).

    ``positive``: anchor and positive have the same class. ``negative``: anchor and negative have different classes.
    ``both``: both hold.
    """
    classes = labels[triplets]
    same = classes[:, 0] == classes[:, 1]
    other = classes[:, 0] != classes[:, 2]
    return {
        "positive": float(same.double().mean()),
        "negative": float(other.double().mean()),
        "both": float((same & other).double().mean()),
    }
