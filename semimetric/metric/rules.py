"""Constants of both conjugate-gradient loops, from the Manopt toolbox, and the result of a run."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

TRIALS = 10  # most cost evaluations of a line search
CONTRACTION = 0.5  # factor by which a step that is too long is reduced
SUFFICIENT_DECREASE = 0.5  # share of the decrease predicted by the slope that a step must achieve
GRADIENT_TOLERANCE = 1e-6  # a run stops when the gradient norm is below this
STEP_TOLERANCE = 1e-10  # a run stops after a step shorter than this
CURVATURE_FLOOR = 1e-30  # a denominator of beta with a smaller absolute value counts as zero
DESCENT_FLOOR = 1e-10
"""A direction that descends by less than this share of the descent of -g counts as uphill, because rounding decides its
sign. With a single free parameter, for example, Hestenes-Stiefel directions are zero up to rounding."""


@dataclass(frozen=True)
class CGResult:
    """Result of the solver, as tensors on the device of the problem (reading a value synchronises a GPU).

    ``point`` (d, l) float64 is the new metric factor. ``cost``, ``gradient_norm`` and ``iterations`` () are the
    objective and the norm of the Riemannian gradient there, and the number of iterations. ``costs`` (K + 1,) are the
    objective at the start and after each iteration; on a GPU the last value repeats after a stopping rule holds.
    """

    point: Tensor
    cost: Tensor
    gradient_norm: Tensor
    iterations: Tensor
    costs: Tensor
