"""The two geometries of ``semimetric.metric.geometry`` in NumPy, for the CPU solver.

BLAS and LAPACK are called directly, because for such small matrices the checks of higher-level functions cost as much
as the arithmetic. They use column-major order and see a C-ordered matrix as its transpose, hence the ``.T``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from scipy.linalg.blas import dgemm, dtrmm
from scipy.linalg.lapack import dpotrf, dtrtri

Array = npt.NDArray[np.float64]

Correct = Callable[[Array], Array]
"""Maps rows (n, l), which may be overwritten, to rows @ C for the l x l matrix C of a retraction Z C."""


class HostGeometry(Protocol):
    """A constraint set as the CPU solver uses it. All matrices are C-ordered."""

    def project(self, point: Array, vector: Array) -> Array:
        """Project ``vector`` (d, l), which may be overwritten, onto the tangent space at ``point``."""

    def correction(self, straight: Array) -> Correct:
        """The product with C from the right, where Z C is the retraction of the straight step to Z."""


@dataclass(frozen=True)
class HostStiefel:
    """L^T L = I with the QR retraction."""

    def project(self, point: Array, vector: Array) -> Array:
        """U - L sym(L^T U)."""
        inner = dgemm(1.0, point.T, vector.T, trans_b=1)
        projected: Array = dgemm(-0.5, inner + inner.T, point.T, beta=1.0, c=vector.T, overwrite_c=1).T
        return projected

    def correction(self, straight: Array) -> Correct:
        """C = R^-1, where R is the Cholesky factor of Z^T Z; NaN if it does not exist because of overflow."""
        upper, failed = dpotrf(dgemm(1.0, straight.T, straight.T, trans_b=1), clean=0, overwrite_a=1)
        inverse = np.full_like(upper, np.nan) if failed else dtrtri(upper, overwrite_c=1)[0]

        def correct(rows: Array) -> Array:
            corrected: Array = dtrmm(1.0, inverse, rows.T, trans_a=1, overwrite_b=1).T
            return corrected

        return correct


@dataclass(frozen=True)
class HostEuclidean:
    """All d x l matrices whose Frobenius norm is at most ``radius`` sqrt(l)."""

    radius: float

    def project(self, point: Array, vector: Array) -> Array:
        """Every direction is allowed."""
        return vector

    def correction(self, straight: Array) -> Correct:
        """C is a scalar: 1, or the factor that scales Z back to the ball."""
        norm, limit = math.sqrt(dot(straight, straight)), self.radius * math.sqrt(straight.shape[1])
        shrinkage = limit / norm if norm > limit else 1.0
        return lambda rows: np.multiply(rows, shrinkage, out=rows)


def dot(left: Array, right: Array) -> float:
    """Inner product tr(U^T V)."""
    return float(np.vdot(left, right))


def gram_drift(point: Array) -> float:
    """Largest absolute entry of L^T L - I."""
    drift = point.T @ point
    drift.ravel()[:: len(drift) + 1] -= 1.0
    return float(np.abs(drift).max())
