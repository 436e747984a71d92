r"""A positive semi-definite M from pairs: likely labels of known pairs, little doubt about unknown ones.

With s = eta - v^T M v a pair of difference v is similar with probability sigma(s). Known pairs add the negative
log-likelihood of their label, unknown ones mu times their binary entropy, and lambda tr(M) keeps M of low rank:

    J(M) = mean_S softplus(-s) / 2 + mean_D softplus(s) / 2 + mu mean_U H(s) + lambda tr(M)

G. Niu, B. Dai, M. Yamada, M. Sugiyama, "Information-theoretic semi-supervised metric learning via entropy
regularization", ICML 2012 and Neural Computation 26(8), 2014. Means instead of sums, and equal weight for similar and
dissimilar pairs, are ours.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from semimetric.metric.closed_forms import project_psd

ARMIJO = 1e-4
"""A step must lower the cost by this share of its squared length over its size."""

HALVINGS = 30

INFLECTION = 1.5434046384182083
"""Where the entropy turns from concave to convex: s tanh(s/2) = 1."""


def binary_entropy(s: Tensor) -> Tensor:
    """H of the probability sigma(s); even in s, log 2 at 0, finite for every s."""
    return torch.sigmoid(s) * softplus(-s) + torch.sigmoid(-s) * softplus(s)


def entropy_slope(s: Tensor) -> Tensor:
    """H'(s) = -s sigma(s) sigma(-s)."""
    return -s * torch.sigmoid(s) * torch.sigmoid(-s)


def label_surprise(distances: Tensor, same: Tensor, different: Tensor, eta: float) -> Tensor:
    """Mean negative log-likelihood of known pairs from their squared distances, half for each kind.

    ``same`` and ``different`` weigh the entries of ``distances``, 0 or 1; a kind without pairs adds 0.
    """
    close = (same * softplus(distances - eta)).sum() / same.sum().clamp_min(1)
    far = (different * softplus(eta - distances)).sum() / different.sum().clamp_min(1)
    return 0.5 * (close + far)


def mean_entropy(distances: Tensor, eta: float) -> Tensor:
    """Mean entropy of unknown pairs from their squared distances; 0 where there is none."""
    return binary_entropy(eta - distances).sum() / max(1, distances.numel())


class Evaluation(NamedTuple):
    """The cost of a matrix, and the weighted slope in s of each pair's term, from which the gradient follows."""

    cost: float
    slopes: Tensor


@dataclass(frozen=True)
class EntropyProblem:
    """Differences of similar, dissimilar and unknown pairs (each (P, d) float64), eta, mu, lambda."""

    similar: Tensor
    dissimilar: Tensor
    unknown: Tensor
    eta: float
    mu: float
    trace_weight: float

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
        """Values and slopes of the unknown pairs' terms."""
        return binary_entropy(s), entropy_slope(s)

    def evaluate(self, matrix: Tensor) -> Evaluation:
        """J(M)."""
        s = self.scores(matrix)
        close, far, open_ = s.split([len(self.similar), len(self.dissimilar), len(self.unknown)])
        doubt, doubt_slope = self.unknown_terms(open_)
        values = torch.cat([softplus(-close), softplus(far), doubt])
        slopes = torch.cat([-torch.sigmoid(-close), torch.sigmoid(far), doubt_slope])
        return Evaluation(
            float((self.shares * values).sum() + self.trace_weight * matrix.trace()), self.shares * slopes
        )

    def gradient(self, slopes: Tensor) -> Tensor:
        """The gradient without its trace term, from the slopes of an evaluation: s falls with v^T M v."""
        return -(self.pairs * slopes[:, None]).T @ self.pairs

    def cost(self, matrix: Tensor) -> float:
        """J(M)."""
        return self.evaluate(matrix).cost

    def surrogate(self, matrix: Tensor) -> ConvexSurrogate:
        """A convex problem that lies on or above J, up to a constant, and touches it at ``matrix``."""
        s = self.scores(matrix)[len(self.similar) + len(self.dissimilar) :]
        tangents = entropy_slope(s.clamp(-INFLECTION, INFLECTION))
        parts = {field.name: getattr(self, field.name) for field in dataclasses.fields(EntropyProblem)}
        return ConvexSurrogate(**parts, tangents=tangents)


@dataclass(frozen=True)
class ConvexSurrogate(EntropyProblem):
    """J with the concave part of the entropy of unknown pairs replaced by its ``tangents``.

    H is concave for |s| up to c = 1.54 and convex beyond. With s clipped to [-c, c] as t, H is the convex function
    H(s) - H(t) - H'(t)(s - t) plus a concave one with the slope H'(t). An undecided pair is so drawn to its side.
    """

    tangents: Tensor

    def unknown_terms(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """The convex part, and the tangents for the concave one."""
        t = s.clamp(-INFLECTION, INFLECTION)
        convex = binary_entropy(s) - binary_entropy(t) - entropy_slope(t) * (s - t)
        return convex + self.tangents * s, entropy_slope(s) - entropy_slope(t) + self.tangents


@dataclass(frozen=True)
class PSDResult:
    """A positive semi-definite matrix, its cost, and the costs on the way."""

    matrix: Tensor
    cost: float
    costs: tuple[float, ...]


def projected_gradient(
    problem: EntropyProblem, start: Tensor, iterations: int = 50, tolerance: float = 1e-5
) -> PSDResult:
    """Lower ``problem.cost`` over the cone from ``start``: gradient steps, then the eigenvalues shrunk and clipped.

    The trace term is taken exactly: its proximal map subtracts t lambda from every eigenvalue. Steps follow Barzilai
    and Borwein, halved until the cost falls by enough. Ends when the matrix moves by less than ``tolerance`` of itself.
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


def convex_steps(problem: EntropyProblem, start: Tensor, rounds: int = 50, tolerance: float = 1e-5) -> PSDResult:
    """Lower J by minimising one convex surrogate after the other, in the manner of expectation-maximisation.

    The original labels unknown pairs softly with q proportional to p^(1 + mu) and maximises the expected likelihood;
    that lowers mu times the Renyi entropy of order 1 + mu, which is J's only as mu goes to 0. These surrogates lower J.
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
    """The first point along halved steps that is low enough, evaluated, and its step; None where there is none."""
    identity = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    for _ in range(HALVINGS):
        candidate = project_psd(matrix - step * gradient - step * problem.trace_weight * identity)
        reached = problem.evaluate(candidate)
        if reached.cost <= cost - ARMIJO / step * float((candidate - matrix).square().sum()):
            return candidate, reached, step
        step /= 2.0
    return None
