"""Metric learning that preserves the manifold in dense regions.

S. Ying, Z. Wen, J. Shi, Y. Peng, J. Peng, H. Qiao, "Manifold preserving: an intrinsic approach for semisupervised
distance metric learning", IEEE Transactions on Neural Networks and Learning Systems 29(7), 2018.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from semimetric.core.checks import check_positive
from semimetric.core.settings import setting
from semimetric.graph import density_affinities, graph_neighbors, symmetric_edges
from semimetric.methods.laplacian import LaplacianMethod, LaplacianSettings
from semimetric.methods.pairs import Pairs, with_rates


@dataclass(frozen=True)
class ISDMLSettings(LaplacianSettings):
    """Hyper-parameters; the original uses ten neighbours and ten bandwidth steps."""

    bandwidth_steps: float = setting(
        10.0, "Bandwidth of the affinities: the smallest distance plus the range of distances divided by this."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self.bandwidth_steps, "bandwidth_steps")


class ISDML(LaplacianMethod):
    """The weight of an edge is its Gaussian affinity times the density around its source.

    The labelled term and the closed form are LRML's, following the paper that made the method deep. The original
    optimises on the manifold of positive definite matrices.
    """

    name = "isdml"
    summary = "labelled pairs and a density-aware neighbour graph, metric in closed form"
    reference = "Ying, Wen, Shi, Peng, Peng and Qiao, TNNLS 2018; deep: Dutta, Harandi and Sekhar, AAAI 2021"
    defaults_on = with_rates(digits=1e-8, mnist=1e-10, fashion_mnist=1e-10, cifar10=1e-9)
    Settings = ISDMLSettings
    settings: ISDMLSettings

    def constraints(self, features: Tensor, labels: Tensor) -> Pairs:
        """The edges of the kNN graph with their density-aware affinities."""
        neighbors = graph_neighbors(features, self.settings.k)
        affinities = density_affinities(features, neighbors, self.settings.bandwidth_steps)
        return Pairs.of_working_set(labels, *symmetric_edges(neighbors, affinities))
