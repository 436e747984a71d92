from semimetric.graph.approximate import graph_neighbors as graph_neighbors
from semimetric.graph.affinities import propagate_affinities as propagate_affinities, propagate_labels as propagate_labels, propagated_affinity_matrix as propagated_affinity_matrix
from semimetric.graph.density import density_affinities as density_affinities
from semimetric.graph.edges import node_degrees as node_degrees, symmetric_edges as symmetric_edges
from semimetric.graph.modes import graph_modes as graph_modes, neighbor_density as neighbor_density
from semimetric.graph.neighbors import nearest_neighbors as nearest_neighbors
from semimetric.graph.posteriors import PRIOR as PRIOR, Posteriors as Posteriors, class_posteriors as class_posteriors, cosine_posteriors as cosine_posteriors, names_and_confidence as names_and_confidence, upper_quartiles as upper_quartiles
from semimetric.graph.forms import propagated_form as propagated_form
