"""Laplacian regularised metric learning.

S. C. H. Hoi, W. Liu, S.-F. Chang, "Semi-supervised distance metric learning for collaborative image retrieval", CVPR
2008; "Semi-supervised distance metric learning for collaborative image retrieval and clustering", ACM TOMM 2010. End to
end as in Dutta, Harandi and Sekhar, AAAI 2021.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from semimetric.core.settings import setting
from semimetric.graph import nearest_neighbors, node_degrees, symmetric_edges
from semimetric.methods.laplacian import LaplacianMethod, LaplacianSettings
from semimetric.methods.pairs import Pairs


@dataclass(frozen=True)
class LRMLSettings(LaplacianSettings):
    """Hyper-parameters; six neighbours are the original's."""

    k: int = setting(6, "Neighbours per node of the graph.")
    normalized: bool = setting(False, "Use the symmetrically normalised Laplacian of the graph.")


class LRML(LaplacianMethod):
    """Two examples are joined where one is among the k nearest of the other, with weight 1.

    ``normalized`` takes I - D^-1/2 W D^-1/2 for the Laplacian: an edge then measures z_i/sqrt(d_i) - z_j/sqrt(d_j),
    here times the root of the mean degree, so that both Laplacians agree on graphs where all degrees do.
    """

    name = "lrml"
    summary = "labelled pairs and a neighbour graph, metric in closed form"
    reference = "Hoi, Liu and Chang, CVPR 2008; deep: Dutta, Harandi and Sekhar, AAAI 2021"
    Settings = LRMLSettings
    settings: LRMLSettings

    def constraints(self, features: Tensor, labels: Tensor) -> Pairs:
        """The edges of the symmetric kNN graph."""
        edges, weights = symmetric_edges(nearest_neighbors(features, self.settings.k))
        scales = None
        if self.settings.normalized:
            degrees = node_degrees(edges, weights, len(features))
            scales = torch.sqrt(degrees.mean() / degrees)[edges]
        return Pairs.of_working_set(labels, edges, weights, scales)
