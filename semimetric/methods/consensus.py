"""Class posteriors on which graph and network agree, contrastive learning weighted by their confidence.

Labels are propagated over the neighbour graph of an averaged encoder; a linear head on the same features names the
examples too; the geometric mean of both is the consensus. It says which pairs are likely of one class and how sure that
is. The page in ``docs/methods`` has the formulae and the sources of the parts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from semimetric.core.checks import check_choice, check_fraction, check_not_negative, check_positive
from semimetric.core.errors import InputError
from semimetric.core.settings import setting
from semimetric.data import VIEW_HELP, VIEW_KINDS, ViewKind, Views, preset_views
from semimetric.encoders import unit_features
from semimetric.graph import Posteriors, cosine_posteriors, names_and_confidence, upper_quartiles
from semimetric.losses import contrastive_loss
from semimetric.methods.base import Examples, Method, Needs, check_neighbor_count
from semimetric.methods.baseline import head_logits
from semimetric.methods.starts import random_projection
from semimetric.metric import Metric, within_class_share, within_class_whitening

SMALLEST_SHARE = 1e-6
"""Neither graph nor head rules a class out altogether in their geometric mean."""

LEAST_TYPICAL = 1e-3
"""A graph that is less sure than this in most of a class, or of all, has nothing to compare with."""

ROUNDING = 1e-9
"""Examples that are all equally sure are as sure as their mean, however that is rounded."""

LABELLED_SHARE = 1 / 8
"""Of every batch so much is drawn from the labelled examples, however few they are."""


@dataclass(frozen=True)
class Agreement:
    """What each of n examples is taken for.

    Posteriors (n, C) of ``classes`` (C,), confidence in them (n,) in [0, 1], how much each counts in training (n,),
    which is 0 or the confidence, beside others or as it is, and whether the posteriors are the label (n,).
    """

    nodes: Tensor
    shares: Tensor
    confidence: Tensor
    weights: Tensor
    known: Tensor
    classes: Tensor

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def targets(self) -> Tensor:
        """(n,) column of the likeliest class."""
        return self.shares.argmax(1)

    def minibatches(self, size: int, generator: torch.Generator) -> Iterator[Agreement]:
        """Batches of ``size``: an eighth drawn from the labelled examples, the rest from all in random order.

        There are as many as examples would fill, so that seven eighths of them are met in one pass.
        """
        labelled = self.known.nonzero().flatten().cpu()
        first = max(int(LABELLED_SHARE * size), 1 if size > 1 else 0)
        batches = len(self) // size
        drawn = labelled[torch.randint(len(labelled), (batches, first), generator=generator)]
        order = torch.randperm(len(self), generator=generator)[: batches * (size - first)]
        rows = torch.cat([drawn, order.reshape(batches, size - first)], dim=1).to(self.known.device)
        for part in rows:
            yield self._part(part)

    def _part(self, rows: Tensor) -> Agreement:
        tensors = (tensor[rows] for tensor in (self.nodes, self.shares, self.confidence, self.weights, self.known))
        nodes, shares, confidence, weights, known = tensors
        return Agreement(nodes, shares, confidence, weights, known, self.classes)

    def quality(self, classes: Tensor) -> dict[str, float]:
        """Shares of right pseudo-labels of the unlabelled examples, plain and weighted by confidence."""
        if bool(self.known.all()):
            return {}
        right = (self.classes[self.targets] == classes[self.nodes])[~self.known].double()
        weights = self.confidence[~self.known].double()
        weighted = float((right * weights).sum() / weights.sum().clamp_min(1e-12))
        return {"right_pseudo_labels": float(right.mean()), "right_by_confidence": weighted}


@dataclass(frozen=True)
class ConsensusSettings:
    """Hyper-parameters; one set of defaults serves images and vectors."""

    k: int = setting(10, "Neighbours per node of the graph.")
    gamma: float = setting(0.99, "Share of its label that a node passes on at each step of the propagation, in (0, 1).")
    head_share: float = setting(
        0.5, "Weight of the head against the graph in what an example is taken for: 0 the graph alone, 1 the head."
    )
    veto: bool = setting(
        True, "Let an example count less where the graph is less sure than at most of those named alike."
    )
    augmentation: ViewKind = setting("auto", VIEW_HELP)
    selective: bool = setting(
        True, "Count only examples that are at least as sure as the mean of those taken for the same class."
    )
    relative: bool = setting(
        False, "Count examples by how sure they are beside the surest quarter: for many classes of few labels each."
    )
    consistency: float = setting(1.0, "Weight of naming strong views as their examples are named.")
    contrast: float = setting(1.0, "Weight of the contrastive loss between examples of one class, by confidence.")
    contrast_temperature: float = setting(0.1, "Its temperature.")
    instance: float = setting(0.3, "Weight of the contrastive loss between the two views of each example.")
    instance_temperature: float = setting(0.1, "Its temperature.")
    components: int = setting(0, "Dimensions of the embedding, at most the encoder's d; 0 keeps all.")
    metric: Literal["principal", "within"] = setting(
        "principal", "What they are: principal components, or those in units of how much one class varies."
    )
    shrinkage: float = setting(3.0, "How far that is shrunk towards the same in all directions, above 0.")

    def __post_init__(self) -> None:
        if self.k < 1:
            raise InputError(f"k must be at least 1, got {self.k}.")
        check_fraction(self.gamma, "gamma")
        if not 0.0 <= self.head_share <= 1.0:
            raise InputError(f"head_share must be between 0 and 1, got {self.head_share}.")
        for name in ("consistency", "contrast", "instance", "components"):
            check_not_negative(getattr(self, name), name)
        for name in ("contrast_temperature", "instance_temperature", "shrinkage"):
            check_positive(getattr(self, name), name)
        check_choice(self.augmentation, VIEW_KINDS, "augmentation")
        check_choice(self.metric, ("principal", "within"), "metric")


class Consensus(Method[Agreement]):
    """Pseudo-labels on which graph and head agree; consistency and contrast of augmented views."""

    name = "consensus"
    summary = "class posteriors of graph and network, contrastive loss weighted by their confidence"
    reference = "this project"
    needs = Needs(labels=True, unlabelled=True, graph=True, views=True)
    capturable_loss = True
    unlabelled_optional = True
    learns_without_network = False
    Settings = ConsensusSettings
    settings: ConsensusSettings
    head: nn.Linear
    classes: Tensor
    steps: Tensor
    centre: Tensor
    directions: Tensor
    placed: Tensor
    make_views: Views

    def prepare(self, inputs: Tensor, labels: Tensor, width: int, generator: torch.Generator) -> None:
        """A head for the classes that have labels, and the views that fit the inputs."""
        classes = torch.unique(labels[labels >= 0])
        within = self.settings.metric == "within"
        kept = self.settings.components or width
        self.head = nn.utils.skip_init(nn.Linear, kept if within else width, len(classes))
        nn.init.zeros_(self.head.weight)  # so that it knows nothing, rather than something random, when it joins in
        nn.init.zeros_(self.head.bias)
        self.register_buffer("classes", classes)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        if within:
            self.register_buffer("centre", torch.zeros(width))
            self.register_buffer("directions", torch.zeros(width, kept))
            self.register_buffer("placed", torch.zeros((), dtype=torch.bool))
        self.make_views = preset_views(inputs, self.settings.augmentation, ("weak", "strong"))

    def initial_metric(self, width: int, generator: torch.Generator, examples: Examples | None = None) -> Metric:
        """Euclidean distance of the features; with ``components``, of a random projection until the first epoch."""
        return random_projection(width, self.settings.components, generator)

    def check_working_set(self, labelled: int, unlabelled: int) -> None:
        """Every example needs k others."""
        check_neighbor_count(self.settings.k, labelled + unlabelled)

    def views(self, inputs: Tensor) -> Tensor:
        """A weak view of every example, then a strong one of every example; without augmentation itself twice."""
        views: Tensor = self.make_views(inputs)
        return views

    @torch.no_grad()
    def constraints(self, features: Tensor, labels: Tensor) -> Agreement:
        """The consensus of the graph and of the head, which has a say once it has been trained."""
        if self.settings.metric == "within" and not bool(self.placed):
            self._place(features, labels)
        points = self._points(features)
        graph = self._graph_posteriors(points, labels)
        known = labels >= 0
        certain = (labels[:, None] == self.classes).double()
        consensus = geometric_mean(graph.shares, self._head_shares(points), self.settings.head_share * (self.steps > 0))
        shares = torch.where(known[:, None], certain, consensus)
        named = shares.argmax(1)
        confidence = certainty(shares) * torch.where(known, 1.0, self._veto(graph.confidence, named, known))
        weights = self._selected(self._compared(confidence, known), named, known)
        nodes = torch.arange(len(labels), device=labels.device)
        return Agreement(nodes, shares, confidence, weights, known, self.classes)

    def _graph_posteriors(self, points: Tensor, labels: Tensor) -> Posteriors:
        return cosine_posteriors(points, labels, self.settings.k, self.settings.gamma)

    def _place(self, features: Tensor, labels: Tensor) -> None:
        """Fix the space in which graph, head and losses work: that of the first features, by how classes vary there."""
        named, confidence = names_and_confidence(self._graph_posteriors(features, labels), labels)
        width = self.directions.shape[1]
        metric = within_class_whitening(features, named, confidence, width, self.settings.shrinkage)
        self.centre.copy_(features.mean(0))
        self.directions.copy_(metric.factor)
        self.placed.fill_(True)

    def _points(self, features: Tensor) -> Tensor:
        """Where graph, head and losses see the features: as they are, or on the unit sphere of the fixed space."""
        if self.settings.metric == "principal":
            return features
        return unit_features((features - self.centre) @ self.directions)

    def _veto(self, confidence: Tensor, named: Tensor, known: Tensor) -> Tensor:
        """How far the graph lets an example count: its confidence over the upper quartile of its class.

        A class without labels lies away from all of them, where the graph knows little whatever the head says.
        """
        if not self.settings.veto:
            return torch.ones_like(confidence)
        groups = torch.where(known, len(self.classes), named)
        typical = upper_quartiles(confidence, groups, len(self.classes) + 1)
        return (confidence / typical.clamp_min(LEAST_TYPICAL)).clamp_max(1.0)

    def _compared(self, confidence: Tensor, known: Tensor) -> Tensor:
        """How much an example counts at most: its confidence, or that over the upper quartile of the unlabelled.

        Over a hundred classes a graph of few labels is hardly sure of anything, and yet surer here than there.
        """
        if not self.settings.relative or bool(known.all()):
            return confidence
        typical = upper_quartiles(confidence, known.long(), 2)
        return torch.where(known, confidence, confidence / typical.clamp_min(LEAST_TYPICAL)).clamp_max(1.0)

    def _selected(self, confidence: Tensor, named: Tensor, known: Tensor) -> Tensor:
        """The confidence, 0 for those less sure than the mean of their class where the method is selective."""
        if not self.settings.selective:
            return confidence
        unlabelled = (~known).double()
        none = confidence.new_zeros(len(self.classes))
        counts = none.index_add(0, named, unlabelled).clamp_min(1.0)
        means = none.index_add(0, named, confidence * unlabelled) / counts
        return torch.where(known | (confidence >= means[named] - ROUNDING), confidence, 0.0)

    def _head_shares(self, points: Tensor) -> Tensor:
        return head_logits(self.head, points).double().softmax(1)

    def update_metric(self, metric: Metric, features: Tensor, constraints: Agreement) -> Metric:
        """The principal components of the features, as they are or within classes, or Euclidean distance."""
        s = self.settings
        if s.metric == "within":
            width = s.components or features.shape[1]
            views = len(features) // len(constraints)  # a batch has two of each example, all examples have one
            named, weights = constraints.targets.repeat(views), constraints.weights.repeat(views)
            return within_class_whitening(features, named, weights, width, s.shrinkage)
        return metric if s.components == 0 else Metric.principal(features, s.components)

    def metric_objective(self, metric: Metric, features: Tensor, constraints: Agreement) -> float:
        """The variance of the features that the metric does not see, or the share of what it sees within classes."""
        if self.settings.metric == "within":
            return within_class_share(metric.transform(features), constraints.targets, constraints.weights)
        centred = features.double() - features.double().mean(0)
        return float(centred.square().sum() - metric.transform(centred).square().sum()) / len(features)

    def loss(self, metric: Metric, features: Tensor, constraints: Agreement) -> Tensor:
        """Labels on weak views, consensus on strong ones, contrast by class and by example on both."""
        if self.training:
            self.steps += 1
        n = len(constraints)
        targets, known = constraints.targets, constraints.known.to(features.dtype)
        weights = constraints.weights.to(features.dtype)
        points = self._points(features)
        weak, strong = head_logits(self.head, points).split(n)
        supervised = (cross_entropy(weak, targets, reduction="none") * known).sum() / known.sum().clamp_min(1.0)
        consistency = (cross_entropy(strong, targets, reduction="none") * weights).sum() / n
        s = self.settings
        embedded = points if s.metric == "within" else metric.transform(features)
        contrast = contrastive_loss(embedded, targets.repeat(2), weights.repeat(2), s.contrast_temperature)
        instance = contrastive_loss(embedded, constraints.nodes.repeat(2), None, s.instance_temperature)
        return supervised + s.consistency * consistency + s.contrast * contrast + s.instance * instance

    def posteriors(self, constraints: Agreement) -> Posteriors:
        """What each example is taken for."""
        return Posteriors(constraints.classes, constraints.shares, constraints.confidence)

    def statistics(self, metric: Metric, features: Tensor, constraints: Agreement) -> dict[str, float]:
        """How sure the consensus is of the unlabelled examples, and how often the head names them alike."""
        unlabelled = ~constraints.known
        if not bool(unlabelled.any()):
            return {}
        confidence = constraints.confidence[unlabelled]
        alike = self._head_shares(self._points(features)).argmax(1) == constraints.targets
        return {
            "confidence": float(confidence.mean()),
            "coverage@0.9": float((confidence >= 0.9).double().mean()),
            "head_agreement": float(alike[unlabelled].double().mean()),
        }


def certainty(shares: Tensor) -> Tensor:
    """1 - H / log C with the entropy H of rows of probabilities (N, C): 1 for a certain class, 0 for equal ones."""
    sure: Tensor = 1.0 - torch.special.entr(shares).sum(1) / math.log(shares.shape[1])
    return sure.clamp(0.0, 1.0)


def geometric_mean(first: Tensor, second: Tensor, share: float | Tensor) -> Tensor:
    """Rows proportional to first^(1 - share) second^share, summing to 1, for rows of probabilities (N, C)."""
    logs = (1.0 - share) * first.clamp_min(SMALLEST_SHARE).log() + share * second.clamp_min(SMALLEST_SHARE).log()
    return logs.softmax(1)
