"""Nonlinear conjugate gradients for the angular objective, with the rules of the Manopt toolbox.

``minimize_angular`` chooses between two loops that take the same steps. The CPU loop, in
``semimetric.metric.host_solver``, states the rules plainly. The loop here keeps its state in tensors and has no
data-dependent branches, so on a GPU it never synchronises and can be captured as a CUDA graph.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from semimetric.core.errors import InputError
from semimetric.metric import rules
from semimetric.metric.angular import AngularProblem, row_margins
from semimetric.metric.geometry import Correction, Geometry, Stiefel, check_factor, identity_like
from semimetric.metric.host_solver import minimize_on_host
from semimetric.metric.rules import CGResult

LineSearchName = Literal["auto", "sequential", "parallel"]

BLOCK_NUMBERS = 1 << 27
"""Most projected numbers of trial steps at once, 1 GiB; of 200,000 triplets all ten steps would take four."""


class Iterate(NamedTuple):
    """State at a point L: projections = rows @ L (2T, l), margins (T,) and cost ()."""

    projections: Tensor
    margins: Tensor
    cost: Tensor


class Line(NamedTuple):
    """The path t -> (L + tD) C(t) after projection by the rows: its start, rows @ D, the slope at 0, and C."""

    start: Iterate
    velocity: Tensor
    slope: Tensor
    correction: Correction


class Search(NamedTuple):
    """Result of a line search: the new iterate, its step t and C(t), and the first step to try next.

    If no step lowered the cost, the iterate is the old one, the step is 0 and C is the identity.
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
    """Minimise the summed angular loss of T triplets over the metric factor L, by conjugate gradients.

    Parameters
    ----------
    point : (d, l) tensor
        Start, on the geometry up to rounding. Computation is in float64.
    anchor, positive, negative : (T, d) tensors
        Embeddings of the triplets, constant here. Only on a CPU are they checked to be finite.
    alpha : float
        Angle bound in degrees, in (0, 90).
    geometry : Geometry, optional
        ``Stiefel()`` (the default) keeps L^T L = I. ``Euclidean()`` only bounds the norm of L.
    max_iterations : int
        Most line searches.
    line_search : {"auto", "sequential", "parallel"}
        ``sequential`` tries steps one by one, on a CPU only. ``parallel`` tries all at once without synchronising a
        GPU. ``auto`` chooses by device. Both take the same steps.

    Returns
    -------
    CGResult
        Final point, cost, gradient norm, and the costs of all iterations.

    References
    ----------
    Boumal, Mishra, Absil, Sepulchre: Manopt, a Matlab toolbox for optimization on manifolds. JMLR 15, 2014.
    """
    check_factor(point)
    problem = AngularProblem(anchor, positive, negative, alpha)
    start = point.detach().to(torch.float64)
    on_host = _searches_on_host(line_search, start.device)
    _check_start(start, problem, max_iterations)
    geometry = Stiefel() if geometry is None else geometry
    start = geometry.repair(start)
    if on_host:
        return minimize_on_host(problem, geometry.on_host(), start, max_iterations)
    return _minimize(problem, geometry, start, max_iterations)


def _minimize(problem: AngularProblem, geometry: Geometry, start: Tensor, max_iterations: int) -> CGResult:
    """One conjugate-gradient run. ``alive`` becomes false when a stopping rule holds; later steps have length 0."""
    point = start
    now = _measure(problem.rows @ point)
    gradient = geometry.project(point, problem.gradient(now.projections, now.margins))
    gradient_square = _dot(gradient, gradient)
    direction, slope, trial = -gradient, -gradient_square, gradient_square.rsqrt()
    alive = gradient_square >= rules.GRADIENT_TOLERANCE**2
    moved_before = torch.ones_like(alive)
    iterations = torch.zeros_like(alive, dtype=torch.int64)
    costs = [now.cost]

    for _ in range(max_iterations):
        iterations = iterations + alive
        line = Line(now, problem.rows @ direction, slope, geometry.correction(point, direction))
        now, step, correction, trial = _search(line, trial.masked_fill(~alive, 0.0))
        costs.append(now.cost)
        point = torch.addcmul(point, step, direction) @ correction
        moved = step > 0
        still = moved & (step.square() * _dot(direction, direction) < rules.STEP_TOLERANCE**2)

        old_gradient = gradient
        gradient = geometry.project(point, problem.gradient(now.projections, now.margins))
        gradient_square = _dot(gradient, gradient)
        carried = geometry.project(point, direction)
        beta, slope = _hestenes_stiefel(old_gradient, gradient, gradient_square, carried, moved)
        direction = torch.addcmul(-gradient, beta, carried)

        trial = torch.where(moved, trial, gradient_square.rsqrt())
        alive = alive & (gradient_square >= rules.GRADIENT_TOLERANCE**2) & ~still & (moved | moved_before)
        moved_before = moved

    return CGResult(point, now.cost, gradient_square.sqrt(), iterations, torch.stack(costs))


def _hestenes_stiefel(
    old_gradient: Tensor, gradient: Tensor, gradient_square: Tensor, carried: Tensor, moved: Tensor
) -> tuple[Tensor, Tensor]:
    """Beta, 0 after a failed line search or if the direction would not descend, and the slope; without branches."""
    along = _dot(gradient, carried)
    curvature = along - _dot(old_gradient, carried)
    ratio = ((gradient_square - _dot(gradient, old_gradient)) / curvature).clamp(min=0.0)
    uphill = ratio * along - gradient_square >= -rules.DESCENT_FLOOR * gradient_square
    beta = ratio.masked_fill((curvature.abs() <= rules.CURVATURE_FLOOR) | uphill | ~moved, 0.0)
    return beta, beta * along - gradient_square


def _measure(projections: Tensor) -> Iterate:
    margins = row_margins(projections)
    return Iterate(projections, margins, AngularProblem.cost(margins))


def _search(line: Line, trial: Tensor) -> Search:
    """Evaluate all trial steps and keep the first with sufficient decrease, or the last.

    As many steps are evaluated at once as ``BLOCK_NUMBERS`` allows; their projections are not kept.
    """
    steps = trial * rules.CONTRACTION ** torch.arange(rules.TRIALS, dtype=trial.dtype, device=trial.device)
    corrections = line.correction(steps)
    at_once = max(1, BLOCK_NUMBERS // line.velocity.numel())
    blocks = zip(steps.split(at_once), corrections.split(at_once), strict=True)
    costs = torch.cat([_reached(line, *block).cost for block in blocks])
    enough = costs <= torch.addcmul(line.start.cost, steps, line.slope, value=rules.SUFFICIENT_DECREASE)
    chosen = (~enough).cumprod(0).sum().clamp(max=rules.TRIALS - 1)
    step, correction = (values.index_select(0, chosen[None]) for values in (steps, corrections))
    picked = [values.squeeze(0) for values in _reached(line, step, correction)]
    step, correction = step.squeeze(0), correction.squeeze(0)
    lower = (picked[-1] <= line.start.cost) & (step > 0)
    iterate = Iterate(*(torch.where(lower, new, old) for new, old in zip(picked, line.start, strict=True)))
    step = step.masked_fill(~lower, 0.0)
    correction = torch.where(lower, correction, identity_like(correction))
    return Search(iterate, step, correction, torch.where(chosen == 1, step, 2 * step))


def _reached(line: Line, steps: Tensor, corrections: Tensor) -> Iterate:
    """The iterates at (s,) steps with their (s, l, l) corrections."""
    return _measure(torch.addcmul(line.start.projections, steps[:, None, None], line.velocity) @ corrections)


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
