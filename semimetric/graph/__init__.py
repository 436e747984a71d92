"""Neighbour graphs and what propagates over them."""

from semimetric.graph.affinities import (
    DENSE_NODES,
    propagate_affinities,
    propagate_labels,
    propagated_affinity_matrix,
)
from semimetric.graph.modes import graph_modes, neighbor_density
from semimetric.graph.neighbors import nearest_neighbors, neighbors_between

__all__ = [
    "DENSE_NODES",
    "graph_modes",
    "nearest_neighbors",
    "neighbor_density",
    "neighbors_between",
    "propagate_affinities",
    "propagate_labels",
    "propagated_affinity_matrix",
]
