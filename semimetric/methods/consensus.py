"""Pseudo-labels from graph and network combined, and contrastive learning weighted by their confidence.

Labels are propagated over the neighbour graph of an averaged encoder. A linear head on the same features predicts
classes too. The geometric mean of both is the consensus: it gives the pseudo-labels and their confidence. The page in
``docs/methods`` has the formulae and the sources of the parts.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from semimetric.core.checks import check_at_least, check_choice, check_fraction, check_not_negative, check_positive
from semimetric.core.errors import InputError
from semimetric.core.settings import setting
from semimetric.data import VIEW_HELP, VIEW_KINDS, ViewKind, preset_views
from semimetric.data.stored import Inputs
from semimetric.encoders import unit_features
from semimetric.graph import Posteriors, cosine_posteriors, names_and_confidence, nearest_neighbors, upper_quartiles
from semimetric.losses import contextual_targets, contrastive_loss, relaxed_contrastive_loss
from semimetric.methods.agreement import Agreement, certainty, drawn_labelled, geometric_mean
from semimetric.methods.base import Examples, LearnsFromAverage, LearnsMetric, Needs, PredictsClasses
from semimetric.methods.baseline import SHARPNESS, head_logits, take_over
from semimetric.methods.consensus_defaults import BY_STEP, ON, SPACE
from semimetric.methods.defaults import ADAMW, GRAPH, LR, Values
from semimetric.methods.naming import RunningNames
from semimetric.methods.starts import blank_linear, projector, random_projection
from semimetric.metric import Metric, within_class_whitening

LEAST_TYPICAL = 1e-3  # typical confidence that other confidences are divided by
ROUNDING = 1e-9  # tolerance when a confidence is compared with the mean of its class


@dataclass(frozen=True)
class ConsensusSettings:
    """Hyper-parameters."""

    k: int = setting(10, "Neighbours per node of the graph.")
    gamma: float = setting(0.99, "Share of its label that a node passes on at each propagation step, in (0, 1).")
    naming: Literal["step", "epoch"] = setting(
        "epoch",
        "When pseudo-labels are made: in every step, from the head's answer to the weak view and the graph of the last "
        "epoch, or once per epoch.",
    )
    head_share: float = setting(0.5, "Weight of the head in the pseudo-labels: 0 uses only the graph, 1 only the head.")
    veto: bool = setting(
        True,
        "Down-weight an example when the graph is less confident about it than is typical for its predicted class.",
    )
    stop_gradient: bool = setting(
        False, "Encode the weak views without a gradient, except those of the examples drawn for their labels; faster."
    )
    augmentation: ViewKind = setting("auto", VIEW_HELP)
    selective: bool = setting(
        True, "Train only on examples whose confidence is at least the mean of their predicted class."
    )
    relative: bool = setting(
        False, "Weight examples by confidence relative to the upper quartile; for many classes with few labels each."
    )
    consistency: float = setting(1.0, "Weight of the cross-entropy between strong views and pseudo-labels.")
    contrast: float = setting(1.0, "Weight of the contrastive loss between examples of the same pseudo-label.")
    contrast_temperature: float = setting(0.1, "Temperature of that contrastive loss.")
    instance: float = setting(0.3, "Weight of the contrastive loss between two views of the same example.")
    instance_temperature: float = setting(0.1, "Temperature of the contrastive loss between views.")
    context: float = setting(
        0.0,
        "Weight of STML's contrastive loss, whose soft targets are the averaged network's distances and shared "
        "neighbours. Above 0 it needs average above 0.",
    )
    neighbours: int = setting(
        1, "Examples that a batch takes for each one drawn: itself and its nearest neighbours; 1 takes no neighbours."
    )
    projection: int = setting(
        0,
        "Dimensions of a two-layer network on the features, on which the contrastive losses by class and by view act; "
        "0 lets them act on the embedding itself.",
    )
    components: int = setting(0, "Dimensions of the embedding, at most the encoder's d; 0 keeps all d.")
    metric: Literal["principal", "within", "whitened"] = setting(
        "principal",
        "Metric: principal components; whitened by the within-class covariance, in training too (within); or whitened "
        "after training on the features as they are (whitened).",
    )
    shrinkage: float = setting(3.0, "Shrinkage of the within-class covariance towards isotropic, above 0.")

    def __post_init__(self) -> None:
        check_at_least(self.k, 1, "k")
        check_fraction(self.gamma, "gamma")
        if not 0.0 <= self.head_share <= 1.0:
            raise InputError(f"head_share must be between 0 and 1, got {self.head_share}.")
        check_at_least(self.neighbours, 1, "neighbours")
        for name in ("consistency", "contrast", "instance", "context", "projection", "components"):
            check_not_negative(getattr(self, name), name)
        for name in ("contrast_temperature", "instance_temperature", "shrinkage"):
            check_positive(getattr(self, name), name)
        check_choice(self.naming, ("step", "epoch"), "naming")
        check_choice(self.augmentation, VIEW_KINDS, "augmentation")
        check_choice(self.metric, ("principal", "within", "whitened"), "metric")


class Consensus(LearnsMetric[Agreement], PredictsClasses[Agreement], LearnsFromAverage[Agreement]):
    """Pseudo-labels from graph and head; consistency and contrastive losses on augmented views."""

    name = "consensus"
    summary = "pseudo-labels from graph and network, contrastive loss weighted by their confidence"
    reference = "this project"
    needs = Needs(labels=True, unlabelled=True, graph=True, views=True)
    capturable_loss = True
    unlabelled_optional = True
    learns_without_network = False
    space = LR | GRAPH | SPACE
    training_defaults = ADAMW | {"average": 0.995, "passes": 2, "epochs": 40, "hold_back": 0.2}
    defaults_on: ClassVar[dict[str, Values]] = ON
    defaults_with: ClassVar[dict[str, Values]] = {"resnet9-512": BY_STEP, "wrn28-2": BY_STEP}
    Settings = ConsensusSettings
    settings: ConsensusSettings
    head: nn.Linear
    classes: Tensor
    steps: Tensor
    centre: Tensor
    directions: Tensor
    placed: Tensor

    def on_fit_begin(self, inputs: Inputs, labels: Tensor, width: int, generator: torch.Generator) -> None:
        """Build a head for the labelled classes, and a weak and a strong view."""
        classes = torch.unique(labels[labels >= 0])
        within = self.settings.metric == "within"
        kept = self.settings.components or width
        self.head = blank_linear(kept if within else width, len(classes))
        nn.init.zeros_(self.head.weight)  # uninformative rather than random until trained
        nn.init.zeros_(self.head.bias)
        self.register_buffer("classes", classes)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        if self.settings.naming == "step":
            self.names = RunningNames(len(classes))
        if self.settings.projection:
            self.projection = projector(kept if within else width, self.settings.projection, generator)
        if within:
            self.register_buffer("centre", torch.zeros(width))
            self.register_buffer("directions", torch.zeros(width, kept))
            self.register_buffer("placed", torch.zeros((), dtype=torch.bool))
        self.make_views = preset_views(inputs, self.settings.augmentation, ("weak", "strong"))

    def start_from(self, tensors: dict[str, Tensor], known: Tensor) -> None:
        """The head's rows of known classes, the fixed space, and the projection."""
        own = self.state_dict()
        projection = [name for name in own if name.startswith("projection.")]
        take_over(own, tensors, known, ("steps", "centre", "directions", "placed", *projection))

    def initial_metric(self, width: int, generator: torch.Generator, examples: Examples | None = None) -> Metric:
        """Euclidean distance, after a random projection if ``components`` is set."""
        return random_projection(width, self.settings.components, generator)

    @torch.no_grad()
    def constraints(self, features: Tensor, labels: Tensor) -> Agreement:
        """The consensus of the graph and, once it has been trained, the head."""
        if self.settings.metric == "within" and not bool(self.placed):
            self._place(features, labels)
        points = self._points(features)
        graph = self._graph_posteriors(points, labels)
        known = labels >= 0
        certain = (labels[:, None] == self.classes).double()
        consensus = geometric_mean(graph.shares, self._head_shares(points), self.settings.head_share * (self.steps > 0))
        shares = torch.where(known[:, None], certain, consensus)
        named = shares.argmax(1)
        veto = torch.where(known, 1.0, self._veto(graph.confidence, named, known))
        confidence = certainty(shares) * veto
        weights = self._selected(self._compared(confidence, known), named, known)
        nodes = torch.arange(len(labels), device=labels.device)
        named_by = (shares, graph.shares, veto, confidence, weights, known)
        outputs = points if self.taught else points[:, :0]
        return Agreement(nodes, *named_by, self._neighbours(points, nodes), outputs, self.classes)

    def _neighbours(self, points: Tensor, nodes: Tensor) -> Tensor:
        """(n, q) each row and its nearest."""
        others = min(self.settings.neighbours, len(points)) - 1
        nearest = [nearest_neighbors(points, others)] if others else []
        return torch.cat([nodes[:, None], *nearest], dim=1)

    def _graph_posteriors(self, points: Tensor, labels: Tensor) -> Posteriors:
        return cosine_posteriors(points, labels, self.settings.k, self.settings.gamma)

    def _place(self, features: Tensor, labels: Tensor) -> None:
        """Fix the space of graph, head and losses: the within-class whitening of the initial features."""
        named, confidence = names_and_confidence(self._graph_posteriors(features, labels), labels)
        width = self.directions.shape[1]
        metric = within_class_whitening(features, named, confidence, width, self.settings.shrinkage)
        self.centre.copy_(features.mean(0))
        self.directions.copy_(metric.factor)
        self.placed.fill_(True)

    def _points(self, features: Tensor) -> Tensor:
        """The features as graph, head and losses use them: unchanged, or on the unit sphere of the fixed space."""
        within = self.settings.metric == "within"
        return unit_features((features - self.centre) @ self.directions) if within else features

    def _veto(self, confidence: Tensor, named: Tensor, known: Tensor) -> Tensor:
        """Graph confidence divided by the upper quartile of the predicted class, at most 1: low far from all labels."""
        if not self.settings.veto:
            return torch.ones_like(confidence)
        groups = torch.where(known, len(self.classes), named)
        typical = upper_quartiles(confidence, groups, len(self.classes) + 1)
        return (confidence / typical.clamp_min(LEAST_TYPICAL)).clamp_max(1.0)

    def _compared(self, confidence: Tensor, known: Tensor) -> Tensor:
        """The confidence, or with ``relative`` its ratio to the upper quartile of the unlabelled examples."""
        if not self.settings.relative or bool(known.all()):
            return confidence
        typical = upper_quartiles(confidence, known.long(), 2)
        return torch.where(known, confidence, confidence / typical.clamp_min(LEAST_TYPICAL)).clamp_max(1.0)

    def _selected(self, confidence: Tensor, named: Tensor, known: Tensor) -> Tensor:
        """The confidence; with ``selective`` 0 for examples below the mean of their predicted class."""
        if not self.settings.selective:
            return confidence
        unlabelled, none = (~known).double(), confidence.new_zeros(len(self.classes))
        counts = none.index_add(0, named, unlabelled).clamp_min(1.0)
        means = none.index_add(0, named, confidence * unlabelled) / counts
        return torch.where(known | (confidence >= means[named] - ROUNDING), confidence, 0.0)

    def _head_shares(self, points: Tensor) -> Tensor:
        return head_logits(self.head, points).double().softmax(1)

    def update_metric(self, metric: Metric, features: Tensor, constraints: Agreement) -> Metric:
        """Principal components of the features, within-class whitening, or Euclidean distance."""
        s = self.settings
        if s.metric in ("within", "whitened"):
            width = s.components or features.shape[1]
            views = len(features) // len(constraints)  # two for a batch, one for the working set
            named, weights = constraints.targets.repeat(views), constraints.weights.repeat(views)
            return within_class_whitening(features, named, weights, width, s.shrinkage)
        return metric if s.components == 0 else Metric.principal(features, s.components)

    @property
    def metric_after_steps(self) -> bool:
        """With ``whitened``, which is for the result alone."""
        return self.settings.metric == "whitened"

    def without_gradient(self, size: int) -> slice:
        """With ``stop_gradient`` the weak views of all but the labelled examples that a batch begins with."""
        return slice(drawn_labelled(size), size) if self.settings.stop_gradient else slice(0, 0)

    def loss(self, metric: Metric, features: Tensor, constraints: Agreement) -> Tensor:
        """Labels on weak views, pseudo-labels on strong views, contrastive losses by class and by example on both."""
        if self.training:
            self.steps += 1
        n = len(constraints)
        points = self._points(features)
        weak, strong = head_logits(self.head, points).split(n)
        if self.settings.naming == "step":
            constraints = self._named(weak.detach(), constraints)
        targets, known = constraints.targets, constraints.known.to(features.dtype)
        weights = constraints.weights.to(features.dtype)
        supervised = (cross_entropy(weak, targets, reduction="none") * known).sum() / known.sum().clamp_min(1.0)
        consistency = (cross_entropy(strong, targets, reduction="none") * weights).sum() / n
        s = self.settings
        embedded = metric.transform(features) if s.metric == "principal" else points
        compared = self.projection(SHARPNESS * points.to(self.head.weight.dtype)) if s.projection else embedded
        loss = supervised + s.consistency * consistency
        if s.contrast:
            by_class = (targets.repeat(2), weights.repeat(2), s.contrast_temperature)
            loss = loss + s.contrast * contrastive_loss(compared, *by_class)
        if s.instance:
            by_example = (constraints.nodes.repeat(2), None, s.instance_temperature)
            loss = loss + s.instance * contrastive_loss(compared, *by_example)
        return loss + s.context * self._context(embedded, constraints) if s.context else loss

    @property
    def taught(self) -> bool:
        """With ``context`` alone."""
        return self.settings.context > 0

    def teach(self, features: Tensor, constraints: Agreement) -> Agreement:
        """The batch with the points of its views by the averaged network."""
        return dataclasses.replace(constraints, outputs=self._points(features))

    def _context(self, points: Tensor, batch: Agreement) -> Tensor:
        """STML's loss: pairs that the averaged network finds alike shall be near; two labels decide it themselves."""
        views = len(points) // len(batch)
        labels = torch.where(batch.known, batch.targets, -1).repeat(views)
        outputs = batch.outputs.repeat(len(points) // len(batch.outputs), 1)
        return relaxed_contrastive_loss(points, contextual_targets(outputs, batch.nodes.repeat(views), labels))

    def _named(self, weak: Tensor, batch: Agreement) -> Agreement:
        """The batch with pseudo-labels of this step: the graph's posteriors and the logits of the weak views."""
        answers = weak.double().softmax(1)
        shares = geometric_mean(batch.graph, self.names.aligned(answers), self.settings.head_share)
        confidence = shares.amax(1)
        if self.training:
            self.names.follow(answers, confidence, ~batch.known)
        return batch.renamed(shares, self.names.weights(confidence) * batch.veto)

    def posteriors(self, constraints: Agreement) -> Posteriors:
        """The consensus."""
        return Posteriors(constraints.classes, constraints.shares, constraints.confidence)

    def statistics(self, metric: Metric, features: Tensor, constraints: Agreement) -> dict[str, float]:
        """Confidence on the unlabelled examples, and how often the head agrees with the consensus."""
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
