"""Density-aware edge weights, after ISDML (IEEE TNNLS 2018).

The directed edge from i to its neighbour j has the weight

    w_ij = beta_i exp(-||z_i - z_j||^2 / (2 sigma^2)),      sigma = D_min + (D_max - D_min) / v.

D_min and D_max are the smallest and largest distance of two examples. beta is the Parzen density of the examples under
a Gaussian kernel, so edges weigh more in dense regions and outliers have little influence.

The paper leaves three choices open. Here the density kernel has the width sigma, beta has mean 1 and is at least 1e-6,
and the weights have mean 1, so that they are comparable with those of a binary graph.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from semimetric.core.arrays import DENSE_ROWS, as_tensor, check_finite, check_neighbors
from semimetric.core.checks import check_positive
from semimetric.core.errors import InputError

BLOCK_ENTRIES = 1 << 25  # distances held at once: 256 MiB in float64

SAMPLED_ROWS = 2000
"""Evenly spaced rows from which the largest distance is estimated when there are too many rows for all pairs."""

DENSITY_FLOOR = 1e-6
"""Smallest density, relative to the mean. It keeps the edges of outliers above 0."""


def density_affinities(
    features: Any, neighbors: Any, bandwidth_steps: float = 10.0, exact_rows: int = DENSE_ROWS
) -> Tensor:
    """Density-aware weights (N, k) of the directed edges of a kNN graph, in float64 and with mean 1.

    ``bandwidth_steps`` is v; a larger value gives a narrower kernel. With more than ``exact_rows`` rows, the largest
    distance is that of a sample of 2000 rows and the density is a sum over each row's neighbours instead of all rows.
    All weights are 0 if all rows of ``features`` (N, d) are the same. Everything is computed in logarithms: with exact
    duplicates and one distant example, sigma is small and most kernel values would underflow.
    """
    points = _check_points(features)
    neighbors = check_neighbors(neighbors).to(points.device)
    check_positive(bandwidth_steps, "bandwidth_steps")
    if len(neighbors) != len(points):
        raise InputError(f"neighbors must have a row for each of the {len(points)} examples, got {len(neighbors)}.")
    if bool((points == points[0]).all()):
        return torch.zeros(neighbors.shape, dtype=torch.float64, device=points.device)
    points = points - points.mean(0)
    squares = _edge_squares(points, neighbors)
    exact = len(points) <= exact_rows
    sigma = _bandwidth(points if exact else _sample(points), squares, bandwidth_steps)
    kernels = -squares / (2 * sigma**2)
    density = _log_density(points / sigma) if exact else kernels.logsumexp(1)
    log_beta = _mean_one(density).clamp_min(math.log(DENSITY_FLOOR))
    return _mean_one(log_beta[:, None] + kernels).exp()


def _bandwidth(points: Tensor, squares: Tensor, steps: float) -> float:
    """Sigma, from the distances to nearest neighbours and the largest distance of two of ``points``."""
    largest = max(float(block.max()) for block in _square_blocks(points))
    smallest = float(squares.min().sqrt())
    return smallest + (math.sqrt(max(largest, float(squares.max()))) - smallest) / steps


def _log_density(points: Tensor) -> Tensor:
    """Logarithm of sum_{j != i} exp(-||x_i - x_j||^2 / 2) for each row x_i of ``points``, (N,)."""
    sums, start = [], 0
    for block in _square_blocks(points):
        block.diagonal(start).fill_(torch.inf)
        sums.append((block / -2).logsumexp(1))
        start += len(block)
    return torch.cat(sums)


def _mean_one(logs: Tensor) -> Tensor:
    """Shift the logarithms of positive numbers so that the numbers have mean 1."""
    shifted: Tensor = logs - (logs.flatten().logsumexp(0) - math.log(logs.numel()))
    return shifted


def _edge_squares(points: Tensor, neighbors: Tensor) -> Tensor:
    """Squared distances (N, k) to the neighbours. Computed from differences, so that duplicates are exactly 0 apart."""
    rows = max(1, BLOCK_ENTRIES // (neighbors.shape[1] * points.shape[1]))
    blocks = zip(points.split(rows), neighbors.split(rows), strict=True)
    return torch.cat([(own[:, None] - points[near]).square().sum(2) for own, near in blocks])


def _square_blocks(points: Tensor) -> Iterator[Tensor]:
    """Squared distances of all pairs, in blocks of rows."""
    norms = points.square().sum(1)
    rows = max(1, BLOCK_ENTRIES // len(points))
    for own, size in zip(points.split(rows), norms.split(rows), strict=True):
        yield torch.addmm(norms[None, :], own, points.T, alpha=-2.0).add_(size[:, None]).clamp_min_(0.0)


def _sample(points: Tensor) -> Tensor:
    """At most 2000 evenly spaced rows."""
    rows = torch.linspace(0, len(points) - 1, min(SAMPLED_ROWS, len(points)), dtype=points.dtype, device=points.device)
    return points[rows.round().long()]


def _check_points(features: Any) -> Tensor:
    """Finite features in float64. Unlike ``check_features``, this allows all rows to be the same."""
    points = as_tensor(features, "features")
    if points.ndim != 2 or min(points.shape) < 1:
        raise InputError(
            f"features must be a matrix with at least 1 row and 1 column, got shape {tuple(points.shape)}. "
            "Put one example in each row."
        )
    check_finite(points, "features")
    return points.double()
