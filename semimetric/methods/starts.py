"""Initial projections L."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from semimetric.core.draws import OwnDraws
from semimetric.core.errors import InputError
from semimetric.graph import cosine_posteriors, names_and_confidence
from semimetric.methods.base import Examples
from semimetric.metric import Metric, orthonormalize, within_class_whitening

ProjectionStart = Literal["random", "uniform", "uniform-orthonormal", "principal", "classes"]
STARTS: tuple[str, ...] = get_args(ProjectionStart)
START_HELP = (
    "Initial L: a random orthonormal matrix; entries uniform on [0, 1), orthonormalised at once, or in the first step "
    "of a method that needs it; the principal components of the features; or the directions that separate the "
    "classes of propagated labels."
)

NARROWER = "Ask for fewer components or use a wider encoder."

NEIGHBORS, GAMMA, SHRINKAGE = 10, 0.95, 1.0
"""Settings of ``classes``: of the graph that propagates labels, and of the within-class covariance."""


def blank_linear(width: int, columns: int, bias: bool = True) -> nn.Linear:
    """A linear layer whose values are still to be set; none is drawn from torch's generator.

    ``nn.utils.skip_init`` is the same, but imports a package for algebra, which takes a second.
    """
    with OwnDraws():
        return nn.Linear(width, columns, bias=bias)


def projector(width: int, columns: int, generator: torch.Generator) -> nn.Sequential:
    """Two linear layers with a ReLU between, whose weights start as He et al. propose (ICCV 2015)."""
    layers = blank_linear(width, width), blank_linear(width, columns)
    with torch.no_grad():
        for layer in layers:
            layer.weight.normal_(std=(2 / width) ** 0.5, generator=generator)
            layer.bias.zero_()
    return nn.Sequential(layers[0], nn.ReLU(), layers[1])


def projection_start(
    width: int, components: int, start: ProjectionStart, generator: torch.Generator, examples: Examples | None
) -> Metric:
    """An initial L (width, components), orthonormal unless ``start`` is uniform; the identity if components is 0."""
    if start in ("uniform", "uniform-orthonormal") and components:
        _check_width(width, components)
        factor = torch.rand(width, components, generator=generator, dtype=torch.float64)
        return Metric(factor if start == "uniform" else orthonormalize(factor))
    metric = random_projection(width, components, generator)
    if start == "random" or components == 0:
        return metric
    if examples is None:
        raise InputError(f"start {start!r} needs the features of the examples, and there are none. Use 'random'.")
    features, labels = examples()
    return Metric.principal(features, components) if start == "principal" else _of_classes(features, labels, components)


def random_projection(width: int, components: int, generator: torch.Generator, remedy: str = NARROWER) -> Metric:
    """A random orthonormal L (width, components), or the identity if components is 0."""
    _check_width(width, components, remedy)
    return Metric.random_orthonormal(width, components, generator) if components else Metric.identity(width)


def _check_width(width: int, components: int, remedy: str = NARROWER) -> None:
    if components > width:
        raise InputError(f"components must be at most the encoder's output width ({width}), got {components}. {remedy}")


def _of_classes(features: Tensor, labels: Tensor, components: int) -> Metric:
    """An orthonormal basis of the directions with the largest variance relative to that within classes."""
    if len(torch.unique(labels[labels >= 0])) < 2:
        raise InputError(
            "start 'classes' needs labels of at least two classes, and this method has fewer. Use 'principal' or "
            "'random'."
        )
    found = cosine_posteriors(features, labels, min(NEIGHBORS, len(features) - 1), GAMMA)
    named, confidence = names_and_confidence(found, labels)
    return Metric(orthonormalize(within_class_whitening(features, named, confidence, components, SHRINKAGE).factor))
