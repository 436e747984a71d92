"""The angular triplet objective as a function of a matrix, shared by the loss and the metric solver.

A triplet (z, z+, z-) enters only through the side a = z - z+ and the height b = z- - (z + z+)/2 of its triangle. With
heights scaled by 2 tan(alpha), the margin is a difference of two squared norms:

    m = ||L^T a||^2 - 4 tan(alpha)^2 ||L^T b||^2 = ||L^T a||^2 - ||L^T (2 tan(alpha) b)||^2.

Wang, Zhou, Wen, Liu, Lin: Deep metric learning with angular loss. ICCV 2017.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

from semimetric.core.errors import InputError


def triangle_rows(anchor: Tensor, positive: Tensor, negative: Tensor, alpha: float) -> Tensor:
    """Stack the T sides over the T scaled heights: three (T, d) tensors give one (2T, d) tensor.

    ``alpha`` is the angle bound in degrees, strictly between 0 and 90.
    """
    if not 0.0 < alpha < 90.0:
        raise InputError(f"alpha is {alpha}; it must be an angle in degrees strictly between 0 and 90.")
    height = negative - (anchor + positive) / 2
    return torch.cat([anchor - positive, height * (2 * math.tan(math.radians(alpha)))])


def row_margins(rows: Tensor) -> Tensor:
    """Margins m (..., T) of triplets given as projected triangle rows (..., 2T, l)."""
    squares: Tensor = torch.linalg.vecdot(rows, rows)
    sides, heights = squares.chunk(2, dim=-1)
    return sides - heights


class AngularProblem:
    """J(L) = sum_i softplus(m_i(L)) for fixed triplets, in float64.

    All methods take ``projections`` = rows @ L, (2T, l), instead of L. A solver that updates the projections along with
    L then needs one product with the rows per direction instead of one per trial point.
    """

    def __init__(self, anchor: Tensor, positive: Tensor, negative: Tensor, alpha: float) -> None:
        _check_triplet_points(anchor, positive, negative)
        anchor, positive, negative = (points.detach().to(torch.float64) for points in (anchor, positive, negative))
        self.rows = triangle_rows(anchor, positive, negative, alpha)

    @staticmethod
    def cost(margins: Tensor) -> Tensor:
        """Sum of softplus over the last dimension: margins (..., T) give costs (...)."""
        return softplus(margins).sum(-1)

    def gradient(self, projections: Tensor, margins: Tensor) -> Tensor:
        """Euclidean gradient dJ/dL, (d, l): 2 A (s * A^T L) - 8 tan^2 B (s * B^T L), s = sigmoid(m)."""
        slopes = 2 * torch.sigmoid(margins)
        weights = torch.cat([slopes, -slopes]).unsqueeze(1)
        return self.rows.T @ (weights * projections)


def _check_triplet_points(anchor: Tensor, positive: Tensor, negative: Tensor) -> None:
    shapes = [tuple(tensor.shape) for tensor in (anchor, positive, negative)]
    if anchor.ndim != 2 or anchor.shape[0] == 0 or len(set(shapes)) != 1:
        raise InputError(
            f"anchor, positive and negative have the shapes {shapes[0]}, {shapes[1]} and {shapes[2]}; "
            "give three tensors of one shape (T, d) with at least one triplet."
        )
