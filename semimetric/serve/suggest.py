r"""Suggest the unlabelled examples whose labels would help most.

A label explains the examples near it. With embeddings z_i, their class posteriors, and the set L of labelled examples,

    cost(L) = sum_i u_i min_{l in L} ||z_i - z_l||^2,        u_i = 1 - min(confidence_i, margin_i)

The margin is the difference between the two largest posteriors. Suggestions are chosen greedily: each is the unlabelled
example that lowers the cost most when added to L. This is k-medoids of the uncertain examples with the labelled ones as
given medoids. The cost is supermodular, so greedy selection saves at least 1 - 1/e of what the best set would (G. L.
Nemhauser, L. A. Wolsey, M. L. Fisher, Mathematical Programming 14, 1978).

There are no weights to set. A suggestion saves much if many examples are near it (typical), if they are uncertain, and
if no label and no earlier suggestion is near (diverse; clusters without a label come first). With few labels distance
dominates the cost; with many labels uncertainty does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from semimetric.core.arrays import as_tensor, check_features, check_finite, check_labels
from semimetric.core.errors import InputError

CANDIDATES = 2000
"""Largest number of candidates (at least ten per suggestion); of more unlabelled examples a sample is drawn."""

ENOUGH_LABELS = 0.2
"""Share of labelled photographs from which suggestions of a frozen network were no better than random ones."""

LEAST_UNCERTAINTY = 1e-6  # lower bound of u, so distance still ranks certain examples
AT_ONCE = 32  # candidates whose gains are updated together
BLOCK_ENTRIES = 1 << 25  # entries of a block of distances: 256 MiB


class Suggestions(NamedTuple):
    """Examples to label, the most helpful first, with reasons.

    Attributes
    ----------
    rows : (n,) row numbers of the examples
    gains : (n,) share of the initial cost that each suggestion saves
    uncertainty : (n,) u of each suggested example
    distances : (n,) distance to the nearest label or earlier suggestion
        Without any: the root of the mean squared distance between two examples.
    near : (n,) number of examples that are nearer to the suggestion than to any label or earlier suggestion
    """

    rows: Tensor
    gains: Tensor
    uncertainty: Tensor
    distances: Tensor
    near: Tensor


class Pool(NamedTuple):
    """Centred points (N, l) in float64 and their uncertainty u (N,), which is unused for labelled examples."""

    points: Tensor
    uncertainty: Tensor


def suggest(embeddings: Any, labels: Any, shares: Any, confidence: Any, count: int, seed: int = 0) -> Suggestions:
    """Suggest ``count`` unlabelled examples to label next, the most helpful first.

    Posteriors come from ``Trainer.posteriors`` or ``class_posteriors``. Examples of a class without labels are found
    because they are far from all labels, whatever their predicted class.

    Parameters
    ----------
    embeddings : (N, l) array, compared by Euclidean distance
    labels : (N,) integers, -1 for unlabelled; all may be -1
    shares : (N, C) class posteriors; C is 0 if no class is known
    confidence : (N,) array in [0, 1]
    count : int, number of suggestions, at most the number of unlabelled examples
    seed : int, for the sample of candidates if there are more than 2,000 unlabelled examples

    Returns
    -------
    Suggestions, on the device of ``embeddings``
    """
    points = check_features(embeddings, "embeddings").double()
    largest = float(points.abs().max())
    if not 1e-140 < largest < 1e140:
        raise InputError(
            f"embeddings reach {largest:.3g}, too far from 1 for their squares. Divide them by {largest:.3g}."
        )
    known = check_labels(labels, len(points)).to(points.device) >= 0
    shares = _check_chances(shares, "shares", points, 2)
    confidence = _check_chances(confidence, "confidence", points, 1)
    unlabelled = int((~known).sum())
    if not 1 <= count <= unlabelled:
        raise InputError(
            f"count must be at least 1 and at most the number of unlabelled examples ({unlabelled}), got {count}. "
            "Ask for fewer suggestions, or add unlabelled examples."
        )
    uncertainty = (1.0 - torch.minimum(confidence, _margins(shares))).clamp_min(LEAST_UNCERTAINTY)
    pool = Pool(points - points.mean(0), uncertainty)
    nearest = _to_labels(pool.points, known)
    candidates = _candidates(pool.uncertainty * nearest, ~known, count, seed)
    return _greedy(pool, nearest, candidates, count)


def _greedy(pool: Pool, nearest: Tensor, candidates: Tensor, count: int) -> Suggestions:
    """Choose the best candidate ``count`` times, given squared distances (N,) to the nearest label.

    Gains never grow, so an earlier gain bounds the current one (M. Minoux, 1978). Only the largest gains are computed
    again, until the largest of all is current.
    """
    whole = (pool.uncertainty * nearest).sum().clamp_min(torch.finfo(nearest.dtype).tiny)
    gains = _gains(pool, nearest, candidates)
    rows, found, distances, near = [], [], [], []
    for _ in range(count):
        best = _freshest(pool, nearest, candidates, gains)
        row = candidates[best]
        reached = _squares(pool.points, pool.points[row][None]).squeeze(1)
        rows.append(row)
        found.append(gains[best] / whole)
        distances.append(nearest[row].sqrt())
        near.append((reached < nearest).sum())
        nearest = torch.minimum(nearest, reached)
        gains[best] = -torch.inf
    chosen = torch.stack(rows)
    return Suggestions(chosen, torch.stack(found), pool.uncertainty[chosen], torch.stack(distances), torch.stack(near))


def _freshest(pool: Pool, nearest: Tensor, candidates: Tensor, gains: Tensor) -> int:
    """Number of the candidate with the largest gain; ``gains`` are upper bounds and are updated in place."""
    fresh = gains.isinf()
    while True:
        best = int(gains.argmax())
        if fresh[best]:
            return best
        top = gains.masked_fill(fresh, -torch.inf).topk(min(AT_ONCE, len(gains))).indices
        top = top[~fresh[top]]
        gains[top] = _gains(pool, nearest, candidates[top])
        fresh[top] = True


def _gains(pool: Pool, nearest: Tensor, rows: Tensor) -> Tensor:
    """Cost (m,) that a label on each of ``rows`` (m,) alone would save."""
    saved = pool.points.new_zeros(len(rows))
    for block in _blocks(len(nearest), len(rows)):
        squares = _squares(pool.points[block], pool.points[rows])
        saved += pool.uncertainty[block] @ (nearest[block, None] - squares).clamp_min_(0.0)
    return saved


def _to_labels(points: Tensor, known: Tensor) -> Tensor:
    """Squared distance (N,) to the nearest labelled example; without any, the mean over pairs of examples.

    The first suggestion then lies in a dense region, not at the centre of all examples.
    """
    if not bool(known.any()):
        return (2.0 * points.square().sum(1).mean()).expand(len(points))
    blocks = _blocks(len(points), int(known.sum()))
    return torch.cat([_squares(points[block], points[known]).amin(1) for block in blocks])


def _candidates(cost: Tensor, allowed: Tensor, count: int, seed: int) -> Tensor:
    """Candidate rows in ascending order: all that are ``allowed`` (N,), or a sample without replacement.

    Examples are drawn in proportion to their ``cost`` (N,), as in k-means++, by the keys of P. S. Efraimidis and P. G.
    Spirakis (Information Processing Letters 97, 2006).
    """
    rows = allowed.nonzero().flatten()
    most = max(CANDIDATES, 10 * count)
    if len(rows) <= most:
        return rows
    draws = torch.rand(len(rows), generator=torch.Generator().manual_seed(seed), dtype=cost.dtype).to(cost.device)
    keys = draws.log() / cost[rows].clamp_min(torch.finfo(cost.dtype).tiny)
    return rows[keys.sort(descending=True, stable=True).indices[:most]].sort().values


def _squares(points: Tensor, others: Tensor) -> Tensor:
    """Squared distances (n, m) of centred points (n, l) and (m, l)."""
    crossed = torch.addmm(others.square().sum(1)[None], points, others.T, alpha=-2.0)
    return crossed.add_(points.square().sum(1)[:, None]).clamp_min_(0.0)


def _blocks(rows: int, columns: int) -> Iterator[slice]:
    """Slices of ``rows`` whose product with ``columns`` is at most ``BLOCK_ENTRIES``."""
    step = max(1, BLOCK_ENTRIES // columns)
    return (slice(start, start + step) for start in range(0, rows, step))


def _margins(shares: Tensor) -> Tensor:
    """Difference (N,) between the two largest values of each row of (N, C); 0 if C is 0."""
    if shares.shape[1] == 0:
        return shares.new_zeros(len(shares))
    largest = torch.cat([shares, torch.zeros_like(shares[:, :1])], dim=1).topk(2, dim=1).values
    return largest[:, 0] - largest[:, 1]


def _check_chances(values: Any, name: str, points: Tensor, dimensions: int) -> Tensor:
    """Numbers from 0 to 1 with a row for each example, in float64."""
    tensor = as_tensor(values, name).to(points)
    if tensor.ndim != dimensions or len(tensor) != len(points):
        shape = f"({len(points)}, classes)" if dimensions == 2 else f"({len(points)},)"
        raise InputError(f"{name} must have a row for each example, shape {shape}, got {tuple(tensor.shape)}.")
    check_finite(tensor, name)
    outside = ((tensor < 0.0) | (tensor > 1.0 + LEAST_UNCERTAINTY)).sum()
    if outside:
        raise InputError(f"{name} must lie between 0 and 1, and {int(outside)} entries do not. Pass probabilities.")
    return tensor
