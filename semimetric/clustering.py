"""k-means on tensors, on the device where they live, reproducible from a seed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from semimetric.errors import InputError


@dataclass(frozen=True)
class Clustering:
    """Result of k-means: (N,) assignment, (K, d) centres, sum of squared distances to them."""

    assignment: Tensor
    centres: Tensor
    inertia: float


def kmeans(
    points: Tensor,
    n_clusters: int,
    seed: int = 0,
    restarts: int = 10,
    iterations: int = 100,
    tolerance: float = 1e-4,
) -> Clustering:
    """Lloyd's algorithm from ``restarts`` k-means++ starts; the one of least inertia wins.

    The starts are drawn on the CPU from ``seed``, so every device begins from the same points. A cluster that
    runs empty is moved to the point farthest from its centre. Iteration ends when the centres move, in total
    square, by less than ``tolerance`` times the mean variance of the points, as in scikit-learn.
    """
    if not 1 <= n_clusters <= len(points):
        raise InputError(f"n_clusters must be between 1 and the number of points ({len(points)}), got {n_clusters}.")
    centred = points - points.mean(0)
    limit = tolerance * float(centred.var(0, correction=0).mean())
    generator = torch.Generator().manual_seed(seed)
    best: Clustering | None = None
    for _ in range(restarts):
        found = _lloyd(centred, _plus_plus(centred, n_clusters, generator), iterations, limit)
        if best is None or found.inertia < best.inertia:
            best = found
    assert best is not None
    return Clustering(best.assignment, best.centres + points.mean(0), best.inertia)


def _squared_distances(points: Tensor, centres: Tensor, norms: Tensor) -> Tensor:
    crossed = torch.addmm(centres.square().sum(1)[None, :], points, centres.T, alpha=-2.0)
    return (crossed + norms[:, None]).clamp_min_(0.0)


def _plus_plus(points: Tensor, n_clusters: int, generator: torch.Generator) -> Tensor:
    """k-means++ (Arthur and Vassilvitskii, 2007) with the usual 2 + log K greedy candidates a step."""
    norms = points.square().sum(1)
    candidates = 2 + int(torch.tensor(float(n_clusters)).log())
    draws = torch.rand(n_clusters, candidates, generator=generator, dtype=torch.float64).to(points.device)
    first = (draws[0, 0] * len(points)).long().clamp_max(len(points) - 1)
    centres = [points[first]]
    nearest = _squared_distances(points, points[first][None], norms)[:, 0]
    for step in range(1, n_clusters):
        mass = nearest.double().cumsum(0)
        chosen = torch.searchsorted(mass, draws[step] * mass[-1]).clamp_max(len(points) - 1)
        reached = torch.minimum(_squared_distances(points, points[chosen], norms), nearest[:, None])
        winner = reached.sum(0).argmin()
        nearest = reached[:, winner]
        centres.append(points[chosen[winner]])
    return torch.stack(centres)


def _lloyd(points: Tensor, centres: Tensor, iterations: int, limit: float) -> Clustering:
    norms = points.square().sum(1)
    for _ in range(iterations):
        distance, assignment = _squared_distances(points, centres, norms).min(1)
        moved = _means(points, assignment, distance, len(centres))
        shift = float((moved - centres).square().sum())
        centres = moved
        if shift <= limit:
            break
    distance, assignment = _squared_distances(points, centres, norms).min(1)
    return Clustering(assignment, centres, float(distance.double().sum()))


def _means(points: Tensor, assignment: Tensor, distance: Tensor, n_clusters: int) -> Tensor:
    """Mean of each cluster; an empty one takes one of the points farthest from their own centre.

    The sums are a product with the one-hot assignment, which adds in a fixed order on every device.
    """
    member = torch.nn.functional.one_hot(assignment, n_clusters).to(points.dtype)
    sizes = member.sum(0)
    means = (member.T @ points) / sizes.clamp_min(1.0)[:, None]
    empty = (sizes == 0).nonzero().flatten()
    if len(empty):
        means[empty] = points[distance.topk(len(empty)).indices]
    return means
