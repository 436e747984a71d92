"""How the time of each step of the paper's method grows, beside the complexity that the paper states.

Each size is varied alone over a geometric grid, on one thread. The exponent of a size is the slope of log time against
log size over the upper part of its grid. T_b is the number of triplets, d the width of the features, l the number of
components, N the number of examples, n the number of labels.

cost, gradient          one evaluation at a random orthonormal L, as ``minimize_angular`` evaluates it on a CPU
gradient, d x d form    the same gradient from sums of d x d outer products, the way the paper counts it
metric step             ``minimize_angular``, 10 iterations
neighbours to mining    the parts of the constraints of ``affinity-triplets``; "constraints" is all of them
lrml, apllr, apit       their metric steps, with the neighbours graph given

Dutta, Harandi, Sekhar: Semi-supervised metric learning: a deep resurrection. AAAI 2021.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from semimetric.core.errors import InputError
from semimetric.core.threads import cpu_threads
from semimetric.graph import nearest_neighbors, propagate_affinities
from semimetric.methods import LearnsMetric
from semimetric.methods.affinity_triplets import AffinityTriplets
from semimetric.methods.apit import APIT
from semimetric.methods.apllr import APLLR
from semimetric.methods.lrml import LRML
from semimetric.metric import AngularProblem, Metric, minimize_angular, random_orthonormal
from semimetric.metric.host_solver import HostObjective, Iterate
from semimetric.mining import mine_triplets

ALPHA = 40.0  # degrees
ITERATIONS = 10  # of a metric step
NEIGHBORS = 10
CLASSES = 10
FITTED_POINTS = 3  # fewest points of a fit, if the grid has that many
LEAST_ROUNDS, MOST_ROUNDS = 2, 10  # timed runs of each size

Sizes = Mapping[str, int]
Work = Callable[[], object]
Data = TypeVar("Data")


@dataclass(frozen=True)
class Growth:
    """How the time of a step grows with one size.

    Attributes
    ----------
    step : str
        Name of the step.
    variable : str
        The size that varies: T_b, d, l or N.
    sizes : tuple of int
        Its values, ascending.
    seconds : tuple of float
        Least processor time of the step at each value.
    exponent, error : float
        The measured exponent and its uncertainty, from ``fit_exponent``.
    stated : float or None
        Exponent of the leading term that the paper states; None if it states none.
    stated_text : str
        The complexity as the paper writes it, or "not stated"; for a metric step the sum of cost and gradient.
    fixed : str
        The sizes that do not vary.
    """

    step: str
    variable: str
    sizes: tuple[int, ...]
    seconds: tuple[float, ...]
    exponent: float
    error: float
    stated: float | None
    stated_text: str
    fixed: str = ""


def measure_growth(quick: bool = False, progress: Callable[[str, int, int], None] | None = None) -> list[Growth]:
    """Time every step against every size that its complexity names.

    Parameters
    ----------
    quick : bool
        Use small grids, which take seconds instead of minutes. Their exponents mean little, because the fixed cost of
        each call dominates.
    progress : callable, optional
        Called with the name of a measurement, the number of measurements made and their total, after each of them.

    Returns
    -------
    list of Growth
        One for each pair of a step and a size.
    """
    grids, budget = (_QUICK, 0.01) if quick else (_FULL, 3.0)
    pairs = [(step, variable) for step in _STEPS for variable in step.stated]
    found = []
    with cpu_threads(1), threadpool_limits(1):
        for done, (step, variable) in enumerate(pairs, start=1):
            found.append(_measure(step, variable, grids[step.kind], budget))
            if progress is not None:
                progress(f"{step.name} against {variable}", done, len(pairs))
    return found


def fit_exponent(sizes: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """Exponent p of seconds ~ size^p, by least squares of the logarithms over the upper half of the sizes.

    Small sizes are left out, because there the fixed cost of a call hides the growth. At least three points are used,
    or both if there are two.

    Parameters
    ----------
    sizes, seconds : sequence of float
        Points of the curve, at least two, in any order. All are positive, and the sizes differ.

    Returns
    -------
    exponent, error : float
        The slope, and the largest difference between it and the slope of two neighbouring points of the fit.

    Examples
    --------
    >>> exponent, error = fit_exponent([1, 2, 4, 8], [3.0, 12.0, 48.0, 192.0])
    >>> round(exponent, 6), round(error, 6)
    (2.0, 0.0)
    """
    points = sorted(zip(sizes, seconds, strict=False))
    if len(sizes) != len(seconds) or len(points) < 2 or len({size for size, _ in points}) < len(points):
        raise InputError(
            f"sizes and seconds have {len(sizes)} and {len(seconds)} entries; "
            "give one time for each of at least two different sizes."
        )
    if not all(0 < value < math.inf for point in points for value in point):
        raise InputError("sizes and seconds must be positive and finite; some entry is not.")
    used = max(FITTED_POINTS, (len(points) + 1) // 2)
    x, y = np.log(np.array(points[-used:], dtype=np.float64)).T
    centred = x - x.mean()
    exponent = float(centred @ y / (centred @ centred))
    return exponent, float(np.abs(np.diff(y) / np.diff(x) - exponent).max())


def outer_product_gradient(rows: Tensor, point: Tensor, margins: Tensor) -> Tensor:
    """Gradient of the angular objective from its d x d matrix, O(d^2 T_b + d^2 l): what the paper counts.

    It equals ``AngularProblem.gradient``, which is O(d l T_b).

    Parameters
    ----------
    rows : (2T, d) tensor
        Sides and scaled heights of the triplets, ``AngularProblem.rows``.
    point : (d, l) tensor
        The metric factor L.
    margins : (T,) tensor
        Margins of the triplets at L.

    Returns
    -------
    (d, l) tensor
        2 (A diag(s) A^T - B diag(s) B^T) L, with the sides A, the scaled heights B and s = sigmoid(margins).
    """
    slopes = 2 * torch.sigmoid(margins)
    weights = torch.cat([slopes, -slopes]).unsqueeze(1)
    return (rows.T @ (weights * rows)) @ point


def _measure(step: _Step, variable: str, grid: _Grid, budget: float) -> Growth:
    """Fit the exponent of one size."""
    sizes = grid.values[variable]
    fixed = {name: value for name, value in grid.fixed.items() if name != variable}
    seconds = _least_seconds([step.prepare({**fixed, variable: size}) for size in sizes], budget)
    exponent, error = fit_exponent(sizes, seconds)
    described = ", ".join(f"{name} = {value}" for name, value in fixed.items())
    stated = step.stated[variable]
    return Growth(step.name, variable, sizes, seconds, exponent, error, stated, step.stated_text, described)


def _least_seconds(works: Sequence[Work], budget: float) -> tuple[float, ...]:
    """Least processor seconds of each work over some rounds, after one round to warm up.

    The works take turns, so that whatever else the machine does falls on all. The rounds take about ``budget`` seconds.
    Processor time leaves out the time in which other programs run.
    """
    once = sum(_seconds(work) for work in works)
    rounds = min(MOST_ROUNDS, max(LEAST_ROUNDS, int(budget / once)))
    return tuple(np.min([[_seconds(work) for work in works] for _ in range(rounds)], axis=0).tolist())


def _seconds(work: Work) -> float:
    began = time.process_time()
    work()
    return max(time.process_time() - began, time.get_clock_info("process_time").resolution)


def _clustered(nodes: int, width: int) -> Tensor:
    """Unit vectors (N, d) around random directions, one for each class; row i is of class i modulo their number."""
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(CLASSES, width, generator=generator, dtype=torch.float64)
    noise = torch.randn(nodes, width, generator=generator, dtype=torch.float64)
    return torch.nn.functional.normalize(directions[torch.arange(nodes) % CLASSES] + noise, dim=1)


class _Triplets(NamedTuple):
    """A random start L (d, l), triplets (T, d), and what a solver knows of their cost at L."""

    corners: tuple[Tensor, Tensor, Tensor]
    start: Tensor
    rows: Tensor
    margins: Tensor
    objective: HostObjective
    iterate: Iterate


def _triplets(sizes: Sizes) -> _Triplets:
    """A positive has the class of its anchor, a negative the next class."""
    count = sizes["T_b"]
    points = _clustered(count + CLASSES + 1, sizes["d"])
    corners = points[:count], points[CLASSES : count + CLASSES], points[CLASSES + 1 :]
    start = random_orthonormal(sizes["d"], sizes["l"], torch.Generator().manual_seed(0))
    problem = AngularProblem(*corners, ALPHA)
    objective = HostObjective(problem)
    iterate = objective.measure(objective.project(start.numpy()))
    return _Triplets(corners, start, problem.rows, torch.from_numpy(iterate.margins), objective, iterate)


class _Graph(NamedTuple):
    """Features (N, d), labels (N,), neighbour lists (N, k), and affinities (N, k) at random: mining only sorts them."""

    points: Tensor
    labels: Tensor
    neighbors: Tensor
    affinities: Tensor


def _examples(sizes: Sizes) -> tuple[Tensor, Tensor]:
    """Features (N, d) and labels (N,); all but the first n are unlabelled."""
    nodes = torch.arange(sizes["N"])
    return _clustered(sizes["N"], sizes["d"]), torch.where(nodes < sizes["n"], nodes % CLASSES, -1)


def _graph(sizes: Sizes) -> _Graph:
    points, labels = _examples(sizes)
    neighbors = nearest_neighbors(points, NEIGHBORS)
    return _Graph(points, labels, neighbors, torch.rand(neighbors.shape, generator=torch.Generator().manual_seed(0)))


def _on(data: Callable[[Sizes], Data], run: Callable[[Data], object]) -> Callable[[Sizes], Work]:
    return lambda sizes: partial(run, data(sizes))


def _closed_form(build: Callable[[], LearnsMetric[Any]]) -> Callable[[Sizes], Work]:
    """The metric step of a classical method, from the Euclidean metric."""

    def prepare(sizes: Sizes) -> Work:
        method, (points, labels) = build(), _examples(sizes)
        constraints = method.constraints(points, labels)
        return partial(method.update_metric, Metric.identity(sizes["d"]), points, constraints)

    return prepare


@dataclass(frozen=True)
class _Step:
    """A step, the ``kind`` of its grid, and what the paper states: in words, and as the exponent of each size."""

    name: str
    kind: str
    prepare: Callable[[Sizes], Work]
    stated_text: str
    stated: Mapping[str, float | None]


_COST = ("O(l d T_b)", {"T_b": 1.0, "d": 1.0, "l": 1.0})
_GRADIENT = ("O(d T_b + d^2 T_b + d^2 l)", {"T_b": 1.0, "d": 2.0, "l": 1.0})
_BOTH = ("O(l d T_b + d^2 T_b + d^2 l)", _GRADIENT[1])
_PROPAGATED = ("O(d^3 + N^3)", {"d": 3.0, "N": 3.0})

_ON_TRIPLETS: tuple[tuple[str, Callable[[_Triplets], object], tuple[str, dict[str, float]]], ...] = (
    ("cost", lambda at: at.objective.measure(at.objective.project(at.start.numpy())), _COST),
    ("gradient", lambda at: at.objective.gradient(at.iterate), _GRADIENT),
    ("gradient, d x d form", lambda at: outer_product_gradient(at.rows, at.start, at.margins), _GRADIENT),
    ("metric step", lambda at: minimize_angular(at.start, *at.corners, ALPHA, max_iterations=ITERATIONS), _BOTH),
)
_ON_GRAPH: dict[str, Callable[[_Graph], object]] = {
    "neighbours": lambda graph: nearest_neighbors(graph.points, NEIGHBORS),
    "propagation, dense": lambda graph: propagate_affinities(graph.neighbors, graph.labels, solver="dense"),
    "propagation, iterative": lambda graph: propagate_affinities(graph.neighbors, graph.labels, solver="iterative"),
    "mining": lambda graph: mine_triplets(graph.neighbors, graph.affinities),
    "constraints": lambda graph: AffinityTriplets().constraints(graph.points, graph.labels),
}
_STEPS = (
    *(_Step(name, "triplets", _on(_triplets, run), *stated) for name, run, stated in _ON_TRIPLETS),
    *(_Step(name, "graph", _on(_graph, run), "not stated", {"N": None}) for name, run in _ON_GRAPH.items()),
    _Step("lrml", "closed form", _closed_form(LRML), "O(d^3)", {"d": 3.0}),
    _Step("apllr", "closed form", _closed_form(APLLR), *_PROPAGATED),
    _Step("apit", "closed form", _closed_form(APIT), *_PROPAGATED),
)


@dataclass(frozen=True)
class _Grid:
    """Values of each size while the others are ``fixed``."""

    fixed: Mapping[str, int]
    values: Mapping[str, tuple[int, ...]]


def _doublings(first: int, count: int) -> tuple[int, ...]:
    return tuple(first << power for power in range(count))


_FULL = {
    "triplets": _Grid(
        {"T_b": 256, "d": 1024, "l": 64}, {"T_b": _doublings(64, 7), "d": _doublings(128, 6), "l": _doublings(16, 6)}
    ),
    # not powers of two, because the columns of matrices of such sizes compete for the cache
    "graph": _Grid({"d": 64, "n": 100}, {"N": _doublings(240, 5)}),
    "closed form": _Grid({"N": 2000, "d": 64, "n": 100}, {"d": _doublings(160, 4), "N": _doublings(1000, 5)}),
}
_QUICK = {
    "triplets": _Grid(
        {"T_b": 32, "d": 32, "l": 8}, {"T_b": _doublings(16, 3), "d": _doublings(16, 3), "l": _doublings(4, 3)}
    ),
    "graph": _Grid({"d": 8, "n": 20}, {"N": _doublings(32, 3)}),
    "closed form": _Grid({"N": 128, "d": 16, "n": 20}, {"d": _doublings(8, 3), "N": _doublings(64, 3)}),
}
