"""Triplets of labelled examples with semi-hard negatives.

F. Schroff, D. Kalenichenko, J. Philbin, "FaceNet: a unified embedding for face recognition and clustering", CVPR 2015.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from semimetric.core.checks import check_positive
from semimetric.core.settings import setting
from semimetric.losses import triplet_loss, triplet_violations
from semimetric.methods.supervised import Labelled, Supervised, SupervisedSettings


@dataclass(frozen=True)
class SemiHardTripletsSettings(SupervisedSettings):
    """Hyper-parameters; the margin is the paper's."""

    margin: float = setting(0.2, "How much farther than a positive a negative shall be, in squared distance.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self.margin, "margin")


class SemiHardTriplets(Supervised):
    """A hinge of the squared distances of labelled triplets, one semi-hard negative for each pair of one class."""

    name = "triplet"
    summary = "labelled triplets with semi-hard negatives, hinge on squared distances"
    reference = "Schroff, Kalenichenko and Philbin, CVPR 2015"
    Settings = SemiHardTripletsSettings
    settings: SemiHardTripletsSettings

    def batch_loss(self, points: Tensor, batch: Labelled) -> Tensor:
        """The mean hinge over all pairs of one class."""
        return triplet_loss(points, batch.targets, batch.draws, self.settings.margin)

    def violated_share(self, points: Tensor, batch: Labelled) -> float:
        """The share of pairs whose triplet violates the margin."""
        violations, pairs = triplet_violations(points, batch.targets, batch.draws, self.settings.margin)
        return float((violations > 0).sum() / pairs.sum().clamp(min=1))
