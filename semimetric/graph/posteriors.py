r"""Labels propagated to every node as class posteriors, with a confidence.

On the undirected graph with weights W and degrees D, S = D^-1/2 W D^-1/2, and

    F = (1 - gamma) (I - gamma S)^-1 Y

with Y one-hot for labelled nodes, each class divided by its number of labels so that none wins by being labelled more
(D. Zhou, O. Bousquet, T. N. Lal, J. Weston, B. Schoelkopf, "Learning with local and global consistency", NIPS 2003).
Rows of F, normalised, are the posteriors; confidence is 1 - H / log C with the entropy H of a row, as in A. Iscen, G.
Tolias, Y. Avrithis, O. Chum, "Label propagation for deep semi-supervised learning", CVPR 2019. Unlike the affinities
of ``affinities``, labels here reach every node that is connected to a labelled one.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from semimetric.core.arrays import check_labels, check_neighbors
from semimetric.core.checks import check_fraction, check_not_negative, check_positive
from semimetric.core.errors import InputError
from semimetric.graph.edges import group_by_node, node_degrees, symmetric_edges
from semimetric.graph.neighbors import nearest_neighbors

PRIOR = 0.1
"""Of what labels send to a well reached node of a class, so much is added as not knowing, over all classes."""

ITERATIONS = 1000
"""Most conjugate-gradient iterations; for gamma = 0.99 some 70 give six digits."""


class Posteriors(NamedTuple):
    """Class numbers (C,) in ascending order, posteriors (N, C) whose rows sum to 1, and confidence (N,) in [0, 1]."""

    classes: Tensor
    shares: Tensor
    confidence: Tensor


class Graph(NamedTuple):
    """S as for each node the list of its neighbours (grouped, from ``starts`` on) and their entries in S."""

    nodes: Tensor
    starts: Tensor
    entries: Tensor


def class_posteriors(
    neighbors: Any,
    labels: Any,
    weights: Any = None,
    gamma: float = 0.99,
    tolerance: float = 1e-6,
    prior: float = 0.0,
) -> Posteriors:
    """Propagate labels over the undirected graph of neighbour lists.

    Parameters
    ----------
    neighbors : (N, k) neighbour lists, self excluded
    labels : (N,) integers, -1 = unlabelled, of at least two classes
    weights : (N, k) non-negative weight of each directed edge, averaged over both directions, or none for 1 each
    gamma : share of what a node passes on, in (0, 1)
    tolerance : residual of the solution as a share of the right-hand side
    prior : added to a row of F before it is normalised, equally over the classes, as a share of the upper quartile of
        the row sums of the nodes with the same largest class; so a node that little arrives at, such as one of a class
        without a label, keeps nearly equal posteriors even if all of that little is of one class

    Returns
    -------
    Posteriors; a node that no labelled one reaches has equal posteriors and confidence 0
    """
    neighbors = check_neighbors(neighbors)
    labels = check_labels(labels, len(neighbors)).to(neighbors.device)
    check_fraction(gamma, "gamma")
    check_positive(tolerance, "tolerance")
    check_not_negative(prior, "prior")
    classes, numbers, counts = torch.unique(labels[labels >= 0], return_inverse=True, return_counts=True)
    if len(classes) < 2:
        raise InputError(f"labels must be of at least 2 classes to tell them apart, got {len(classes)}. Label another.")
    known = torch.zeros(len(labels), len(classes), dtype=torch.float64, device=labels.device)
    known[(labels >= 0).nonzero().flatten(), numbers] = 1.0 / counts[numbers].double()
    reached = _solve(_normalized(neighbors, weights), known, gamma, tolerance).clamp_min(0.0)
    return Posteriors(classes, *_normalize(reached, prior))


def _normalized(neighbors: Tensor, weights: Any) -> Graph:
    """S of the undirected graph, both directions of every edge listed."""
    pairs, pair_weights = symmetric_edges(neighbors, weights)
    if bool((pair_weights < 0).any()):
        raise InputError("weights must not be negative; a posterior has no meaning for edges that repel.")
    count = len(neighbors)
    degrees = node_degrees(pairs, pair_weights, count)
    roots = torch.where(degrees > 0, degrees, 1.0).rsqrt()
    both = torch.cat([pairs, pairs.flip(1)])
    positions, starts = group_by_node(both[:, 0], count)
    source, target = both[positions].unbind(1)
    return Graph(target, starts, (roots[source] * roots[target]) * pair_weights.repeat(2)[positions])


def _product(graph: Graph, values: Tensor) -> Tensor:
    """S ``values`` for ``values`` (N, C), summed in a fixed order."""
    summed: Tensor = torch.nn.functional.embedding_bag(
        graph.nodes, values, graph.starts, mode="sum", per_sample_weights=graph.entries
    )
    return summed


def _solve(graph: Graph, right: Tensor, gamma: float, tolerance: float) -> Tensor:
    """(1 - gamma) (I - gamma S)^-1 ``right`` by conjugate gradients, each column with its own steps."""
    solution = torch.zeros_like(right)
    residual = direction = (1.0 - gamma) * right
    size = residual.square().sum(0)
    goal = tolerance**2 * size
    for _ in range(ITERATIONS):
        active = size > goal
        if not bool(active.any()):
            break
        image = direction - gamma * _product(graph, direction)
        step = torch.where(active, size / (direction * image).sum(0), 0.0)
        solution = solution + step * direction
        residual = residual - step * image
        before, size = size, residual.square().sum(0)
        direction = residual + torch.where(active, size / before, 0.0) * direction
    return solution


def _normalize(reached: Tensor, prior: float) -> tuple[Tensor, Tensor]:
    """Posteriors and confidence; equal posteriors where nothing arrived."""
    classes = reached.shape[1]
    total = reached.sum(1, keepdim=True)
    if prior > 0:
        reached = reached + prior / classes * upper_quartiles(total.squeeze(1), reached.argmax(1), classes)[:, None]
    total = reached.sum(1, keepdim=True)
    shares = torch.where(total > 0, reached / torch.where(total > 0, total, 1.0), 1.0 / classes)
    entropy = torch.special.entr(shares).sum(1)
    return shares, (1.0 - entropy / math.log(classes)).clamp(0.0, 1.0)


def cosine_posteriors(points: Tensor, labels: Tensor, k: int, gamma: float) -> Posteriors:
    """``class_posteriors`` on the k nearest neighbours of unit points (N, d), edges weighing max(0, cosine)^3."""
    neighbors = nearest_neighbors(points, k)
    cosines = torch.stack([(points * points[column]).sum(1) for column in neighbors.T], dim=1)
    return class_posteriors(neighbors, labels, cosines.clamp_min(0.0) ** 3, gamma, prior=PRIOR)


def names_and_confidence(found: Posteriors, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Column (N,) of what each example is taken for, which is its label where it has one, and how sure that is."""
    known = labels >= 0
    named = torch.where(known, torch.searchsorted(found.classes, labels), found.shares.argmax(1))
    return named, torch.where(known, found.confidence.max(), found.confidence)


def upper_quartiles(values: Tensor, groups: Tensor, count: int) -> Tensor:
    """For every entry of ``values`` (N,) the upper quartile of its group, numbered below ``count`` (N,).

    Higher than the median, it is still one of a class where as many strangers have been taken for that class.
    """
    quartiles = values.new_zeros(count)
    for group in range(count):
        members = values[groups == group].sort().values
        if len(members):
            quartiles[group] = members[(3 * len(members)) // 4]
    return quartiles[groups]
