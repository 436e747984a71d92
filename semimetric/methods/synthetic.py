"""Random triplets of unlabelled examples, all hypotheses about their labels, and hard synthetic examples.

U. K. Dutta, M. Harandi, C. C. Sekhar, "Unsupervised metric learning with synthetic examples", AAAI 2020. The page in
``docs/methods`` has the formulae and lists the differences from the original.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from semimetric.core.checks import check_at_least, check_not_negative
from semimetric.core.errors import InputError
from semimetric.core.settings import setting
from semimetric.core.space import Range, Space
from semimetric.methods.affinity_triplets import Triplets
from semimetric.methods.base import Examples, LearnsMetric, Needs
from semimetric.methods.baseline import ON, Baseline, BaselineSettings
from semimetric.methods.defaults import extended
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

LARGEST_SEED = 1 << 62  # of the triplets of an epoch


@dataclass(frozen=True)
class RandomTriplets(Triplets):
    """Triplets (T, 3) of random examples, without a statement about which two are similar."""

    def quality(self, classes: Tensor) -> dict[str, float]:
        """Empty: random triplets are neither correct nor wrong."""
        return {}


@dataclass(frozen=True)
class SyntheticSettings(BaselineSettings):
    """Hyper-parameters; the defaults are the paper's, except for the number of triplets and the width."""

    components: int = setting(0, "Dimensions l of the learned embedding, at most the encoder's d; 0 keeps all d.")
    alpha: float = setting(40.0, "Angle of the triplet losses in degrees, in (0, 90).")
    orthogonality: float = setting(0.5, "Weight of ||LᵀL - I||², which prevents a collapse of the embedding.")
    triplets_per_example: int = setting(1, "Random triplets per anchor in an epoch; each example is an anchor.")
    cg_iterations: int = setting(10, "Conjugate-gradient iterations per metric step.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.alpha < 90.0:
            raise InputError(f"alpha must lie strictly between 0 and 90 degrees, got {self.alpha}.")
        check_not_negative(self.orthogonality, "orthogonality")
        check_at_least(self.triplets_per_example, 1, "triplets_per_example")
        check_at_least(self.cg_iterations, 1, "cg_iterations")


class Synthetic(Baseline[Triplets], LearnsMetric[Triplets]):
    """Minimises the entropy of five hypotheses about random triplets, over L, S (a map to synthetic examples), encoder.

    ``synthesis`` is the relevant part of S, (d, d) float64 of norm sqrt(d); ``seed`` seeds the triplets of the epoch. S
    is initialised and learned together with L, in the metric step.
    """

    name = "synthetic"
    summary = "random triplets under all hypotheses about their labels, with learned hard synthetic examples"
    reference = "Dutta, Harandi and Sekhar, AAAI 2020"
    needs = Needs(labels=False, unlabelled=True, graph=False)
    capturable_loss = True
    space: ClassVar[Space] = {"lr": Range(1e-7, 1e-3, log=True), "alpha": Range(30.0, 55.0)}
    training_defaults = Baseline.training_defaults | {"lr": 1e-5}
    defaults_on = extended(
        ON, {"pretrained": {"lr": 1e-5}} | {name: {"lr": 1e-6} for name in ("mnist", "fashion-mnist", "cifar10")}
    )
    Settings = SyntheticSettings
    settings: SyntheticSettings
    synthesis: Tensor
    seed: Tensor

    def __init__(self, settings: Any = None) -> None:
        super().__init__(settings)
        self.register_buffer("synthesis", torch.empty(0, 0, dtype=torch.float64))
        self.register_buffer("seed", torch.zeros((), dtype=torch.int64))

    def initial_metric(self, width: int, generator: torch.Generator, examples: Examples | None = None) -> Metric:
        """The projection of the baselines; S is initialised from it."""
        metric = super().initial_metric(width, generator, examples)
        self.synthesis = synthesis_start(metric.factor).to(self.synthesis.device)
        return metric

    def check_working_set(self, labelled: int, unlabelled: int) -> None:
        """A triplet needs three examples."""
        size = labelled + unlabelled
        if size < 3:
            raise InputError(
                f"method {self.name!r} learns from triplets, and a partition has {size} examples. Give at least 3, or "
                "increase partition_size."
            )

    def on_epoch_begin(self, epoch: int) -> None:
        """Draw the seed of this epoch's triplets."""
        self.seed.fill_(int(torch.randint(LARGEST_SEED, (), generator=self.draws)))

    def constraints(self, features: Tensor, labels: Tensor) -> RandomTriplets:
        """Each example is the anchor of a few triplets, with two random others."""
        generator = torch.Generator().manual_seed(int(self.seed))
        triplets = random_triplets(len(features), self.settings.triplets_per_example, generator)
        return RandomTriplets(torch.arange(len(features), device=features.device), triplets.to(features.device))

    def update_metric(self, metric: Metric, features: Tensor, constraints: Triplets) -> Metric:
        """A few joint conjugate-gradient iterations from the current S and L."""
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

    @torch.no_grad()
    def statistics(self, metric: Metric, features: Tensor, constraints: Triplets) -> dict[str, float]:
        """Mean entropy of a triplet, mean probabilities of the cases, and ||LᵀL - I||."""
        scores = self._scores(metric, features, constraints)
        probabilities = torch.sigmoid(-scores).mean(0)
        return {
            "triplet_entropy": float(case_entropies(scores).sum(1).mean()),
            "p_one_odd": float(probabilities[:3].mean()),
            "p_all_alike": float(probabilities[3]),
            "orthogonality_defect": float(orthogonality_defect(metric.factor)),
        }


def random_triplets(count: int, per_anchor: int, generator: torch.Generator) -> Tensor:
    """(count * per_anchor, 3) different numbers below ``count``, each of them ``per_anchor`` times as the anchor."""
    anchors = torch.arange(count).repeat(per_anchor)
    first = torch.randint(1, count, anchors.shape, generator=generator)
    second = torch.randint(1, count - 1, anchors.shape, generator=generator)
    second += second >= first
    return torch.stack([anchors, (anchors + first) % count, (anchors + second) % count], dim=1)
