"""A metric for feature vectors, without an encoder: the classical use of a method."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from semimetric.core.arrays import as_tensor, check_features, check_labels
from semimetric.core.errors import InputError
from semimetric.core.settings import build_settings
from semimetric.methods import METHODS, LearnsMetric, Method
from semimetric.metric import Metric
from semimetric.training import Progress

SMALLEST, LARGEST = 1e-60, 1e60
"""Range of the largest feature: the metric scales with its inverse square, which must not overflow."""


MANY_FEATURES = 1000
"""Features from which on the eigenvectors of a matrix as wide take seconds."""


class GuardWarning(UserWarning):
    """A method changed its problem to keep it solvable."""


@dataclass(frozen=True)
class LinearFit:
    """Result of ``learn_metric``.

    Attributes
    ----------
    metric : Metric
        The learned metric.
    guards : dict of str to str
        What the method changed to keep its problem solvable, by name.
    """

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
    features : (N, d) array
        Standardise columns of different units first.
    labels : (N,) integers
        -1 means unlabelled.
    method : str
        A method that learns without a network.
    n_components : int, optional
        Dimensions to keep, those of the largest eigenvalues of M; all by default (``affinity-triplets``: half).
    seed : int
        Seed of random starts.
    **settings
        Hyper-parameters of the method.

    Returns
    -------
    LinearFit
        ``metric.matrix`` is M, ``metric.factor`` is L with M = L L^T, ``metric.transform(X)`` maps to X L.

    Notes
    -----
    Features are scaled to a mean squared distance of 2, that of unit vectors at right angles, and the metric is scaled
    back, so that hyper-parameters mean the same for features of any unit.
    """
    kind = METHODS.find(method)
    if "components" in settings:
        raise InputError("components is called n_components here; pass n_components alone.")
    width = as_tensor(features, "features").shape[-1]
    values = settings | linear_components(method, n_components, width)
    fit = fit_metric(kind(build_settings(kind.Settings, values, f"method {method!r}")), features, labels, seed)
    for sentence in fit.guards.values():
        warnings.warn(sentence, GuardWarning, stacklevel=2)
    return fit


def announce(progress: Progress, width: int) -> None:
    """Say that a metric of ``width`` features is learned; at once, if its algebra takes long."""
    progress.stage(f"learning the metric of {width} features")
    if width >= MANY_FEATURES:
        progress.tell(f"the metric of {width} features needs matrices of {width} x {width}, which may take minutes.")


def fit_metric(method: Method[Any], features: Any, labels: Any, seed: int) -> LinearFit:
    """As ``learn_metric``, by a method that is built already; guards are returned and not warned of."""
    if not (isinstance(method, LearnsMetric) and method.learns_without_network):
        linear = [name for name, kind in METHODS.items() if kind.learns_without_network]
        raise InputError(
            f"method {method.name!r} trains a network and learns no metric on vectors. Use Trainer with an encoder, "
            f"such as build_encoder('mlp', ...), or one of {', '.join(linear)} here."
        )
    points = _exact(features)
    known = check_labels(labels, len(points)).to(points.device)
    scale = float(points.var(0, correction=0).sum().rsqrt())
    method.check_labels(known)
    unlabelled = int((known < 0).sum())
    method.check_working_set(len(points) - unlabelled, unlabelled)
    scaled = scale * (points - points.mean(0))
    generator = torch.Generator().manual_seed(seed)
    start = method.initial_metric(points.shape[1], generator, lambda: (scaled, known)).to(points.device)
    learned = method.update_metric(start, scaled, method.constraints(scaled, known))
    return LinearFit(Metric(scale * learned.factor), method.take_guards())


def _exact(features: Any) -> Tensor:
    """Features in float64; their squares must be ordinary numbers."""
    given = as_tensor(features, "features")
    points = check_features(given if given.is_floating_point() else given.double()).double()
    largest = float(points.abs().max())
    if not SMALLEST < largest < LARGEST:
        raise InputError(
            f"features reach {largest:.3g}, too far from 1 for their squares; multiply them by a constant first."
        )
    return points


def linear_components(method: str, n_components: int | None, width: int) -> dict[str, int]:
    """The setting ``components`` for a metric on ``width`` features, where it is not the method's default.

    A method with a width by default keeps at most half of the features: an orthonormal L of all of them is no metric
    of its own.
    """
    if n_components is not None:
        whole = isinstance(n_components, int | np.integer) and not isinstance(n_components, bool)
        if not whole or not 1 <= n_components <= width:
            raise InputError(
                f"n_components must be a whole number from 1 to {width}, the number of features, got {n_components!r}."
            )
        return {"components": int(n_components)}
    widest = getattr(METHODS[method].Settings(), "components", 0)
    return {"components": min(widest, max(1, width // 2))} if widest else {}
