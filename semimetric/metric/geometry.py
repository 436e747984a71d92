"""Constraint sets of a metric factor L (d, l): the Stiefel manifold, or a ball of bounded norm.

Absil, Mahony, Sepulchre: Optimization algorithms on matrix manifolds. Princeton University Press, 2008.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from semimetric.core.errors import InputError
from semimetric.metric.host_geometry import HostEuclidean, HostGeometry, HostStiefel, gram_drift

MAX_DRIFT = 1e-3
"""Largest accepted deviation of L^T L from I in a start: well above the error of casting L to float32 and back."""

ROUNDING = 1e-14  # deviation of L^T L from I below which a start is used unchanged, as after a solve in float64

Correction = Callable[[Tensor], Tensor]
"""Maps steps t of shape () or (S,) to the matrices C(t), (l, l) or (S, l, l), of the retraction (L + tD) C(t)."""


class Geometry(Protocol):
    """A constraint set as the conjugate-gradient solvers use it.

    A retraction here is a straight step corrected from the right, (L + tD) C(t) with C(t) of size l x l. After a linear
    map X it is (XL + tXD) C(t), so trial points of a line search need no product with X.
    """

    def repair(self, point: Tensor) -> Tensor:
        """Remove the rounding error of a point that should already lie on the set."""

    def project(self, point: Tensor, vector: Tensor) -> Tensor:
        """Project ``vector`` onto the tangent space at ``point``; also the transport of tangent vectors."""

    def correction(self, point: Tensor, direction: Tensor) -> Correction:
        """C(t) for the path from ``point`` along the tangent ``direction``; C(0) = I."""

    def on_host(self) -> HostGeometry:
        """The same geometry for the CPU solver."""


@dataclass(frozen=True)
class Stiefel:
    """Matrices with orthonormal columns, L^T L = I, with the QR retraction and the inner product tr(U^T V)."""

    def repair(self, point: Tensor) -> Tensor:
        """Divide by the Cholesky factor of L^T L, so that errors do not accumulate over thousands of warm starts.

        On a CPU, a point far from orthonormal is refused and one within rounding error is returned unchanged.
        """
        if point.is_cpu:
            drift = gram_drift(point.numpy())
            if not drift <= MAX_DRIFT:
                raise InputError(
                    f"point is not orthonormal: L^T L differs from I by {drift:.1g}. Call orthonormalize first."
                )
            if drift <= ROUNDING:
                return point.clone()
        return point @ _inverse_cholesky(point.T @ point, identity_like(point))

    def project(self, point: Tensor, vector: Tensor) -> Tensor:
        """U - L sym(L^T U)."""
        inner = point.T @ vector
        return torch.addmm(vector, point, inner + inner.T, alpha=-0.5)

    def correction(self, point: Tensor, direction: Tensor) -> Correction:
        """R(t)^-1, where R(t) is the Cholesky factor of (L + tD)^T (L + tD).

        R(t) has a positive diagonal, so (L + tD) R(t)^-1 is the Q factor of L + tD with fixed signs. In exact
        arithmetic the Gram matrix is I + t^2 D^T D. The full Gram matrix is computed here, because the rounding error
        in L^T L would otherwise grow from step to step.
        """
        identity = identity_like(point)
        constant, linear, square = point.T @ point, point.T @ direction, direction.T @ direction
        linear = linear + linear.T

        def at(steps: Tensor) -> Tensor:
            t = steps[..., None, None]
            return _inverse_cholesky(constant + t * (linear + t * square), identity)

        return at

    def on_host(self) -> HostGeometry:
        """The same in NumPy."""
        return HostStiefel()


@dataclass(frozen=True)
class Euclidean:
    """All d x l matrices whose Frobenius norm is at most ``radius`` sqrt(l).

    Without L^T L = I the angular objective can be lowered without bound by scaling L up. The ball prevents that. Its
    radius is ``radius`` times the norm of an orthonormal L, and a step that leaves it is scaled back to its surface.
    """

    radius: float = 100.0

    def repair(self, point: Tensor) -> Tensor:
        """Scale back into the ball if necessary."""
        return point * self._shrinkage(point.square().sum(), point.shape[1])

    def project(self, point: Tensor, vector: Tensor) -> Tensor:
        """Every direction is allowed."""
        return vector

    def correction(self, point: Tensor, direction: Tensor) -> Correction:
        """The identity, shrunk where ||L + tD|| would leave the ball."""
        constant, linear, square = (point * point).sum(), (point * direction).sum(), (direction * direction).sum()
        identity = identity_like(point)

        def at(steps: Tensor) -> Tensor:
            squared_norms = constant + steps * (2 * linear + steps * square)
            return self._shrinkage(squared_norms, point.shape[1])[..., None, None] * identity

        return at

    def on_host(self) -> HostGeometry:
        """The same in NumPy."""
        return HostEuclidean(self.radius)

    def _shrinkage(self, squared_norm: Tensor, columns: int) -> Tensor:
        return (self.radius * math.sqrt(columns) * squared_norm.rsqrt()).clamp(max=1.0)


def retract(geometry: Geometry, point: Tensor, direction: Tensor, step: Tensor) -> Tensor:
    """The point reached after ``step`` (0-d) along the tangent ``direction``."""
    return torch.addcmul(point, step, direction) @ geometry.correction(point, direction)(step)


def orthonormalize(factor: Tensor) -> Tensor:
    """Q factor of a (d, l) matrix with the signs fixed so that R has a positive diagonal."""
    check_factor(factor)
    q: Tensor
    q, r = torch.linalg.qr(factor)
    return q * torch.where(r.diagonal() < 0, -1.0, 1.0).to(q.dtype)


def random_orthonormal(
    d: int,
    l: int,  # noqa: E741
    generator: torch.Generator,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Uniformly distributed (d, l) matrix with orthonormal columns, the same on every device."""
    normal = torch.randn(d, l, generator=generator, dtype=torch.float64, device=generator.device)
    return orthonormalize(normal).to(device=device, dtype=dtype)


def check_factor(factor: Tensor) -> None:
    """Check that a factor is a floating-point (d, l) matrix with 1 <= l <= d."""
    if not isinstance(factor, Tensor):
        raise InputError(f"factor must be a torch tensor, got {type(factor).__name__}. Pass torch.as_tensor(factor).")
    if factor.ndim != 2 or not factor.is_floating_point() or not 1 <= factor.shape[1] <= factor.shape[0]:
        raise InputError(
            f"The metric factor has the shape {tuple(factor.shape)} and the type {factor.dtype}; "
            "give a floating-point matrix (d, l) with 1 <= l <= d."
        )


def _inverse_cholesky(gram: Tensor, identity: Tensor) -> Tensor:
    """R^-1 for R^T R = gram, with R upper triangular with positive diagonal; does not synchronise a GPU."""
    upper, _ = torch.linalg.cholesky_ex(gram, upper=True)
    inverse: Tensor = torch.linalg.solve_triangular(upper, identity.expand_as(gram), upper=True)
    return inverse


def identity_like(factor: Tensor) -> Tensor:
    """The identity (l, l) of the type and device of a factor (d, l)."""
    return torch.eye(factor.shape[1], dtype=factor.dtype, device=factor.device)
