"""Whitening metrics: by the covariance of all data, or by the within-class covariance."""

from __future__ import annotations

import torch
from torch import Tensor

from semimetric.core.checks import check_positive
from semimetric.core.errors import InputError
from semimetric.metric.mahalanobis import Metric, exact_points
from semimetric.metric.scatters import ROUNDING
from semimetric.metric.span import Span

FLOOR = 1e-6  # variances below this share of the largest are raised to it


def whitening(features: Tensor, n_components: int, floor: float = FLOOR) -> Metric:
    """PCA whitening: L = V diag(e)^(-1/2), (d, n_components), of the largest eigenvalues e of the covariance.

    Centred ``features`` (N, d) transformed by L have identity covariance (divided by N). Eigenvalues below ``floor``
    times the largest, or below the rounding error, are raised to that bound. Directions without variance therefore do
    not amplify noise, and constant features become 0.
    """
    points = exact_points(features, n_components)
    rounding = _rounding(features, points)
    points = points - points.mean(0)
    values, vectors = torch.linalg.eigh(points.T @ points / len(points))
    least = torch.maximum(floor * values[-1], rounding).clamp_min(torch.finfo(features.dtype).tiny)
    factor = vectors / torch.maximum(values, least).sqrt()
    return Metric(factor.flip(1)[:, :n_components])


def within_class_whitening(
    features: Tensor, targets: Tensor, weights: Tensor, n_components: int, shrinkage: float = 1.0
) -> Metric:
    """Whitening by the within-class covariance, followed by the principal components of the whitened features.

    W is the weighted covariance of ``features`` (N, d) about the means of their ``targets`` (N,). It is shrunk towards
    isotropic, A = W + shrinkage (tr W / d) I. Then L = A^(-1/2) V, (d, n_components), with V the principal components
    of A^(-1/2) x. L is scaled to keep the mean squared distance of all points from their mean. If nothing varies within
    a class, L is that of the principal components. This is relevant component analysis (Bar-Hillel, Hertz, Shental and
    Weinshall, "Learning a Mahalanobis metric from equivalence constraints", JMLR 2005), shrunk and weighted.
    """
    points = exact_points(features, n_components)
    check_positive(shrinkage, "shrinkage")
    if targets.shape != weights.shape or len(targets) != len(points):
        raise InputError(
            f"targets and weights must be one each for {len(points)} features, got shapes {tuple(targets.shape)} and "
            f"{tuple(weights.shape)}."
        )
    centred = points - points.mean(0)
    span = Span.of(centred)
    within = _within_covariance(span.coordinates(points), targets, weights.detach().to(torch.float64))
    spread = within.trace() / points.shape[1]
    if not bool(spread > _rounding(features, points)):
        return Metric.principal(features, n_components)
    within.diagonal().add_(shrinkage * spread)
    values, vectors = torch.linalg.eigh(within)
    whiten = span.inside @ (vectors / values.sqrt())
    white = centred @ whiten
    principal = whiten @ torch.linalg.eigh(white.T @ white).eigenvectors.flip(1)
    factor = torch.cat([principal, span.outside / (shrinkage * spread).sqrt()], 1)[:, :n_components]
    kept = (centred @ factor).square().sum()
    return Metric(factor * (centred.square().sum() / kept.clamp_min(torch.finfo(kept.dtype).tiny)).sqrt())


def within_class_share(points: Tensor, targets: Tensor, weights: Tensor) -> float:
    """Mean squared distance of ``points`` (N, d) from their class means, divided by that from the overall mean."""
    exact, amounts = points.detach().to(torch.float64), weights.detach().to(torch.float64)
    everywhere = _within_covariance(exact, torch.zeros_like(targets), amounts).trace()
    within = _within_covariance(exact, targets, amounts).trace()
    return float(within / everywhere.clamp_min(torch.finfo(within.dtype).tiny))


def _within_covariance(points: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Weighted covariance (d, d) of rows about the means of their targets."""
    classes, numbers = torch.unique(targets, return_inverse=True)
    sums = points.new_zeros(len(classes), points.shape[1]).index_add(0, numbers, points * weights[:, None])
    totals = weights.new_zeros(len(classes)).index_add(0, numbers, weights)
    tiny = torch.finfo(points.dtype).tiny
    own = points - (sums / totals.clamp_min(tiny)[:, None])[numbers]
    return (own * weights[:, None]).T @ own / weights.sum().clamp_min(tiny)


def _rounding(features: Tensor, points: Tensor) -> Tensor:
    """Mean square that rounding alone can cause in features of this type and size."""
    return points.square().mean() * (ROUNDING * torch.finfo(features.dtype).eps) ** 2
