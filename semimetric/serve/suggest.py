r"""Which unlabelled examples would help most if they were labelled.

A label explains the examples near it, so those are worth labelling that bring labels near to what is unexplained. With
embeddings z_i, what each example is taken for and how surely, and the set L of examples that have a label,

    cost(L) = sum_i u_i min_{l in L} ||z_i - z_l||^2,        u_i = 1 - min(confidence_i, margin_i)

where the margin is the difference between the two likeliest classes. Suggestions are the unlabelled examples that,
added to L one after the other, lower the cost most: k-medoids of the uncertain examples, with the labelled ones as
medoids that are there already. The cost is supermodular, so that taking the best at each step saves at least 1 - 1/e of
what the best set would (G. L. Nemhauser, L. A. Wolsey, M. L. Fisher, Mathematical Programming 14, 1978).

Nothing weighs one aim against another. A suggestion saves much where many examples are near it (typical), where they
are unsure (uncertain), and where no label and no earlier suggestion is near (diverse, and clusters without any label
first). With few labels most of the cost is distance; with many, uncertainty is what sets examples apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from semimetric.core.arrays import as_tensor, check_features, check_finite, check_labels
from semimetric.core.errors import InputError

CANDIDATES = 2000
"""With more unlabelled examples than this, or than ten for each suggestion, suggestions come from a sample of them."""

LEAST_UNCERTAINTY = 1e-6
"""Of an example that is certain, so that among certain ones distance still counts."""

AT_ONCE = 32
"""Candidates whose gain is brought up to date at a time."""

BLOCK_ENTRIES = 1 << 25
"""Distances held at once: 256 MiB."""


class Suggestions(NamedTuple):
    """What to label, the most helpful first, and why.

    ``rows`` (n,) are numbers of examples. ``gains`` (n,) are the shares of the whole cost that each saves.
    ``uncertainty`` (n,) is u of the example itself, ``distances`` (n,) how far it is from the nearest label or earlier
    suggestion (without any: the root of the mean squared distance of two examples), and ``near`` (n,) how many
    examples are nearer to it than to those.
    """

    rows: Tensor
    gains: Tensor
    uncertainty: Tensor
    distances: Tensor
    near: Tensor


class Pool(NamedTuple):
    """Centred points (N, l) in float64, and the uncertainty u (N,) of each; where there is a label it is not asked."""

    points: Tensor
    uncertainty: Tensor


def suggest(embeddings: Any, labels: Any, shares: Any, confidence: Any, count: int, seed: int = 0) -> Suggestions:
    """The ``count`` unlabelled examples whose labels would leave least unexplained.

    The posteriors may be those of ``Trainer.posteriors`` or ``class_posteriors``. Where a class has no label, its
    examples are met because they lie far from all labels, whatever they are taken for.

    Parameters
    ----------
    embeddings : (N, l) floating-point array; distances are Euclidean
    labels : (N,) integers, -1 = unlabelled; there may be no label at all
    shares : (N, C) class posteriors; C may be 0 where nothing is known
    confidence : (N,) in [0, 1]
    count : number of suggestions, at most that of the unlabelled examples
    seed : draws the candidates where there are too many to try all, in proportion to their part of the cost

    Returns
    -------
    Suggestions on the device of ``embeddings``
    """
    points = check_features(embeddings, "embeddings").double()
    known = check_labels(labels, len(points)).to(points.device) >= 0
    shares = _check_chances(shares, "shares", points, 2)
    confidence = _check_chances(confidence, "confidence", points, 1)
    _check_count(count, int((~known).sum()))
    uncertainty = (1.0 - torch.minimum(confidence, _margins(shares))).clamp_min(LEAST_UNCERTAINTY)
    pool = Pool(points - points.mean(0), uncertainty)
    nearest = _to_labels(pool.points, known)
    candidates = _candidates(pool.uncertainty * nearest, ~known, count, seed)
    return _greedy(pool, nearest, candidates, count)


def _greedy(pool: Pool, nearest: Tensor, candidates: Tensor, count: int) -> Suggestions:
    """The best candidate ``count`` times, given squared distances (N,) to the nearest label.

    Gains only shrink as labels come nearer, so that a gain computed earlier bounds that of now (M. Minoux, 1978), and
    few are computed again: the largest, until the largest of all is one of now.
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
    """Number of the candidate of largest gain; ``gains`` are bounds, and those that matter are renewed in place."""
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
    """What a label on each of ``rows`` (m,) alone would save, (m,)."""
    saved = pool.points.new_zeros(len(rows))
    for block in _blocks(len(nearest), len(rows)):
        squares = _squares(pool.points[block], pool.points[rows])
        saved += pool.uncertainty[block] @ (nearest[block, None] - squares).clamp_min_(0.0)
    return saved


def _to_labels(points: Tensor, known: Tensor) -> Tensor:
    """Squared distance (N,) to the nearest labelled example; without any, the mean of that of two examples.

    So the first suggestion is amid many examples that are nearer to each other than usual, not where it is least far
    from all.
    """
    if not bool(known.any()):
        return (2.0 * points.square().sum(1).mean()).expand(len(points))
    blocks = _blocks(len(points), int(known.sum()))
    return torch.cat([_squares(points[block], points[known]).amin(1) for block in blocks])


def _candidates(cost: Tensor, allowed: Tensor, count: int, seed: int) -> Tensor:
    """Rows that may be suggested, in ascending order: all that are ``allowed`` (N,), or a sample without replacement.

    An example is drawn in proportion to its ``cost`` (N,), as in k-means++, by the keys of P. S. Efraimidis and P. G.
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
    """Slices of ``rows`` such that a slice with so many columns is no larger than a block."""
    step = max(1, BLOCK_ENTRIES // columns)
    return (slice(start, start + step) for start in range(0, rows, step))


def _margins(shares: Tensor) -> Tensor:
    """Difference (N,) between the two largest of each row of (N, C); 0 where there is no class to choose."""
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


def _check_count(count: int, unlabelled: int) -> None:
    if not 1 <= count <= unlabelled:
        raise InputError(
            f"count must be at least 1 and at most the number of unlabelled examples ({unlabelled}), got {count}. "
            "Ask for fewer suggestions, or add unlabelled examples."
        )
