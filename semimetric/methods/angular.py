"""All triplets of labelled examples, under a bound of the angle at the negative.

J. Wang, F. Zhou, S. Wen, X. Liu, Y. Lin, "Deep metric learning with angular loss", ICCV 2017.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from semimetric.core.settings import setting
from semimetric.encoders import unit_features
from semimetric.losses import angular_margins, batch_angular_loss
from semimetric.losses.angular import check_angle
from semimetric.methods.supervised import Labelled, Supervised, SupervisedSettings
from semimetric.mining import labelled_pairs

PROBE_PAIRS = 1000
"""Most pairs of one class whose hardest negative is looked for."""


@dataclass(frozen=True)
class AngularSettings(SupervisedSettings):
    """Hyper-parameters."""

    alpha: float = setting(40.0, "Upper bound of the angle at the negative in degrees, above 0 and at most 80.")
    constant: bool = setting(False, "Keep the constant term of the margin, 2 - 6 tan(alpha)^2.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_angle(self.alpha)


class Angular(Supervised):
    """The angular loss with all negatives of each pair of one class in its logarithm."""

    name = "angular"
    summary = "labelled triplets, smooth bound of the angle at all negatives of a pair together"
    reference = "Wang, Zhou, Wen, Liu and Lin, ICCV 2017"
    Settings = AngularSettings
    settings: AngularSettings

    def batch_loss(self, points: Tensor, batch: Labelled) -> Tensor:
        """The mean over all pairs of one class."""
        return batch_angular_loss(points, batch.targets, self.settings.alpha, self.settings.constant)

    def violated_share(self, points: Tensor, batch: Labelled) -> float:
        """The share of pairs at whose hardest negative the angle is above alpha, whether or not the constant is kept.

        Of all negatives of a pair the one with the largest product with its middle has the largest margin.
        """
        rows = unit_features(points)
        pairs, _ = labelled_pairs(batch.targets, PROBE_PAIRS, 0)
        alike = batch.targets[pairs[:, :1]] == batch.targets
        hardest = (rows[pairs].sum(1) @ rows.T).masked_fill(alike, -torch.inf).argmax(1)
        margins = angular_margins(rows, torch.column_stack([pairs, hardest]), None, self.settings.alpha)
        return float((margins > 0).double().mean())
