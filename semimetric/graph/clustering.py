"""k-means on tensors, on the CPU or a GPU, reproducible from a seed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from semimetric.core.errors import InputError

BLOCK_ENTRIES = 1 << 25  # distances held at once, over restarts, points and clusters


@dataclass(frozen=True)
class Clustering:
    """Result of k-means: assignment (N,), centres (K, d) and the sum of squared distances to them."""

    assignment: Tensor
    centres: Tensor
    inertia: float


def kmeans(
    points: Tensor, n_clusters: int, seed: int = 0, restarts: int = 10, iterations: int = 100, tolerance: float = 1e-4
) -> Clustering:
    """Lloyd's algorithm from ``restarts`` k-means++ starts; returns the result of least inertia.

    The random numbers are drawn on the CPU, so they are the same on every device. An empty cluster moves to the point
    farthest from its centre. Iteration stops when the summed squared shift of the centres is at most ``tolerance``
    times the mean variance of the points, as in scikit-learn.
    """
    count = len(points)
    if not 1 <= n_clusters <= count:
        raise InputError(f"n_clusters must be between 1 and the number of points ({count}), got {n_clusters}.")
    mean = points.mean(0)
    centred = points - mean
    limit = tolerance * float(centred.var(0, correction=0).mean())
    candidates = 2 + int(math.log(n_clusters))
    draws = torch.rand(restarts, n_clusters, candidates, generator=torch.Generator().manual_seed(seed)).to(points)
    at_once = max(1, BLOCK_ENTRIES // (count * candidates))
    found = [lloyd(centred, initial_centres(centred, chunk), iterations, limit) for chunk in draws.split(at_once)]
    best = min(found, key=lambda clustering: clustering.inertia)
    return Clustering(best.assignment, best.centres + mean, best.inertia)


def _squared_distances(points: Tensor, centres: Tensor) -> Tensor:
    """(R, N, K) squared distances of (N, d) points to (R, K, d) centres."""
    crossed = torch.matmul(points, centres.mT).mul_(-2.0)
    crossed += centres.square().sum(2)[:, None, :]
    crossed += points.square().sum(1)[None, :, None]
    return crossed.clamp_min_(0.0)


def initial_centres(points: Tensor, draws: Tensor) -> Tensor:
    """Centres (R, K, d) by greedy k-means++ (Arthur, Vassilvitskii 2007), from uniform ``draws`` (R, K, candidates)."""
    count = len(points)
    restart = torch.arange(len(draws), device=points.device)
    first = points[(draws[:, 0, 0] * count).long().clamp_max(count - 1)]
    centres = [first]
    nearest = _squared_distances(points, first[:, None])[:, :, 0]
    for step in range(1, draws.shape[1]):
        mass = nearest.double().cumsum(1)
        chosen = torch.searchsorted(mass, draws[:, step].double() * mass[:, -1:]).clamp_max_(count - 1)
        reached = torch.minimum(_squared_distances(points, points[chosen]), nearest[:, :, None])
        winner = reached.sum(1).argmin(1)
        nearest = reached[restart, :, winner]
        centres.append(points[chosen[restart, winner]])
    return torch.stack(centres, dim=1)


def lloyd(points: Tensor, centres: Tensor, iterations: int, limit: float) -> Clustering:
    """Iterate all restarts in parallel and return the best one."""
    for _ in range(iterations):
        distance, assignment = _assign(points, centres)
        moved = _means(points, assignment, distance, centres)
        shift = (moved - centres).square().sum((1, 2)).max()
        centres = moved
        if float(shift) <= limit:
            break
    distance, assignment = _assign(points, centres)
    inertia, best = distance.double().sum(1).min(0)
    return Clustering(assignment[best], centres[best], float(inertia))


def _assign(points: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """Squared distance (R, N) to the nearest of the centres (R, K, d), and the number of that centre (R, N)."""
    nearest = [_squared_distances(block, centres).min(2) for block in points.split(_rows_at_once(centres))]
    return torch.cat([found.values for found in nearest], 1), torch.cat([found.indices for found in nearest], 1)


def _means(points: Tensor, assignment: Tensor, distance: Tensor, centres: Tensor) -> Tensor:
    """Mean (R, K, d) of each cluster; an empty cluster takes one of the points farthest from their centres.

    The sums are products with the one-hot assignment, which add in a fixed order on every device.
    """
    clusters = torch.arange(centres.shape[1], device=points.device)
    rows = _rows_at_once(centres)
    sums, sizes = torch.zeros_like(centres), torch.zeros_like(centres[:, :, :1])
    for block, chosen in zip(points.split(rows), assignment.split(rows, dim=1), strict=True):
        member = (chosen[:, None, :] == clusters[:, None]).to(points.dtype)
        sums += torch.matmul(member, block)
        sizes += member.sum(2, keepdim=True)
    means = sums / sizes.clamp_min(1.0)
    for restart in (sizes == 0).any(1).flatten().nonzero().flatten().tolist():
        empty = (sizes[restart, :, 0] == 0).nonzero().flatten()
        means[restart, empty] = points[distance[restart].topk(len(empty)).indices]
    return means


def _rows_at_once(centres: Tensor) -> int:
    return max(1, BLOCK_ENTRIES // (centres.shape[0] * centres.shape[1]))
