"""A metric from labelled pairs alone, as a prior for semi-supervised methods.

Koestinger, Hirzer, Wohlhart, Roth, Bischof: Large scale metric learning from equivalence constraints. CVPR 2012.
"""

from __future__ import annotations

import torch
from torch import Tensor

from semimetric.core.errors import InputError
from semimetric.metric.closed_forms import RANK_TOLERANCE, project_psd


def likelihood_ratio_prior(similar: Tensor, dissimilar: Tensor, shrinkage: float = 0.1) -> Tensor | None:
    """KISSME: the metric of the log-likelihood ratio of a difference being dissimilar rather than similar.

    With zero-mean Gaussians of covariances S_s and S_d for similar and dissimilar differences, the ratio is v^T (S_s^-1
    - S_d^-1) v / 2 up to a constant. M is the nearest positive semi-definite matrix. With n labelled examples of C
    classes S_s has at most rank n - C and is usually singular. Both scatters (d, d) are therefore shrunk towards their
    isotropic part, S <- (1 - rho) S + rho tr(S)/d I with rho = ``shrinkage``.

    M is (d, d) float64 with trace d, usually of lower rank. The result is None if there are no similar or no dissimilar
    differences, or if S_s - S_d has no negative eigenvalue.
    """
    if not 0 < shrinkage <= 1:
        raise InputError(f"shrinkage is {shrinkage}; it must be above 0, to invert the scatters, and at most 1.")
    if not (float(similar.trace()) > 0 and float(dissimilar.trace()) > 0):
        return None
    precise = _shrunk_inverse(similar, shrinkage)
    matrix = project_psd(precise - _shrunk_inverse(dissimilar, shrinkage))
    trace = matrix.trace()
    if not float(trace) > RANK_TOLERANCE * float(precise.trace()):
        return None
    return matrix * (len(matrix) / trace)


def _shrunk_inverse(scatter: Tensor, shrinkage: float) -> Tensor:
    values, vectors = torch.linalg.eigh(scatter.to(torch.float64))
    shrunk = (1 - shrinkage) * values.clamp(min=0) + shrinkage * values.mean()
    inverse: Tensor = (vectors / shrunk) @ vectors.T
    return inverse
