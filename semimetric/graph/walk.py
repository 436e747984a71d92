"""The random walk on a directed kNN graph: products with P = (1 - gamma) (I - gamma Q)^-1 and with its transpose.

Q is 1/k on each of a node's k neighbours. P is personalised PageRank with restart probability 1 - gamma. Entry (i, j)
is the probability that a walk from i, which stops at each node with probability 1 - gamma, stops at j. Rows sum to 1.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from semimetric.core.threads import cpu_threads
from semimetric.graph.edges import group_by_node

TOLERANCE = 1e-9  # error of a column of P B, relative to the largest entry of that column of B
INNER_TARGET = 1e-5  # relative residual that the float32 solver aims for; float64 refinement does the rest
INNER_STEPS = 300  # most BiCGSTAB steps between two refinements
SWEEPS = 4  # products with gamma Q in each application of the preconditioned operator I - (gamma Q)^SWEEPS
CACHED_COLUMNS = 48
"""Columns solved at once on a CPU. The working set then fits into the cache, which is twice as fast as 140 columns."""

BLOCK_ENTRIES = 1 << 24  # entries of a block of columns on a GPU
ONE_THREAD_ENTRIES = 1 << 20
"""Smaller blocks are solved on one CPU thread, because synchronising threads costs more than such short operations:
a quarter of the time on an idle machine, ten times the time on a busy one."""


class Walk(NamedTuple):
    """Factor x Q, or its transpose, in sparse form: for each node the list of nodes whose values it sums."""

    nodes: Tensor
    starts: Tensor
    factor: float
    adjoint: bool


def walk_matrix(neighbors: Tensor, gamma: float) -> Tensor:
    """P = (1 - gamma) (I - gamma Q)^-1 as a dense (N, N) float64 tensor.

    I - gamma Q is strictly diagonally dominant, with a condition number of at most (1 + gamma) / (1 - gamma).
    """
    count, k = neighbors.shape
    system = torch.zeros(count, count, dtype=torch.float64, device=neighbors.device)
    system.scatter_(1, neighbors, -gamma / k)
    system.fill_diagonal_(1.0)
    inverse: Tensor = torch.linalg.inv(system)
    return inverse.mul_(1.0 - gamma)


def solve_walk(
    neighbors: Tensor,
    columns: Tensor,
    gamma: float,
    tolerance: float = TOLERANCE,
    adjoint: bool = False,
) -> Tensor:
    """P ``columns`` (N, b), or P^T ``columns`` if ``adjoint``, in float64.

    ``tolerance`` bounds the relative error of each column, in the maximum norm for P and in the sum norm for P^T. The
    solver stops when the residual r = b - P^-1 x meets that bound. The error P r is no larger than r in that norm,
    because the rows of P are non-negative and sum to 1.
    """
    walk = walk_lists(neighbors, gamma, adjoint)
    on_cpu = columns.device.type == "cpu"
    width = CACHED_COLUMNS if on_cpu else max(CACHED_COLUMNS, BLOCK_ENTRIES // len(columns))
    blocks = columns.double().split(width, dim=1)
    threads = 1 if on_cpu and blocks[0].numel() < ONE_THREAD_ENTRIES else torch.get_num_threads()
    with cpu_threads(threads):
        return torch.cat([_solve_block(walk, block.contiguous(), gamma, tolerance) for block in blocks], dim=1)


def walk_product(walk: Walk, values: Tensor) -> Tensor:
    """Factor x Q ``values``, or factor x Q^T ``values``, for ``values`` (N, b), summed in a fixed order."""
    return walk_sums(walk, values).mul_(walk.factor)


def walk_sums(walk: Walk, values: Tensor) -> Tensor:
    """The sums of a product before the factor: over the neighbours of each node."""
    sums: Tensor = torch.nn.functional.embedding_bag(walk.nodes, values, walk.starts, mode="sum")
    return sums


def walk_lists(neighbors: Tensor, gamma: float, adjoint: bool = False) -> Walk:
    """The walk gamma Q along the edges, or against them if ``adjoint``."""
    count, k = neighbors.shape
    if adjoint:
        positions, starts = group_by_node(neighbors.flatten(), count)
        nodes = positions // k
    else:
        nodes, starts = neighbors.flatten(), torch.arange(0, count * k, k, device=neighbors.device)
    index = torch.int32 if count * k < 2**31 else torch.int64  # half the memory traffic
    return Walk(nodes.to(index), starts.to(index), gamma / k, adjoint)


def _column_norms(walk: Walk, values: Tensor) -> Tensor:
    """Norm (b,) of each column in which the walk contracts: the maximum norm for Q, the sum norm for Q^T."""
    return values.abs().sum(0) if walk.adjoint else values.abs().amax(0)


def _solve_block(walk: Walk, block: Tensor, gamma: float, tolerance: float) -> Tensor:
    """Iterative refinement: BiCGSTAB in float32, residuals in float64.

    A round can fail to reduce a residual tenfold: BiCGSTAB may break down, and float32 may be too coarse for a gamma
    near 1. The power series then finishes that column; it always converges.
    """
    solution, residual = torch.zeros_like(block), block
    error = _column_norms(walk, block)
    goal = tolerance * error
    unsolved = error > goal
    while bool(unsolved.any()):
        scale = torch.where(unsolved, error, 1.0)
        right = (residual * (unsolved / scale)).float()
        step = _bicgstab(walk, right, (goal / scale / 2).clamp_min(INNER_TARGET).float())
        trial = step.double().mul_((1 - gamma) * scale).add_(solution)
        trial_residual = walk_product(walk, trial).sub_(trial).div_(1 - gamma).add_(block)
        trial_error = _column_norms(walk, trial_residual)
        better = trial_error < error
        if bool(better.all()):
            solution, residual = trial, trial_residual
        else:
            solution = torch.where(better, trial, solution)
            residual = torch.where(better, trial_residual, residual)
        stuck = unsolved & ~(trial_error <= torch.maximum(error / 10, goal))
        error = torch.where(better, trial_error, error)
        if bool(stuck.any()):
            left = float((goal / error)[stuck].min())
            solution[:, stuck] += _power_series(walk, residual[:, stuck], gamma, left)
        unsolved = (error > goal) & ~stuck
    return solution


def _power_series(walk: Walk, start: Tensor, gamma: float, tolerance: float) -> Tensor:
    """P ``start`` as (1 - gamma) sum_t (gamma Q)^t ``start`` by Horner's rule, to ``tolerance``."""
    total = start
    for _ in range(sweeps_for(gamma, tolerance)):
        total = start + walk_product(walk, total)
    return (1 - gamma) * total


def _bicgstab(walk: Walk, right: Tensor, target: Tensor) -> Tensor:
    """Solve (I - gamma Q) x = ``right`` (N, b) approximately, until each residual is at most its ``target`` (b,).

    BiCGSTAB (van der Vorst, 1992) on all columns at once, each with its own scalars. It solves (I - (gamma Q)^m) y =
    right with x = sum_{t < m} (gamma Q)^t y, whose spectrum is clustered around 1. The extra products with Q cost less
    than the inner products of the steps they save. Converged columns do not change.

    The usual shadow residual, the right-hand side, fails here. Constants are an eigenvector of Q, so for the transpose
    and a constant right-hand side all shadow vectors would be parallel.
    """
    rows = torch.arange(len(right), dtype=right.dtype, device=right.device)[:, None]
    shadow = right * (1 + rows.sin())
    residual = direction = right
    solution = torch.zeros_like(right)
    rho = _dots(shadow, right)
    for _ in range(INNER_STEPS):
        active = _column_norms(walk, residual) > target
        if not bool(active.any()):
            break
        image = _precondition(walk, direction)
        alpha = _ratio(rho, _dots(shadow, image)) * active
        half = torch.addcmul(residual, image, alpha, value=-1)
        half_image = _precondition(walk, half)
        omega = _ratio(_dots(half_image, half), _dots(half_image, half_image)) * active
        solution.addcmul_(direction, alpha).addcmul_(half, omega)
        residual = torch.addcmul(half, half_image, omega, value=-1)
        before, rho = rho, _dots(shadow, residual)
        beta = _ratio(rho * alpha, before * omega)
        direction = torch.addcmul(direction, image, omega, value=-1).mul_(beta).add_(residual)
    total = solution
    for _ in range(SWEEPS - 1):
        total = solution + walk_product(walk, total)
    return total


def _precondition(walk: Walk, values: Tensor) -> Tensor:
    """(I - (gamma Q)^m) ``values``."""
    swept = values
    for _ in range(SWEEPS):
        swept = walk_product(walk, swept)
    return values - swept


def _dots(left: Tensor, right: Tensor) -> Tensor:
    """Inner product of each pair of columns, (b,)."""
    return (left * right).sum(0)


def _ratio(over: Tensor, under: Tensor) -> Tensor:
    """Quotient, 0 where it is not finite: BiCGSTAB has broken down there, or the column is zero."""
    return (over / under).nan_to_num(0.0, 0.0, 0.0)


def sweeps_for(gamma: float, tolerance: float) -> int:
    """Number of terms of the power series for an entrywise error of at most ``tolerance``."""
    return max(1, math.ceil(math.log(tolerance) / math.log(gamma)))
