from semimetric.metric.angular import AngularProblem
from semimetric.metric.capture import GraphedFunction
from semimetric.metric.closed_forms import (
    largest_weight,
    logdet_divergence,
    logdet_proximal,
    minimize_with_unit_determinant,
    project_psd,
)
from semimetric.metric.conjugate_gradient import minimize_angular
from semimetric.metric.entropy import (
    EntropyProblem,
    PSDResult,
    convex_steps,
    label_surprise,
    mean_entropy,
    projected_gradient,
)
from semimetric.metric.geometry import (
    Euclidean,
    Geometry,
    Stiefel,
    orthonormalize,
    random_orthonormal,
    retract,
)
from semimetric.metric.itml import information_theoretic_prior
from semimetric.metric.mahalanobis import Metric, near_isometry
from semimetric.metric.priors import likelihood_ratio_prior
from semimetric.metric.rules import CGResult
from semimetric.metric.scatters import PairScatters, pair_means, pair_scatters, weighted_energy, weighted_scatter
from semimetric.metric.whiten import whitening, within_class_share, within_class_whitening

__all__ = [
    "AngularProblem",
    "CGResult",
    "EntropyProblem",
    "Euclidean",
    "Geometry",
    "GraphedFunction",
    "Metric",
    "PSDResult",
    "PairScatters",
    "Stiefel",
    "convex_steps",
    "information_theoretic_prior",
    "label_surprise",
    "largest_weight",
    "likelihood_ratio_prior",
    "logdet_divergence",
    "logdet_proximal",
    "mean_entropy",
    "minimize_angular",
    "minimize_with_unit_determinant",
    "near_isometry",
    "orthonormalize",
    "pair_means",
    "pair_scatters",
    "project_psd",
    "projected_gradient",
    "random_orthonormal",
    "retract",
    "weighted_energy",
    "weighted_scatter",
    "whitening",
    "within_class_share",
    "within_class_whitening",
]
