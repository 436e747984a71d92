"""Label propagation: class posteriors and a confidence for every node.

On the undirected graph with weights W and degrees D, with S = D^-1/2 W D^-1/2,

    F = (1 - gamma) (I - gamma S)^-1 Y.

Y is one-hot for labelled nodes, and each class is divided by its number of labels, so that classes with many labels are
not favoured. The posteriors are the normalised rows of F. The confidence of a row with entropy H is 1 - H / log C.
Unlike in ``affinities``, labels here reach every node that is connected to a labelled one.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from semimetric.core.arrays import check_labels, check_neighbors
from semimetric.core.checks import check_fraction, check_not_negative, check_positive
from semimetric.core.errors import InputError
from semimetric.graph.approximate import graph_neighbors
from semimetric.graph.edges import group_by_node, node_degrees, symmetric_edges

PRIOR = 0.1  # default weight of the uniform prior, see ``class_posteriors``
ITERATIONS = 1000  # most conjugate-gradient iterations; for gamma = 0.99 about 70 give six digits
SINGLE_TARGET = 5e-7  # least relative residual that is asked of conjugate gradients in float32
BLOCK_COLUMNS = 32  # classes solved at once on a CPU: the working set of 10,000 nodes then fits into the cache
BLOCK_ENTRIES = 1 << 24  # entries of a block of classes on a GPU


class Posteriors(NamedTuple):
    """Class numbers (C,) in ascending order, posteriors (N, C) whose rows sum to 1, and confidence (N,) in [0, 1]."""

    classes: Tensor
    shares: Tensor
    confidence: Tensor


class Graph(NamedTuple):
    """S in sparse form: the neighbours of each node (its run begins at ``starts``) and their entries in S."""

    nodes: Tensor
    starts: Tensor
    entries: Tensor


def class_posteriors(
    neighbors: Any, labels: Any, weights: Any = None, gamma: float = 0.99, tolerance: float = 1e-8, prior: float = 0.0
) -> Posteriors:
    """Propagate labels over the undirected graph of neighbour lists.

    Parameters
    ----------
    neighbors : (N, k) int array
        Neighbour lists, self excluded.
    labels : (N,) int array
        Class numbers of at least two classes, -1 = unlabelled.
    weights : (N, k) array, optional
        Non-negative weight of each directed edge, averaged over both directions; 1 for each edge if None.
    gamma : float
        Share of a node's value that comes from its neighbours, in (0, 1).
    tolerance : float
        Relative residual at which the solver stops.
    prior : float
        Weight of a uniform prior, which is added to a row of F before normalisation. It is relative to the upper
        quartile of the row sums among nodes with the same predicted class. A node that receives little, such as one of
        a class without labels, then keeps nearly uniform posteriors.

    Returns
    -------
    Posteriors
        Classes, posteriors and confidence. A node without a path to a label has uniform posteriors and confidence 0.

    References
    ----------
    Zhou, Bousquet, Lal, Weston, Schoelkopf: Learning with local and global consistency. NIPS 2003.
    Iscen, Tolias, Avrithis, Chum: Label propagation for deep semi-supervised learning. CVPR 2019.
    """
    neighbors = check_neighbors(neighbors)
    labels = check_labels(labels, len(neighbors)).to(neighbors.device)
    check_fraction(gamma, "gamma")
    check_positive(tolerance, "tolerance")
    check_not_negative(prior, "prior")
    classes, numbers, counts = torch.unique(labels[labels >= 0], return_inverse=True, return_counts=True)
    if len(classes) < 2:
        raise InputError(f"labels must be of at least 2 classes, got {len(classes)}. Label an example of another.")
    known = torch.zeros(len(labels), len(classes), dtype=torch.float64, device=labels.device)
    known[(labels >= 0).nonzero().flatten(), numbers] = 1.0 / counts[numbers].double()
    reached = _solve(_normalized_graph(neighbors, weights), known, gamma, tolerance).clamp_min(0.0)
    return Posteriors(classes, *_posteriors(reached, prior))


def _normalized_graph(neighbors: Tensor, weights: Any) -> Graph:
    """S of the undirected graph, with both directions of every edge."""
    pairs, pair_weights = symmetric_edges(neighbors, weights)
    if bool((pair_weights < 0).any()):
        raise InputError("weights must not be negative; a posterior has no meaning for edges that repel.")
    count = len(neighbors)
    degrees = node_degrees(pairs, pair_weights, count)
    roots = torch.where(degrees > 0, degrees, 1.0).rsqrt()
    both = torch.cat([pairs, pairs.flip(1)])
    positions, starts = group_by_node(both[:, 0], count)
    source, target = both[positions].unbind(1)
    index = torch.int32 if len(both) < 2**31 else torch.int64  # half the memory traffic
    return Graph(
        target.to(index), starts.to(index), (roots[source] * roots[target]) * pair_weights.repeat(2)[positions]
    )


def _product(graph: Graph, values: Tensor) -> Tensor:
    """S ``values`` for ``values`` (N, C), summed in a fixed order."""
    summed: Tensor = torch.nn.functional.embedding_bag(
        graph.nodes, values, graph.starts, mode="sum", per_sample_weights=graph.entries
    )
    return summed


def _solve(graph: Graph, right: Tensor, gamma: float, tolerance: float) -> Tensor:
    """(1 - gamma) (I - gamma S)^-1 ``right`` in float64, to this relative residual of each column."""
    width = max(BLOCK_COLUMNS, 0 if right.device.type == "cpu" else BLOCK_ENTRIES // len(right))
    single = graph._replace(entries=graph.entries.float())
    blocks = ((1.0 - gamma) * right).split(width, dim=1)
    return torch.cat([_solve_block(graph, single, block.contiguous(), gamma, tolerance) for block in blocks], dim=1)


def _solve_block(graph: Graph, single: Graph, right: Tensor, gamma: float, tolerance: float) -> Tensor:
    """Iterative refinement: conjugate gradients in float32, residuals in float64.

    Columns whose residual a round does not reduce tenfold are finished in float64: gamma is too near 1 for float32.
    """
    solution, residual = torch.zeros_like(right), right
    size = right.square().sum(0).sqrt()
    goal = tolerance * size
    while bool((unsolved := size > goal).any()):
        scale = torch.where(unsolved, size, 1.0)
        target = (goal / scale / 2).clamp_min(SINGLE_TARGET)
        step = _conjugate_gradients(single, (residual / scale * unsolved).float(), gamma, target.float())
        solution = solution + step.double() * scale
        residual = right - (solution - gamma * _product(graph, solution))
        before, size = size, residual.square().sum(0).sqrt()
        stuck = unsolved & ~(size <= torch.maximum(before / 10, goal))
        if bool(stuck.any()):
            rest = residual[:, stuck].contiguous()
            solution[:, stuck] += _conjugate_gradients(graph, rest, gamma, goal[stuck])
            size = torch.where(stuck, 0.0, size)
    return solution


def _conjugate_gradients(graph: Graph, right: Tensor, gamma: float, target: Tensor) -> Tensor:
    """Solve (I - gamma S) x = ``right`` until each residual is at most its ``target`` (b,); own steps per column."""
    solution = torch.zeros_like(right)
    residual, direction = right.clone(), right.clone()
    size, goal = right.square().sum(0), target.square()
    for _ in range(ITERATIONS):
        active = size > goal
        if not bool(active.any()):
            break
        image = torch.add(direction, _product(graph, direction), alpha=-gamma)
        step = torch.where(active, size / (direction * image).sum(0), 0.0)
        solution.addcmul_(direction, step)
        residual.addcmul_(image, step, value=-1)
        before, size = size, residual.square().sum(0)
        direction.mul_(torch.where(active, size / before, 0.0)).add_(residual)
    return solution


def _posteriors(reached: Tensor, prior: float) -> tuple[Tensor, Tensor]:
    """Posteriors and confidence from F; uniform posteriors where a row of F is 0."""
    classes = reached.shape[1]
    total = reached.sum(1, keepdim=True)
    if prior > 0:
        reached = reached + prior / classes * upper_quartiles(total.squeeze(1), reached.argmax(1), classes)[:, None]
    total = reached.sum(1, keepdim=True)
    shares = torch.where(total > 0, reached / torch.where(total > 0, total, 1.0), 1.0 / classes)
    entropy = torch.special.entr(shares).sum(1)
    return shares, (1.0 - entropy / math.log(classes)).clamp(0.0, 1.0)


def cosine_posteriors(points: Tensor, labels: Tensor, k: int, gamma: float) -> Posteriors:
    """``class_posteriors`` on the kNN graph of unit vectors (N, d), with edge weights max(0, cosine)^3."""
    neighbors = graph_neighbors(points, k)
    cosines = torch.stack([(points * points[column]).sum(1) for column in neighbors.T], dim=1)
    return class_posteriors(neighbors, labels, cosines.clamp_min(0.0) ** 3, gamma, prior=PRIOR)


def names_and_confidence(found: Posteriors, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Predicted class (N,), as a column of the posteriors, and its confidence (N,).

    A labelled example has its label, with the largest confidence of all examples.
    """
    known = labels >= 0
    named = torch.where(known, torch.searchsorted(found.classes, labels), found.shares.argmax(1))
    return named, torch.where(known, found.confidence.max(), found.confidence)


def upper_quartiles(values: Tensor, groups: Tensor, count: int) -> Tensor:
    """For each of ``values`` (N,) the upper quartile of its group; ``groups`` (N,) are numbers below ``count``.

    Unlike the median it stays typical of the class even if half of the group was wrongly assigned to it.
    """
    quartiles = values.new_zeros(count)
    for group in range(count):
        members = values[groups == group].sort().values
        if len(members):
            quartiles[group] = members[(3 * len(members)) // 4]
    return quartiles[groups]
