"""The two geometries in NumPy: the walk from point to point that the solver makes on a CPU.

The algebra is that of ``semimetric.metric.geometry``. What is added is memory: on the Stiefel manifold the product
L^T D that transport needs follows from l x l matrices that the retraction has made anyway. BLAS and LAPACK are called
by name, because on matrices this small the checks of the friendlier functions cost as much as the arithmetic. They
store by columns: to them a C-ordered matrix is its transpose, hence the ``.T`` around each call.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import numpy.typing as npt
from scipy.linalg.blas import dgemm, dtrmm
from scipy.linalg.lapack import dpotrf, dtrtri

Array = npt.NDArray[np.float64]


class HostWalk(Protocol):
    """What the solver on a CPU asks of a geometry; all matrices are C-ordered.

    The order of events is: ``depart`` along a direction D, ``brake`` at trial steps t and ``correct`` what they reach,
    and once the new point is known ``carry`` the direction there.
    """

    def project_gradient(self, point: Array, gradient: Array) -> Array:
        """Turn the Euclidean gradient (d, l), which may be overwritten, into the Riemannian one."""

    def depart(self, point: Array, direction: Array, carried_share: float) -> None:
        """Leave ``point`` along D = -gradient + ``carried_share`` times what ``carry`` returned last."""

    def brake(self, step: float) -> None:
        """Make C(t), the matrix of the retraction (L + tD) C(t)."""

    def correct(self, rows: Array) -> Array:
        """Return ``rows`` C(t) for (n, l) ``rows``, which may be overwritten."""

    def carry(self, point: Array, direction: Array, step: float) -> Array:
        """Transport D, which may be overwritten, to ``point``, where the step t just made has led."""


class StiefelWalk:
    """L^T L = I with the QR retraction: C(t) = R^-1 for the Cholesky factor R of I + t^2 D^T D.

    At the new point L1 = (L + tD) C the old direction has the inner products

        L1^T D = C^T (L^T D + t D^T D),

    of which transport takes away the symmetric part. The skew part is all that L^T D consists of for the next
    direction: the gradient adds nothing, because it is horizontal, L^T g = 0.
    """

    def __init__(self, columns: int) -> None:
        self._gram = np.zeros((columns, columns), order="F")
        self._inner = np.zeros((columns, columns))
        self._correction = np.eye(columns, order="F")

    def project_gradient(self, point: Array, gradient: Array) -> Array:
        """G - L (L^T G), with L^T G symmetric: the cost depends on L only through its span."""
        inner = dgemm(1.0, point.T, gradient.T, trans_b=1)
        return _subtract_product(gradient, point, inner)

    def depart(self, point: Array, direction: Array, carried_share: float) -> None:
        """Make D^T D and L^T D."""
        self._gram = dgemm(1.0, direction.T, direction.T, trans_b=1)
        self._inner *= carried_share

    def brake(self, step: float) -> None:
        """Invert the Cholesky factor; where there is none because numbers overflowed, C is not a number."""
        normal = self._gram * (step * step)
        normal.ravel(order="K")[:: len(normal) + 1] += 1.0
        upper, failed = dpotrf(normal, clean=0, overwrite_a=1)
        self._correction = np.full_like(normal, np.nan) if failed else dtrtri(upper, overwrite_c=1)[0]

    def correct(self, rows: Array) -> Array:
        """Multiply with the upper triangular C(t) from the right."""
        corrected: Array = dtrmm(1.0, self._correction, rows.T, trans_a=1, overwrite_b=1).T
        return corrected

    def carry(self, point: Array, direction: Array, step: float) -> Array:
        """D - L1 sym(L1^T D)."""
        inner = self._gram.T * step
        inner += self._inner
        inner = dtrmm(1.0, self._correction, inner.T, side=1, overwrite_b=1).T
        symmetric = inner + inner.T
        symmetric *= 0.5
        self._inner = inner - symmetric
        return _subtract_product(direction, point, symmetric)


class EuclideanWalk:
    """All matrices with a norm of at most ``limit``; C(t) is the number that scales L + tD back if it is longer."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._squares = (0.0, 0.0, 0.0)
        self._shrinkage = 1.0

    def project_gradient(self, point: Array, gradient: Array) -> Array:
        """Every direction is allowed."""
        return gradient

    def depart(self, point: Array, direction: Array, carried_share: float) -> None:
        """Keep what ||L + tD||^2 consists of."""
        self._squares = dot(point, point), dot(point, direction), dot(direction, direction)

    def brake(self, step: float) -> None:
        """Compare ||L + tD|| with the limit."""
        constant, linear, square = self._squares
        norm = math.sqrt(constant + step * (2 * linear + step * square))
        self._shrinkage = self._limit / norm if norm > self._limit else 1.0

    def correct(self, rows: Array) -> Array:
        """Scale."""
        rows *= self._shrinkage
        return rows

    def carry(self, point: Array, direction: Array, step: float) -> Array:
        """A straight line keeps its direction."""
        return direction


def dot(left: Array, right: Array) -> float:
    """Inner product tr(U^T V)."""
    return float(np.vdot(left, right))


def gram_drift(point: Array) -> float:
    """Largest entry, in size, of L^T L - I."""
    drift = point.T @ point
    drift.ravel()[:: len(drift) + 1] -= 1.0
    return float(np.abs(drift).max())


def _subtract_product(matrix: Array, point: Array, symmetric: Array) -> Array:
    """``matrix`` - ``point`` @ ``symmetric``, written over ``matrix``."""
    difference: Array = dgemm(-1.0, symmetric, point.T, beta=1.0, c=matrix.T, overwrite_c=1).T
    return difference
