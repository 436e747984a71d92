"""k-means on tensors, on the CPU or a GPU, reproducible from a seed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from semimetric.core.errors import InputError
from semimetric.graph.edges import group_by_node

BLOCK_ENTRIES = 1 << 25  # distances held at once by the starts, over restarts, points and candidates
ASSIGNED_ENTRIES = 1 << 20  # distances held at once by an assignment on a CPU: 4 MiB in float32
GPU_ASSIGNED_ENTRIES = 1 << 25  # the same on a GPU
SEEN_ROWS, SEEN_PER_CLUSTER = 2_000, 10  # points that the starts see, at least: in all, and for each cluster
RACE_STEPS = 3  # iterations after which the worse half of the restarts stops


@dataclass(frozen=True)
class Clustering:
    """Result of k-means: assignment (N,), centres (K, d) and the sum of squared distances to them."""

    assignment: Tensor
    centres: Tensor
    inertia: float


def kmeans(
    points: Tensor, n_clusters: int, seed: int = 0, restarts: int = 10, iterations: int = 100, tolerance: float = 1e-4
) -> Clustering:
    """Lloyd's algorithm from several k-means++ starts; returns the result of least inertia.

    There are ``restarts`` starts for up to 10 clusters and fewer for more, because the inertia of many clusters hardly
    depends on the start. k-means++ sees every n-th point, at least 2,000 and 10 for each cluster. Every 3 iterations
    the worse half of the starts stops. The last one goes on until the summed squared shift of its centres is at most
    ``tolerance`` times the mean variance of the points, as in scikit-learn. The random numbers are drawn on the CPU, so
    they are the same on every device. An empty cluster moves to the point farthest from its centre.
    """
    count = len(points)
    if not 1 <= n_clusters <= count:
        raise InputError(f"n_clusters must be between 1 and the number of points ({count}), got {n_clusters}.")
    mean = points.mean(0)
    centred = points - mean
    limit = tolerance * float(centred.var(0, correction=0).mean())
    candidates = 2 + int(math.log(n_clusters))
    starts = min(restarts, max(1, math.ceil(restarts * 10 / n_clusters)))
    draws = torch.rand(starts, n_clusters, candidates, generator=torch.Generator().manual_seed(seed)).to(points)
    seen = centred[:: max(1, count // max(SEEN_ROWS, SEEN_PER_CLUSTER * n_clusters))]
    at_once = max(1, BLOCK_ENTRIES // (len(seen) * candidates))
    centres = [start for chunk in draws.split(at_once) for start in initial_centres(seen, chunk)]
    while len(centres) > 1 and iterations > RACE_STEPS:
        found = [lloyd(centred, start, RACE_STEPS, limit) for start in centres]
        found.sort(key=lambda clustering: clustering.inertia)
        centres = [clustering.centres for clustering in found[: len(found) // 2]]
        iterations -= RACE_STEPS
    best = min((lloyd(centred, start, iterations, limit) for start in centres), key=lambda found: found.inertia)
    return Clustering(best.assignment, best.centres + mean, best.inertia)


def initial_centres(points: Tensor, draws: Tensor) -> Tensor:
    """Centres (R, K, d) by greedy k-means++ (Arthur, Vassilvitskii 2007), from uniform ``draws`` (R, K, candidates)."""
    count = len(points)
    restart = torch.arange(len(draws), device=points.device)
    squares = points.square().sum(1)
    rows = [(draws[:, 0, 0] * count).long().clamp_max(count - 1)]
    nearest = _squares_to(points, squares, rows[0][:, None])[:, 0]
    for step in range(1, draws.shape[1]):
        mass = nearest.cumsum(1, dtype=torch.float64)
        chosen = torch.searchsorted(mass, draws[:, step].double() * mass[:, -1:]).clamp_max_(count - 1)
        reached = _squares_to(points, squares, chosen)
        torch.minimum(reached, nearest[:, None, :], out=reached)
        winner = reached.sum(2).argmin(1)
        nearest = reached[restart, winner]
        rows.append(chosen[restart, winner])
    return points[torch.stack(rows, dim=1)]


def _squares_to(points: Tensor, squares: Tensor, rows: Tensor) -> Tensor:
    """(R, c, N) squared distances of the points ``rows`` (R, c) to all points, whose |x|^2 are ``squares`` (N,)."""
    products = torch.addmm(squares, points[rows.flatten()], points.T, alpha=-2.0)
    found: Tensor = products.add_(squares[rows.flatten()][:, None]).clamp_min_(0.0).unflatten(0, rows.shape)
    return found


def lloyd(points: Tensor, centres: Tensor, iterations: int, limit: float) -> Clustering:
    """Iterate from ``centres`` (K, d) until the summed squared shift of the centres is at most ``limit``."""
    for _ in range(iterations):
        distance, assignment = _assign(points, centres)
        moved = _means(points, assignment, distance, len(centres))
        shift = float((moved - centres).square().sum())
        centres = moved
        if shift <= limit:
            break
    distance, assignment = _assign(points, centres)
    return Clustering(assignment, centres, float(distance.double().sum()))


def _assign(points: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """Squared distance (N,) to the nearest of the centres (K, d), and the number of that centre (N,)."""
    squares = centres.square().sum(1)
    entries = GPU_ASSIGNED_ENTRIES if points.is_cuda else ASSIGNED_ENTRIES
    blocks = points.split(max(1, entries // len(centres)))
    nearest = [torch.addmm(squares, block, centres.T, alpha=-2.0).min(1) for block in blocks]
    distance = torch.cat([found.values for found in nearest]) + points.square().sum(1)
    return distance.clamp_min_(0.0), torch.cat([found.indices for found in nearest])


def _means(points: Tensor, assignment: Tensor, distance: Tensor, clusters: int) -> Tensor:
    """Mean (K, d) of each cluster, summed in a fixed order; an empty one takes a point farthest from its centre."""
    order, starts = group_by_node(assignment, clusters)
    sizes = torch.diff(starts, append=starts.new_tensor([len(points)]))
    means: Tensor = torch.nn.functional.embedding_bag(order, points, starts, mode="mean")
    empty = (sizes == 0).nonzero().flatten()
    if len(empty):
        means[empty] = points[distance.topk(len(empty)).indices]
    return means
