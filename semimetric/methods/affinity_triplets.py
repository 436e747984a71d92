"""Triplets from propagated affinities, an angular loss and an orthogonal metric.

U. K. Dutta, M. Harandi, C. C. Sekhar, "Semi-Supervised Metric Learning: A Deep Resurrection", AAAI 2021.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from semimetric.core.checks import check_choice, check_fraction
from semimetric.core.errors import InputError
from semimetric.core.settings import setting
from semimetric.core.space import Range
from semimetric.graph import graph_modes, graph_neighbors, neighbor_density, propagate_affinities
from semimetric.losses import angular_loss, angular_margins
from semimetric.methods.base import Examples, LearnsMetric, Needs, shuffled_batches
from semimetric.methods.defaults import GRAPH, SLOW, Values, on_photographs
from semimetric.methods.starts import START_HELP, STARTS, ProjectionStart, projection_start
from semimetric.metric import Euclidean, Geometry, Metric, Stiefel, minimize_angular, orthonormalize
from semimetric.mining import mine_triplets, triplet_shares

STRAYED = 1e-6  # entries of L^T L - I beyond this are no rounding error: L is a start that was not orthonormal


@dataclass(frozen=True)
class Triplets:
    """Triplets (T, 3) of positions in ``nodes``: anchor, positive, negative."""

    nodes: Tensor
    index: Tensor

    def __len__(self) -> int:
        return len(self.index)

    def minibatches(self, size: int, generator: torch.Generator) -> Iterator[Triplets]:
        """Shuffled batches of ``size`` triplets, with a node for each corner, so that all have the same shape."""
        index = torch.arange(3 * size, device=self.index.device).reshape(size, 3)
        order = shuffled_batches(len(self), size, generator).to(self.index.device)
        for rows in self.nodes[self.index[order]]:
            yield Triplets(rows.flatten(), index)

    def quality(self, classes: Tensor) -> dict[str, float]:
        """Shares of triplets that are correct by the true classes."""
        shares = triplet_shares(self.nodes[self.index].to(classes.device), classes)
        return {f"right_{name}": value for name, value in shares.items()}


@dataclass(frozen=True)
class AffinityTripletsSettings:
    """Hyper-parameters; the defaults are the paper's for MNIST."""

    k: int = setting(10, "Neighbours per node of the graph; if odd, the median neighbour is dropped.")
    gamma: float = setting(0.99, "Share of the affinity passed on at each propagation step, in (0, 1).")
    alpha: float = setting(40.0, "Angle of the loss in degrees, in (0, 90).")
    components: int = setting(64, "Dimensions l of the learned embedding, at most the encoder's d.")
    start: ProjectionStart = setting("random", START_HELP)
    orthogonal: bool = setting(True, "Keep L orthonormal; false is the 'w/o orth' ablation.")
    cg_iterations: int = setting(10, "Conjugate-gradient iterations per metric step.")
    anchors: Literal["all", "modes"] = setting("all", "Anchors of triplets: all nodes, or the modes of the graph.")
    reduction: Literal["sum", "mean"] = setting("sum", "Sum or average the loss over a batch of triplets.")

    def __post_init__(self) -> None:
        if self.k < 2:
            raise InputError(f"k must be at least 2 to tell positives from negatives, got {self.k}.")
        check_fraction(self.gamma, "gamma")
        if not 0.0 < self.alpha < 90.0:
            raise InputError(f"alpha must lie strictly between 0 and 90 degrees, got {self.alpha}.")
        if self.components < 1 or self.cg_iterations < 1:
            got = f"{self.components} and {self.cg_iterations}"
            raise InputError(f"components and cg_iterations must be at least 1, got {got}.")
        check_choice(self.anchors, ("all", "modes"), "anchors")
        check_choice(self.start, STARTS, "start")
        check_choice(self.reduction, ("sum", "mean"), "reduction")


PAPER: Values = {"components": 64, "k": 10, "gamma": 0.99, "alpha": 40.0, "lr": 1e-9}


class AffinityTriplets(LearnsMetric[Triplets]):
    """Affinity propagation, top-half/bottom-half triplets, angular loss, L by Riemannian conjugate gradients."""

    name = "affinity-triplets"
    summary = "triplets from propagated affinities, angular loss, orthogonal metric"
    reference = "Dutta, Harandi and Sekhar, AAAI 2021"
    needs = Needs(labels=True, unlabelled=True, graph=True)
    capturable_loss = True
    capturable_metric = True
    in_paper = True
    space = SLOW | GRAPH | {"alpha": Range(30.0, 55.0)}
    defaults_on: ClassVar[dict[str, Values]] = {
        "digits": {"components": 32, "lr": 3e-7},
        "mnist": PAPER,
        "fashion-mnist": PAPER | {"lr": 1e-8},
        "cifar10": PAPER | {"components": 32},
    } | on_photographs({"components": 128, "k": 50, "gamma": 0.99, "alpha": 45.0, "start": "classes"})
    Settings = AffinityTripletsSettings
    settings: AffinityTripletsSettings

    def initial_metric(self, width: int, generator: torch.Generator, examples: Examples | None = None) -> Metric:
        """L as ``start`` says; a uniform one is orthonormalised by the first metric step, if at all."""
        return projection_start(width, self.settings.components, self.settings.start, generator, examples)

    def constraints(self, features: Tensor, labels: Tensor) -> Triplets:
        """Triplets around every node, or around the modes, of the kNN graph of ``features``."""
        neighbors = graph_neighbors(features, self.settings.k)
        affinities = propagate_affinities(neighbors, labels, self.settings.gamma)
        modes = self.settings.anchors == "modes"
        anchors = graph_modes(neighbors, neighbor_density(features, neighbors)) if modes else None
        triplets = mine_triplets(neighbors, affinities, anchors)
        return Triplets(torch.arange(len(features), device=features.device), triplets)

    def update_metric(self, metric: Metric, features: Tensor, constraints: Triplets) -> Metric:
        """A few conjugate-gradient iterations from the current L."""
        s = self.settings
        anchor, positive, negative = features[constraints.index.to(features.device)].unbind(1)
        geometry: Geometry = Stiefel() if s.orthogonal else Euclidean()
        result = minimize_angular(
            self._start(metric), anchor, positive, negative, s.alpha, geometry=geometry, max_iterations=s.cg_iterations
        )
        return Metric(result.point)

    def _start(self, metric: Metric) -> Tensor:
        """The current L, orthonormal where it must be; on a GPU the solver sees to that without asking the host."""
        free = not self.settings.orthogonal or not metric.factor.is_cpu or metric.is_orthonormal(STRAYED)
        return metric.factor if free else orthonormalize(metric.factor)

    def loss(self, metric: Metric, features: Tensor, constraints: Triplets) -> Tensor:
        """The smooth angular loss of the triplets."""
        index = constraints.index.to(features.device)
        return angular_loss(features, index, metric.factor, self.settings.alpha, self.settings.reduction)

    def statistics(self, metric: Metric, features: Tensor, constraints: Triplets) -> dict[str, float]:
        """Mean loss of a triplet, and the share of active triplets (positive margin)."""
        index = constraints.index.to(features.device)
        margins = angular_margins(features, index, metric.factor, self.settings.alpha)
        return {
            "triplets": float(len(constraints)),
            "triplet_loss": float(torch.nn.functional.softplus(margins).mean()),
            "active_share": float((margins > 0).double().mean()),
        }
