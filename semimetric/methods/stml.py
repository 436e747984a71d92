"""Self-taught metric learning (STML): the averaged network says how alike two views are, and the network learns it.

The teacher compares views by their distance and by the neighbours they share. The page in ``docs/methods`` has the
formulae and lists the differences from the original.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from semimetric.core.checks import check_at_least, check_choice, check_not_negative, check_positive
from semimetric.core.settings import setting
from semimetric.core.space import Range
from semimetric.data import VIEW_HELP, VIEW_KINDS, ViewKind, preset_views
from semimetric.data.stored import Inputs
from semimetric.encoders import unit_features
from semimetric.graph import nearest_neighbors
from semimetric.losses import contextual_targets, neighbourhood_divergence, relaxed_contrastive_loss
from semimetric.methods.base import Examples, LearnsFromAverage, Needs
from semimetric.methods.defaults import ADAMW, FROM_SCRATCH, HELD_OUT_CLASSES, LR, Values, on_photographs
from semimetric.methods.starts import blank_linear, random_projection
from semimetric.metric import Metric, random_orthonormal

FINE_TUNING: Values = {"lr": 1e-4, "average": 0.999, "augmentation": "photographs", "passes": 1}
"""For a pretrained network that is trained: the original's rate and average."""

DESCRIBED: Values = {
    "encoder": "linear",
    "preprocess": "none",
    "side": 0,
    "precision": "float32",
    "metric": "head",
    "augmentation": "auto",
    "average_warmup": True,
    "epochs": 20,
}
"""On descriptors, of photographs in the dataset's own size, only a matrix is trained."""

GOOGLENET: Values = {
    "encoder": "googlenet-avgmax-224",
    "side": 320,
    "preprocess": "imagenet",
    "precision": "bfloat16",
    "mirror": True,
    "components": 128,
    "metric": "principal",
    "augmentation": "crops",
    "average_warmup": False,
    "epochs": 60,
    "backbone": "",
}
"""Pooling, views and slow teacher of the original."""


@dataclass(frozen=True)
class Neighbourhoods:
    """n examples, their nearest neighbours, and what the teacher makes of them or of their views."""

    nodes: Tensor
    neighbours: Tensor  # (n, q) rows of the working set: the example itself, then its nearest neighbours
    outputs: Tensor  # (n, d) unit outputs of the teacher for the examples, or (v n, d) for v views of each
    labels: Tensor  # (n,), -1 = unknown

    def __len__(self) -> int:
        return len(self.nodes)

    def minibatches(self, size: int, generator: torch.Generator) -> Iterator[Neighbourhoods]:
        """``n // size`` batches of random queries, each with its neighbours; no query comes twice."""
        width = self.neighbours.shape[1]
        batches, queries = len(self) // size, -(-size // width)
        drawn = torch.randperm(len(self), generator=generator)[: batches * queries].to(self.nodes.device)
        for rows in self.neighbours[drawn].reshape(batches, queries * width)[:, :size]:
            yield Neighbourhoods(self.nodes[rows], self.neighbours[rows], self.outputs[rows], self.labels[rows])

    def quality(self, classes: Tensor) -> dict[str, float]:
        """Share of the neighbours that are of the example's class."""
        if self.neighbours.shape[1] == 1:
            return {}
        of = classes[self.nodes]
        return {"right_neighbours": float((of[self.neighbours[:, 1:]] == of[:, None]).double().mean())}


@dataclass(frozen=True)
class STMLSettings:
    """Hyper-parameters; the defaults are the original's."""

    neighbours: int = setting(5, "Examples that a batch takes for each query: itself and its nearest neighbours.")
    bandwidth: float = setting(3.0, "Bandwidth of the teacher's similarity, exp(-distance^2 / bandwidth).")
    k: int = setting(10, "Nearest views of a view in its batch, itself included; reciprocal ones are its context.")
    smoothing: int = setting(5, "Nearest views, itself included, over which the similarity of contexts is averaged.")
    components: int = setting(0, "Dimensions of the embedding, at most the encoder's d; 0 keeps all d.")
    metric: Literal["head", "principal"] = setting(
        "head",
        "Metric: the narrow head, as in the original, or the principal components of the features at the beginning of "
        "the last epoch.",
    )
    augmentation: ViewKind = setting("auto", VIEW_HELP)

    def __post_init__(self) -> None:
        for name in ("neighbours", "k", "smoothing"):
            check_at_least(getattr(self, name), 1, name)
        check_positive(self.bandwidth, "bandwidth")
        check_not_negative(self.components, "components")
        check_choice(self.metric, ("head", "principal"), "metric")
        check_choice(self.augmentation, VIEW_KINDS, "augmentation")


class STML(LearnsFromAverage[Neighbourhoods]):
    """Two linear heads on the features: ``f`` (d, l), which may be the metric, and ``g`` (d, d), which teaches."""

    name = "stml"
    summary = "soft targets for pairs from the averaged network and shared neighbours; labels are optional"
    reference = "Kim, Kim, Cho and Kwak, CVPR 2022"
    needs = Needs(labels=True, unlabelled=True, graph=False, views=True)
    capturable_loss = True
    unlabelled_optional = True
    labels_optional = True
    space = LR | {"bandwidth": Range(0.3, 10.0, log=True), "k": Range(4, 30), "neighbours": Range(2, 10)}
    training_defaults = ADAMW | {"weight_decay": 1e-2, "average": 0.99, "batch_size": 120, "passes": 5, "epochs": 30}
    defaults_on: ClassVar[dict[str, Values]] = {
        "descriptors": {"lr": 1e-4},
        "pretrained": FINE_TUNING | {"epochs": 20},
        "described": DESCRIBED,
        "digits": {"components": 32},
        "mnist": FROM_SCRATCH | {"components": 64},
        "fashion-mnist": FROM_SCRATCH | {"components": 64, "augmentation": "objects"},
        "cifar10": FROM_SCRATCH | {"components": 32, "epochs": 60},
    } | on_photographs(HELD_OUT_CLASSES | FINE_TUNING | GOOGLENET)
    Settings = STMLSettings
    settings: STMLSettings
    f: nn.Linear
    g: nn.Linear
    principal: Tensor
    placed: Tensor

    def on_fit_begin(self, inputs: Inputs, labels: Tensor, width: int, generator: torch.Generator) -> None:
        """Build the heads, with orthonormal weights, and two views."""
        self.f = _orthonormal_head(width, self.settings.components or width, generator)
        self.g = _orthonormal_head(width, width, generator)
        if not self._by_head:
            kept = self.settings.components or width
            self.register_buffer("principal", torch.zeros(width, kept, dtype=torch.float64), persistent=False)
            self.register_buffer("placed", torch.zeros((), dtype=torch.bool), persistent=False)
        self.make_views = preset_views(inputs, self.settings.augmentation, ("strong", "strong"))

    def initial_metric(self, width: int, generator: torch.Generator, examples: Examples | None = None) -> Metric:
        """Principal components; else a random projection, which ``f`` replaces before the first score."""
        if self._by_head or examples is None:
            return random_projection(width, self.settings.components, generator)
        return self._principal(examples()[0])

    @property
    def _by_head(self) -> bool:
        return self.settings.metric == "head"

    def _principal(self, features: Tensor) -> Metric:
        return Metric.principal(features, self.settings.components or features.shape[1])

    def trained_metric(self, metric: Metric) -> Metric:
        """``f``, averaged when the encoder is, or principal components as ``constraints`` has computed them."""
        if self._by_head:
            return Metric(self.f.weight.detach().T)
        return Metric(self.principal.clone()) if bool(self.placed) else metric

    @torch.no_grad()
    def constraints(self, features: Tensor, labels: Tensor) -> Neighbourhoods:
        """The nearest neighbours of each example by ``g``; principal components are renewed if they are the metric."""
        if not self._by_head:
            self.principal.copy_(self._principal(features).factor)
            self.placed.fill_(True)
        outputs = self._outputs(features)
        nodes = torch.arange(len(outputs), device=outputs.device)
        others = min(self.settings.neighbours, len(outputs)) - 1
        nearest = [nearest_neighbors(outputs, others)] if others else []
        return Neighbourhoods(nodes, torch.cat([nodes[:, None], *nearest], dim=1), outputs, labels)

    def teach(self, features: Tensor, constraints: Neighbourhoods) -> Neighbourhoods:
        """The batch with the averaged ``g`` of its views."""
        return dataclasses.replace(constraints, outputs=self._outputs(features))

    def loss(self, metric: Metric, features: Tensor, constraints: Neighbourhoods) -> Tensor:
        """Relaxed contrastive loss of both heads, and the divergence of ``f`` from ``g``."""
        points = features.to(self.g.weight.dtype)
        wide, narrow = self.g(points), self.f(points)
        targets = self._targets(constraints, len(features))
        contrast = (relaxed_contrastive_loss(wide, targets) + relaxed_contrastive_loss(narrow, targets)) / 2
        return contrast + neighbourhood_divergence(wide, narrow)

    def _outputs(self, features: Tensor) -> Tensor:
        return unit_features(self.g(features.to(self.g.weight.dtype)))

    def _targets(self, constraints: Neighbourhoods, count: int) -> Tensor:
        """W (count, count) of as many views, by the teacher's outputs for them or for the examples."""
        outputs = constraints.outputs.repeat(count // len(constraints.outputs), 1)
        views = count // len(constraints)
        nodes, labels = constraints.nodes.repeat(views), constraints.labels.repeat(views)
        s = self.settings
        return contextual_targets(outputs, nodes, labels, s.bandwidth, s.k, s.smoothing)


def _orthonormal_head(width: int, columns: int, generator: torch.Generator) -> nn.Linear:
    """A linear map with orthonormal rows. A bias would change no distance."""
    head = blank_linear(width, columns, bias=False)
    with torch.no_grad():
        head.weight.copy_(random_orthonormal(width, columns, generator).T)
    return head
