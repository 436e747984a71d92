"""Smooth angular loss: for given triplets under a Mahalanobis metric, and for all triplets of a labelled batch."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import softplus

from semimetric.core.errors import InputError
from semimetric.encoders import unit_features
from semimetric.metric.angular import row_margins, triangle_rows
from semimetric.mining.labelled import check_batch, check_embeddings, labelled_masks

Reduction = Literal["sum", "mean", "none"]

LARGEST_ANGLE = 80.0
"""Largest angle of the batch form, in degrees: its exponents are then at most 16 tan(alpha)^2 = 515."""


def angular_loss(
    embeddings: Tensor,
    triplets: Tensor,
    factor: Tensor | None = None,
    alpha: float = 40.0,
    reduction: Reduction = "sum",
) -> Tensor:
    """Smooth angular loss of triplets: log(1 + exp(m)) of each margin m of ``angular_margins``.

    Parameters
    ----------
    embeddings : (N, d) tensor
        Embeddings, usually of unit length. Gradients flow to them.
    triplets : (T, 3) int64 tensor
        Rows of ``embeddings``: anchor, positive, negative. With T = 0 the sum and the mean are 0.
    factor : (d, l) tensor, optional
        L of the metric M = L L^T, cast to the type of the embeddings. If None, the distance is Euclidean.
    alpha : float
        Upper bound of the angle at the negative, in degrees, in (0, 90).
    reduction : {"sum", "mean", "none"}
        Reduction over the triplets.

    Returns
    -------
    0-d tensor, or (T,) for ``reduction="none"``
        The loss.

    References
    ----------
    Wang, Zhou, Wen, Liu, Lin: Deep metric learning with angular loss. ICCV 2017.
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

    A triplet with m > 0 violates the angle bound. The metric is applied before triplets are gathered, so an example in
    many triplets is projected once. Indices are checked on a CPU only, because the check would synchronise a GPU.
    """
    _check(embeddings, triplets, factor)
    points = embeddings if factor is None else embeddings @ factor.to(embeddings.dtype)
    anchor, positive, negative = points[triplets].unbind(1)
    return row_margins(triangle_rows(anchor, positive, negative, alpha))


def batch_angular_loss(embeddings: Tensor, targets: Tensor, alpha: float = 40.0, constant: bool = False) -> Tensor:
    """Mean over all ordered pairs of one class of log(1 + sum over negatives n of exp(f_apn)), 0-d.

    For rows e of unit length and t = tan(alpha)^2,

        f_apn = 4 t (e_a + e_p) . e_n - 2 (1 + t) e_a . e_p            (+ 2 - 6 t if ``constant``).

    With the constant it is the margin ||e_a - e_p||^2 - 4 t ||e_n - (e_a + e_p)/2||^2 of ``angular_margins``. Both
    examples of a pair have the same negatives, so the sum is exp(-2 (1 + t) e_a . e_p) times an entry of E E^T, where
    E_an is exp(4 t e_a . e_n) for negatives and 0 elsewhere. No array of size n^3 is made. Unit rows bound the
    exponents, so nothing over- or underflows in float64 up to 80 degrees.

    ``embeddings`` (n, d) are scaled to unit length here; a zero row stays zero. ``targets`` (n,) are int64 classes;
    unlabelled rows, -1, are ignored. Without a pair of one class, or without a second class, the loss and its gradient
    are 0. The result has the embeddings' type, or float32 if that is narrower.
    """
    check_angle(alpha)
    check_batch(embeddings, targets)
    rows = unit_features(embeddings.double())
    positive, negative = labelled_masks(targets)
    t = math.tan(math.radians(alpha)) ** 2
    similarities = rows @ rows.T
    repulsion = (4 * t * similarities).exp() * negative
    attraction = ((2 - 6 * t) * constant - 2 * (1 + t) * similarities).exp()
    losses = torch.log1p((repulsion @ repulsion.T) * attraction) * positive
    mean = losses.sum() / positive.sum().clamp(min=1)
    return mean.to(torch.promote_types(embeddings.dtype, torch.float32))


def check_angle(alpha: float) -> None:
    """Check that the batch form can be computed for this angle."""
    if not 0.0 < alpha <= LARGEST_ANGLE:
        raise InputError(f"alpha is {alpha}; it must be an angle in degrees above 0 and at most {LARGEST_ANGLE:g}.")


def _check(embeddings: Tensor, triplets: Tensor, factor: Tensor | None) -> None:
    check_embeddings(embeddings)
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
