"""Triplet loss with semi-hard negatives.

F. Schroff, D. Kalenichenko, J. Philbin, "FaceNet: a unified embedding for face recognition and clustering", CVPR 2015.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from semimetric.core.checks import check_positive
from semimetric.core.settings import setting
from semimetric.core.space import Range
from semimetric.losses import triplet_loss, triplet_violations
from semimetric.methods.defaults import LR
from semimetric.methods.supervised import Labelled, Supervised, SupervisedSettings


@dataclass(frozen=True)
class SemiHardTripletsSettings(SupervisedSettings):
    """Hyper-parameters; the margin is the paper's."""

    margin: float = setting(0.2, "Margin between the squared distances to a negative and to a positive.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self.margin, "margin")


class SemiHardTriplets(Supervised):
    """Hinge loss on squared distances, with one semi-hard negative for each pair of the same class."""

    name = "triplet"
    summary = "labelled triplets with semi-hard negatives, hinge on squared distances"
    reference = "Schroff, Kalenichenko and Philbin, CVPR 2015"
    space = LR | {"margin": Range(0.05, 0.5)}
    Settings = SemiHardTripletsSettings
    settings: SemiHardTripletsSettings

    def batch_loss(self, points: Tensor, batch: Labelled) -> Tensor:
        """Mean hinge loss over all pairs of the same class."""
        return triplet_loss(points, batch.targets, batch.draws, self.settings.margin)

    def violated_share(self, points: Tensor, batch: Labelled) -> float:
        """Share of pairs whose triplet violates the margin."""
        violations, pairs = triplet_violations(points, batch.targets, batch.draws, self.settings.margin)
        return float((violations > 0).sum() / pairs.sum().clamp(min=1))
