"""The directions in which a few points lie: with fewer points than features most algebra needs no others."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from semimetric.metric.mahalanobis import Metric


@dataclass(frozen=True)
class Span:
    """Orthonormal directions: ``inside`` (d, r) spans some points, and ``outside`` (d, d - r) is orthogonal to it."""

    inside: Tensor
    outside: Tensor

    @classmethod
    def of(cls, points: Tensor) -> Span:
        """The span of rows (N, d).

        With fewer rows than dimensions this is a QR decomposition, which is faster than the eigenvectors of a
        covariance (d, d). Otherwise all directions are inside.
        """
        count, width = points.shape
        if count >= width:
            return cls.whole(points[0])
        basis = torch.linalg.qr(points.T, mode="complete").Q
        return cls(basis[:, :count], basis[:, count:])

    @classmethod
    def whole(cls, point: Tensor) -> Span:
        """All directions of the space of a point (d,)."""
        return cls(torch.eye(len(point), dtype=point.dtype, device=point.device), point.new_empty(len(point), 0))

    def coordinates(self, points: Tensor) -> Tensor:
        """Rows (N, r) of points inside; the points themselves where nothing is outside."""
        return points @ self.inside if self.outside.shape[1] else points

    def lifted(self, metric: Metric, rest: float, n_components: int) -> Metric:
        """The metric of d features that is ``metric`` (r, r) inside and ``rest`` times the identity outside.

        It keeps the ``n_components`` longest columns of the factor, the longest first.
        """
        factor = torch.cat([self.inside @ metric.factor, rest**0.5 * self.outside], 1)
        order = factor.square().sum(0).argsort(descending=True, stable=True)
        return Metric(factor[:, order[:n_components]])
