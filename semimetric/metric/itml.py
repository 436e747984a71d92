"""Information-theoretic metric learning (ITML): the metric nearest to the identity within bounds on labelled pairs.

The LogDet divergence of M to I is minimised under v^T M v <= u for pairs of one class and v^T M v >= l for pairs of two
classes, with slack (Davis, Kulis, Jain, Sra, Dhillon: Information-theoretic metric learning. ICML 2007). Bregman's
cyclic projections update M by a rank-one matrix per violated pair. Every state has the form

    M = (I + sum_p s_p lambda_p v_p v_p^T)^-1,   s_p = 1 for a similar pair and -1 for a dissimilar one,

with duals lambda >= 0. Only the duals must be exact; M is formed from them at the end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from scipy.linalg.blas import dger, dsymv
from torch import Tensor

from semimetric.core.checks import check_not_negative
from semimetric.core.errors import InputError
from semimetric.core.threads import one_blas_thread
from semimetric.metric.host_geometry import Array
from semimetric.metric.scatters import check_labelled, weighted_scatter
from semimetric.mining import labelled_pairs, spread_pairs

Indices = npt.NDArray[np.int64]

MEAN_SQUARE = 2.0  # mean squared distance of two examples after scaling, as if the covariance had trace 1
PERCENTILES = (5, 50, 95)
"""Percentiles of the squared distances: bound for similar pairs, median, bound for dissimilar pairs."""

WIDENING = (0.9, 1.1)  # bounds as multiples of the median, used if the percentiles coincide
BOUND_PAIRS = 20_000
"""Most pairs whose distances give the percentiles: all pairs up to 200 examples, an even sample beyond."""

DUPLICATE = 1e-12  # squared distance below which two examples count as duplicates, after scaling


@dataclass(frozen=True)
class ITMLResult:
    """The metric ``matrix`` (d, d), float64 with trace d, and how it was found.

    The bounds are on squared distances after scaling, multiples of the median if ``widened``.
    """

    matrix: Tensor
    sweeps: int
    converged: bool
    similar_bound: float
    dissimilar_bound: float
    widened: bool


@dataclass(frozen=True)
class PairBounds:
    """``bounds`` (P,) > 0 on squared distances of ``pairs`` (P, 2) of points, upper for ``signs`` 1, lower for -1."""

    pairs: Indices
    signs: Array
    bounds: Array


@dataclass(frozen=True)
class Solution:
    """Duals (P,), the number of sweeps, and whether the last sweep changed them by less than the tolerance."""

    duals: Array
    sweeps: int
    converged: bool


def information_theoretic_prior(
    features: Tensor,
    classes: Tensor,
    slack: float = 1.0,
    max_pairs: int = 2000,
    max_sweeps: int = 500,
    tolerance: float = 1e-3,
) -> ITMLResult:
    """ITML on the labelled examples ``features`` (n, d) with ``classes`` (n,), integers from 0 up.

    The features are scaled to a mean squared distance of 2, and the result has trace d, so it does not depend on their
    scale. The bounds u and l are the 5th and 95th percentiles of the squared distances between distinct examples. The
    work is done on the CPU in float64.

    ``slack`` is the weight gamma of the bounds, above 0. If it is infinite, contradictory pairs never converge. Up to
    ``max_pairs`` pairs are used, half of each kind if possible. Sweeps stop when the duals change by less than
    ``tolerance``, sum |change| / (||new|| + ||old||). Features of low rank may need hundreds of sweeps; after fewer,
    the metric is still positive definite.
    """
    classes = check_labelled(features, classes)
    if not slack > 0:
        raise InputError(f"slack must be above 0 (it may be infinite), got {slack}.")
    if max_pairs < 1 or max_sweeps < 1:
        raise InputError(f"max_pairs and max_sweeps must be at least 1, got {max_pairs} and {max_sweeps}.")
    check_not_negative(tolerance, "tolerance")
    points = _unit_spread(features.detach().to("cpu", torch.float64).numpy())
    similar_bound, dissimilar_bound, widened = _bounds(points)
    constraints = choose_pairs(classes.cpu(), max_pairs, similar_bound, dissimilar_bound)
    solution = project_cyclically(points, constraints, slack, max_sweeps, tolerance)
    matrix = metric_of_duals(points, constraints, solution.duals)
    scaled = (matrix * (len(matrix) / matrix.trace())).to(features.device)
    return ITMLResult(scaled, solution.sweeps, solution.converged, similar_bound, dissimilar_bound, widened)


def choose_pairs(classes: Tensor, most: int, similar_bound: float, dissimilar_bound: float) -> PairBounds:
    """Constrain at most ``most`` pairs of points with ``classes`` (n,), half of each kind if there are enough.

    Pairs of both kinds alternate. If all similar pairs came first, features of low rank would have all distances shrunk
    by orders of magnitude before the first dissimilar pair.
    """
    counts = torch.unique(classes, return_counts=True)[1]
    alike = int((counts * (counts - 1)).sum()) // 2
    unlike = len(classes) * (len(classes) - 1) // 2 - alike
    similar_count = min(alike, max(most // 2, most - unlike))
    similar, dissimilar = labelled_pairs(classes, similar_count, most - similar_count)
    turns = np.argsort(np.concatenate([_positions(len(similar)), _positions(len(dissimilar))]), kind="stable")
    is_similar = turns < len(similar)
    return PairBounds(
        torch.cat([similar, dissimilar]).numpy()[turns],
        np.where(is_similar, 1.0, -1.0),
        np.where(is_similar, similar_bound, dissimilar_bound),
    )


def project_cyclically(
    points: Array, constraints: PairBounds, slack: float, max_sweeps: int, tolerance: float
) -> Solution:
    """Project onto one constraint after the other, starting from M = I, until the duals of ``points`` (n, d) converge.

    The change of a sweep is sum |new - old| / (||new|| + ||old||). BLAS is limited to one thread, because synchronising
    threads takes longer than these small products.
    """
    projections = Projections(points, constraints, slack)
    before, sweeps, converged = np.zeros(len(constraints.pairs)), 0, False
    with one_blas_thread():
        while sweeps < max_sweeps and not converged:
            now = projections.sweep()
            change, size = np.abs(now - before).sum(), np.linalg.norm(now) + np.linalg.norm(before)
            before, sweeps, converged = now, sweeps + 1, bool(change <= tolerance * size)
    return Solution(before, sweeps, converged)


class Projections:
    """State of the cyclic projections: M in one of two representations, and lambda and 1/xi of each pair.

    The latter are lists of Python floats, which are faster to index than arrays.
    """

    def __init__(self, points: Array, constraints: PairBounds, slack: float) -> None:
        few = len(points) <= 2 * points.shape[1]
        self._space: PointSpace | FeatureSpace = PointSpace(points) if few else FeatureSpace(points)
        self._slack = slack
        self._share = 1.0 if math.isinf(slack) else slack / (slack + 1)
        self._pairs: list[tuple[int, int]] = constraints.pairs.tolist()
        self._signs: list[float] = constraints.signs.tolist()
        self._duals = [0.0] * len(self._pairs)
        self._inverse_bounds: list[float] = (1 / constraints.bounds).tolist()

    def sweep(self) -> Array:
        """Project onto every constraint once and return the duals (P,).

        With q = v^T M v, the sign s and the current bound xi of a pair, the step is

            a = min(lambda, gamma/(gamma + 1) s (1/q - 1/xi)).

        It takes a from lambda, adds s a/gamma to 1/xi and s a / (1 - s a q) (M v)(M v)^T to M, and skips duplicates.
        """
        space, duals, inverse_bounds = self._space, self._duals, self._inverse_bounds
        for p, ((i, j), sign) in enumerate(zip(self._pairs, self._signs, strict=True)):
            length = space.squared_length(i, j)
            if length < DUPLICATE:
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


class PointSpace:
    """M as K = Z M Z^T, (n, n), fastest for few points: a length needs three entries of K, and Z M v two columns."""

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
    """M itself, (d, d), for more than 2 d points. Both matrices are Fortran-ordered for BLAS."""

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


def _unit_spread(points: Array) -> Array:
    """Centred points, scaled to the mean squared distance ``MEAN_SQUARE`` unless they all coincide."""
    centred: Array = points - points.mean(0)
    mean_square = 2 * np.square(centred).sum() / max(len(points) - 1, 1)
    return centred * np.sqrt(MEAN_SQUARE / mean_square) if mean_square > np.finfo(np.float64).tiny else centred


def _bounds(points: Array) -> tuple[float, float, bool]:
    """Bounds for similar and dissimilar pairs, and whether the percentiles coincided and were widened."""
    pairs = spread_pairs(len(points), BOUND_PAIRS).numpy()
    lengths = np.square(points[pairs[:, 0]] - points[pairs[:, 1]]).sum(1)
    lengths = lengths[lengths >= DUPLICATE]
    near, median, far = np.percentile(lengths, PERCENTILES) if len(lengths) else (MEAN_SQUARE,) * 3
    if far - near > 1e-9 * far:
        return float(near), float(far), False
    return WIDENING[0] * float(median), WIDENING[1] * float(median), True


def _positions(count: int) -> Array:
    """Evenly spaced positions in (0, 1), one for each of ``count`` pairs."""
    return (np.arange(count) + 0.5) / max(count, 1)
