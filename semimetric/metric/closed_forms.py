"""Metrics that minimise their objective in closed form: with a bounded determinant, or near a prior.

All matrices are symmetric (d, d), in float64. A weighted sum of squared distances under M is tr(M B), where B is the
same sum over v v^T for the differences v. With weights of both signs B may be indefinite and the objective unbounded;
each function describes its safeguard.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from semimetric.core.checks import check_not_negative, check_positive
from semimetric.core.errors import InputError

RANK_TOLERANCE = 1e-12  # eigenvalues below this share of the largest are treated as zero
CAP_SHARE = 0.9  # a weight is capped at this share of the largest one that keeps the problem bounded


def project_psd(matrix: Tensor) -> Tensor:
    """Nearest positive semi-definite matrix in the Frobenius norm: negative eigenvalues become 0."""
    values, vectors = torch.linalg.eigh(_symmetric(matrix))
    return _symmetric((vectors * values.clamp(min=0)) @ vectors.T)


def largest_weight(base: Tensor, subtracted: Tensor) -> float:
    """The g_max below which ``base`` - g ``subtracted`` is positive definite, for a positive definite base.

    It is 1 / lambda_max(B^-1/2 S B^-1/2), or infinite if S has no positive eigenvalue.
    """
    factor, failed = torch.linalg.cholesky_ex(_symmetric(base))
    if int(failed):
        raise InputError("base is not positive definite; add a small multiple of the identity to it.")
    half = torch.linalg.solve_triangular(factor, _symmetric(subtracted), upper=False)
    relative = torch.linalg.solve_triangular(factor, half.T, upper=False)
    values = torch.linalg.eigvalsh(_symmetric(relative))
    largest = float(values[-1])
    return 1 / largest if largest > RANK_TOLERANCE * float(values.abs().max()) else math.inf


def minimize_with_unit_determinant(
    matrix: Tensor, floor: float, rest: float = 0.0, times: int = 0
) -> tuple[Tensor, float, int]:
    """Argmin of tr(M B) over log det M >= 0, and the number of eigenvalues of B that were raised to ``floor`` > 0.

    B is ``matrix`` and, in ``times`` further directions, ``rest`` times the identity. M has the same form, and its
    multiple of the identity comes second.

    For a positive definite B the minimiser is M = det(B)^(1/d) B^-1: by the inequality of arithmetic and geometric
    mean, tr(M B) >= d det(M B)^(1/d) >= d det(B)^(1/d), with equality for this M alone. If B has an eigenvalue that is
    not positive there is no minimum. Eigenvalues below ``floor`` are therefore raised to it.
    """
    check_positive(floor, "floor")
    values, vectors = torch.linalg.eigh(_symmetric(matrix))
    logs, further = values.clamp(min=floor).log(), math.log(max(rest, floor))
    mean = (logs.sum() + times * further) / (len(logs) + times)
    minimizer = _symmetric((vectors * (mean - logs).exp()) @ vectors.T)
    return minimizer, math.exp(float(mean) - further), int((values < floor).sum()) + times * (rest < floor)


def logdet_proximal(prior: Tensor, form: Tensor, weight: float) -> tuple[Tensor, float]:
    """Argmin over M of D_ld(M, ``prior``) + ``weight`` tr(M ``form``), and the weight that was used.

    D_ld is the LogDet divergence. For a positive definite prior M0 the gradient vanishes where M^-1 = M0^-1 + w T.
    Written as M = F (I + w F^T T F)^-1 F^T with M0 = F F^T, it also holds for singular priors: the divergence is finite
    only for matrices with the range of M0. ``form`` may be indefinite. If mu = lambda_min(F^T T F) < 0, the objective
    has a minimum only for w < 1 / |mu|, and the weight is capped at 0.9 of that.
    """
    check_not_negative(weight, "weight")
    values, vectors = _range(prior)
    if len(values) == 0:
        return torch.zeros_like(vectors @ vectors.T), float(weight)
    factor = vectors * values.sqrt()
    shifts, directions = torch.linalg.eigh(_symmetric(factor.T @ _symmetric(form) @ factor))
    lowest = float(shifts[0])
    used = min(float(weight), CAP_SHARE / -lowest) if lowest < 0 else float(weight)
    axes = factor @ directions
    return _symmetric((axes / (1 + used * shifts)) @ axes.T), used


def logdet_divergence(matrix: Tensor, prior: Tensor) -> float:
    """LogDet divergence D_ld(M, M0) = tr(M M0^-1) - log det(M M0^-1) - d, on the range of the prior M0.

    Both matrices are symmetric positive semi-definite. The divergence is infinite if their ranges differ.
    """
    values, vectors = _range(prior)
    exact = _symmetric(matrix)
    inside = vectors.T @ exact @ vectors
    outside = exact - vectors @ inside @ vectors.T
    if float(outside.norm()) > math.sqrt(RANK_TOLERANCE) * float(exact.norm()):
        return math.inf
    roots = values.sqrt()
    ratios = torch.linalg.eigvalsh(_symmetric(inside / roots[:, None] / roots))
    if len(ratios) and float(ratios[0]) <= RANK_TOLERANCE * float(ratios[-1]):
        return math.inf
    return float((ratios - ratios.log() - 1).sum())


def _range(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Nonzero eigenvalues (r,) and their eigenvectors (d, r) of a positive semi-definite matrix of rank r."""
    values, vectors = torch.linalg.eigh(_symmetric(matrix))
    kept = int((values > RANK_TOLERANCE * float(values[-1].clamp(min=0))).sum())
    first = len(values) - kept
    return values[first:], vectors[:, first:]


def _symmetric(matrix: Tensor) -> Tensor:
    exact = matrix.to(torch.float64)
    return (exact + exact.T) / 2
