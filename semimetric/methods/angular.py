"""Angular loss: an upper bound on the angle at the negative of labelled triplets.

J. Wang, F. Zhou, S. Wen, X. Liu, Y. Lin, "Deep metric learning with angular loss", ICCV 2017.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from semimetric.core.settings import setting
from semimetric.core.space import Range
from semimetric.encoders import unit_features
from semimetric.losses import angular_margins, batch_angular_loss
from semimetric.losses.angular import check_angle
from semimetric.methods.defaults import LR
from semimetric.methods.supervised import Labelled, Supervised, SupervisedSettings
from semimetric.mining import labelled_pairs

PROBE_PAIRS = 1000  # pairs of the same class, at most, used for ``violated_share``


@dataclass(frozen=True)
class AngularSettings(SupervisedSettings):
    """Hyper-parameters."""

    alpha: float = setting(40.0, "Largest angle at the negative in degrees, above 0 and at most 80.")
    constant: bool = setting(False, "Add the constant term 2 - 6 tan(alpha)^2 to the margin.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_angle(self.alpha)


class Angular(Supervised):
    """Angular loss, with all negatives of a pair inside one logarithm."""

    name = "angular"
    summary = "labelled triplets, smooth bound on the angle at all negatives of a pair"
    reference = "Wang, Zhou, Wen, Liu and Lin, ICCV 2017"
    space = LR | {"alpha": Range(30.0, 55.0)}
    Settings = AngularSettings
    settings: AngularSettings

    def batch_loss(self, points: Tensor, batch: Labelled) -> Tensor:
        """Mean over all pairs of the same class."""
        return batch_angular_loss(points, batch.targets, self.settings.alpha, self.settings.constant)

    def violated_share(self, points: Tensor, batch: Labelled) -> float:
        """Share of pairs with an angle above alpha at the negative nearest to their midpoint, without the constant."""
        rows = unit_features(points)
        pairs, _ = labelled_pairs(batch.targets, PROBE_PAIRS, 0)
        alike = batch.targets[pairs[:, :1]] == batch.targets
        hardest = (rows[pairs].sum(1) @ rows.T).masked_fill(alike, -torch.inf).argmax(1)
        margins = angular_margins(rows, torch.column_stack([pairs, hardest]), None, self.settings.alpha)
        return float((margins > 0).double().mean())
