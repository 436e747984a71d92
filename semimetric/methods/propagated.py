"""Base of APLLR and APIT: a prior metric from the labelled pairs, adapted by propagated affinities."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from semimetric.core.checks import check_at_least, check_choice, check_fraction, check_not_negative
from semimetric.core.settings import setting
from semimetric.core.space import Range, Space
from semimetric.graph import graph_neighbors, propagate_affinities, propagated_form
from semimetric.methods.base import Needs
from semimetric.methods.defaults import GRAPH, SLOW, Values
from semimetric.methods.pairs import PairConstraints, PairMethod, Pairs, PairSettings
from semimetric.metric import Metric, PairScatters, logdet_proximal, pair_means, project_psd

ROUNDING = 1e-10  # shares of a matrix below this count as rounding errors


IMAGES = ("mnist", "fashion-mnist", "cifar10", "cub200", "cars196")
ON_FEATURES: dict[str, Values] = {name: {"repulsion": 0.1, "graph_weight": 0.3} for name in IMAGES}
"""On features of a network little of the graph's term would be left otherwise; on tables few components would lose."""


@dataclass(frozen=True)
class AffinityPairs(Pairs):
    """Directed edges with their affinities; Z^T Lap Z takes one half of them, as it counts each pair of nodes once."""

    def form(self, features: Tensor) -> Tensor:
        """Z^T Lap Z of the edges, divided by the sum of their magnitudes."""
        return super().form(features) / 2


@dataclass(frozen=True)
class PropagatedGraph:
    """A kNN graph with labels, over which affinities W are propagated on demand.

    The metric needs Z^T Lap Z of all pairs, which is computed without W; the encoder needs W on the edges. A batch
    has only its edges, so a metric step on a batch uses these.
    """

    nodes: Tensor
    labels: Tensor
    neighbors: Tensor
    gamma: float
    affinities: str
    repulsion: float

    @property
    def labelled(self) -> Tensor:
        """Positions of the labelled examples."""
        return (self.labels >= 0).nonzero().flatten()

    @property
    def classes(self) -> Tensor:
        """Classes of the labelled examples."""
        return self.labels[self.labelled]

    def __len__(self) -> int:
        return self.neighbors.numel()

    @cached_property
    def edges(self) -> AffinityPairs:
        """The edges of the graph with their propagated affinities."""
        weights = propagate_affinities(self.neighbors, self.labels, self.gamma, repulsion=self.repulsion).flatten()
        source = torch.arange(len(self.neighbors), device=self.neighbors.device)
        pairs = torch.stack([source.repeat_interleave(self.neighbors.shape[1]), self.neighbors.flatten()], dim=1)
        if self.affinities == "positive-edges":
            weights = weights.clamp_min(0.0)
        if self.affinities != "absolute-edges":
            return AffinityPairs.of_working_set(self.labels, pairs, weights)
        scales = torch.stack([torch.ones_like(weights), torch.where(weights < 0, -1.0, 1.0)], dim=1)
        return AffinityPairs.of_working_set(self.labels, pairs, weights.abs(), scales)

    def minibatches(self, size: int, generator: torch.Generator) -> Iterator[AffinityPairs]:
        """Batches of edges."""
        return self.edges.minibatches(size, generator)

    def quality(self, classes: Tensor) -> dict[str, float]:
        """Share of the edges with equal true classes."""
        same = classes[self.nodes.to(classes.device)][:, None] == classes[self.neighbors.to(classes.device)]
        return {"same_class_pairs": float(same.double().mean())}

    def form(self, features: Tensor) -> Tensor:
        """Z^T Lap Z of the propagated affinities, divided by the sum of their magnitudes."""
        if self.affinities != "all":
            return self.edges.form(features)
        found = propagated_form(features, self.neighbors, self.labels, self.gamma, repulsion=self.repulsion)
        return found.matrix / found.total

    def energy(self, embeddings: Tensor) -> Tensor:
        """Weighted mean squared length of the edges."""
        return self.edges.energy(embeddings)


@dataclass(frozen=True)
class PropagatedSettings(PairSettings):
    """Hyper-parameters of APLLR and APIT."""

    k: int = setting(10, "Neighbours per node of the graph.")
    gamma: float = setting(0.99, "Share of the affinity passed on at each propagation step, in (0, 1).")
    graph_weight: float = setting(1.0, "Weight g_L of the graph relative to similar pairs, or to the prior metric.")
    dissimilar_weight: float = setting(1.0, "Weight g_D of dissimilar pairs relative to similar pairs.")
    affinities: Literal["all", "edges", "positive-edges", "absolute-edges"] = setting(
        "all",
        "Pairs whose propagated affinities determine the metric: all pairs, the edges of the graph, its positive "
        "edges, or all edges with negative ones pulling towards the opposite point.",
    )
    repulsion: float = setting(
        1.0, "Strength of dissimilar labelled pairs in the affinities: theirs is minus this before propagation."
    )
    indefinite: Literal["clip", "cap"] = setting(
        "clip", "If dissimilar pairs make the graph's form indefinite: clip its negative part, or cap its weight."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self.k, 1, "k")
        check_fraction(self.gamma, "gamma")
        check_not_negative(self.graph_weight, "graph_weight")
        check_not_negative(self.dissimilar_weight, "dissimilar_weight")
        check_not_negative(self.repulsion, "repulsion")
        check_choice(self.affinities, ("all", "edges", "positive-edges", "absolute-edges"), "affinities")
        check_choice(self.indefinite, ("clip", "cap"), "indefinite")


class PropagatedMethod(PairMethod[PairConstraints]):
    """A prior metric M_0 from the labelled pairs, and a metric near it that brings examples of high affinity together.

    The metric minimises D_ld(M, M_0) + g_L tr(M T), the LogDet divergence to M_0 and T = Z^T Lap Z of the propagated
    affinities, normalised. With ``repulsion``, as in the original, dissimilar pairs have negative affinities. T may
    then be indefinite and the problem without a minimiser, so T is clipped, or g_L capped, and the log says how much of
    the term is kept. The encoder minimises the labelled pairs' distances, as in LRML, and the affinity-weighted lengths
    of the edges. The page of APLLR in ``docs/methods`` has the formulae and the differences from the original.
    """

    needs = Needs(labels=True, unlabelled=True, graph=True)
    space: ClassVar[Space] = (
        SLOW | GRAPH | {"graph_weight": Range(0.1, 30.0, log=True), "dissimilar_weight": Range(0.1, 10.0, log=True)}
    )
    Settings: ClassVar[type[Any]] = PropagatedSettings
    settings: PropagatedSettings

    def __init__(self, settings: Any = None) -> None:
        super().__init__(settings)
        self._kept: float | None = None

    @abstractmethod
    def prior(self, features: Tensor, classes: Tensor, scatters: PairScatters) -> Tensor | None:
        """The prior metric (d, d) of trace d from the labelled examples, or None if they do not determine one."""

    def constraints(self, features: Tensor, labels: Tensor) -> PropagatedGraph:
        """The kNN graph; affinities are propagated later."""
        nodes = torch.arange(len(features), device=features.device)
        neighbors = graph_neighbors(features, self.settings.k)
        settings = self.settings
        return PropagatedGraph(nodes, labels, neighbors, settings.gamma, settings.affinities, settings.repulsion)

    def update_metric(self, metric: Metric, features: Tensor, constraints: PairConstraints) -> Metric:
        """The minimiser in closed form, whatever the current metric."""
        prior, form = self._problem(features, constraints)
        wanted = self.settings.graph_weight
        matrix, weight = logdet_proximal(prior, form, wanted)
        if weight < wanted:
            self._kept = weight / wanted
            self.bind_guard(
                "graph_weight_capped",
                f"{self.name}: dissimilar pairs make the graph's form indefinite, and with graph_weight {wanted:g} "
                f"the problem is unbounded; {weight:.3g} is used instead. Alternatively set indefinite to clip.",
            )
        return self._metric(matrix, features)

    def _problem(self, features: Tensor, constraints: PairConstraints) -> tuple[Tensor, Tensor]:
        """M_0 and T."""
        prior = self._checked_prior(features, constraints)
        form = constraints.form(features) / features.double().var(0).mean()
        self._kept = 1.0
        if self.settings.indefinite == "cap":
            return prior, form
        clipped = project_psd(form)
        positive, total = float(clipped.trace()), float(form.trace())
        magnitude = 2 * positive - total  # sum of the eigenvalues' magnitudes
        if positive - total > ROUNDING * magnitude:
            self._kept = positive / magnitude
            self.bind_guard(
                "form_clipped",
                f"{self.name}: dissimilar pairs make the graph's form indefinite; its negative part, "
                f"{100 * (1 - self._kept):.0f} % of the sum of its eigenvalues' magnitudes, is removed.",
            )
        return prior, clipped

    def on_epoch_end(self) -> dict[str, float]:
        """The share of the graph's term that the last metric step kept.

        With "clip" it is the positive eigenvalues' share of the sum of all eigenvalues' magnitudes of T, with "cap" the
        share of g_L.
        """
        return {} if self._kept is None else {"graph_term_kept": self._kept}

    def _checked_prior(self, features: Tensor, constraints: PairConstraints) -> Tensor:
        """M_0, or the Euclidean metric instead."""
        width = features.shape[1]
        scatters = self._scatters(features, constraints)
        prior = self.prior(features[constraints.labelled].double(), constraints.classes, scatters)
        if prior is None:
            self.bind_guard(
                "prior_replaced",
                f"{self.name}: the labelled pairs give no prior metric (no similar pair, or similar pairs no closer "
                "than dissimilar ones in any direction); the Euclidean metric is used instead. More labels help.",
            )
            return torch.eye(width, dtype=torch.float64, device=features.device)
        values = torch.linalg.eigvalsh(prior)
        rank = int((values > ROUNDING * values[-1]).sum())
        if rank < width:
            self.bind_guard(
                "singular_prior",
                f"{self.name}: the prior metric has rank {rank} of {width}, and the metric ignores the other "
                "directions. More labels help.",
            )
        return prior

    def loss(self, metric: Metric, features: Tensor, constraints: PairConstraints) -> Tensor:
        """Labelled pairs and affinity-weighted edges, times the number of edges: a sum over the batch."""
        embeddings = metric.transform(features)
        similar, dissimilar = pair_means(embeddings[constraints.labelled], constraints.classes)
        labelled = similar - self.settings.dissimilar_weight * dissimilar
        return len(constraints) * (labelled + self.settings.graph_weight * constraints.energy(embeddings))
