"""Pure functions on embeddings and on index triplets or targets."""

from semimetric.losses.angular import angular_loss, angular_margins
from semimetric.losses.contrastive import contrastive_loss

__all__ = ["angular_loss", "angular_margins", "contrastive_loss"]
