"""Laplacian regularised metric learning.

S. C. H. Hoi, W. Liu, S.-F. Chang, "Semi-supervised distance metric learning for collaborative image retrieval", CVPR
2008; "Semi-supervised distance metric learning for collaborative image retrieval and clustering", ACM TOMM 2010.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from semimetric.core.settings import setting
from semimetric.graph import graph_neighbors, node_degrees, symmetric_edges
from semimetric.methods.laplacian import LaplacianMethod, LaplacianSettings
from semimetric.methods.pairs import Pairs, with_rates


@dataclass(frozen=True)
class LRMLSettings(LaplacianSettings):
    """Hyper-parameters; the original uses six neighbours."""

    k: int = setting(6, "Neighbours per node of the graph.")
    normalized: bool = setting(False, "Use the symmetrically normalised Laplacian of the graph.")


class LRML(LaplacianMethod):
    """An edge of weight 1 joins two examples if either is among the k nearest neighbours of the other.

    ``normalized`` uses the Laplacian I - D^-1/2 W D^-1/2: the difference of an edge is then z_i/sqrt(d_i) -
    z_j/sqrt(d_j), here times the root of the mean degree. Both Laplacians agree if all degrees are equal.
    """

    name = "lrml"
    summary = "labelled pairs and a neighbour graph, metric in closed form"
    reference = "Hoi, Liu and Chang, CVPR 2008; deep: Dutta, Harandi and Sekhar, AAAI 2021"
    defaults_on = with_rates(digits=1e-6, mnist=1e-10, fashion_mnist=1e-10, cifar10=1e-9)
    Settings = LRMLSettings
    settings: LRMLSettings

    def constraints(self, features: Tensor, labels: Tensor) -> Pairs:
        """The edges of the symmetric kNN graph."""
        edges, weights = symmetric_edges(graph_neighbors(features, self.settings.k))
        scales = None
        if self.settings.normalized:
            degrees = node_degrees(edges, weights, len(features))
            scales = torch.sqrt(degrees.mean() / degrees)[edges]
        return Pairs.of_working_set(labels, edges, weights, scales)
