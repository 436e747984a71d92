"""A positive semi-definite M from pairs: maximum likelihood for labelled pairs, minimum entropy for unlabelled ones.

A pair with difference v is similar with probability sigma(s), s = eta - v^T M v. Labelled pairs add their negative
log-likelihood, unlabelled pairs add mu times their binary entropy, and lambda tr(M) keeps the rank of M low:

    J(M) = mean_S softplus(-s) / 2 + mean_D softplus(s) / 2 + mu mean_U H(s) + lambda tr(M)

Unlike in the paper, terms are means instead of sums, and similar and dissimilar pairs have equal weight.

Niu, Dai, Yamada, Sugiyama: Information-theoretic semi-supervised metric learning via entropy regularization. ICML 2012
and Neural Computation 26(8), 2014.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad, softplus

from semimetric.metric.closed_forms import project_psd
from semimetric.metric.geometry import identity_like

ARMIJO = 1e-4  # sufficient decrease of a step, as a share of its squared length over the step size

HALVINGS = 30

INFLECTION = 1.5434046384182083  # inflection point of the entropy: s tanh(s/2) = 1


def binary_entropy(s: Tensor) -> Tensor:
    """H of the probability sigma(s): even in s, log 2 at 0, finite for every s."""
    return torch.sigmoid(s) * softplus(-s) + torch.sigmoid(-s) * softplus(s)


def entropy_slope(s: Tensor) -> Tensor:
    """H'(s) = -s sigma(s) sigma(-s)."""
    return -s * torch.sigmoid(s) * torch.sigmoid(-s)


def label_surprise(distances: Tensor, same: Tensor, different: Tensor, eta: float) -> Tensor:
    """Mean negative log-likelihood of labelled pairs from their squared distances, half for each kind.

    ``same`` and ``different`` are 0/1 weights of the entries of ``distances``. A kind without pairs adds 0.
    """
    close = (same * softplus(distances - eta)).sum() / same.sum().clamp_min(1)
    far = (different * softplus(eta - distances)).sum() / different.sum().clamp_min(1)
    return 0.5 * (close + far)


def mean_entropy(distances: Tensor, eta: float) -> Tensor:
    """Mean entropy of unlabelled pairs from their squared distances, 0 without pairs."""
    return binary_entropy(eta - distances).sum() / max(1, distances.numel())


class Evaluation(NamedTuple):
    """The cost of a matrix, and the weighted derivative in s of each pair's term."""

    cost: float
    slopes: Tensor


@dataclass(frozen=True)
class EntropyProblem:
    """Differences of similar, dissimilar and unlabelled pairs (each (P, d) float64), eta, mu and lambda.

    ``folded`` counts further directions, along which no pair differs and M is c times the identity. The last column of
    the differences, of zeros, stands for all of them, and the last entry of M is their part of its norm, sqrt(folded)
    c. Steps, costs and norms are then those of the whole matrix.
    """

    similar: Tensor
    dissimilar: Tensor
    unknown: Tensor
    eta: float
    mu: float
    trace_weight: float
    folded: int = field(default=0, kw_only=True)

    @cached_property
    def pairs(self) -> Tensor:
        """All differences."""
        return torch.cat([self.similar, self.dissimilar, self.unknown])

    @cached_property
    def shares(self) -> Tensor:
        """Weight of each pair in J."""
        kinds = ((self.similar, 0.5), (self.dissimilar, 0.5), (self.unknown, self.mu))
        return torch.cat([pairs.new_full((len(pairs),), weight / max(1, len(pairs))) for pairs, weight in kinds])

    def scores(self, matrix: Tensor) -> Tensor:
        """Eta - v^T M v of each pair."""
        return self.eta - ((self.pairs @ matrix) * self.pairs).sum(1)

    def unknown_terms(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """Values and slopes of the terms of unlabelled pairs."""
        return binary_entropy(s), entropy_slope(s)

    def evaluate(self, matrix: Tensor) -> Evaluation:
        """J(M)."""
        s = self.scores(matrix)
        close, far, open_ = s.split([len(self.similar), len(self.dissimilar), len(self.unknown)])
        doubt, doubt_slope = self.unknown_terms(open_)
        values = torch.cat([softplus(-close), softplus(far), doubt])
        slopes = torch.cat([-torch.sigmoid(-close), torch.sigmoid(far), doubt_slope])
        cost = float((self.shares * values).sum() + self.trace_weight * self.trace(matrix))
        return Evaluation(cost, self.shares * slopes)

    def trace(self, matrix: Tensor) -> Tensor:
        """The trace of M."""
        return matrix.trace() + (math.sqrt(self.folded) - 1) * matrix[-1, -1] if self.folded else matrix.trace()

    def trace_gradient(self, matrix: Tensor) -> Tensor:
        """The gradient of the trace term."""
        slope = identity_like(matrix)
        if self.folded:
            slope[-1, -1] = math.sqrt(self.folded)
        return self.trace_weight * slope

    def along(self, basis: Tensor) -> EntropyProblem:
        """The same problem for matrices that are a multiple of the identity outside of ``basis``.

        ``basis`` (d, r) has orthonormal columns, which span all differences.
        """
        kinds = (self.similar, self.dissimilar, self.unknown)
        similar, dissimilar, unknown = (pad(differences @ basis, (0, 1)) for differences in kinds)
        rest = len(basis) - basis.shape[1]
        return dataclasses.replace(self, similar=similar, dissimilar=dissimilar, unknown=unknown, folded=rest)

    def gradient(self, slopes: Tensor) -> Tensor:
        """The gradient without its trace term, from the slopes of an evaluation."""
        return -(self.pairs * slopes[:, None]).T @ self.pairs

    def cost(self, matrix: Tensor) -> float:
        """J(M)."""
        return self.evaluate(matrix).cost

    def surrogate(self, matrix: Tensor) -> ConvexSurrogate:
        """A convex upper bound of J, up to a constant, that touches J at ``matrix``."""
        s = self.scores(matrix)[len(self.similar) + len(self.dissimilar) :]
        tangents = entropy_slope(s.clamp(-INFLECTION, INFLECTION))
        parts = {field.name: getattr(self, field.name) for field in dataclasses.fields(EntropyProblem)}
        return ConvexSurrogate(**parts, tangents=tangents)


@dataclass(frozen=True)
class ConvexSurrogate(EntropyProblem):
    """J with the concave part of the entropy of unlabelled pairs replaced by its ``tangents``.

    H is concave for |s| up to c = 1.54 and convex beyond. With s clipped to [-c, c] as t, H is the convex function
    H(s) - H(t) - H'(t)(s - t) plus a concave one with the slope H'(t).
    """

    tangents: Tensor

    def unknown_terms(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """The convex part plus the tangents of the concave part."""
        t = s.clamp(-INFLECTION, INFLECTION)
        convex = binary_entropy(s) - binary_entropy(t) - entropy_slope(t) * (s - t)
        return convex + self.tangents * s, entropy_slope(s) - entropy_slope(t) + self.tangents


@dataclass(frozen=True)
class PSDResult:
    """A positive semi-definite matrix, its cost, and the costs of all iterations."""

    matrix: Tensor
    cost: float
    costs: tuple[float, ...]


def projected_gradient(
    problem: EntropyProblem, start: Tensor, iterations: int = 50, tolerance: float = 1e-5
) -> PSDResult:
    """Minimise ``problem.cost`` over positive semi-definite matrices by proximal gradient steps from ``start``.

    The proximal map of the trace term subtracts t lambda from every eigenvalue and clips at 0. Step sizes are those of
    Barzilai and Borwein, halved until the decrease is sufficient. It stops at a relative change of ``tolerance``.
    """
    matrix, (cost, slopes) = start, problem.evaluate(start)
    gradient = problem.gradient(slopes)
    step = float(start.norm().clamp_min(1e-12) / gradient.norm().clamp_min(1e-12))
    costs = [cost]
    for _ in range(iterations):
        found = _lower(problem, matrix, cost, gradient, step)
        if found is None:
            break
        candidate, (cost, slopes), step = found
        moved, matrix = candidate - matrix, candidate
        costs.append(cost)
        if float(moved.norm()) <= tolerance * float(matrix.norm()):
            break
        last, gradient = gradient, problem.gradient(slopes)
        bend = float((moved * (gradient - last)).sum())
        step = float(moved.square().sum()) / bend if bend > 0 else 2.0 * step
    return PSDResult(matrix, cost, tuple(costs))


def fold(matrix: Tensor, basis: Tensor) -> Tensor:
    """A matrix (d, d) that is c times the identity outside of ``basis`` (d, r) for ``EntropyProblem.along``."""
    rest = len(basis) - basis.shape[1]
    inside = basis.T @ matrix @ basis
    folded = pad(inside, (0, 1, 0, 1))
    folded[-1, -1] = (matrix.trace() - inside.trace()) / math.sqrt(rest)
    return folded


def convex_steps(problem: EntropyProblem, start: Tensor, rounds: int = 50, tolerance: float = 1e-5) -> PSDResult:
    """Minimise J by a sequence of convex surrogates (majorise-minimise).

    The paper uses soft labels q proportional to p^(1 + mu) in an EM algorithm. That minimises mu times the Renyi
    entropy of order 1 + mu, which equals J's entropy only as mu goes to 0. These surrogates minimise J itself.
    """
    matrix, costs = start, [problem.cost(start)]
    for _ in range(rounds):
        matrix = projected_gradient(problem.surrogate(matrix), matrix, tolerance=tolerance).matrix
        costs.append(problem.cost(matrix))
        if costs[-2] - costs[-1] <= tolerance * abs(costs[-1]):
            break
    return PSDResult(matrix, costs[-1], tuple(costs))


def _lower(
    problem: EntropyProblem, matrix: Tensor, cost: float, gradient: Tensor, step: float
) -> tuple[Tensor, Evaluation, float] | None:
    """The first of the halved steps with sufficient decrease: point, evaluation and step size, or None."""
    slope = problem.trace_gradient(matrix)
    for _ in range(HALVINGS):
        candidate = project_psd(matrix - step * gradient - step * slope)
        reached = problem.evaluate(candidate)
        if reached.cost <= cost - ARMIJO / step * float((candidate - matrix).square().sum()):
            return candidate, reached, step
        step /= 2.0
    return None
