"""Detection of a collapsing or degrading embedding, with a warning for the user."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

COLLAPSE_RATIO = 0.1  # collapse: mean distance or effective rank below this share of its initial value
DECLINE_RATIO = 0.9  # degradation: selection score below this share of its best value
MIN_VIOLATED = 0.1
"""Share of violated constraints that is worth a warning, if it is also above five times its initial value."""


@dataclass(frozen=True)
class Spread:
    """Mean squared distance and effective rank of the embeddings."""

    mean_distance: float
    effective_rank: float


def measure_spread(embeddings: Tensor) -> Spread:
    """Mean pairwise squared distance and effective rank of embeddings (N, l), in O(N l min(N, l)).

    The mean of ||e_i - e_j||^2 over all ordered pairs i != j is 2 N / (N - 1) times the total variance. The effective
    rank is exp(H(p)), with p the eigenvalues of the covariance over their sum (Roy and Vetterli, 2007).
    """
    points = embeddings.double()
    centred = points - points.mean(0)
    few = len(points) < points.shape[1]
    products = centred @ centred.T if few else centred.T @ centred  # both have the eigenvalues that are not 0
    eigenvalues = torch.linalg.eigvalsh(products / len(points)).clamp_min(0.0)
    total = eigenvalues.sum()
    if float(total) <= torch.finfo(torch.float64).tiny:
        return Spread(0.0, 0.0)
    shares = eigenvalues / total
    entropy = -torch.special.xlogy(shares, shares).sum()
    return Spread(float(2.0 * total * len(points) / (len(points) - 1)), float(entropy.exp()))


def collapse_warning(start: Spread, now: Spread, classes: int = 0) -> str | None:
    """A warning if mean distance or effective rank has collapsed, else None.

    With exactly two classes a rank of 1 is a valid result, because two points lie on a line.
    """
    if now.mean_distance < COLLAPSE_RATIO * start.mean_distance:
        return (
            f"the embedding is collapsing: the mean squared distance fell from {start.mean_distance:.3g} to "
            f"{now.mean_distance:.3g}."
        )
    flat = now.effective_rank < max(1.5, COLLAPSE_RATIO * start.effective_rank)
    if flat and now.effective_rank < start.effective_rank and classes != 2:
        return (
            f"the embedding is collapsing: its effective rank fell from {start.effective_rank:.1f} to "
            f"{now.effective_rank:.1f} dimensions."
        )
    return None


def decline_warning(best: float, now: float) -> str | None:
    """A warning if the selection score has fallen well below its best, else None.

    Wrong negatives can degrade an embedding while its mean distance and effective rank grow.
    """
    if now < DECLINE_RATIO * best:
        return f"the embedding is degrading: its selection score fell from {best:.3f} to {now:.3f}."
    return None


def activity_warning(start: float, now: float) -> str | None:
    """A warning if many more constraints are violated than at the start, else None."""
    if now > max(MIN_VIOLATED, 5.0 * start):
        return f"{100 * now:.0f} % of the constraints are violated, up from {100 * start:.1f} % at the start."
    return None
