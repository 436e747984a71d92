"""Neighbour graphs and what propagates over them."""

from semimetric.graph.affinities import (
    propagate_affinities,
    propagate_labels,
    propagated_affinity_matrix,
)
from semimetric.graph.modes import graph_modes, neighbor_density
from semimetric.graph.neighbors import nearest_neighbors

__all__ = [
    "graph_modes",
    "nearest_neighbors",
    "neighbor_density",
    "propagate_affinities",
    "propagate_labels",
    "propagated_affinity_matrix",
]
