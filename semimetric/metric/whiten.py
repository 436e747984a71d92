"""Mahalanobis metrics of covariances: of the data as a whole, or of how examples of one class differ."""

from __future__ import annotations

import torch
from torch import Tensor

from semimetric.core.checks import check_positive
from semimetric.core.errors import InputError
from semimetric.metric.mahalanobis import Metric
from semimetric.metric.scatters import ROUNDING

FLOOR = 1e-6
"""Directions with less than this share of the largest variance are not stretched any further."""


def whitening(features: Tensor, n_components: int, floor: float = FLOOR) -> Metric:
    """L = V diag(e)^(-1/2), (d, n_components), of the largest eigenvalues e of the covariance of ``features`` (N, d).

    Features without their mean, transformed by it, have the identity for their covariance (divided by N). An eigenvalue
    below ``floor`` times the largest counts as that much, and so does one that is rounding only: a direction in which
    nothing varies stays without variance instead of showing noise, and constant features become 0.
    """
    points = _points(features, n_components)
    rounding = _rounding(features, points)
    points = points - points.mean(0)
    values, vectors = torch.linalg.eigh(points.T @ points / len(points))
    least = torch.maximum(floor * values[-1], rounding).clamp_min(torch.finfo(features.dtype).tiny)
    factor = vectors / torch.maximum(values, least).sqrt()
    return Metric(factor.flip(1)[:, :n_components])


def within_class_whitening(
    features: Tensor, targets: Tensor, weights: Tensor, n_components: int, shrinkage: float = 1.0
) -> Metric:
    """Distance in units of how much examples of one class differ, in the directions in which all differ most then.

    With W the weighted covariance of ``features`` (N, d) about the means of their ``targets`` (N,), shrunk towards a
    sphere, A = W + shrinkage (tr W / d) I, it is L = A^(-1/2) V, (d, n_components), V the principal components of
    A^(-1/2) x. L is scaled so that the mean squared distance of all points from their mean stays what it was. Where
    nothing varies within a class there is no such unit, and L is that of the principal components.

    References
    ----------
    Bar-Hillel, Hertz, Shental and Weinshall, Learning a Mahalanobis metric from equivalence constraints, JMLR 2005
    (relevant component analysis, of which this is the shrunk and weighted form).
    """
    points = _points(features, n_components)
    check_positive(shrinkage, "shrinkage")
    if targets.shape != weights.shape or len(targets) != len(points):
        raise InputError(
            f"targets and weights must be one each for {len(points)} features, got shapes {tuple(targets.shape)} and "
            f"{tuple(weights.shape)}."
        )
    amounts = weights.detach().to(torch.float64)
    within = _within_covariance(points, targets, amounts)
    spread = within.diagonal().mean()
    centred = points - points.mean(0)
    if not bool(spread > _rounding(features, points)):
        return Metric.principal(features, n_components)
    within.diagonal().add_(shrinkage * spread)
    values, vectors = torch.linalg.eigh(within)
    whiten = vectors / values.sqrt()
    white = centred @ whiten
    factor = whiten @ torch.linalg.eigh(white.T @ white).eigenvectors.flip(1)[:, :n_components]
    kept = (centred @ factor).square().sum()
    return Metric(factor * (centred.square().sum() / kept.clamp_min(torch.finfo(kept.dtype).tiny)).sqrt())


def within_class_share(points: Tensor, targets: Tensor, weights: Tensor) -> float:
    """Mean squared distance of ``points`` (N, d) from the means of their targets, over that from the mean of all."""
    exact, amounts = points.detach().to(torch.float64), weights.detach().to(torch.float64)
    everywhere = _within_covariance(exact, torch.zeros_like(targets), amounts).trace()
    within = _within_covariance(exact, targets, amounts).trace()
    return float(within / everywhere.clamp_min(torch.finfo(within.dtype).tiny))


def _within_covariance(points: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Weighted mean (d, d) of the outer products of rows with themselves, each about the mean of its target."""
    classes, numbers = torch.unique(targets, return_inverse=True)
    sums = points.new_zeros(len(classes), points.shape[1]).index_add(0, numbers, points * weights[:, None])
    totals = weights.new_zeros(len(classes)).index_add(0, numbers, weights)
    tiny = torch.finfo(points.dtype).tiny
    own = points - (sums / totals.clamp_min(tiny)[:, None])[numbers]
    return (own * weights[:, None]).T @ own / weights.sum().clamp_min(tiny)


def _rounding(features: Tensor, points: Tensor) -> Tensor:
    """The mean square that features of this type and size can have from rounding alone."""
    return points.square().mean() * (ROUNDING * torch.finfo(features.dtype).eps) ** 2


def _points(features: Tensor, n_components: int) -> Tensor:
    points = features.detach().to(torch.float64)
    if points.ndim != 2 or not 1 <= n_components <= points.shape[1]:
        raise InputError(
            f"n_components is {n_components}; for features of shape {tuple(points.shape)} it must be from 1 to the "
            "number of columns."
        )
    return points
