"""Pure functions on embeddings and index triplets."""

from semimetric.losses.angular import angular_loss, angular_margins

__all__ = ["angular_loss", "angular_margins"]
