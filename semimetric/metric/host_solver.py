"""Nonlinear conjugate gradients for the angular objective on a CPU: the rules of Manopt, one after the other.

This is the plain statement of the algorithm, with ordinary numbers and branches and a line search that stops as soon as
it may. Its twin in ``semimetric.metric.conjugate_gradient`` takes the same steps on a GPU without ever looking at one.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from scipy.linalg.blas import dgemm
from scipy.special import expit
from torch import Tensor

from semimetric.metric.angular import AngularProblem
from semimetric.metric.host_walk import Array, HostWalk, dot
from semimetric.metric.rules import (
    CONTRACTION,
    CURVATURE_FLOOR,
    GRADIENT_TOLERANCE,
    STEP_TOLERANCE,
    SUFFICIENT_DECREASE,
    TRIALS,
    CGResult,
)


class Iterate(NamedTuple):
    """What is known at a point L: projections = rows @ L (2T, l), margins (T,) and cost."""

    projections: Array
    margins: Array
    cost: float


class Search(NamedTuple):
    """Outcome of a line search: the iterate reached, its step, and the step to try first next time."""

    iterate: Iterate
    step: float
    next_trial: float


class HostObjective:
    """The objective of an ``AngularProblem`` in NumPy.

    Sides and heights are multiplied apart: with the sizes of a mini-batch that is faster, because OpenBLAS does not
    repack the factors of a product of at most a million multiplications.
    """

    def __init__(self, problem: AngularProblem) -> None:
        self._triangles: Array = problem.rows.numpy().reshape(2, -1, problem.rows.shape[1])

    def project(self, matrix: Array) -> Array:
        """Multiply the rows with ``matrix``: (d, l) gives (2T, l)."""
        projections: Array = np.matmul(self._triangles, matrix)
        return projections.reshape(-1, matrix.shape[1])

    def measure(self, projections: Array) -> Iterate:
        """Margins and cost where the rows are projected to ``projections``, (2T, l)."""
        sides, heights = np.einsum("ij,ij->i", projections, projections).reshape(2, -1)
        margins = sides - heights
        return Iterate(projections, margins, float(np.logaddexp(0.0, margins).sum()))

    def gradient(self, iterate: Iterate) -> Array:
        """Euclidean gradient dJ/dL, (d, l): A^T (2s * A L) - B^T (2s * B L) for sides A and scaled heights B."""
        slopes = 2 * expit(iterate.margins)
        sides, heights = iterate.projections.reshape(2, len(slopes), -1) * slopes[:, None]
        transposed = dgemm(1.0, sides.T, self._triangles[0].T, trans_b=1)
        transposed = dgemm(-1.0, heights.T, self._triangles[1].T, trans_b=1, beta=1.0, c=transposed, overwrite_c=1)
        gradient: Array = transposed.T
        return gradient


class Line(NamedTuple):
    """A walk t -> (L + tD) C(t), seen through the rows X as (XL + tXD) C(t): no trial point needs a product with X."""

    objective: HostObjective
    walk: HostWalk
    start: Iterate
    velocity: Array
    slope: float

    def at(self, step: float) -> Iterate:
        """Measure the point after ``step``."""
        self.walk.brake(step)
        straight = self.velocity * step
        straight += self.start.projections
        return self.objective.measure(self.walk.correct(straight))

    def promised(self, step: float) -> float:
        """Highest cost after ``step`` that is low enough."""
        return self.start.cost + SUFFICIENT_DECREASE * step * self.slope

    def search(self, trial: float) -> Search | None:
        """Halve the step until the cost falls by half of what the slope promises; None if nothing lowers it."""
        step, evaluations = trial, 1
        reached = self.at(step)
        while not reached.cost <= self.promised(step) and evaluations < TRIALS:
            step *= CONTRACTION
            evaluations += 1
            reached = self.at(step)
        if step > 0 and reached.cost <= self.start.cost:
            return Search(reached, step, next_trial=step if evaluations == 2 else 2 * step)
        return None


def minimize_on_host(problem: AngularProblem, walk: HostWalk, start: Tensor, max_iterations: int) -> CGResult:
    """Run conjugate gradients from ``start`` (d, l), a point of the geometry that ``walk`` walks on.

    Numbers that overflow lead to costs that are not finite, as they do on a GPU, and not to warnings.
    """
    with np.errstate(all="ignore"):
        return _minimize(HostObjective(problem), walk, np.array(start.numpy(), order="C"), max_iterations)


def _minimize(objective: HostObjective, walk: HostWalk, point: Array, max_iterations: int) -> CGResult:
    """After a search that found nothing lower the run starts afresh along -g; after two in a row it ends."""
    now = objective.measure(objective.project(point))
    gradient = old_gradient = walk.project_gradient(point, objective.gradient(now))
    square = dot(gradient, gradient)
    costs, failures, restart, step, still = [now.cost], 0, True, 0.0, False

    while square >= GRADIENT_TOLERANCE**2 and failures < 2 and not still and len(costs) <= max_iterations:
        if restart:
            direction, slope, beta, trial = -gradient, -square, 0.0, 1 / math.sqrt(square)
        else:
            carried = walk.carry(point, direction, step)
            beta, slope = _hestenes_stiefel(old_gradient, gradient, square, carried)
            direction = np.multiply(carried, beta, out=carried)
            direction -= gradient
        walk.depart(point, direction, beta)
        search = Line(objective, walk, now, objective.project(direction), slope).search(trial)
        restart = search is None
        failures = failures + 1 if restart else 0
        if search is not None:
            now, step, trial = search
            point = walk.correct(point + step * direction)
            still = step * step * dot(direction, direction) < STEP_TOLERANCE**2
            old_gradient, gradient = gradient, walk.project_gradient(point, objective.gradient(now))
            square = dot(gradient, gradient)
        costs.append(now.cost)

    return _result(point, costs, square)


def _hestenes_stiefel(old_gradient: Array, gradient: Array, square: float, carried: Array) -> tuple[float, float]:
    """Return beta = max(0, <g', y> / <y, e'>), y = g' - T(g), and the slope of the cost along -g' + beta e'.

    The transported old gradient T(g) is never formed: transport is an orthogonal projection, so for vectors that are
    already tangent at the new point <g', T(g)> = <g', g> and <T(g), e'> = <g, e'>. Where the direction would point
    uphill, beta is 0 and the run starts afresh along -g'.
    """
    along = dot(gradient, carried)
    curvature = along - dot(old_gradient, carried)
    if abs(curvature) <= CURVATURE_FLOOR:
        return 0.0, -square
    beta = max(0.0, (square - dot(gradient, old_gradient)) / curvature)
    slope = beta * along - square
    return (beta, slope) if slope < 0 else (0.0, -square)


def _result(point: Array, costs: list[float], square: float) -> CGResult:
    return CGResult(
        point=torch.from_numpy(point),
        cost=torch.from_numpy(np.array(costs[-1])),
        gradient_norm=torch.from_numpy(np.array(math.sqrt(square))),
        iterations=torch.from_numpy(np.array(len(costs) - 1)),
        costs=torch.from_numpy(np.array(costs)),
    )
