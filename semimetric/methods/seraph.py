"""Semi-supervised metric learning by entropy regularisation.

G. Niu, B. Dai, M. Yamada, M. Sugiyama, "Information-theoretic semi-supervised metric learning via entropy
regularization", ICML 2012 and Neural Computation 26(8), 2014. End to end as in Dutta, Harandi and Sekhar, AAAI 2021.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from semimetric.core.checks import check_choice, check_not_negative, check_positive
from semimetric.core.errors import InputError
from semimetric.core.settings import setting
from semimetric.core.space import Range
from semimetric.methods.base import Needs
from semimetric.methods.defaults import SLOW, extended
from semimetric.methods.pairs import PairMethod, Pairs, PairSettings, with_rates
from semimetric.metric import EntropyProblem, Metric, PairScatters, Span, label_surprise, mean_entropy
from semimetric.metric.entropy import convex_steps, fold, projected_gradient
from semimetric.mining import labelled_pairs, spread_pairs

VANISHED = 1e-8  # share of the initial trace at which the metric has vanished
WIDE = 256  # features above which it pays to descend in the span of fewer examples


@dataclass(frozen=True)
class SERAPHSettings(PairSettings):
    """Hyper-parameters."""

    eta: float = setting(100.0, "Squared distance at which similar and dissimilar are equally likely.")
    mu: float = setting(1.0, "Weight of the entropy of unlabelled pairs.")
    trace_weight: float = setting(0.001, "Weight of the trace of M, which keeps its rank low.")
    solver: Literal["gradient", "convex"] = setting(
        "gradient", "Solver of the metric step: projected gradients, or a sequence of convex problems."
    )
    iterations: int = setting(50, "Most iterations per metric step; with solver convex, most convex problems.")
    most_pairs: int = setting(20_000, "Most unlabelled, most similar and most dissimilar pairs in a working set.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self.eta, "eta")
        check_not_negative(self.mu, "mu")
        check_not_negative(self.trace_weight, "trace_weight")
        check_choice(self.solver, ("gradient", "convex"), "solver")
        if self.iterations < 1 or self.most_pairs < 1:
            got = f"{self.iterations} and {self.most_pairs}"
            raise InputError(f"iterations and most_pairs must be at least 1, got {got}.")


class SERAPH(PairMethod[Pairs]):
    """High likelihood of labelled pairs, low entropy of unlabelled pairs, M of low rank.

    A pair is similar with probability sigma(eta - d2_M). J of ``metric/entropy.py`` is not convex: one descent starts
    from eta/m times the identity, where pairs at the midpoint m of the labelled pairs' mean squared distances have
    probability 1/2, another from the last metric, and the lower end is kept. The trace of M is weighted by m / d, which
    makes J independent of the scale and width of the features. The page in ``docs/methods`` has the differences from
    the original.
    """

    name = "seraph"
    summary = "likelihood of labelled pairs, entropy of unlabelled pairs, low-rank metric by projected gradients"
    reference = "Niu, Dai, Yamada and Sugiyama, ICML 2012; deep: Dutta, Harandi and Sekhar, AAAI 2021"
    needs = Needs(labels=True, unlabelled=True, graph=False)
    space = SLOW | {
        "eta": Range(1.0, 300.0, log=True),
        "trace_weight": Range(1e-4, 0.1, log=True),
        "mu": Range(0.1, 3.0, log=True),
    }
    defaults_on = extended(
        with_rates(digits=1e-6, mnist=1e-7, fashion_mnist=1e-8, cifar10=1e-7), {"digits": {"iterations": 10}}
    )
    Settings = SERAPHSettings
    settings: SERAPHSettings

    def check_working_set(self, labelled: int, unlabelled: int) -> None:
        """Unlabelled examples are used in pairs."""
        if unlabelled == 1:
            raise InputError(
                f"method {self.name!r} learns from pairs of unlabelled examples, and a partition has one example. Give "
                "more, or increase partition_size."
            )

    def constraints(self, features: Tensor, labels: Tensor) -> Pairs:
        """Pairs of unlabelled examples, all or an evenly spaced subset."""
        unlabelled = (labels < 0).nonzero().flatten()
        chosen = spread_pairs(len(unlabelled), self.settings.most_pairs, unlabelled.device)
        return Pairs.of_working_set(labels, unlabelled[chosen])

    def update_metric(self, metric: Metric, features: Tensor, constraints: Pairs) -> Metric:
        """The better of two descents, from the current metric and from a multiple of the identity."""
        problem, start = self._problem(features, constraints)
        span = _span(features.double(), metric)
        matrix, rest = self._lowest(problem, (metric.matrix, start), span)
        if float(matrix.trace()) + (len(start) - len(matrix)) * rest <= VANISHED * float(start.trace()):
            self.bind_guard(
                "metric_vanished",
                f"{self.name}: the metric vanished, since trace_weight {self.settings.trace_weight:g} outweighs the "
                "pairs; a multiple of the Euclidean metric is used instead. A smaller trace_weight helps.",
            )
            matrix, rest = start[: len(matrix), : len(matrix)], float(start[0, 0])
        return self._metric(matrix, features if span is None else span.coordinates(features.double()), span, rest)

    def _lowest(
        self, problem: EntropyProblem, starts: tuple[Tensor, Tensor], span: Span | None
    ) -> tuple[Tensor, float]:
        """The lower end of two descents: M in the span, and the multiple of the identity that it is outside."""
        solve = convex_steps if self.settings.solver == "convex" else projected_gradient
        if span is not None:
            problem, starts = problem.along(span.inside), (fold(starts[0], span.inside), fold(starts[1], span.inside))
        ends = [solve(problem, matrix, self.settings.iterations) for matrix in starts]
        best = min(ends, key=lambda end: end.cost).matrix
        if span is None:
            return best, 0.0
        return best[:-1, :-1], float(best[-1, -1]) / math.sqrt(span.outside.shape[1])

    def _problem(self, features: Tensor, constraints: Pairs) -> tuple[EntropyProblem, Tensor]:
        """J, and the multiple of the identity that a descent starts from."""
        exact = features.double()
        known, width = exact[constraints.labelled], exact.shape[1]
        similar, dissimilar = labelled_pairs(constraints.classes, *2 * (self.settings.most_pairs,))
        midpoint = self._midpoint(self._scatters(features, constraints), exact)
        problem = EntropyProblem(
            known[similar[:, 0]] - known[similar[:, 1]],
            known[dissimilar[:, 0]] - known[dissimilar[:, 1]],
            exact[constraints.pairs[:, 0]] - exact[constraints.pairs[:, 1]],
            self.settings.eta,
            self.settings.mu,
            self.settings.trace_weight * midpoint / width,
        )
        return problem, self.settings.eta / midpoint * torch.eye(width, dtype=exact.dtype, device=exact.device)

    def _midpoint(self, scatters: PairScatters, features: Tensor) -> float:
        """Midpoint between the mean squared distances of similar and of dissimilar pairs."""
        midpoint = float(scatters.similar.trace() + scatters.dissimilar.trace()) / 2
        if midpoint > 0:
            return midpoint
        self.bind_guard(
            "labelled_coincide",
            f"{self.name}: all labelled examples have the same features; the threshold is set by the distances of all "
            "examples instead. Label other examples.",
        )
        return 2.0 * float(features.var(0, correction=0).sum())

    def loss(self, metric: Metric, features: Tensor, constraints: Pairs) -> Tensor:
        """J without its trace term, times the number of unlabelled pairs: a sum over the batch."""
        embeddings = metric.transform(features)
        surprise = self._surprise(embeddings[constraints.labelled], constraints.classes)
        first, second = embeddings[constraints.pairs].unbind(1)
        doubt = mean_entropy((first - second).square().sum(1), self.settings.eta)
        return len(constraints) * (surprise + self.settings.mu * doubt)

    def _surprise(self, embeddings: Tensor, classes: Tensor) -> Tensor:
        """Negative log-likelihood of all pairs of labelled examples, in both orders."""
        centred = embeddings - embeddings.mean(0)
        squares = centred.square().sum(1)
        distances = (squares[:, None] + squares[None, :] - 2.0 * centred @ centred.T).clamp_min(0.0)
        same = (classes[:, None] == classes[None, :]).to(distances)
        apart = 1.0 - torch.eye(len(classes), dtype=distances.dtype, device=distances.device)
        return label_surprise(distances, same * apart, 1.0 - same, self.settings.eta)

    def statistics(self, metric: Metric, features: Tensor, constraints: Pairs) -> dict[str, float]:
        """Also the mean entropy of unlabelled pairs."""
        first, second = metric.transform(features)[constraints.pairs].unbind(1)
        doubt = mean_entropy((first - second).square().sum(1), self.settings.eta)
        return super().statistics(metric, features, constraints) | {"pair_entropy": float(doubt)}


def _span(features: Tensor, metric: Metric) -> Span | None:
    """Directions outside of which no examples (n, d) differ and M is a multiple of the identity; None for all.

    A wide table has few: those of its examples, and those of M unless that is a multiple of the identity itself.
    """
    if features.shape[1] <= WIDE:
        return None
    rows = [features - features.mean(0)]
    factor = metric.factor.to(features)
    if not torch.equal(factor, factor[0, 0] * torch.eye(len(factor)).to(factor)):
        rows.append(factor.T)
    spanned = torch.cat(rows)
    return Span.of(spanned) if len(spanned) < spanned.shape[1] else None
