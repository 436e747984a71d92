"""Has the embedding collapsed? The signs, measured, and the sentence that says so."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SHRUNK = 0.1
"""An embedding whose mean distance, or effective rank, falls below this share of its start has collapsed."""

DECLINED = 0.9
"""A selection score below this share of its best says that training undoes what it had."""

VIOLATED = 0.1
"""A share of violated constraints above this, and above five times its start, is worth a word."""


@dataclass(frozen=True)
class Spread:
    """How far apart and in how many directions the embeddings lie."""

    mean_distance: float
    effective_rank: float


def measure_spread(embeddings: Tensor) -> Spread:
    """Mean pairwise squared distance and effective rank of (N, l) embeddings, without a pair loop.

    The mean of ||e_i - e_j||^2 over all ordered pairs i != j is 2 N / (N - 1) times the total variance. The
    effective rank is exp(H(p)) with p the eigenvalues of the covariance over their sum (Roy and Vetterli, 2007).
    """
    points = embeddings.double()
    centred = points - points.mean(0)
    covariance = centred.T @ centred / len(points)
    eigenvalues = torch.linalg.eigvalsh(covariance).clamp_min(0.0)
    total = eigenvalues.sum()
    if float(total) <= torch.finfo(torch.float64).tiny:
        return Spread(0.0, 0.0)
    shares = eigenvalues / total
    entropy = -torch.special.xlogy(shares, shares).sum()
    return Spread(float(2.0 * total * len(points) / (len(points) - 1)), float(entropy.exp()))


def collapse_warning(start: Spread, now: Spread, classes: int = 0) -> str | None:
    """A sentence when the embedding has lost nearly all of its spread or of its directions, else None.

    Two classes, if that is all there are, may well end as two points, which lie in a single direction.
    """
    if now.mean_distance < SHRUNK * start.mean_distance:
        return (
            f"the embedding is collapsing: the mean squared distance fell from {start.mean_distance:.3g} to "
            f"{now.mean_distance:.3g}."
        )
    flat = now.effective_rank < max(1.5, SHRUNK * start.effective_rank)
    if flat and now.effective_rank < start.effective_rank and classes != 2:
        return (
            f"the embedding is collapsing: its effective rank fell from {start.effective_rank:.1f} to "
            f"{now.effective_rank:.1f} dimensions."
        )
    return None


def decline_warning(best: float, now: float) -> str | None:
    """A sentence when the score that chooses models has fallen well below its best, else None.

    Triplets with wrong negatives pull classes apart from inside: distances and rank grow while the embedding
    is undone, so that its spread alone does not show it.
    """
    if now < DECLINED * best:
        return f"the embedding is coming undone: its selection score fell from {best:.3f} to {now:.3f}."
    return None


def activity_warning(start: float, now: float) -> str | None:
    """A sentence when many more constraints are violated than at the start, else None."""
    if now > max(VIOLATED, 5.0 * start):
        return f"{100 * now:.0f} % of the constraints are violated, {100 * start:.1f} % were at the start."
    return None
