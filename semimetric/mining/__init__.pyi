from semimetric.mining.labelled import labelled_masks, semi_hard_negatives
from semimetric.mining.pairs import labelled_pairs, spread_pairs
from semimetric.mining.triplets import mine_triplets, triplet_shares

__all__ = [
    "labelled_masks",
    "labelled_pairs",
    "mine_triplets",
    "semi_hard_negatives",
    "spread_pairs",
    "triplet_shares",
]
