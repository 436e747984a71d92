"""Joint learning of a metric and synthetic hard examples from random unlabelled triplets.

One of five cases holds for a triplet (a, p, n): the anchor, the positive or the negative is the odd one out, all three
are alike, or all are different. S (2d, d) maps concatenated examples to synthetic ones, S^T [x; x'], that are hard for
the metric L (d, l). Both are found by minimising the entropy of the cases:

    J(S, L) = -mean_i sum_c p_c log p_c + lambda ||L^T L - I||_F^2,    p_c = sigma(-ell_c).

ell_c is the loss of case c under L plus, with opposite sign, that under S alone. Let D(u) = ||S^T u||^2 and
D_L(u) = ||L^T S^T u||^2. With the side u between the two that are alike, the median v from the odd one to their
midpoint, and t = tan^2 alpha,

    one is odd:      ell = softplus(D_L(u) - 4t D_L(v)) + softplus(4t D(v) - D(u))
    all alike:       ell = D_L(u) - D(u),    u = [a; p] - [a; n]
    all different:   ell = D(u) - D_L(u),    the same u

Two facts reduce the problem. All differences are between concatenations with the same upper half, so only the lower
half of S matters: S is (d, d) here. In a triangle with squared distances q_k of its corners from the centroid and their
sum q, the squared side opposite corner k is 2q - 3 q_k and the squared median from it is 9/4 q_k. So J depends on three
numbers per triplet under S and three under S L.

Unlike in the paper, J is a mean instead of a sum, and S has constant norm, without which it would grow without bound.

Dutta, Harandi, Sekhar: Unsupervised metric learning with synthetic examples. AAAI 2020.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from semimetric.core.errors import InputError
from semimetric.metric import rules
from semimetric.metric.geometry import identity_like


def centred_corners(points: Tensor, triplets: Tensor) -> Tensor:
    """The three rows of ``points`` (N, d) of each of ``triplets`` (T, 3), minus their mean: (T, 3, d)."""
    corners = points[triplets]
    return corners - corners.mean(1, keepdim=True)


def squared_lengths(rows: Tensor) -> Tensor:
    """Squared norms of rows: (..., d) to (...)."""
    return rows.square().sum(-1)


def case_scores(synthetic: Tensor, embedded: Tensor, alpha: float) -> Tensor:
    """Losses ell of the five cases (T, 5): anchor, positive or negative odd, all alike, all different.

    ``synthetic`` and ``embedded`` (T, 3) are the squared distances of anchor, positive and negative from their centroid
    under S and under S L. ``alpha`` is in degrees.
    """
    odd = softplus(_margins(embedded, alpha)) + softplus(-_margins(synthetic, alpha))
    alike = _first_side(embedded) - _first_side(synthetic)
    return torch.cat([odd, alike[..., None], -alike[..., None]], dim=-1)


def case_entropies(scores: Tensor) -> Tensor:
    """-p log p for p = sigma(-ell), finite for every ell."""
    return torch.sigmoid(-scores) * softplus(scores)


def case_slopes(scores: Tensor) -> Tensor:
    """Derivative of ``case_entropies`` in ell: p (1 - p) (1 + log p)."""
    return torch.sigmoid(scores) * torch.sigmoid(-scores) * (1.0 - softplus(scores))


def _tangent_square(alpha: float) -> float:
    return math.tan(math.radians(alpha)) ** 2


def _margins(squares: Tensor, alpha: float) -> Tensor:
    """||u||^2 - 4t ||v||^2 for the side u opposite each corner and the median v from it: (T, 3) to (T, 3)."""
    return 2.0 * squares.sum(-1, keepdim=True) - (3.0 + 9.0 * _tangent_square(alpha)) * squares


def _first_side(squares: Tensor) -> Tensor:
    """The squared side opposite the anchor, (T, 3) to (T,)."""
    return 2.0 * squares.sum(-1) - 3.0 * squares[..., 0]


def _square_slopes(margin_slopes: Tensor, side_slopes: Tensor, alpha: float) -> Tensor:
    """Derivatives in the squares (T, 3), from derivatives in their margins (T, 3) and first sides (T,)."""
    total = margin_slopes.sum(-1, keepdim=True) + side_slopes[..., None]
    slopes = 2.0 * total - (3.0 + 9.0 * _tangent_square(alpha)) * margin_slopes
    slopes[..., 0] -= 3.0 * side_slopes
    return slopes


def synthesis_start(factor: Tensor) -> Tensor:
    """Initial S (d, d) for L (d, l) with orthonormal columns: L L^T, scaled to the norm that S keeps.

    Synthetic examples are then embedded ones and D_L = D, so all alike and all different are equally likely. The start
    matters, because J is the same for S O and O^T L with any rotation O and does not determine which directions L
    keeps. From here S and L stay within the span of the first L, up to rounding.
    """
    exact = factor.detach().to(torch.float64)
    return _with_norm(exact @ exact.T)


def _with_norm(synthesis: Tensor) -> Tensor:
    """S scaled to the Frobenius norm sqrt(d), that of the identity."""
    scaled: Tensor = synthesis * (math.sqrt(len(synthesis)) / torch.linalg.matrix_norm(synthesis))
    return scaled


class Evaluation(NamedTuple):
    """J at a point, with the corners under S (T, 3, d) and under S L (T, 3, l)."""

    cost: float
    synthetic: Tensor
    embedded: Tensor


class SyntheticProblem:
    """J over points [S | L], (d, d + l), for centred corners (T, 3, d), in float64 on the device of the corners.

    Valid points have ||S||_F = sqrt(d); ``gradient`` and ``project`` keep it to first order, ``walk`` restores it.
    """

    def __init__(self, corners: Tensor, alpha: float, penalty: float) -> None:
        if corners.ndim != 3 or corners.shape[0] == 0 or corners.shape[1] != 3:
            raise InputError(
                f"corners must be at least one triplet (T, 3, d), got shape {tuple(corners.shape)}. Use "
                "centred_corners(points, triplets)."
            )
        if not 0.0 < alpha < 90.0:
            raise InputError(f"alpha is {alpha}; it must be an angle in degrees strictly between 0 and 90.")
        self.corners = corners.detach().to(torch.float64)
        self.alpha = alpha
        self.penalty = penalty

    def parts(self, point: Tensor) -> tuple[Tensor, Tensor]:
        """S and L of [S | L]."""
        d = self.corners.shape[2]
        return point[:, :d], point[:, d:]

    def evaluate(self, point: Tensor) -> Evaluation:
        """J; the norm of S is not checked."""
        synthesis, factor = self.parts(point)
        synthetic = self.corners @ synthesis
        embedded = synthetic @ factor
        scores = case_scores(squared_lengths(synthetic), squared_lengths(embedded), self.alpha)
        cost = case_entropies(scores).sum(-1).mean() + self.penalty * orthogonality_defect(factor).square()
        return Evaluation(float(cost), synthetic, embedded)

    def gradient(self, point: Tensor, at: Evaluation) -> Tensor:
        """Gradient of J at ``point``, evaluated ``at`` there, without the component that changes the norm of S."""
        _, factor = self.parts(point)
        synthetic_slopes, embedded_slopes = self._corner_slopes(at)
        by_embedded = embedded_slopes * at.embedded
        by_synthetic = synthetic_slopes * at.synthetic + by_embedded @ factor.T
        gram_defect = factor.T @ factor - identity_like(factor)
        by_factor = _contract(at.synthetic, by_embedded) + 4.0 * self.penalty * factor @ gram_defect
        return self.project(point, torch.cat([_contract(self.corners, by_synthetic), by_factor], dim=1))

    def _corner_slopes(self, at: Evaluation) -> tuple[Tensor, Tensor]:
        """Factors (T, 3, 1) that turn the corners under S and under S L into the derivatives in them."""
        synthetic, embedded = squared_lengths(at.synthetic), squared_lengths(at.embedded)
        slopes = case_slopes(case_scores(synthetic, embedded, self.alpha)) / len(synthetic)
        odd, alike = slopes[:, :3], slopes[:, 3] - slopes[:, 4]
        by_synthetic = -odd * torch.sigmoid(-_margins(synthetic, self.alpha))
        by_embedded = odd * torch.sigmoid(_margins(embedded, self.alpha))
        return (
            2.0 * _square_slopes(by_synthetic, -alike, self.alpha)[..., None],
            2.0 * _square_slopes(by_embedded, alike, self.alpha)[..., None],
        )

    def project(self, point: Tensor, vector: Tensor) -> Tensor:
        """The part of ``vector`` along which the norm of S is constant to first order."""
        synthesis, _ = self.parts(point)
        along, by_factor = self.parts(vector)
        radial = dot(synthesis, along) / dot(synthesis, synthesis)
        return torch.cat([along - radial * synthesis, by_factor], dim=1)

    def walk(self, point: Tensor, direction: Tensor, step: float) -> Tensor:
        """The point after a step, with the norm of S restored."""
        synthesis, factor = self.parts(torch.add(point, direction, alpha=step))
        return torch.cat([_with_norm(synthesis), factor], dim=1)


def orthogonality_defect(factor: Tensor) -> Tensor:
    """||L^T L - I||_F."""
    defect: Tensor = torch.linalg.matrix_norm(factor.T @ factor - identity_like(factor))
    return defect


def _contract(left: Tensor, right: Tensor) -> Tensor:
    """Sum over triplets and corners: (T, 3, p) and (T, 3, q) to (p, q)."""
    return left.flatten(0, 1).T @ right.flatten(0, 1)


def dot(left: Tensor, right: Tensor) -> float:
    """Inner product of two matrices."""
    return float((left * right).sum())


@dataclass(frozen=True)
class SyntheticResult:
    """S (d, d) and L (d, l) in float64, and J at the start and after each iteration."""

    synthesis: Tensor
    factor: Tensor
    costs: tuple[float, ...]


class Step(NamedTuple):
    """A step that lowers J: the new point, its evaluation, the step size, and the first size to try next."""

    point: Tensor
    at: Evaluation
    size: float
    next_trial: float


@torch.no_grad()
def minimize_synthetic(
    problem: SyntheticProblem, synthesis: Tensor, factor: Tensor, max_iterations: int = 10
) -> SyntheticResult:
    """Minimise J over S, of constant norm, and L by conjugate gradients; the cost never exceeds that of the start.

    The rules are those of ``semimetric.metric.rules``: modified Hestenes-Stiefel with adaptive step halving. The run
    restarts along -g after a failed line search and ends after two in a row.
    """
    start = torch.cat([_with_norm(synthesis.to(torch.float64)), factor.to(torch.float64)], dim=1)
    point, at = start, problem.evaluate(start)
    gradient = old_gradient = problem.gradient(point, at)
    costs, failures, still = [at.cost], 0, False
    direction: Tensor | None = None

    while len(costs) <= max_iterations and failures < 2 and not still:
        length = math.sqrt(dot(gradient, gradient))
        if not length >= rules.GRADIENT_TOLERANCE:
            break
        if direction is None:
            direction, trial = -gradient, 1.0 / length
        else:
            direction = _conjugate(old_gradient, gradient, problem.project(point, direction))
        found = _search(problem, point, at, direction, dot(gradient, direction), trial)
        if found is None:
            direction, failures = None, failures + 1
        else:
            point, at, size, trial = found
            failures, still = 0, size**2 * dot(direction, direction) < rules.STEP_TOLERANCE**2
            old_gradient, gradient = gradient, problem.gradient(point, at)
        costs.append(at.cost)

    return SyntheticResult(*problem.parts(point), tuple(costs))


def _conjugate(old_gradient: Tensor, gradient: Tensor, carried: Tensor) -> Tensor:
    """-g' + beta e' with beta = max(0, <g', y> / <y, e'>), y = g' - g; -g' alone where that would not descend."""
    change = gradient - old_gradient
    curvature, square = dot(change, carried), dot(gradient, gradient)
    if abs(curvature) <= rules.CURVATURE_FLOOR:
        return -gradient
    beta = max(0.0, dot(gradient, change) / curvature)
    descends = beta * dot(gradient, carried) - square < -rules.DESCENT_FLOOR * square
    return beta * carried - gradient if descends else -gradient


def _search(
    problem: SyntheticProblem, point: Tensor, at: Evaluation, direction: Tensor, slope: float, trial: float
) -> Step | None:
    """Halve the step until the decrease is sufficient; None if no step lowers J."""
    step = trial
    for evaluations in range(1, rules.TRIALS + 1):
        reached = problem.walk(point, direction, step)
        there = problem.evaluate(reached)
        if there.cost <= at.cost + rules.SUFFICIENT_DECREASE * step * slope or evaluations == rules.TRIALS:
            break
        step *= rules.CONTRACTION
    if not there.cost <= at.cost:
        return None
    return Step(reached, there, step, step if evaluations == 2 else 2.0 * step)
