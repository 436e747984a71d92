"""Where a metric factor L (d, l) may live: on the Stiefel manifold, or free inside a ball.

A geometry has three verbs: bring a point onto it, project a vector onto the tangent space (which also transports
a tangent vector from another point), and correct a straight step so that it stays on the set.

References
----------
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

DRIFT = 1e-3
"""How far L^T L may be from I at the door: well above what casting L to float32 and back does to it."""

ROUNDING = 1e-14
"""Where L^T L is this close to I, as after a solve in float64, there is nothing to repair."""

Brake = Callable[[Tensor], Tensor]
"""Steps t of shape () or (S,) to the matrices C(t), (l, l) or (S, l, l), of the retraction (L + tD) C(t)."""


class Geometry(Protocol):
    """What the conjugate gradient solvers ask of a set of matrices.

    A retraction here is a straight step corrected from the right, (L + tD) C(t) with C(t) of size l x l. Seen through
    any linear map X it is therefore (XL + tXD) C(t): a trial point of a line search never needs a product with X.
    """

    def enter(self, point: Tensor) -> Tensor:
        """Remove what rounding has added to a point that should already lie on the set."""

    def project(self, point: Tensor, vector: Tensor) -> Tensor:
        """Project ``vector`` onto the tangent space at ``point``."""

    def brake(self, point: Tensor, direction: Tensor) -> Brake:
        """Return C(t) for the walk from ``point`` along the tangent ``direction``; C(0) = I."""

    def on_host(self) -> HostGeometry:
        """Return the same geometry for the solver on a CPU."""


@dataclass(frozen=True)
class Stiefel:
    """Matrices with orthonormal columns, L^T L = I, with the QR retraction and the inner product tr(U^T V)."""

    def enter(self, point: Tensor) -> Tensor:
        """Divide by the Cholesky factor of L^T L, so that thousands of warm starts do not drift off.

        On a CPU a point that is far from orthonormal is refused, and one that is off by rounding only stays as it
        is; elsewhere looking at the numbers would wait for the device.
        """
        if point.is_cpu:
            drift = gram_drift(point.numpy())
            if not drift <= DRIFT:
                raise InputError(
                    f"point is not orthonormal: L^T L differs from I by {drift:.1g}. Call orthonormalize first."
                )
            if drift <= ROUNDING:
                return point.clone()
        return point @ _inverse_cholesky(point.T @ point, _identity(point))

    def project(self, point: Tensor, vector: Tensor) -> Tensor:
        """U - L sym(L^T U)."""
        inner = point.T @ vector
        return torch.addmm(vector, point, inner + inner.T, alpha=-0.5)

    def brake(self, point: Tensor, direction: Tensor) -> Brake:
        """R(t)^-1 with R(t) the Cholesky factor of (L + tD)^T (L + tD).

        Since R(t) has a positive diagonal, (L + tD) R(t)^-1 is the Q factor of L + tD with its signs fixed. On paper
        the Gram matrix is I + t^2 D^T D, for L is orthonormal and D tangent. But what rounding adds to L^T L would grow
        from step to step if it were left out: the part of the gradient normal to the set is proportional to it.
        """
        identity = _identity(point)
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

    Without L^T L = I the angular objective can be lowered for ever by scaling L up. The ball stops that: its radius
    is ``radius`` times the norm of an orthonormal L, and a step that leaves it is scaled back onto its surface.
    """

    radius: float = 100.0

    def enter(self, point: Tensor) -> Tensor:
        """Scale back into the ball if need be."""
        return point * self._shrinkage(point.square().sum(), point.shape[1])

    def project(self, point: Tensor, vector: Tensor) -> Tensor:
        """Every direction is allowed."""
        return vector

    def brake(self, point: Tensor, direction: Tensor) -> Brake:
        """The identity, shrunk where ||L + tD|| would leave the ball."""
        constant, linear, square = (point * point).sum(), (point * direction).sum(), (direction * direction).sum()
        identity = _identity(point)

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
    """Return the point reached after ``step`` (0-d) along the tangent ``direction``."""
    return torch.addcmul(point, step, direction) @ geometry.brake(point, direction)(step)


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
    """Uniformly distributed (d, l) matrix with orthonormal columns; the same one on every device."""
    normal = torch.randn(d, l, generator=generator, dtype=torch.float64, device=generator.device)
    return orthonormalize(normal).to(device=device, dtype=dtype)


def check_factor(factor: Tensor) -> None:
    """Refuse anything that is not a floating-point (d, l) matrix with 1 <= l <= d."""
    if factor.ndim != 2 or not factor.is_floating_point() or not 1 <= factor.shape[1] <= factor.shape[0]:
        raise InputError(
            f"The metric factor has the shape {tuple(factor.shape)} and the type {factor.dtype}; "
            "give a floating-point matrix (d, l) with 1 <= l <= d."
        )


def _inverse_cholesky(gram: Tensor, identity: Tensor) -> Tensor:
    """R^-1 for R^T R = gram, R upper triangular with a positive diagonal, without waiting for the device."""
    upper, _ = torch.linalg.cholesky_ex(gram, upper=True)
    inverse: Tensor = torch.linalg.solve_triangular(upper, identity.expand_as(gram), upper=True)
    return inverse


def _identity(point: Tensor) -> Tensor:
    return torch.eye(point.shape[1], dtype=point.dtype, device=point.device)
