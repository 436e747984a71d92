"""Base of the supervised and unsupervised baselines, which train the encoder and keep the metric fixed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from semimetric.core.checks import check_choice, check_not_negative
from semimetric.core.settings import setting
from semimetric.data import VIEW_HELP, VIEW_KINDS, ViewKind
from semimetric.encoders import unit_features
from semimetric.methods.base import C, Examples, Method, Needs, shuffled_batches
from semimetric.methods.defaults import ADAMW, FROM_SCRATCH, HELD_OUT_CLASSES, Values, extended, on_photographs
from semimetric.methods.starts import START_HELP, STARTS, ProjectionStart, blank_linear, projection_start
from semimetric.metric import Metric

SHARPNESS = 16.0  # scale of unit points before a linear head, for logits large enough to separate classes
HEAD = ("head.weight", "head.bias")  # tensors of a head, a row for each class
HEAD_DEVIATION = 0.01  # standard deviation of a head's initial weights; all classes start nearly equally likely

SMALL_STEPS: Values = {"lr": 3e-5, "epochs": 5, "batch_size": 64}  # few large images fit into memory
ON: dict[str, Values] = {
    "descriptors": {"lr": 1e-5},
    "pretrained": SMALL_STEPS,
    "digits": {"components": 32},
    "mnist": FROM_SCRATCH | {"components": 64},
    "fashion-mnist": FROM_SCRATCH | {"components": 64},
    "cifar10": FROM_SCRATCH | {"components": 32, "epochs": 60},
} | on_photographs(HELD_OUT_CLASSES | {"components": 128, "start": "principal", "lr": 1e-5})
"""Embeddings are as wide as that of affinity-triplets. 1e-5 was the best of three rates on descriptors of CUB-200."""

ON_VIEWS = extended(ON, {"fashion-mnist": {"augmentation": "objects"}})
"""With views: clothes may be mirrored, unlike digits."""


@dataclass(frozen=True)
class Targets:
    """Examples (n,), each with its target index (n,): a class, a cluster, or the example itself."""

    nodes: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.nodes)

    def minibatches(self, size: int, generator: torch.Generator) -> Iterator[Targets]:
        """Shuffled batches of ``size`` examples; the remainder is dropped."""
        for rows in shuffled_batches(len(self), size, generator).to(self.nodes.device):
            yield Targets(self.nodes[rows], self.targets[rows])

    def quality(self, classes: Tensor) -> dict[str, float]:
        """Empty: targets are not statements about classes."""
        return {}


@dataclass(frozen=True)
class BaselineSettings:
    """Hyper-parameters of every baseline."""

    components: int = setting(
        0, "Dimensions of the embedding, a fixed projection of the encoder's d features; 0 keeps all d."
    )
    start: ProjectionStart = setting("random", START_HELP)

    def __post_init__(self) -> None:
        check_not_negative(self.components, "components")
        check_choice(self.start, STARTS, "start")


@dataclass(frozen=True)
class ViewSettings(BaselineSettings):
    """Hyper-parameters of every baseline that trains on views."""

    augmentation: ViewKind = setting("auto", VIEW_HELP)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self.augmentation, VIEW_KINDS, "augmentation")


class Baseline(Method[C]):
    """A method whose metric is Euclidean distance, after a fixed orthonormal projection if ``components`` is set.

    A linear layer before the fixed projection can learn whatever a learned projection could. Losses use unit points;
    distances use the projection without normalisation, as for every metric here.
    """

    learns_without_network = False
    training_defaults = ADAMW | {"epochs": 30}
    defaults_on = ON
    in_paper = True
    Settings = BaselineSettings
    settings: BaselineSettings

    def initial_metric(self, width: int, generator: torch.Generator, examples: Examples | None = None) -> Metric:
        """Euclidean distance of the features or of their projection, which is fixed and therefore orthonormal."""
        start = "uniform-orthonormal" if self.settings.start == "uniform" else self.settings.start
        return projection_start(width, self.settings.components, start, generator, examples)

    def embedding_width(self, width: int) -> int:
        """Dimensions of the embedding, for features of ``width`` dimensions."""
        return self.settings.components or width


class Classifier(Baseline[C]):
    """A baseline that trains a linear head on views of unlabelled examples."""

    needs = Needs(labels=False, unlabelled=True, graph=False, views=True)
    capturable_loss = True
    head: nn.Linear

    def logits(self, metric: Metric, features: Tensor, scale: float = 1.0) -> Tensor:
        """(n, classes) logits of the scaled unit points of features."""
        return head_logits(self.head, scale * unit_points(metric, features))


def unit_points(metric: Metric, features: Tensor) -> Tensor:
    """The embedding of features, scaled to unit length."""
    return unit_features(metric.transform(features))


def linear_head(width: int, classes: int, generator: torch.Generator) -> nn.Linear:
    """A linear head with small random weights."""
    head = blank_linear(width, classes)
    with torch.no_grad():
        head.weight.normal_(std=HEAD_DEVIATION, generator=generator)
        head.bias.zero_()
    return head


def head_logits(head: nn.Linear, points: Tensor) -> Tensor:
    """(n, classes) logits of unit points."""
    logits: Tensor = head(SHARPNESS * points.to(head.weight.dtype))
    return logits


@torch.no_grad()
def take_over(own: dict[str, Tensor], tensors: dict[str, Tensor], known: Tensor, whole: Iterable[str]) -> None:
    """Copy tensors of another fit into ``own``, a ``state_dict``, where they fit.

    Of the head the rows of ``known`` (C,) classes, as in ``Method.start_from``; those named in ``whole`` as they are.
    """
    here = (known >= 0).nonzero().flatten()
    for name in HEAD:
        if name in tensors and tensors[name].shape[1:] == own[name].shape[1:]:
            own[name][here.to(own[name].device)] = tensors[name][known[here]].to(own[name])
    for name in whole:
        if name in own and name in tensors and tensors[name].shape == own[name].shape:
            own[name].copy_(tensors[name])
