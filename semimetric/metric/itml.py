"""Information-theoretic metric learning: the metric nearest to the identity that keeps labelled pairs near or apart.

Over M, LogDet divergence to I is minimised under v^T M v <= u for pairs of one class and v^T M v >= l for pairs of two,
with slack. Bregman's cyclic projections change M by one rank-one matrix per violated pair. Every state they pass
through has the form

    M = (I + sum_p s_p lambda_p v_p v_p^T)^-1,   s_p = 1 for a similar pair and -1 for a dissimilar one,

with the duals lambda >= 0. Hence the duals are all that must be exact, and M is only formed from them at the end.

References
----------
Davis, Kulis, Jain, Sra, Dhillon: Information-theoretic metric learning. ICML 2007.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from scipy.linalg.blas import dger, dsymv
from threadpoolctl import threadpool_limits
from torch import Tensor

from semimetric.core.checks import check_not_negative
from semimetric.core.errors import InputError
from semimetric.metric.host_geometry import Array
from semimetric.metric.scatters import check_labelled, weighted_scatter
from semimetric.mining import labelled_pairs, spread_pairs

Indices = npt.NDArray[np.int64]

MEAN_SQUARE = 2.0
"""Mean squared distance between two examples to which features are scaled, as if their covariance had trace 1."""

PERCENTILES = (5, 50, 95)
"""Of the squared distances: the bound for similar pairs, the median, and the bound for dissimilar pairs."""

WIDENING = (0.9, 1.1)
"""Bounds as multiples of the median where the percentiles coincide."""

BOUND_PAIRS = 20_000
"""Pairs whose distances give the percentiles: all of them up to 200 examples, and as many spread evenly beyond."""

SHORTEST = 1e-12
"""Squared distance below which two examples count as one, in scaled units."""


@dataclass(frozen=True)
class ITMLResult:
    """The metric ``matrix`` (d, d), float64 with trace d, and how it came about.

    The bounds are those of squared distances after the features were scaled to a mean squared distance of 2;
    ``widened`` tells that the percentiles coincided and the bounds were set around the median instead.
    """

    matrix: Tensor
    sweeps: int
    converged: bool
    similar_bound: float
    dissimilar_bound: float
    widened: bool


@dataclass(frozen=True)
class PairBounds:
    """Constraints on squared distances, in the order of the projections.

    ``pairs`` (P, 2) are rows of the points, ``signs`` (P,) 1 for at most and -1 for at least ``bounds`` (P,) > 0.
    """

    pairs: Indices
    signs: Array
    bounds: Array


@dataclass(frozen=True)
class Solution:
    """Duals (P,) after some ``sweeps`` through all pairs, and whether the last one changed little."""

    duals: Array
    sweeps: int
    converged: bool


def information_theoretic_prior(
    features: Tensor,
    classes: Tensor,
    slack: float = 1.0,
    max_pairs: int = 2000,
    max_sweeps: int = 50,
    tolerance: float = 1e-3,
) -> ITMLResult:
    """ITML on the labelled examples ``features`` (n, d) with ``classes`` (n,), integers from 0 up.

    The prior I has a scale, so the features are first scaled to a mean squared distance of 2 over all pairs; as the
    result has trace d, it does not depend on their scale at all. The bounds u and l are the 5th and 95th percentiles
    of the squared distances between distinct examples.

    Parameters
    ----------
    features, classes
        On any device; the work is done on the CPU in float64 and the result returns to the device of ``features``.
    slack : float
        Weight gamma of the bounds, above 0; infinite forbids slack, and contradicting pairs then never settle.
    max_pairs : int
        Half of them similar and half dissimilar, as far as there are so many, spread evenly over the list of all.
    max_sweeps, tolerance
        Stop when the duals move by less than ``tolerance`` in a sweep, sum |change| / (||new|| + ||old||). Features
        of low rank may take hundreds of sweeps; the metric of the last one is positive definite all the same.
    """
    classes = check_labelled(features, classes)
    _check_settings(slack, max_pairs, max_sweeps, tolerance)
    points = _unit_spread(features.detach().to("cpu", torch.float64).numpy())
    similar_bound, dissimilar_bound, widened = _bounds(points)
    constraints = choose_pairs(classes.cpu(), max_pairs, similar_bound, dissimilar_bound)
    solution = project_cyclically(points, constraints, slack, max_sweeps, tolerance)
    matrix = metric_of_duals(points, constraints, solution.duals)
    return ITMLResult(
        (matrix * (len(matrix) / matrix.trace())).to(features.device),
        solution.sweeps,
        solution.converged,
        similar_bound,
        dissimilar_bound,
        widened,
    )


def choose_pairs(classes: Tensor, most: int, similar_bound: float, dissimilar_bound: float) -> PairBounds:
    """Constrain at most ``most`` pairs of points with ``classes`` (n,), half of each kind where there are so many.

    Pairs of both kinds take turns in proportion to their numbers. Were all similar pairs projected first, features of
    low rank would have every distance shrunk by orders of magnitude before the first pair is pushed apart.
    """
    counts = torch.unique(classes, return_counts=True)[1]
    alike = int((counts * (counts - 1)).sum()) // 2
    unlike = len(classes) * (len(classes) - 1) // 2 - alike
    similar_count = min(alike, max(most // 2, most - unlike))
    similar, dissimilar = labelled_pairs(classes, similar_count, most - similar_count)
    turns = np.argsort(np.concatenate([_turns(len(similar)), _turns(len(dissimilar))]), kind="stable")
    is_similar = turns < len(similar)
    return PairBounds(
        torch.cat([similar, dissimilar]).numpy()[turns],
        np.where(is_similar, 1.0, -1.0),
        np.where(is_similar, similar_bound, dissimilar_bound),
    )


def project_cyclically(
    points: Array, constraints: PairBounds, slack: float, max_sweeps: int, tolerance: float
) -> Solution:
    """Project onto one constraint after the other, starting from M = I, until the duals of ``points`` (n, d) settle.

    The change of a sweep is sum |new - old| / (||new|| + ||old||). One thread: on matrices of this size others only
    wait for each other, on a busy machine a hundred times longer than the work takes.
    """
    projections = Projections(points, constraints, slack)
    before, sweeps, converged = np.zeros(len(constraints.pairs)), 0, False
    with threadpool_limits(1, user_api="blas"):
        while sweeps < max_sweeps and not converged:
            now = projections.sweep()
            change, size = np.abs(now - before).sum(), np.linalg.norm(now) + np.linalg.norm(before)
            before, sweeps, converged = now, sweeps + 1, bool(change <= tolerance * size)
    return Solution(before, sweeps, converged)


class Projections:
    """The state of the cyclic projections: M as a ``Space`` holds it, and for each pair lambda and 1/xi.

    The latter are Python numbers: to read or write one is faster than one entry of an array.
    """

    def __init__(self, points: Array, constraints: PairBounds, slack: float) -> None:
        self._space: Space = PointSpace(points) if len(points) <= 2 * points.shape[1] else FeatureSpace(points)
        self._slack = slack
        self._share = 1.0 if math.isinf(slack) else slack / (slack + 1)
        self._pairs: list[tuple[int, int]] = constraints.pairs.tolist()
        self._signs: list[float] = constraints.signs.tolist()
        self._duals = [0.0] * len(self._pairs)
        self._inverse_bounds: list[float] = (1 / constraints.bounds).tolist()

    def sweep(self) -> Array:
        """Project onto every constraint once, and return the duals (P,).

        With q = v^T M v, the sign s and the current bound xi of a pair, the step is

            a = min(lambda, gamma/(gamma + 1) s (1/q - 1/xi)),

        and a is taken from lambda, s a/gamma added to 1/xi, and s a / (1 - s a q) (M v)(M v)^T added to M. Examples
        that coincide cannot be moved, and are passed over.
        """
        space, duals, inverse_bounds = self._space, self._duals, self._inverse_bounds
        for p, ((i, j), sign) in enumerate(zip(self._pairs, self._signs, strict=True)):
            length = space.squared_length(i, j)
            if length < SHORTEST:
                continue
            step = min(duals[p], self._share * sign * (1 / length - inverse_bounds[p]))
            if step != 0:
                duals[p] -= step
                inverse_bounds[p] += sign * step / self._slack
                image = space.image(i, j)
                factor = sign * step / (1 - sign * step * length)
                dger(factor, image, image, a=space.matrix, overwrite_a=1)
        space.matrix[:] = (space.matrix + space.matrix.T) / 2
        return np.array(duals)


def metric_of_duals(points: Array, constraints: PairBounds, duals: Array) -> Tensor:
    """M = (I + sum_p s_p lambda_p v_p v_p^T)^-1, (d, d), exactly symmetric."""
    rows, weights = torch.from_numpy(points), torch.from_numpy(constraints.signs * duals)
    scatter = weighted_scatter(rows, torch.from_numpy(constraints.pairs), weights)
    values, vectors = torch.linalg.eigh(scatter)
    precisions = 1 + values
    least = torch.finfo(torch.float64).eps * float(precisions.abs().max())
    matrix: Tensor = (vectors / precisions.clamp(min=least)) @ vectors.T
    return (matrix + matrix.T) / 2


class Space(Protocol):
    """Where the projections take place: a symmetric matrix, Fortran-ordered, that a step changes by image image^T."""

    matrix: Array

    def squared_length(self, i: int, j: int) -> float:
        """v^T M v for the difference v of the points i and j."""

    def image(self, i: int, j: int) -> Array:
        """M v, as this space writes it."""


class PointSpace:
    """K = Z M Z^T, (n, n), the fastest for few points: a length is three entries of K, and Z M v two columns of it."""

    def __init__(self, points: Array) -> None:
        self.matrix: Array = np.asfortranarray(points @ points.T)

    def squared_length(self, i: int, j: int) -> float:
        """K_ii + K_jj - 2 K_ij."""
        entry = self.matrix.item
        return entry(i, i) + entry(j, j) - 2 * entry(i, j)

    def image(self, i: int, j: int) -> Array:
        """Z M v = K_i - K_j."""
        image: Array = self.matrix[:, i] - self.matrix[:, j]
        return image


class FeatureSpace:
    """M itself, (d, d), for more points than 2 d."""

    def __init__(self, points: Array) -> None:
        self.points = points
        self.matrix: Array = np.eye(points.shape[1], order="F")

    def squared_length(self, i: int, j: int) -> float:
        """v^T M v."""
        return float((self.points[i] - self.points[j]) @ self.image(i, j))

    def image(self, i: int, j: int) -> Array:
        """M v."""
        image: Array = dsymv(1.0, self.matrix, self.points[i] - self.points[j])
        return image


def _check_settings(slack: float, max_pairs: int, max_sweeps: int, tolerance: float) -> None:
    if not slack > 0:
        raise InputError(f"slack must be above 0 (it may be infinite), got {slack}.")
    if max_pairs < 1 or max_sweeps < 1:
        raise InputError(f"max_pairs and max_sweeps must be at least 1, got {max_pairs} and {max_sweeps}.")
    check_not_negative(tolerance, "tolerance")


def _unit_spread(points: Array) -> Array:
    """Points around their mean, scaled to the mean squared distance ``MEAN_SQUARE`` unless they all coincide."""
    centred: Array = points - points.mean(0)
    mean_square = 2 * np.square(centred).sum() / max(len(points) - 1, 1)
    return centred * np.sqrt(MEAN_SQUARE / mean_square) if mean_square > np.finfo(np.float64).tiny else centred


def _bounds(points: Array) -> tuple[float, float, bool]:
    """Bounds for similar and for dissimilar pairs, and whether the percentiles coincided and were widened."""
    pairs = spread_pairs(len(points), BOUND_PAIRS).numpy()
    lengths = np.square(points[pairs[:, 0]] - points[pairs[:, 1]]).sum(1)
    lengths = lengths[lengths >= SHORTEST]
    near, median, far = np.percentile(lengths, PERCENTILES) if len(lengths) else (MEAN_SQUARE,) * 3
    if far - near > 1e-9 * far:
        return float(near), float(far), False
    return WIDENING[0] * float(median), WIDENING[1] * float(median), True


def _turns(count: int) -> Array:
    """Evenly spaced moments in (0, 1), one for each of ``count`` pairs."""
    return (np.arange(count) + 0.5) / max(count, 1)
