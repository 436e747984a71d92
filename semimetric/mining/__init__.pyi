from semimetric.mining.labelled import labelled_masks as labelled_masks, semi_hard_negatives as semi_hard_negatives
from semimetric.mining.pairs import labelled_pairs as labelled_pairs, spread_pairs as spread_pairs
from semimetric.mining.triplets import mine_triplets as mine_triplets, triplet_shares as triplet_shares
