"""Affinity propagation on a directed kNN graph.

Q is the row-stochastic matrix of the graph: 1/k on each of a node's k neighbours. W0 holds the known affinities: +1 on
the diagonal and for labelled pairs of one class, -b for labelled pairs of two classes, 0 elsewhere. The repulsion b is
1 in the original. The propagated affinities are

    W* = (1 - gamma) (I - gamma Q)^-1 W0 = P W0,      W = (W* + W*^T) / 2.

P is personalised PageRank with restart probability 1 - gamma. On labelled nodes W0 = (1 + b) Y Y^T - b 1 1^T, so the
labelled columns of W* follow from F = P E Y, with one right-hand side per class: W*_ij = (1 + b) F[i, y_j] -
b sum_c F[i, c]. An unlabelled column of W* is that column of P. Labels therefore do not change the affinity of two
unlabelled nodes.
"""

from __future__ import annotations

import logging
from typing import Any, Literal

import torch
from torch import Tensor

from semimetric.core.arrays import DENSE_ROWS, check_dense, check_labels, check_neighbors
from semimetric.core.checks import check_choice, check_fraction, check_not_negative
from semimetric.graph.edge_walk import EdgeWalk
from semimetric.graph.walk import solve_walk, walk_matrix

LABEL_TOLERANCE = 1e-6  # bound on the entrywise error of F
ITERATIVE_ROWS = 4_000  # nodes from which the iterative solver is faster on a CPU

_log = logging.getLogger(__name__)

Solver = Literal["auto", "dense", "iterative"]


def propagate_affinities(
    neighbors: Any, labels: Any, gamma: float = 0.99, solver: Solver = "auto", repulsion: float = 1.0
) -> Tensor:
    """Propagated symmetric affinities W on the edges of a kNN graph.

    Parameters
    ----------
    neighbors : (N, k) int array
        Neighbour lists, self excluded.
    labels : (N,) int array
        Class numbers, -1 = unlabelled.
    gamma : float
        Probability that the random walk continues at each step, in (0, 1).
    solver : {"auto", "dense", "iterative"}
        ``dense`` inverts I - gamma Q in float64: O(N^3), at most 20,000 nodes. ``iterative`` solves blocks of columns
        to an entrywise error of 2e-6: O(N^2 k) per sweep, O(N) memory. ``auto`` takes what is faster: ``iterative``
        from 4,000 nodes on a CPU and from 20,000 on a GPU.
    repulsion : float
        Two labelled nodes of different classes have the known affinity minus this, at least 0.

    Returns
    -------
    (N, k) float64 tensor
        Entry (i, t) is W between node i and its t-th neighbour.

    References
    ----------
    Liu, Ma, Tao, Liu, Liu: Semi-supervised sparse metric learning using
        alternating linearization optimization. KDD 2010.
    Dutta, Harandi, Sekhar: Semi-supervised metric learning: a deep resurrection. AAAI 2021.
    """
    neighbors, labels = check_graph(neighbors, labels, gamma)
    check_choice(solver, ("auto", "dense", "iterative"), "solver")
    check_not_negative(repulsion, "repulsion")
    if solver == "auto":
        most = ITERATIVE_ROWS if neighbors.device.type == "cpu" else DENSE_ROWS
        solver = "dense" if len(neighbors) < min(most, DENSE_ROWS + 1) else "iterative"
    if solver == "dense":
        check_dense(len(neighbors), len(neighbors), "Use solver='iterative', or train over partitions.")
        walk = walk_matrix(neighbors, gamma)
        source = torch.arange(len(neighbors), device=neighbors.device)[:, None]
        forward, backward = walk[source, neighbors], walk[neighbors, source]
        return _edge_affinities(neighbors, labels, forward, backward, walk @ _class_indicators(labels), repulsion)
    forward, backward = _walk_on_edges(neighbors, gamma)
    return _edge_affinities(neighbors, labels, forward, backward, propagate_labels(neighbors, labels, gamma), repulsion)


def propagated_affinity_matrix(neighbors: Any, labels: Any, gamma: float = 0.99, repulsion: float = 1.0) -> Tensor:
    """Propagated symmetric affinities W of all pairs of nodes; at most 20,000 nodes.

    Parameters
    ----------
    neighbors, labels, gamma, repulsion : array-like, array-like, float, float
        As for ``propagate_affinities``.

    Returns
    -------
    (N, N) float64 tensor
        W, dense.
    """
    neighbors, labels = check_graph(neighbors, labels, gamma)
    check_not_negative(repulsion, "repulsion")
    check_dense(len(neighbors), len(neighbors), "Ask for the edges only, with propagate_affinities.")
    walk = walk_matrix(neighbors, gamma)
    shares = walk @ _class_indicators(labels)
    known = (labels >= 0).nonzero().flatten()
    walk[:, known] = (1 + repulsion) * shares[:, labels[known]] - repulsion * shares.sum(1, keepdim=True)
    return (walk + walk.T) / 2


def propagate_labels(neighbors: Any, labels: Any, gamma: float = 0.99, tolerance: float = LABEL_TOLERANCE) -> Tensor:
    """F = P E Y (N, C): probability that the walk from each node stops at a labelled node of each class.

    The columns are the classes that have a label, in ascending order. ``tolerance`` bounds the entrywise error.
    """
    neighbors, labels = check_graph(neighbors, labels, gamma)
    return solve_walk(neighbors, _class_indicators(labels), gamma, tolerance)


def _walk_on_edges(neighbors: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """P_ij and P_ji for every edge i -> j; the log says how large their error can be."""
    forward = torch.empty(neighbors.shape, dtype=torch.float64, device=neighbors.device)
    backward, bound = torch.empty_like(forward), 0.0
    for block in EdgeWalk(neighbors, gamma).blocks():
        forward.view(-1)[block.positions] = block.forward
        backward[block.nodes] = block.backward
        bound = max(bound, block.bound)
    _log.info("Affinities of %d nodes: the error of an entry of the walk is at most %.1e.", len(neighbors), bound)
    return forward, backward


def _edge_affinities(
    neighbors: Tensor, labels: Tensor, forward: Tensor, backward: Tensor, shares: Tensor, repulsion: float
) -> Tensor:
    """W on edges from P_ij, P_ji and F. Labelled columns of W* come from F, unlabelled ones from P."""
    total = repulsion * shares.sum(1)
    target_label = labels[neighbors]
    own_label = labels[:, None].expand_as(neighbors)
    to_target = (1 + repulsion) * shares.gather(1, target_label.clamp_min(0)) - total[:, None]
    to_source = (1 + repulsion) * shares[neighbors, own_label.clamp_min(0)] - total[neighbors]
    outward = torch.where(target_label >= 0, to_target, forward)
    inward = torch.where(own_label >= 0, to_source, backward)
    return (outward + inward) / 2


def _class_indicators(labels: Tensor) -> Tensor:
    """E Y: (N, C), one-hot rows for labelled nodes and zero rows for the others."""
    classes = max(1, int(labels.max()) + 1)
    known = (labels >= 0).nonzero().flatten()
    indicators = torch.zeros(len(labels), classes, dtype=torch.float64, device=labels.device)
    indicators[known, labels[known]] = 1.0
    return indicators


def check_graph(neighbors: Any, labels: Any, gamma: float) -> tuple[Tensor, Tensor]:
    """Checked neighbour lists and labels, with the classes renumbered 0, 1, ..., C - 1."""
    neighbors = check_neighbors(neighbors)
    check_fraction(gamma, "gamma")
    labels = check_labels(labels, len(neighbors)).to(neighbors.device)
    known = labels >= 0
    renumbered = labels.clone()
    renumbered[known] = torch.unique(labels[known], return_inverse=True)[1]
    return neighbors, renumbered
