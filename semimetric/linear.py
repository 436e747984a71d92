"""A metric for feature vectors, without an encoder: the classical use of a method."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch

from semimetric.checks import check_choice, check_features, check_labels
from semimetric.errors import InputError
from semimetric.methods import METHODS, build_method, method_names
from semimetric.metric import Metric


class GuardWarning(UserWarning):
    """A method's problem had no solution as it was written, and was changed a little."""


@dataclass(frozen=True)
class LinearFit:
    """What ``learn_metric`` found: the metric, and the guards that bound, by name and with their sentences."""

    metric: Metric
    guards: dict[str, str]


def learn_metric(
    features: Any,
    labels: Any,
    method: str = "lrml",
    n_components: int | None = None,
    seed: int = 0,
    **settings: Any,
) -> LinearFit:
    """Learn a Mahalanobis metric on feature vectors.

    Parameters
    ----------
    features : (N, d) array; columns of different units should be standardised first
    labels : (N,) integers, -1 = unlabelled
    method : any of ``semimetric methods``
    n_components : dimensions to keep, those of the largest eigenvalues of M; None keeps all
    seed : of the random start of methods that have one
    settings : the method's hyper-parameters

    Returns ------- LinearFit with ``metric``: ``metric.matrix`` is M, ``metric.factor`` L with M = L L^T,
    ``metric.transform(X)`` the rows X L, and ``metric.squared_distances(X)`` their squared distances

    Notes
    -----
    Features are scaled to a mean squared distance of 2, that of unit vectors at right angles, and the metric is scaled
    back, so that hyper-parameters mean the same for features of any unit.
    """
    check_choice(method, method_names(), "method")
    points = check_features(features).double()
    known = check_labels(labels, len(points)).to(points.device)
    scale = float(points.var(0, correction=0).sum().rsqrt())
    learner = build_method(method, **_with_components(method, settings, n_components, points.shape[1]))
    learner.check_labels(known)
    learner.check_working_set(len(points))
    start = learner.initial_metric(points.shape[1], torch.Generator().manual_seed(seed)).to(points.device)
    scaled = scale * (points - points.mean(0))
    learned = learner.update_metric(start, scaled, learner.constraints(scaled, known))
    guards = learner.take_guards()
    for sentence in guards.values():
        warnings.warn(sentence, GuardWarning, stacklevel=2)
    return LinearFit(Metric(scale * learned.factor), guards)


def _with_components(method: str, settings: dict[str, Any], n_components: int | None, width: int) -> dict[str, Any]:
    """The settings with ``n_components`` under the name that methods know; a default wider than the data is cut."""
    if "components" in settings:
        raise InputError("components is called n_components here; pass n_components alone.")
    if n_components is not None:
        if not 1 <= n_components <= width:
            raise InputError(f"n_components must be from 1 to {width}, the number of features, got {n_components}.")
        return settings | {"components": n_components}
    widest = getattr(METHODS[method].Settings(), "components", None)
    return settings if widest is None else settings | {"components": min(widest, width)}
