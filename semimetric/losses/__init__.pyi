from semimetric.losses.angular import angular_loss, angular_margins, batch_angular_loss
from semimetric.losses.contrastive import contrastive_loss
from semimetric.losses.instance import instance_loss, noise_contrastive_loss, scaled_cosines
from semimetric.losses.triplet import triplet_loss, triplet_violations

__all__ = [
    "angular_loss",
    "angular_margins",
    "batch_angular_loss",
    "contrastive_loss",
    "instance_loss",
    "noise_contrastive_loss",
    "scaled_cosines",
    "triplet_loss",
    "triplet_violations",
]
