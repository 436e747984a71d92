"""Constraints drawn from a graph."""

from semimetric.mining.triplets import mine_triplets, triplet_shares

__all__ = ["mine_triplets", "triplet_shares"]
