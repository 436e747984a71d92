"""Where the projection L of a method starts."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from semimetric.core.checks import check_choice
from semimetric.core.errors import InputError
from semimetric.graph import cosine_posteriors, names_and_confidence
from semimetric.methods.base import Examples
from semimetric.metric import Metric, orthonormalize, within_class_whitening

ProjectionStart = Literal["random", "principal", "classes"]
START_HELP = (
    "Where L starts: random, as in the paper; at the principal components of the features; or at the directions that "
    "tell classes apart, of labels that are propagated first."
)

NEIGHBORS, GAMMA, SHRINKAGE = 10, 0.95, 1.0
"""Of the graph over which labels are propagated for ``classes``, and of the covariance within classes."""


def check_start(start: ProjectionStart) -> None:
    """Refuse a start by another name."""
    check_choice(start, get_args(ProjectionStart), "start")


def projection_start(
    width: int, components: int, start: ProjectionStart, generator: torch.Generator, examples: Examples | None
) -> Metric:
    """An orthonormal L (width, components) to start from; all dimensions as they are where components is 0."""
    metric = random_projection(width, components, generator)
    if start == "random" or components == 0:
        return metric
    if examples is None:
        raise InputError(f"start {start!r} needs the features of the examples, and there are none. Use 'random'.")
    features, labels = examples()
    return Metric.principal(features, components) if start == "principal" else _of_classes(features, labels, components)


def random_projection(width: int, components: int, generator: torch.Generator) -> Metric:
    """A random orthonormal L (width, components), or Euclidean distance of all dimensions where components is 0."""
    if components > width:
        raise InputError(
            f"components must be at most the encoder's output width ({width}), got {components}. "
            "Ask for fewer components or use a wider encoder."
        )
    return Metric.random_orthonormal(width, components, generator) if components else Metric.identity(width)


def _of_classes(features: Tensor, labels: Tensor, components: int) -> Metric:
    """An orthonormal basis of the directions in which examples differ most, as seen by how those of one class do."""
    if len(torch.unique(labels[labels >= 0])) < 2:
        raise InputError(
            "start 'classes' needs labels of two classes or more, and this method sees fewer. Use 'principal' or "
            "'random'."
        )
    k = min(NEIGHBORS, len(features) - 1)
    found = cosine_posteriors(features, labels, k, GAMMA)
    named, confidence = names_and_confidence(found, labels)
    return Metric(orthonormalize(within_class_whitening(features, named, confidence, components, SHRINKAGE).factor))
