"""Random triplets of unlabelled examples, all that their labels could be, and synthetic examples that make it hard.

U. K. Dutta, M. Harandi, C. C. Sekhar, "Unsupervised metric learning with synthetic examples", AAAI 2020. The page in
``docs/methods`` has the formulae and says where this departs from the original.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from semimetric.core.checks import check_not_negative
from semimetric.core.errors import InputError
from semimetric.core.settings import setting
from semimetric.methods.affinity_triplets import Triplets
from semimetric.methods.base import Examples, Needs
from semimetric.methods.baseline import Baseline, BaselineSettings
from semimetric.metric import Metric
from semimetric.metric.synthetic import (
    SyntheticProblem,
    case_entropies,
    case_scores,
    centred_corners,
    minimize_synthetic,
    orthogonality_defect,
    squared_lengths,
    synthesis_start,
)

LARGEST_SEED = 1 << 62
"""Seeds of triplets are below this."""


@dataclass(frozen=True)
class RandomTriplets(Triplets):
    """Triplets (T, 3) of any examples; nothing says which two of the three are alike."""

    def quality(self, classes: Tensor) -> dict[str, float]:
        """A triplet without a claim is neither right nor wrong."""
        return {}


@dataclass(frozen=True)
class SyntheticSettings(BaselineSettings):
    """Hyper-parameters; the defaults are the paper's, but for the number of triplets and the width."""

    components: int = setting(0, "Dimensions l of the learned embedding, at most the encoder's d; 0 keeps all of them.")
    alpha: float = setting(40.0, "Angle of the triplet losses in degrees, in (0, 90).")
    orthogonality: float = setting(0.5, "Weight of ||LᵀL - I||², which keeps the embedding from collapsing.")
    triplets_per_example: int = setting(1, "Random triplets of an epoch that have a given example as their anchor.")
    cg_iterations: int = setting(10, "Conjugate-gradient iterations of one metric step.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.alpha < 90.0:
            raise InputError(f"alpha must lie strictly between 0 and 90 degrees, got {self.alpha}.")
        check_not_negative(self.orthogonality, "orthogonality")
        for name in ("triplets_per_example", "cg_iterations"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}.")


class Synthetic(Baseline[Triplets]):
    """Least entropy of five hypotheses about random triplets, over L, a map S to synthetic examples, and the encoder.

    ``synthesis`` is the part of S that matters, (d, d) float64, of the norm sqrt(d); ``seed`` is that of the triplets
    of this epoch. S belongs to L: it starts with it and is learned with it, outside of the encoder's steps.
    """

    name = "synthetic"
    summary = "random triplets under all hypotheses about their labels, made hard by learned synthetic examples"
    reference = "Dutta, Harandi and Sekhar, AAAI 2020"
    needs = Needs(labels=False, unlabelled=True, graph=False)
    capturable_loss = True
    capturable_metric = False
    Settings = SyntheticSettings
    settings: SyntheticSettings
    synthesis: Tensor
    seed: Tensor

    def __init__(self, settings: Any = None) -> None:
        super().__init__(settings)
        self.register_buffer("synthesis", torch.empty(0, 0, dtype=torch.float64))
        self.register_buffer("seed", torch.zeros((), dtype=torch.int64))

    def initial_metric(self, width: int, generator: torch.Generator, examples: Examples | None = None) -> Metric:
        """Euclidean distance of the features or of a random projection; S starts from it."""
        metric = super().initial_metric(width, generator, examples)
        self.synthesis = synthesis_start(metric.factor).to(self.synthesis.device)
        return metric

    def check_working_set(self, labelled: int, unlabelled: int) -> None:
        """A triplet is of three examples."""
        size = labelled + unlabelled
        if size < 3:
            raise InputError(
                f"method {self.name!r} learns from triplets of examples, and there are {size} to a partition. Give at "
                "least 3, or ask for larger partitions."
            )

    def begin_epoch(self, epoch: int) -> None:
        """Draw the seed of this epoch's triplets."""
        self.seed.fill_(int(torch.randint(LARGEST_SEED, ())))

    def constraints(self, features: Tensor, labels: Tensor) -> RandomTriplets:
        """Every example as the anchor of a few triplets, with two others at random."""
        generator = torch.Generator().manual_seed(int(self.seed))
        triplets = random_triplets(len(features), self.settings.triplets_per_example, generator)
        nodes = torch.arange(len(features), device=features.device)
        return RandomTriplets(nodes, triplets.to(features.device))

    def update_metric(self, metric: Metric, features: Tensor, constraints: Triplets) -> Metric:
        """A few conjugate-gradient iterations on S and L together, started from the current ones."""
        problem = self._problem(features, constraints)
        result = minimize_synthetic(problem, self.synthesis, metric.factor, self.settings.cg_iterations)
        self.synthesis.copy_(result.synthesis)
        return Metric(result.factor)

    def _problem(self, features: Tensor, constraints: Triplets) -> SyntheticProblem:
        corners = centred_corners(features.double(), constraints.index)
        return SyntheticProblem(corners, self.settings.alpha, self.settings.orthogonality)

    def loss(self, metric: Metric, features: Tensor, constraints: Triplets) -> Tensor:
        """Mean entropy of a triplet, with S and L fixed."""
        return case_entropies(self._scores(metric, features, constraints)).sum(1).mean()

    def _scores(self, metric: Metric, features: Tensor, constraints: Triplets) -> Tensor:
        """(T, 5) losses of the five cases."""
        synthetic = centred_corners(features @ self.synthesis.to(features.dtype), constraints.index)
        embedded = metric.transform(synthetic)
        return case_scores(squared_lengths(synthetic), squared_lengths(embedded), self.settings.alpha)

    def metric_objective(self, metric: Metric, features: Tensor, constraints: Triplets) -> float:
        """The loss and the orthogonality penalty."""
        problem = self._problem(features, constraints)
        return problem.evaluate(torch.cat([self.synthesis, metric.factor], dim=1)).cost

    @torch.no_grad()
    def statistics(self, metric: Metric, features: Tensor, constraints: Triplets) -> dict[str, float]:
        """Mean entropy of a triplet, mean probabilities of the cases, and how far L is from orthonormal columns.

        The probability of all three being different is one minus that of all being alike.
        """
        scores = self._scores(metric, features, constraints)
        probabilities = torch.sigmoid(-scores).mean(0)
        return {
            "triplet_entropy": float(case_entropies(scores).sum(1).mean()),
            "p_one_odd": float(probabilities[:3].mean()),
            "p_all_alike": float(probabilities[3]),
            "orthogonality_defect": float(orthogonality_defect(metric.factor)),
        }


def random_triplets(count: int, per_anchor: int, generator: torch.Generator) -> Tensor:
    """(count * per_anchor, 3) numbers below ``count``, at least 3: every one as an anchor, two others at random.

    The others are steps from the anchor, around the end to the beginning: two different numbers from 1 to count - 1.
    """
    anchors = torch.arange(count).repeat(per_anchor)
    first = torch.randint(1, count, anchors.shape, generator=generator)
    second = torch.randint(1, count - 1, anchors.shape, generator=generator)
    second += second >= first
    return torch.stack([anchors, (anchors + first) % count, (anchors + second) % count], dim=1)
