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
from semimetric.metric.host_geometry import Array, Correct, HostGeometry, dot
from semimetric.metric.rules import (
    CONTRACTION,
    CURVATURE_FLOOR,
    DESCENT_FLOOR,
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
    """Outcome of a line search: the new point and what is known there, the step, and the step to try first next."""

    point: Array
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


class Trial(NamedTuple):
    """A step t tried on a line: the straight point L + tD, the correction of it, and what is known there."""

    straight: Array
    correct: Correct
    iterate: Iterate


class Line(NamedTuple):
    """A walk t -> (L + tD) C(t), seen through the rows X as (XL + tXD) C(t): no trial point needs a product with X."""

    objective: HostObjective
    geometry: HostGeometry
    point: Array
    direction: Array
    start: Iterate
    velocity: Array
    slope: float

    def at(self, step: float) -> Trial:
        """Measure what lies after ``step``."""
        straight = _ahead(self.point, step, self.direction)
        correct = self.geometry.brake(straight)
        projections = correct(_ahead(self.start.projections, step, self.velocity))
        return Trial(straight, correct, self.objective.measure(projections))

    def promised(self, step: float) -> float:
        """Highest cost after ``step`` that is low enough."""
        return self.start.cost + SUFFICIENT_DECREASE * step * self.slope

    def search(self, first_step: float) -> Search | None:
        """Halve the step until the cost falls by half of what the slope promises; None if nothing lowers it."""
        step, evaluations = first_step, 1
        trial = self.at(step)
        while not trial.iterate.cost <= self.promised(step) and evaluations < TRIALS:
            step *= CONTRACTION
            evaluations += 1
            trial = self.at(step)
        if step > 0 and trial.iterate.cost <= self.start.cost:
            next_trial = step if evaluations == 2 else 2 * step
            return Search(trial.correct(trial.straight), trial.iterate, step, next_trial)
        return None


def minimize_on_host(problem: AngularProblem, geometry: HostGeometry, start: Tensor, max_iterations: int) -> CGResult:
    """Run conjugate gradients from ``start`` (d, l), a point of the geometry.

    Numbers that overflow lead to costs that are not finite, as they do on a GPU, and not to warnings.
    """
    with np.errstate(all="ignore"):
        return _minimize(HostObjective(problem), geometry, np.array(start.numpy(), order="C"), max_iterations)


def _minimize(objective: HostObjective, geometry: HostGeometry, point: Array, max_iterations: int) -> CGResult:
    """After a search that found nothing lower the run starts afresh along -g; after two in a row it ends."""
    now = objective.measure(objective.project(point))
    gradient = old_gradient = geometry.project(point, objective.gradient(now))
    square = dot(gradient, gradient)
    costs, failures, still = [now.cost], 0, False
    direction: Array | None = None

    while square >= GRADIENT_TOLERANCE**2 and failures < 2 and not still and len(costs) <= max_iterations:
        if direction is None:
            direction, slope, trial = -gradient, -square, 1 / math.sqrt(square)
        else:
            direction = geometry.project(point, direction)
            beta, slope = _hestenes_stiefel(old_gradient, gradient, square, direction)
            direction *= beta
            direction -= gradient
        line = Line(objective, geometry, point, direction, now, objective.project(direction), slope)
        search = line.search(trial)
        if search is None:
            direction, failures = None, failures + 1
        else:
            point, now, step, trial = search
            failures, still = 0, step * step * dot(direction, direction) < STEP_TOLERANCE**2
            old_gradient, gradient = gradient, geometry.project(point, objective.gradient(now))
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
    return (beta, slope) if slope < -DESCENT_FLOOR * square else (0.0, -square)


def _result(point: Array, costs: list[float], square: float) -> CGResult:
    return CGResult(
        point=torch.from_numpy(point),
        cost=torch.from_numpy(np.array(costs[-1])),
        gradient_norm=torch.from_numpy(np.array(math.sqrt(square))),
        iterations=torch.from_numpy(np.array(len(costs) - 1)),
        costs=torch.from_numpy(np.array(costs)),
    )


def _ahead(start: Array, step: float, velocity: Array) -> Array:
    """``start`` + ``step`` ``velocity``."""
    straight = velocity * step
    straight += start
    return straight
