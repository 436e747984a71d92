"""What the metric step of each method minimises."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

import torch
from torch import Tensor

from semimetric.methods import LearnsMetric
from semimetric.methods.consensus import Consensus
from semimetric.methods.laplacian import LaplacianMethod
from semimetric.methods.propagated import PropagatedMethod
from semimetric.methods.seraph import SERAPH
from semimetric.methods.synthetic import Synthetic
from semimetric.metric import Metric, logdet_divergence, logdet_proximal, within_class_share


@singledispatch
@torch.no_grad()
def objective(method: LearnsMetric, metric: Metric, features: Tensor, constraints: Any) -> float:
    """The loss, unless a method registers something else."""
    return float(method.loss(metric, features, constraints))


@objective.register
def _(method: Consensus, metric: Metric, features: Tensor, constraints: Any) -> float:
    """The variance that the metric leaves out, or the share of it that is within classes."""
    if method.settings.metric != "principal":
        return within_class_share(metric.transform(features), constraints.targets, constraints.weights)
    centred = features.double() - features.double().mean(0)
    return float(centred.square().sum() - metric.transform(centred).square().sum()) / len(features)


@objective.register
def _(method: LaplacianMethod, metric: Metric, features: Tensor, constraints: Any) -> float:
    """tr(M B) with the current g_D."""
    base, dissimilar = method._parts(features, constraints, features.shape[1])
    return float((metric.matrix * (base - method.dissimilar_weight * dissimilar)).sum())


@objective.register
def _(method: PropagatedMethod, metric: Metric, features: Tensor, constraints: Any) -> float:
    """D_ld(M, M_0) + g_L tr(M T) with the capped g_L."""
    prior, form = method._problem(features, constraints)
    _, weight = logdet_proximal(prior, form, method.settings.graph_weight)
    return logdet_divergence(metric.matrix, prior) + weight * float((metric.matrix * form).sum())


@objective.register
def _(method: SERAPH, metric: Metric, features: Tensor, constraints: Any) -> float:
    """J(M)."""
    return method._problem(features, constraints)[0].cost(metric.matrix)


@objective.register
def _(method: Synthetic, metric: Metric, features: Tensor, constraints: Any) -> float:
    """The entropy and the orthogonality penalty."""
    problem = method._problem(features, constraints)
    return problem.evaluate(torch.cat([method.synthesis, metric.factor], dim=1)).cost
