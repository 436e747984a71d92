"""Nonlinear conjugate gradients for the angular objective, by the rules of the Manopt toolbox.

``minimize_angular`` is the door to two loops that take the same steps. The one on a CPU, in
``semimetric.metric.host_solver``, states the rules plainly. The one here keeps its whole state in tensors and branches
on none of them, so that on a GPU it never waits for the host and can be captured as a CUDA graph.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from semimetric.core.errors import InputError
from semimetric.metric.angular import AngularProblem, row_margins
from semimetric.metric.geometry import Brake, Geometry, Stiefel, check_factor
from semimetric.metric.host_solver import minimize_on_host
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

LineSearchName = Literal["auto", "sequential", "parallel"]


class Iterate(NamedTuple):
    """What is known at a point L: projections = rows @ L (2T, l), margins (T,) and cost ()."""

    projections: Tensor
    margins: Tensor
    cost: Tensor


class Line(NamedTuple):
    """A walk t -> (L + tD) C(t), seen through the rows: where it starts, rows @ D, slope at 0 and C."""

    start: Iterate
    velocity: Tensor
    slope: Tensor
    brake: Brake


class Search(NamedTuple):
    """Outcome of a line search: the iterate reached, its step t and C(t), and the step to try first next time.

    If nothing lowered the cost, the iterate is the old one, the step 0 and C the identity.
    """

    iterate: Iterate
    step: Tensor
    correction: Tensor
    next_trial: Tensor


@torch.no_grad()
def minimize_angular(
    point: Tensor,
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    alpha: float = 40.0,
    *,
    geometry: Geometry | None = None,
    max_iterations: int = 10,
    line_search: LineSearchName = "auto",
) -> CGResult:
    """Lower the summed angular loss of T triplets over the metric factor L.

    Parameters
    ----------
    point : (d, l)
        Start, on the geometry up to rounding; float64 is used throughout.
    anchor, positive, negative : (T, d)
        The triplets' embeddings; constants here.
    alpha : float
        Angle bound in degrees, in (0, 90).
    geometry
        ``Stiefel()`` (the default) keeps L^T L = I; ``Euclidean()`` leaves L free in a ball.
    max_iterations : int
        Upper bound on the number of line searches.
    line_search
        ``sequential`` tries steps one after the other, on a CPU only; ``parallel`` tries all of them at once and
        never waits for the host; ``auto`` takes the first on a CPU and the second elsewhere. Both take the same steps.

    Notes
    -----
    Values are checked to be finite on a CPU only, since the check waits for the device; elsewhere an input that
    is not finite gives a cost that is not finite.
    """
    check_factor(point)
    problem = AngularProblem(anchor, positive, negative, alpha)
    start = point.detach().to(torch.float64)
    on_host = _searches_on_host(line_search, start.device)
    _check_start(start, problem, max_iterations)
    geometry = Stiefel() if geometry is None else geometry
    start = geometry.enter(start)
    if on_host:
        return minimize_on_host(problem, geometry.on_host(), start, max_iterations)
    return _minimize(problem, geometry, start, max_iterations)


def _minimize(problem: AngularProblem, geometry: Geometry, start: Tensor, max_iterations: int) -> CGResult:
    """One conjugate gradient run; ``alive`` turns false for good when a stopping rule holds.

    A dead run goes on with steps of length 0, which change nothing.
    """
    point = start
    now = _measure(problem.rows @ point)
    gradient = geometry.project(point, problem.gradient(now.projections, now.margins))
    gradient_square = _dot(gradient, gradient)
    direction, slope, trial = -gradient, -gradient_square, gradient_square.rsqrt()
    alive = gradient_square >= GRADIENT_TOLERANCE**2
    moved_before = torch.ones_like(alive)
    iterations = torch.zeros_like(alive, dtype=torch.int64)
    costs = [now.cost]

    for _ in range(max_iterations):
        iterations = iterations + alive
        line = Line(now, problem.rows @ direction, slope, geometry.brake(point, direction))
        now, step, correction, trial = _search(line, trial.masked_fill(~alive, 0.0))
        costs.append(now.cost)
        point = torch.addcmul(point, step, direction) @ correction
        moved = step > 0
        still = moved & (step.square() * _dot(direction, direction) < STEP_TOLERANCE**2)

        old_gradient = gradient
        gradient = geometry.project(point, problem.gradient(now.projections, now.margins))
        gradient_square = _dot(gradient, gradient)
        carried = geometry.project(point, direction)
        beta, slope = _hestenes_stiefel(old_gradient, gradient, gradient_square, carried, moved)
        direction = torch.addcmul(-gradient, beta, carried)

        trial = torch.where(moved, trial, gradient_square.rsqrt())
        alive = alive & (gradient_square >= GRADIENT_TOLERANCE**2) & ~still & (moved | moved_before)
        moved_before = moved

    return CGResult(
        point=point,
        cost=now.cost,
        gradient_norm=gradient_square.sqrt(),
        iterations=iterations,
        costs=torch.stack(costs),
    )


def _hestenes_stiefel(
    old_gradient: Tensor, gradient: Tensor, gradient_square: Tensor, carried: Tensor, moved: Tensor
) -> tuple[Tensor, Tensor]:
    """Return beta and the slope along the new direction, as in the loop for a CPU but without branches.

    After a failed line search, or where the direction would point uphill, beta is 0 and the run starts afresh.
    """
    along = _dot(gradient, carried)
    curvature = along - _dot(old_gradient, carried)
    ratio = ((gradient_square - _dot(gradient, old_gradient)) / curvature).clamp(min=0.0)
    uphill = ratio * along - gradient_square >= -DESCENT_FLOOR * gradient_square
    beta = ratio.masked_fill((curvature.abs() <= CURVATURE_FLOOR) | uphill | ~moved, 0.0)
    return beta, beta * along - gradient_square


def _measure(projections: Tensor) -> Iterate:
    margins = row_margins(projections)
    return Iterate(projections, margins, AngularProblem.cost(margins))


def _try(line: Line, steps: Tensor) -> tuple[Iterate, Tensor, Tensor]:
    """Measure the line at ``steps``, () or (S,): what is there, C there, and whether the cost fell enough."""
    correction = line.brake(steps)
    straight = torch.addcmul(line.start.projections, steps[..., None, None], line.velocity)
    reached = _measure(straight @ correction)
    enough = reached.cost <= torch.addcmul(line.start.cost, steps, line.slope, value=SUFFICIENT_DECREASE)
    return reached, correction, enough


def _search(line: Line, trial: Tensor) -> Search:
    """Measure all trial steps at once and keep the first whose cost fell enough, or the last."""
    steps = trial * CONTRACTION ** torch.arange(TRIALS, dtype=trial.dtype, device=trial.device)
    reached, corrections, enough = _try(line, steps)
    chosen = (~enough).cumprod(0).sum().clamp(max=TRIALS - 1)
    *picked, correction, step = (
        values.index_select(0, chosen[None]).squeeze(0) for values in (*reached, corrections, steps)
    )
    lower = (picked[-1] <= line.start.cost) & (step > 0)
    iterate = Iterate(*(torch.where(lower, new, old) for new, old in zip(picked, line.start, strict=True)))
    step = step.masked_fill(~lower, 0.0)
    identity = torch.eye(correction.shape[0], dtype=correction.dtype, device=correction.device)
    correction = torch.where(lower, correction, identity)
    return Search(iterate, step, correction, torch.where(chosen == 1, step, 2 * step))


def _searches_on_host(name: LineSearchName, device: torch.device) -> bool:
    if name not in ("auto", "sequential", "parallel"):
        raise InputError(f"line_search is {name!r}; choose 'auto', 'sequential' or 'parallel'.")
    if name == "sequential" and device.type != "cpu":
        raise InputError(f"line_search is 'sequential' for a point on {device}; it needs a CPU: choose 'parallel'.")
    return name != "parallel" and device.type == "cpu"


def _check_start(start: Tensor, problem: AngularProblem, max_iterations: int) -> None:
    d = problem.rows.shape[1]
    if start.shape[0] != d:
        raise InputError(f"point has {start.shape[0]} rows, but the embeddings have {d} columns; they must agree.")
    if max_iterations < 0:
        raise InputError(f"max_iterations is {max_iterations}; it must be 0 or more.")
    if start.is_cpu and not math.isfinite(start.sum().item() + problem.rows.sum().item()):
        raise InputError("point or the embeddings hold values that are not finite; remove the NaN or infinity.")


def _dot(left: Tensor, right: Tensor) -> Tensor:
    return torch.dot(left.reshape(-1), right.reshape(-1))
