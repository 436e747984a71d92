"""Nonlinear conjugate gradients for the angular objective on a CPU, with the rules of Manopt.

This is the plain form of the algorithm, with scalars, branches and a line search that stops early. The loop in
``semimetric.metric.conjugate_gradient`` takes the same steps on a GPU.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import NamedTuple

import numpy as np
import torch
from scipy.linalg.blas import dgemm
from scipy.special import expit
from torch import Tensor

from semimetric.core.threads import one_blas_thread
from semimetric.metric import rules
from semimetric.metric.angular import AngularProblem
from semimetric.metric.host_geometry import Array, Correct, HostGeometry, dot
from semimetric.metric.rules import CGResult

ONE_THREAD_PRODUCT = 1 << 29
"""Problems whose products have fewer multiplications are solved with one BLAS thread. More threads take up to 50 times
as long, also on an idle machine, because each of many short products waits for all of them."""


class Iterate(NamedTuple):
    """State at a point L: projections = rows @ L (2T, l), margins (T,) and cost."""

    projections: Array
    margins: Array
    cost: float


class Search(NamedTuple):
    """Result of a line search: the new point, its iterate, the step, and the first step to try next."""

    point: Array
    iterate: Iterate
    step: float
    next_trial: float


class HostObjective:
    """The objective of an ``AngularProblem`` in NumPy.

    Sides and heights are multiplied separately. For mini-batches that is faster, because OpenBLAS does not repack the
    factors of products of at most a million multiplications.
    """

    def __init__(self, problem: AngularProblem) -> None:
        self._triangles: Array = problem.rows.numpy().reshape(2, -1, problem.rows.shape[1])

    def project(self, matrix: Array) -> Array:
        """Multiply the rows with ``matrix``: (d, l) gives (2T, l)."""
        projections: Array = np.matmul(self._triangles, matrix)
        return projections.reshape(-1, matrix.shape[1])

    def measure(self, projections: Array) -> Iterate:
        """The iterate at the projections (2T, l)."""
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
    """A step t tried on a line: the straight point L + tD, its correction, and its iterate."""

    straight: Array
    correct: Correct
    iterate: Iterate


class Line(NamedTuple):
    """The path t -> (L + tD) C(t), projected by the rows X as (XL + tXD) C(t): trial points need no product with X."""

    objective: HostObjective
    geometry: HostGeometry
    point: Array
    direction: Array
    start: Iterate
    velocity: Array
    slope: float

    def at(self, step: float) -> Trial:
        """Evaluate the path at ``step``."""
        straight = _ahead(self.point, step, self.direction)
        correct = self.geometry.correction(straight)
        projections = correct(_ahead(self.start.projections, step, self.velocity))
        return Trial(straight, correct, self.objective.measure(projections))

    def search(self, first_step: float) -> Search | None:
        """Halve the step until the decrease is sufficient; None if no step lowers the cost."""
        step = first_step
        for evaluations in range(1, rules.TRIALS + 1):
            trial = self.at(step)
            sufficient = trial.iterate.cost <= self.start.cost + rules.SUFFICIENT_DECREASE * step * self.slope
            if sufficient or evaluations == rules.TRIALS:
                break
            step *= rules.CONTRACTION
        if step > 0 and trial.iterate.cost <= self.start.cost:
            next_trial = step if evaluations == 2 else 2 * step
            return Search(trial.correct(trial.straight), trial.iterate, step, next_trial)
        return None


def minimize_on_host(problem: AngularProblem, geometry: HostGeometry, start: Tensor, max_iterations: int) -> CGResult:
    """Run conjugate gradients from ``start`` (d, l); overflow gives costs that are not finite, without warnings."""
    small = problem.rows.numel() * start.shape[1] < ONE_THREAD_PRODUCT
    with np.errstate(all="ignore"), one_blas_thread() if small else nullcontext():
        return _minimize(HostObjective(problem), geometry, np.array(start.numpy(), order="C"), max_iterations)


def _minimize(objective: HostObjective, geometry: HostGeometry, point: Array, max_iterations: int) -> CGResult:
    """One run. It restarts along -g after a failed line search and ends after two in a row."""
    now = objective.measure(objective.project(point))
    gradient = old_gradient = geometry.project(point, objective.gradient(now))
    square = dot(gradient, gradient)
    costs, failures, still = [now.cost], 0, False
    direction: Array | None = None

    while square >= rules.GRADIENT_TOLERANCE**2 and failures < 2 and not still and len(costs) <= max_iterations:
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
            failures, still = 0, step * step * dot(direction, direction) < rules.STEP_TOLERANCE**2
            old_gradient, gradient = gradient, geometry.project(point, objective.gradient(now))
            square = dot(gradient, gradient)
        costs.append(now.cost)

    numbers = (costs[-1], math.sqrt(square), len(costs) - 1, costs)
    return CGResult(torch.from_numpy(point), *(torch.from_numpy(np.array(number)) for number in numbers))


def _hestenes_stiefel(old_gradient: Array, gradient: Array, square: float, carried: Array) -> tuple[float, float]:
    """Beta = max(0, <g', y> / <y, e'>), y = g' - T(g), and the slope of the cost along -g' + beta e'.

    The transported old gradient T(g) is never formed. Transport is an orthogonal projection, so for vectors tangent at
    the new point <g', T(g)> = <g', g> and <T(g), e'> = <g, e'>. If the direction would not descend, beta is 0.
    """
    along = dot(gradient, carried)
    curvature = along - dot(old_gradient, carried)
    if abs(curvature) <= rules.CURVATURE_FLOOR:
        return 0.0, -square
    beta = max(0.0, (square - dot(gradient, old_gradient)) / curvature)
    slope = beta * along - square
    return (beta, slope) if slope < -rules.DESCENT_FLOOR * square else (0.0, -square)


def _ahead(start: Array, step: float, velocity: Array) -> Array:
    """``start`` + ``step`` ``velocity``."""
    straight = velocity * step
    straight += start
    return straight
