"""Constraints drawn from a graph or from labels."""

from semimetric.mining.pairs import labelled_pairs, spread_pairs
from semimetric.mining.triplets import mine_triplets, triplet_shares

__all__ = ["labelled_pairs", "mine_triplets", "spread_pairs", "triplet_shares"]
