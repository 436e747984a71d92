"""The rules of the Manopt toolbox that both conjugate gradient loops follow, and what a run gives back.

References
----------
Boumal, Mishra, Absil, Sepulchre: Manopt, a Matlab toolbox for optimization on manifolds. JMLR 15, 2014.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

TRIALS = 10
"""Costs a line search may measure."""

CONTRACTION = 0.5
"""What a step is multiplied with when it was too long."""

SUFFICIENT_DECREASE = 0.5
"""Share of the decrease promised by the slope that a step must bring."""

GRADIENT_TOLERANCE = 1e-6
"""A run ends where the gradient is shorter than this."""

STEP_TOLERANCE = 1e-10
"""A run ends after a step that is shorter than this."""

CURVATURE_FLOOR = 1e-30
"""A denominator of beta that is this small in size counts as zero."""

DESCENT_FLOOR = 1e-10
"""A direction that descends by less than this share of what -g does counts as uphill: rounding decides its sign.

With a single free parameter, to name one case, Hestenes-Stiefel directions are zero but for rounding."""


@dataclass(frozen=True)
class CGResult:
    """Where the solver ended, as tensors on the device of the problem (reading a number waits for the device).

    Attributes
    ----------
    point : (d, l) float64
        The new metric factor.
    cost, gradient_norm, iterations : ()
        Objective and norm of the Riemannian gradient at ``point``; iterations made before a stopping rule held.
    costs : (K + 1,)
        Objective at the start and after each iteration; the last value repeats where a GPU had to run on.
    """

    point: Tensor
    cost: Tensor
    gradient_norm: Tensor
    iterations: Tensor
    costs: Tensor
