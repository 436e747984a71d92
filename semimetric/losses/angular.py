"""Smooth angular triplet loss with explicit negatives, under a Mahalanobis metric.

References
----------
Wang, Zhou, Wen, Liu, Lin: Deep metric learning with angular loss. ICCV 2017.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import softplus

from semimetric.errors import InputError
from semimetric.metric.angular import row_margins, triangle_rows

Reduction = Literal["sum", "mean", "none"]


def angular_loss(
    embeddings: Tensor,
    triplets: Tensor,
    factor: Tensor | None = None,
    alpha: float = 40.0,
    reduction: Reduction = "sum",
) -> Tensor:
    """Softplus of the angular margins: log(1 + exp(m)), a smooth hinge that never overflows.

    Parameters
    ----------
    embeddings : (N, d)
        Usually of unit length; gradients flow to them.
    triplets : (T, 3) int64
        Rows of ``embeddings``: anchor, positive, negative. With T = 0 the sum is 0.
    factor : (d, l), optional
        L of the metric M = L L^T, cast to the embeddings' type; without it the distance is Euclidean.
    alpha : float
        Upper bound of the angle at the negative, in degrees, in (0, 90).
    reduction
        ``sum`` or ``mean`` over the triplets (0-d result), or ``none`` (T,).
    """
    losses = softplus(angular_margins(embeddings, triplets, factor, alpha))
    if reduction == "none":
        return losses
    if reduction == "sum":
        return losses.sum()
    if reduction == "mean":
        return losses.sum() / max(len(losses), 1)
    raise InputError(f"reduction is {reduction!r}; choose 'sum', 'mean' or 'none'.")


def angular_margins(embeddings: Tensor, triplets: Tensor, factor: Tensor | None = None, alpha: float = 40.0) -> Tensor:
    """Margins m = ||L^T (z - z+)||^2 - 4 tan(alpha)^2 ||L^T (z- - (z + z+)/2)||^2, one per triplet, (T,).

    A triplet with m > 0 violates the angle bound; ``(m > 0).float().mean()`` is the share of active triplets.
    The metric is applied before triplets are gathered, so an example in many triplets is projected once.
    Indices are checked on a CPU only, because the check would wait for the device.
    """
    _check(embeddings, triplets, factor)
    points = embeddings if factor is None else embeddings @ factor.to(embeddings.dtype)
    anchor, positive, negative = points[triplets].unbind(1)
    return row_margins(triangle_rows(anchor, positive, negative, alpha))


def _check(embeddings: Tensor, triplets: Tensor, factor: Tensor | None) -> None:
    if embeddings.ndim != 2 or not embeddings.is_floating_point():
        raise InputError(
            f"embeddings have the shape {tuple(embeddings.shape)} and the type {embeddings.dtype}; "
            "give a floating-point matrix (N, d)."
        )
    if triplets.ndim != 2 or triplets.shape[1] != 3 or triplets.dtype != torch.int64:
        raise InputError(
            f"triplets have the shape {tuple(triplets.shape)} and the type {triplets.dtype}; "
            "give int64 indices (T, 3): anchor, positive, negative."
        )
    if factor is not None and (factor.ndim != 2 or factor.shape[0] != embeddings.shape[1]):
        raise InputError(
            f"factor has the shape {tuple(factor.shape)}, but the embeddings have {embeddings.shape[1]} columns; "
            "give a matrix (d, l) with as many rows."
        )
    if triplets.is_cpu and triplets.numel() and not 0 <= int(triplets.min()) <= int(triplets.max()) < len(embeddings):
        raise InputError(
            f"triplets run from {int(triplets.min())} to {int(triplets.max())}, but there are {len(embeddings)} "
            "embeddings; give indices from 0 up to that number, exclusive."
        )
