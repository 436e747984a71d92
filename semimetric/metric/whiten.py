"""The Mahalanobis metric of the data's own covariance, under which all directions vary alike."""

from __future__ import annotations

import torch
from torch import Tensor

from semimetric.errors import InputError
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
    points = features.detach().to(torch.float64)
    if points.ndim != 2 or not 1 <= n_components <= points.shape[1]:
        raise InputError(
            f"n_components is {n_components}; for features of shape {tuple(points.shape)} it must be from 1 to the "
            "number of columns."
        )
    limits = torch.finfo(features.dtype)
    rounding = points.square().mean() * (ROUNDING * limits.eps) ** 2
    points = points - points.mean(0)
    values, vectors = torch.linalg.eigh(points.T @ points / len(points))
    least = torch.maximum(floor * values[-1], rounding).clamp_min(limits.tiny)
    factor = vectors / torch.maximum(values, least).sqrt()
    return Metric(factor.flip(1)[:, :n_components])
