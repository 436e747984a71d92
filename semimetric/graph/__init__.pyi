from semimetric.graph.affinities import (
    propagate_affinities,
    propagate_labels,
    propagated_affinity_matrix,
)
from semimetric.graph.density import density_affinities
from semimetric.graph.edges import node_degrees, symmetric_edges
from semimetric.graph.modes import graph_modes, neighbor_density
from semimetric.graph.neighbors import nearest_neighbors
from semimetric.graph.posteriors import (
    PRIOR,
    Posteriors,
    class_posteriors,
    cosine_posteriors,
    names_and_confidence,
    upper_quartiles,
)
from semimetric.graph.propagated_form import propagated_form

__all__ = [
    "PRIOR",
    "Posteriors",
    "class_posteriors",
    "cosine_posteriors",
    "density_affinities",
    "graph_modes",
    "names_and_confidence",
    "nearest_neighbors",
    "neighbor_density",
    "node_degrees",
    "propagate_affinities",
    "propagate_labels",
    "propagated_affinity_matrix",
    "propagated_form",
    "symmetric_edges",
    "upper_quartiles",
]
