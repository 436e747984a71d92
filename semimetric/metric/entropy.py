r"""A positive semi-definite M from pairs: likely labels of known pairs, little doubt about unknown ones.

With s = eta - v^T M v a pair of difference v is similar with probability sigma(s). Known pairs add the negative
log-likelihood of their label, unknown ones mu times their binary entropy, and lambda tr(M) keeps M of low rank:

    J(M) = mean_S softplus(-s) / 2 + mean_D softplus(s) / 2 + mu mean_U H(s) + lambda tr(M)

G. Niu, B. Dai, M. Yamada, M. Sugiyama, "Information-theoretic semi-supervised metric learning via entropy
regularization", ICML 2012 and Neural Computation 26(8), 2014. Means instead of sums, and equal weight for similar and
dissimilar pairs, are ours.
"""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True)
class EntropyProblem:
    """Differences of similar, dissimilar and unknown pairs (each (P, d) float64), eta, mu, lambda."""

    similar: Tensor
    dissimilar: Tensor
    unknown: Tensor
    eta: float
    mu: float
    trace_weight: float

    def cost(self, matrix: Tensor) -> float:
        """J(M)."""
        doubt = mean_entropy(_squared_lengths(self.unknown, matrix), self.eta)
        return self.known_cost(matrix) + self.mu * float(doubt)

    def known_cost(self, matrix: Tensor) -> float:
        """J(M) without its unknown pairs."""
        known = torch.cat([self.similar, self.dissimilar])
        same = (torch.arange(len(known), device=known.device) < len(self.similar)).to(known)
        surprise = label_surprise(_squared_lengths(known, matrix), same, 1.0 - same, self.eta)
        return float(surprise + self.trace_weight * matrix.trace())

    def gradient(self, matrix: Tensor) -> Tensor:
        """The gradient of J without its trace term."""
        s = self.eta - _squared_lengths(self.unknown, matrix)
        return self.known_gradient(matrix) - _weighted(self.unknown, self.mu * entropy_slope(s))

    def known_gradient(self, matrix: Tensor) -> Tensor:
        """The part of ``gradient`` that known pairs make."""
        close = torch.sigmoid(_squared_lengths(self.similar, matrix) - self.eta)
        far = torch.sigmoid(self.eta - _squared_lengths(self.dissimilar, matrix))
        return _weighted(self.similar, 0.5 * close) - _weighted(self.dissimilar, 0.5 * far)

    def surrogate(self, matrix: Tensor) -> ConvexSurrogate:
        """A convex problem that lies on or above J and touches it at ``matrix``."""
        s = self.eta - _squared_lengths(self.unknown, matrix)
        return ConvexSurrogate(self, entropy_slope(s.clamp(-INFLECTION, INFLECTION)))


@dataclass(frozen=True)
class ConvexSurrogate:
    """J with the concave part of the entropy of unknown pairs replaced by its tangents, of the given ``slopes``.

    H is concave for |s| up to c = 1.54 and convex beyond. With s clipped to [-c, c] as t, H is the convex function
    H(s) - H(t) - H'(t)(s - t) plus a concave one with the slope H'(t). An undecided pair is so drawn to its side.
    """

    problem: EntropyProblem
    slopes: Tensor

    @property
    def trace_weight(self) -> float:
        """Lambda."""
        return self.problem.trace_weight

    def cost(self, matrix: Tensor) -> float:
        """The surrogate up to a constant."""
        whole = self.problem
        s = whole.eta - _squared_lengths(whole.unknown, matrix)
        t = s.clamp(-INFLECTION, INFLECTION)
        convex = binary_entropy(s) - binary_entropy(t) - entropy_slope(t) * (s - t)
        return whole.known_cost(matrix) + whole.mu * float((convex + self.slopes * s).sum()) / max(1, len(s))

    def gradient(self, matrix: Tensor) -> Tensor:
        """The gradient of ``cost`` without its trace term."""
        whole = self.problem
        s = whole.eta - _squared_lengths(whole.unknown, matrix)
        rise = entropy_slope(s) - entropy_slope(s.clamp(-INFLECTION, INFLECTION)) + self.slopes
        return whole.known_gradient(matrix) - _weighted(whole.unknown, whole.mu * rise)


@dataclass(frozen=True)
class PSDResult:
    """A positive semi-definite matrix, its cost, and the costs on the way."""

    matrix: Tensor
    cost: float
    costs: tuple[float, ...]


def projected_gradient(
    problem: EntropyProblem | ConvexSurrogate, start: Tensor, iterations: int = 50, tolerance: float = 1e-5
) -> PSDResult:
    """Lower ``problem.cost`` over the cone from ``start``: gradient steps, then the eigenvalues shrunk and clipped.

    The trace term is taken exactly: its proximal map subtracts t lambda from every eigenvalue. Steps follow Barzilai
    and Borwein, halved until the cost falls by enough. Ends when the matrix moves by less than ``tolerance`` of itself.
    """
    matrix, cost = start, problem.cost(start)
    gradient = problem.gradient(matrix)
    step = float(start.norm().clamp_min(1e-12) / gradient.norm().clamp_min(1e-12))
    costs = [cost]
    for _ in range(iterations):
        found = _lower(problem, matrix, cost, gradient, step)
        if found is None:
            break
        moved = found[0] - matrix
        matrix, cost, step = found
        costs.append(cost)
        if float(moved.norm()) <= tolerance * float(matrix.norm()):
            break
        gradient, last = problem.gradient(matrix), gradient
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
    problem: EntropyProblem | ConvexSurrogate, matrix: Tensor, cost: float, gradient: Tensor, step: float
) -> tuple[Tensor, float, float] | None:
    """The first point along halved steps that is low enough, with its cost and step; None where there is none."""
    for _ in range(HALVINGS):
        shrunk = step * problem.trace_weight * torch.eye(len(matrix)).to(matrix)
        candidate = project_psd(matrix - step * gradient - shrunk)
        reached = problem.cost(candidate)
        if reached <= cost - ARMIJO / step * float((candidate - matrix).square().sum()):
            return candidate, reached, step
        step /= 2.0
    return None


def _squared_lengths(pairs: Tensor, matrix: Tensor) -> Tensor:
    return ((pairs @ matrix) * pairs).sum(1)


def _weighted(pairs: Tensor, weights: Tensor) -> Tensor:
    """Mean of w v v^T, which is minus d/dM of the mean of a function of s with the slopes w."""
    return (pairs * weights[:, None]).T @ pairs / max(1, len(pairs))
