"""What the supervised and unsupervised baselines share: they train the encoder alone, towards targets of examples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from semimetric.core.checks import check_not_negative
from semimetric.core.settings import setting
from semimetric.data import Views
from semimetric.encoders import unit_features
from semimetric.methods.base import C, Examples, Method
from semimetric.methods.starts import START_HELP, ProjectionStart, check_start, projection_start
from semimetric.metric import Metric

SHARPNESS = 16.0
"""Unit points times this go into a linear head, whose logits could not tell classes apart otherwise."""

HEAD_DEVIATION = 0.01
"""Weights of a new head are N(0, 0.01^2), so that all its classes are nearly equally likely."""


@dataclass(frozen=True)
class Targets:
    """Examples (n,), each with the number (n,) of what it is to be told as: a class, a cluster, itself."""

    nodes: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.nodes)

    def minibatches(self, size: int, generator: torch.Generator) -> Iterator[Targets]:
        """Shuffled batches of ``size`` examples; the remainder is dropped."""
        order = torch.randperm(len(self), generator=generator).to(self.nodes.device)
        for start in range(0, len(order) - size + 1, size):
            rows = order[start : start + size]
            yield Targets(self.nodes[rows], self.targets[rows])

    def quality(self, classes: Tensor) -> dict[str, float]:
        """Nothing here is right or wrong by the true classes."""
        return {}


@dataclass(frozen=True)
class BaselineSettings:
    """Hyper-parameters of every baseline."""

    components: int = setting(
        0, "Dimensions of the embedding, a fixed projection of the encoder's d features; 0 keeps all of them."
    )
    start: ProjectionStart = setting("random", START_HELP)

    def __post_init__(self) -> None:
        check_not_negative(self.components, "components")
        check_start(self.start)


class Baseline(Method[C]):
    """A method whose metric is Euclidean distance, behind a fixed orthonormal projection where a width is asked for.

    A linear layer before a fixed projection can learn what a learned projection could; it starts where the methods
    that learn the projection start. Losses see unit points, while distances are those of the projection as it is, as
    for every metric here.

    ``make_views``, where ``prepare`` builds it, makes what the encoder sees.
    """

    learns_without_network = False
    capturable_metric = True
    Settings = BaselineSettings
    settings: BaselineSettings

    def __init__(self, settings: BaselineSettings | None = None) -> None:
        super().__init__(settings)
        self.make_views: Views | None = None

    def views(self, inputs: Tensor) -> Tensor:
        """What ``make_views`` makes of them."""
        return inputs if self.make_views is None else self.make_views(inputs)

    def initial_metric(self, width: int, generator: torch.Generator, examples: Examples | None = None) -> Metric:
        """Euclidean distance of the features or of a projection."""
        return projection_start(width, self.settings.components, self.settings.start, generator, examples)

    def embedding_width(self, width: int) -> int:
        """Dimensions of the embedding of features of ``width``."""
        return self.settings.components or width


def unit_points(metric: Metric, features: Tensor) -> Tensor:
    """The embedding of features, scaled to unit length."""
    return unit_features(metric.transform(features))


def linear_head(width: int, classes: int, generator: torch.Generator) -> nn.Linear:
    """A head with nearly equal logits for all classes."""
    head: nn.Linear = nn.utils.skip_init(nn.Linear, width, classes)
    with torch.no_grad():
        head.weight.normal_(std=HEAD_DEVIATION, generator=generator)
        head.bias.zero_()
    return head


def head_logits(head: nn.Linear, points: Tensor) -> Tensor:
    """(n, classes) logits of unit points."""
    logits: Tensor = head(SHARPNESS * points.to(head.weight.dtype))
    return logits
