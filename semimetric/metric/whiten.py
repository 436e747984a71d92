"""Whitening metrics: by the covariance of all data, or by the within-class covariance."""

from __future__ import annotations

import torch
from torch import Tensor

from semimetric.core.checks import check_positive
from semimetric.core.errors import InputError
from semimetric.metric.mahalanobis import Metric, centred_scatter, check_components, exact_blocks, exact_mean
from semimetric.metric.scatters import ROUNDING
from semimetric.metric.span import Span

FLOOR = 1e-6  # variances below this share of the largest are raised to it


def whitening(features: Tensor, n_components: int, floor: float = FLOOR) -> Metric:
    """PCA whitening: L = V diag(e)^(-1/2), (d, n_components), of the largest eigenvalues e of the covariance.

    Centred ``features`` (N, d) transformed by L have identity covariance (divided by N). Eigenvalues below ``floor``
    times the largest, or below the rounding error, are raised to that bound. Directions without variance therefore do
    not amplify noise, and constant features become 0.
    """
    check_components(features, n_components)
    scatter = centred_scatter(features, exact_mean(features))
    values, vectors = torch.linalg.eigh(scatter / len(features))
    least = torch.maximum(floor * values[-1], _rounding(features)).clamp_min(torch.finfo(features.dtype).tiny)
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
    check_components(features, n_components)
    check_positive(shrinkage, "shrinkage")
    if targets.shape != weights.shape or len(targets) != len(features):
        raise InputError(
            f"targets and weights must be one each for {len(features)} features, got shapes {tuple(targets.shape)} "
            f"and {tuple(weights.shape)}."
        )
    count, width = features.shape
    mean = exact_mean(features)
    span = Span.whole(mean) if count >= width else Span.of(features.detach().double() - mean)
    within = _within_covariance(features, targets, weights.detach().to(torch.float64), span)
    spread = within.trace() / width
    if not bool(spread > _rounding(features)):
        return Metric.principal(features, n_components)
    within.diagonal().add_(shrinkage * spread)
    values, vectors = torch.linalg.eigh(within)
    whiten = span.inside @ (vectors / values.sqrt())
    principal = whiten @ torch.linalg.eigh(centred_scatter(features, mean, whiten)).eigenvectors.flip(1)
    factor = torch.cat([principal, span.outside / (shrinkage * spread).sqrt()], 1)[:, :n_components]
    kept = _centred_squares(features, mean, factor)
    return Metric(factor * (_centred_squares(features, mean) / kept.clamp_min(torch.finfo(kept.dtype).tiny)).sqrt())


def within_class_share(points: Tensor, targets: Tensor, weights: Tensor) -> float:
    """Mean squared distance of ``points`` (N, d) from their class means, divided by that from the overall mean."""
    span, amounts = Span.whole(exact_mean(points)), weights.detach().to(torch.float64)
    everywhere = _within_covariance(points, torch.zeros_like(targets), amounts, span).trace()
    within = _within_covariance(points, targets, amounts, span).trace()
    return float(within / everywhere.clamp_min(torch.finfo(within.dtype).tiny))


def _within_covariance(features: Tensor, targets: Tensor, weights: Tensor, span: Span) -> Tensor:
    """Weighted covariance (r, r) of the coordinates of rows about the means of their targets."""
    classes, numbers = torch.unique(targets, return_inverse=True)
    width, tiny = span.inside.shape[1], torch.finfo(torch.float64).tiny
    sums, total = weights.new_zeros(len(classes), width), weights.new_zeros(width, width)
    for rows, block in exact_blocks(features):
        sums.index_add_(0, numbers[rows], span.coordinates(block) * weights[rows, None])
    totals = weights.new_zeros(len(classes)).index_add(0, numbers, weights)
    means = sums / totals.clamp_min(tiny)[:, None]
    for rows, block in exact_blocks(features):
        own = span.coordinates(block) - means[numbers[rows]]
        total += (own * weights[rows, None]).T @ own
    return total / weights.sum().clamp_min(tiny)


def _centred_squares(features: Tensor, mean: Tensor, factor: Tensor | None = None) -> Tensor:
    """Sum of the squared distances of the features, or of what ``factor`` makes of them, from their mean."""
    total = mean.new_zeros(())
    for _, block in exact_blocks(features):
        centred = block - mean
        total += (centred if factor is None else centred @ factor).square().sum()
    return total


def _rounding(features: Tensor) -> Tensor:
    """Mean square that rounding alone can cause in features of this type and size."""
    origin = torch.zeros(features.shape[1], dtype=torch.float64, device=features.device)
    mean_square = _centred_squares(features, origin) / features.numel()
    return mean_square * (ROUNDING * torch.finfo(features.dtype).eps) ** 2
