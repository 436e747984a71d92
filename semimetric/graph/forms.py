"""The quadratic form of propagated affinities, without the N x N matrix of affinities.

With the propagated affinities W of all pairs (see ``affinities``) and the rows z_i of Z, half the sum of
W_ij (z_i - z_j)(z_i - z_j)^T is

    T = Z^T Lap Z = Z^T diag(W 1) Z - (Z^T W* Z + (Z^T W* Z)^T) / 2,      Lap = diag(W 1) - W.

W* = P W0 needs only products with P. W0 is a Y Y^T - b 1 1^T on labelled nodes, with the repulsion b and a = 1 + b, and
the identity on the others. Let Z_U be Z with zero rows for labelled nodes, F = P E Y (N, C), f = F 1, and n the number
of labels of each class. Then

    W* Z = P Z_U + a F (Y^T E^T Z) - b f (1^T E^T Z),    W* 1 = (1 - f) + a F n - b |n| f,    W*^T 1 = W0 (P^T 1).

This takes d + C + 1 products with P and one with its transpose, O(N k) a sweep each, instead of an O(N^3) inverse.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from semimetric.core.arrays import check_features
from semimetric.core.checks import check_not_negative, check_positive
from semimetric.core.errors import InputError
from semimetric.graph.affinities import check_graph
from semimetric.graph.walk import TOLERANCE, solve_walk

BLOCK_ENTRIES = 1 << 24  # entries of a block of class columns


class PropagatedForm(NamedTuple):
    """T (d, d) in float64, and the sum of |W*_ij| over all i and j, by which a weight of T is made dimensionless."""

    matrix: Tensor
    total: float


def propagated_form(
    features: Any,
    neighbors: Any,
    labels: Any,
    gamma: float = 0.99,
    tolerance: float = TOLERANCE,
    repulsion: float = 1.0,
) -> PropagatedForm:
    """T = Z^T Lap Z for the Laplacian of the propagated affinities of all pairs of nodes.

    ``features`` (N, d) are Z. ``neighbors``, ``labels``, ``gamma`` and ``repulsion`` are those of
    ``propagate_affinities``, ``tolerance`` that of ``solve_walk``. T may be indefinite, because W has negative entries.
    Without repulsion it has none, and T is positive semi-definite.
    """
    neighbors, labels = check_graph(neighbors, labels, gamma)
    check_positive(tolerance, "tolerance")
    check_not_negative(repulsion, "repulsion")
    points = check_features(features).to(neighbors.device, torch.float64)
    if len(points) != len(neighbors):
        raise InputError(f"features must have a row for each of the {len(neighbors)} nodes, got {len(points)}.")
    points = points - points.mean(0)  # Lap annihilates constants, and small numbers keep more digits
    known = (labels >= 0).double()[:, None]
    visits = solve_walk(neighbors, torch.ones_like(known), gamma, tolerance, adjoint=True)
    solved = solve_walk(neighbors, torch.cat([points * (1 - known), known], dim=1), gamma, tolerance)
    share = solved[:, -1:]
    product = solved[:, :-1] - repulsion * share * (known * points).sum(0)
    outward = 1 - share - repulsion * known.sum() * share
    inward = torch.where(known > 0, -repulsion * (known * visits).sum(), visits)
    total = float(len(points) - share.sum())
    for members in _class_blocks(labels):
        counts = members.sum(0)
        shares = solve_walk(neighbors, members, gamma, tolerance)
        product += shares @ ((1 + repulsion) * members.T @ points)
        outward += shares @ ((1 + repulsion) * counts)[:, None]
        inward += members @ ((1 + repulsion) * members.T @ visits)
        total += float((((1 + repulsion) * shares - repulsion * share).abs() @ counts).sum())
    form = points.T @ ((outward + inward) / 2 * points - product)
    return PropagatedForm((form + form.T) / 2, total)


def _class_blocks(labels: Tensor) -> Iterator[Tensor]:
    """E Y (N, C) in blocks of columns, so that a large C does not make an N x N array."""
    classes = torch.arange(int(labels.max()) + 1, device=labels.device)
    for block in classes.split(max(1, BLOCK_ENTRIES // len(labels))):
        yield (labels[:, None] == block).double()
