"""Lists to work through: labels that are likely wrong, near-duplicates, and outliers."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from semimetric.core.arrays import check_features
from semimetric.evaluation.trust import hold_back
from semimetric.graph import Posteriors, nearest_neighbors

NEIGHBORS = 10
"""Neighbours whose mean distance makes an outlier."""

NEAR = 0.05
"""Near-duplicates are nearer than this share of the median distance to the nearest neighbour."""


class HeldOut(NamedTuple):
    """Predictions for n labelled examples, each made without its own label.

    Attributes
    ----------
    rows : (n,) row numbers, ascending
    predicted : (n,) class numbers
    probability : (n,) posterior of the predicted class
    """

    rows: Tensor
    predicted: Tensor
    probability: Tensor


class Pairs(NamedTuple):
    """Rows (n, 2) of examples that are nearly the same, and their distances (n,), nearest first."""

    rows: Tensor
    distances: Tensor


class Ranked(NamedTuple):
    """Rows (n,) in the order of their scores (n,), the largest first."""

    rows: Tensor
    scores: Tensor


def held_out_predictions(propagate: Callable[[Tensor], Posteriors], labels: Tensor, seed: int = 0) -> HeldOut:
    """Predict every label from the labels of the other folds; a class with a single label is left out.

    Parameters
    ----------
    propagate, labels, seed : as for ``hold_back``
    """
    predicted = torch.full_like(labels, -1)
    probability = torch.zeros(len(labels), dtype=torch.float64)

    def recorded(known: Tensor) -> Posteriors:
        found = propagate(known)
        rows = ((labels >= 0) & (known < 0)).nonzero().flatten()
        best = found.shares[rows].double().max(1)
        predicted[rows], probability[rows] = found.classes[best.indices], best.values
        return found

    hold_back(recorded, labels, seed=seed)
    rows = (predicted >= 0).nonzero().flatten()
    return HeldOut(rows, predicted[rows], probability[rows])


def likely_errors(held_out: HeldOut, labels: Tensor) -> HeldOut:
    """Labelled examples that are predicted to be of another class, the surest first."""
    wrong = (held_out.predicted != labels[held_out.rows]).nonzero().flatten()
    wrong = wrong[held_out.probability[wrong].sort(descending=True, stable=True).indices]
    return HeldOut(*(column[wrong] for column in held_out))


def near_duplicates(embeddings: Tensor, neighbors: Tensor | None = None, near: float = NEAR) -> Pairs:
    """Pairs of examples that are much nearer than nearest neighbours usually are.

    Parameters
    ----------
    embeddings : (N, l)
    neighbors : (N, k) from ``nearest_neighbors``; computed if left out
    near : share of the median distance to the nearest neighbour
    """
    points = check_features(embeddings, "embeddings").double()
    nearest = (nearest_neighbors(points, 1) if neighbors is None else neighbors)[:, 0]
    distances = (points - points[nearest]).norm(dim=1)
    close = (distances <= near * distances.median()).nonzero().flatten()
    pairs = torch.stack([close, nearest[close]], 1).sort(1).values
    pairs, first = _unique_pairs(pairs)
    kept = distances[close][first]
    order = kept.sort(stable=True).indices
    return Pairs(pairs[order], kept[order])


def _unique_pairs(pairs: Tensor) -> tuple[Tensor, Tensor]:
    """Each pair (n, 2) once, and the number of its first occurrence."""
    if len(pairs) == 0:
        return pairs, pairs[:, 0]
    unique, inverse = pairs.unique(dim=0, return_inverse=True)
    first = torch.full((len(unique),), len(pairs)).scatter_reduce(0, inverse, torch.arange(len(pairs)), "amin")
    return unique, first


def outliers(embeddings: Tensor, count: int, neighbors: Tensor | None = None) -> Ranked:
    """The ``count`` examples that are farthest from their nearest neighbours, relative to the median example.

    Parameters
    ----------
    embeddings : (N, l)
    count : how many to list
    neighbors : (N, k) from ``nearest_neighbors``; computed if left out
    """
    points = check_features(embeddings, "embeddings").double()
    if neighbors is None:
        neighbors = nearest_neighbors(points, min(NEIGHBORS, len(points) - 1))
    means = torch.stack([(points - points[column]).norm(dim=1) for column in neighbors.T]).mean(0)
    scores = means / means.median().clamp_min(torch.finfo(torch.float64).tiny)
    top = scores.sort(descending=True, stable=True)
    return Ranked(top.indices[:count], top.values[:count])
