r"""Affinity propagation on a directed kNN graph.

With Q the row-stochastic matrix of the graph (1/k on each of a node's k neighbours) and W0 the known
affinities (+1 for labelled pairs of one class and on the diagonal, -1 for labelled pairs of two classes, 0
elsewhere), the propagated affinities are

    W* = (1 - gamma) (I - gamma Q)^-1 W0 = P W0,      W = (W* + W*^T) / 2

(Liu, Ma, Tao, Liu and Liu, "Semi-supervised sparse metric learning using alternating linearization
optimization", KDD 2010; Dutta, Harandi and Sekhar, AAAI 2021). P is personalised PageRank with restart
1 - gamma: non-negative, its rows sum to one.

On labelled nodes W0 is 2 Y Y^T - 1 1^T, so all labelled columns of W* follow from F = P E Y, one right-hand
side per class: W*_ij = 2 F[i, y_j] - sum_c F[i, c]. An unlabelled column of W* is that column of P. Labels
therefore never reach the affinity of two unlabelled nodes.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from semimetric.checks import DENSE_ROWS, check_choice, check_dense, check_fraction, check_labels, check_neighbors

SERIES_TOLERANCE = 1e-6
"""Bound on the entrywise error of a truncated series: gamma^T is at most this after T sweeps."""

SERIES_COLUMNS = 1 << 24
"""Entries of the block of columns that the series solver sweeps at once."""

Solver = Literal["auto", "dense", "series"]


def propagate_affinities(neighbors: Any, labels: Any, gamma: float = 0.99, solver: Solver = "auto") -> Tensor:
    """Propagated symmetric affinities W on the edges of a kNN graph.

    Parameters
    ----------
    neighbors : (N, k) neighbour lists, self excluded
    labels : (N,) integers, -1 = unlabelled
    gamma : share of the affinity that travels on at each step of the walk, in (0, 1)
    solver : ``dense`` inverts I - gamma Q in float64, O(N^3), up to 20,000 nodes; ``series`` sums the power
        series by blocks of columns to an entrywise error of at most 1e-6, O(N^2 k) per sweep in O(N) memory;
        ``auto`` picks by size

    Returns
    -------
    (N, k) float64 tensor: entry (i, t) is W between node i and its t-th neighbour
    """
    neighbors, labels = _check_graph(neighbors, labels, gamma)
    check_choice(solver, ("auto", "dense", "series"), "solver")
    if solver == "auto":
        solver = "dense" if len(neighbors) <= DENSE_ROWS else "series"
    if solver == "dense":
        check_dense(len(neighbors), len(neighbors), "Use solver='series', or train over partitions.")
        walk = walk_matrix(neighbors, gamma)
        source = torch.arange(len(neighbors), device=neighbors.device)[:, None]
        return _edge_affinities(
            neighbors,
            labels,
            walk[source, neighbors],
            walk[neighbors, source],
            walk @ _class_indicators(labels),
        )
    forward, backward = _walk_on_edges(neighbors, gamma)
    return _edge_affinities(neighbors, labels, forward, backward, propagate_labels(neighbors, labels, gamma))


def propagated_affinity_matrix(neighbors: Any, labels: Any, gamma: float = 0.99) -> Tensor:
    """The whole symmetric W as a dense (N, N) float64 tensor; refused above 20,000 nodes."""
    neighbors, labels = _check_graph(neighbors, labels, gamma)
    check_dense(len(neighbors), len(neighbors), "Ask for the edges only, with propagate_affinities.")
    walk = walk_matrix(neighbors, gamma)
    shares = walk @ _class_indicators(labels)
    known = (labels >= 0).nonzero().flatten()
    walk[:, known] = 2.0 * shares[:, labels[known]] - shares.sum(1, keepdim=True)
    return (walk + walk.T) / 2


def propagate_labels(neighbors: Any, labels: Any, gamma: float = 0.99, tolerance: float = SERIES_TOLERANCE) -> Tensor:
    """F = P E Y (N, C): how much of the walk from each node ends on labelled nodes of each class.

    A column for each class that has a label, in ascending order. One right-hand side per class, summed as a power
    series whose entrywise error is at most ``tolerance``.
    """
    neighbors, labels = _check_graph(neighbors, labels, gamma)
    indicators = _class_indicators(labels)
    return _power_series(neighbors, indicators, gamma, tolerance)


def walk_matrix(neighbors: Tensor, gamma: float) -> Tensor:
    """P = (1 - gamma) (I - gamma Q)^-1 as a dense (N, N) float64 tensor.

    I - gamma Q is strictly diagonally dominant, so the inverse exists and its condition number is at most
    (1 + gamma) / (1 - gamma) in the maximum norm.
    """
    count, k = neighbors.shape
    system = torch.zeros(count, count, dtype=torch.float64, device=neighbors.device)
    system.scatter_(1, neighbors, -gamma / k)
    system.fill_diagonal_(1.0)
    inverse: Tensor = torch.linalg.inv(system)
    return inverse.mul_(1.0 - gamma)


def walk_step(neighbors: Tensor, values: Tensor) -> Tensor:
    """Q ``values``: the mean over each node's neighbours of the rows of ``values`` (N, b)."""
    averaged: Tensor = torch.nn.functional.embedding_bag(neighbors, values, mode="mean")
    return averaged


def sweeps_for(gamma: float, tolerance: float) -> int:
    """Terms of the power series after which its entrywise error is at most ``tolerance``."""
    return max(1, math.ceil(math.log(tolerance) / math.log(gamma)))


def _power_series(neighbors: Tensor, start: Tensor, gamma: float, tolerance: float) -> Tensor:
    """(1 - gamma) sum_t gamma^t Q^t start by Horner's rule."""
    start = (1.0 - gamma) * start
    total = start
    for _ in range(sweeps_for(gamma, tolerance)):
        total = start + gamma * walk_step(neighbors, total)
    return total


def _walk_on_edges(neighbors: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """P_ij and P_ji for every edge i -> j, from blocks of columns of P."""
    count, _ = neighbors.shape
    forward = torch.empty(neighbors.shape, dtype=torch.float64, device=neighbors.device)
    backward = torch.empty_like(forward)
    width = max(1, SERIES_COLUMNS // count)
    for start in range(0, count, width):
        stop = min(start + width, count)
        units = torch.zeros(count, stop - start, dtype=torch.float64, device=neighbors.device)
        units.diagonal(-start).fill_(1.0)
        columns = _power_series(neighbors, units, gamma, SERIES_TOLERANCE)
        source, place = ((neighbors >= start) & (neighbors < stop)).nonzero(as_tuple=True)
        forward[source, place] = columns[source, neighbors[source, place] - start]
        own = torch.arange(start, stop, device=neighbors.device)
        backward[start:stop] = columns[neighbors[own], (own - start)[:, None]]
    return forward, backward


def _edge_affinities(neighbors: Tensor, labels: Tensor, forward: Tensor, backward: Tensor, shares: Tensor) -> Tensor:
    """W on edges from P_ij, P_ji and F: a labelled column of W* comes from F, an unlabelled one from P."""
    total = shares.sum(1)
    target_label = labels[neighbors]
    own_label = labels[:, None].expand_as(neighbors)
    to_target = 2.0 * shares.gather(1, target_label.clamp_min(0)) - total[:, None]
    to_source = 2.0 * shares[neighbors, own_label.clamp_min(0)] - total[neighbors]
    outward = torch.where(target_label >= 0, to_target, forward)
    inward = torch.where(own_label >= 0, to_source, backward)
    return (outward + inward) / 2


def _class_indicators(labels: Tensor) -> Tensor:
    """E Y: (N, C) one-hot rows for labelled nodes, zero rows for the others."""
    classes = max(1, int(labels.max()) + 1)
    known = (labels >= 0).nonzero().flatten()
    indicators = torch.zeros(len(labels), classes, dtype=torch.float64, device=labels.device)
    indicators[known, labels[known]] = 1.0
    return indicators


def _check_graph(neighbors: Any, labels: Any, gamma: float) -> tuple[Tensor, Tensor]:
    """Neighbour lists and labels; classes renumbered 0, 1, ... so that a column for each is few columns."""
    neighbors = check_neighbors(neighbors)
    check_fraction(gamma, "gamma")
    labels = check_labels(labels, len(neighbors)).to(neighbors.device)
    known = labels >= 0
    renumbered = labels.clone()
    renumbered[known] = torch.unique(labels[known], return_inverse=True)[1]
    return neighbors, renumbered
