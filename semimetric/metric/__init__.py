"""Mahalanobis metrics as factors L with M = L L^T, the sets they live on, and the solver that learns them."""

from semimetric.metric.angular import AngularProblem
from semimetric.metric.capture import GraphedFunction
from semimetric.metric.conjugate_gradient import minimize_angular
from semimetric.metric.geometry import (
    Euclidean,
    Geometry,
    Stiefel,
    orthonormalize,
    random_orthonormal,
    retract,
)
from semimetric.metric.mahalanobis import Metric, near_isometry
from semimetric.metric.rules import CGResult

__all__ = [
    "AngularProblem",
    "CGResult",
    "Euclidean",
    "Geometry",
    "GraphedFunction",
    "Metric",
    "Stiefel",
    "minimize_angular",
    "near_isometry",
    "orthonormalize",
    "random_orthonormal",
    "retract",
]
