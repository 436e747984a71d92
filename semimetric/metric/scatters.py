"""Scatter matrices of differences between examples, and mean squared distances, which are their traces.

The mean squared distance over a set of pairs under a metric M is tr(M S), where S is the mean of v v^T over their
differences v. With class means m, class sizes c and n examples, the sums need no list of pairs:

    sum over pairs of one class    v v^T = sum_i c_i (z_i - m_i)(z_i - m_i)^T,
    sum over pairs of two classes  v v^T = sum_i (n - c_i) (z_i - m_i)(z_i - m_i)^T + n sum_i (m_i - m)(m_i - m)^T,

where m_i and c_i belong to the class of example i and m is the mean of all. Unlike a difference of two totals, these
sums of squares lose no digits for tight classes, and they are positive semi-definite as computed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from semimetric.core.arrays import check_finite, check_labels
from semimetric.core.errors import InputError
from semimetric.graph.edges import group_by_node

ROUNDING = 16  # differences of at most this many units in the last place of the features count as zero
PAIR_BLOCK = 4096  # differences that ``weighted_scatter`` holds at a time


@dataclass(frozen=True)
class PairScatters:
    """Means of v v^T, (d, d), over the unordered pairs of one class and of two classes, and the numbers of pairs."""

    similar: Tensor
    dissimilar: Tensor
    similar_pairs: int
    dissimilar_pairs: int


def pair_scatters(features: Tensor, classes: Tensor) -> PairScatters:
    """Scatter of the labelled pairs of ``features`` (n, d) with ``classes`` (n,), integers from 0 up.

    Differentiable, in the features' type, in O(n d^2). Without pairs that differ beyond rounding it is exactly 0.
    """
    classes = check_labelled(features, classes)
    n = len(features)
    _, members, counts = torch.unique(classes, return_inverse=True, return_counts=True)
    centred = features - features.mean(0)
    rows, starts = group_by_node(members, len(counts))
    sums = torch.nn.functional.embedding_bag(rows, centred, starts, mode="sum")
    means = (sums / counts[:, None])[members]
    sizes = counts[members]
    within = centred - means
    similar_pairs = int((counts * (counts - 1)).sum()) // 2
    dissimilar_pairs = n * (n - 1) // 2 - similar_pairs
    similar = _gram(within, sizes) / max(1, similar_pairs)
    dissimilar = (_gram(within, n - sizes) + n * _gram(means, torch.ones_like(sizes))) / max(1, dissimilar_pairs)
    rounding = features.detach().square().sum(1).mean() * (ROUNDING * torch.finfo(features.dtype).eps) ** 2
    similar, dissimilar = (torch.where(kind.trace() > rounding, kind, 0.0) for kind in (similar, dissimilar))
    return PairScatters(similar, dissimilar, similar_pairs, dissimilar_pairs)


def pair_means(embeddings: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
    """Mean squared distances over the pairs of one class and over those of two classes, each 0-d and 0 without a pair.

    They are the traces of ``pair_scatters`` of ``embeddings`` (n, l), in a form for mini-batches: differentiable, and
    with shapes that depend only on n, so that a step can be captured as a CUDA graph.
    """
    n = len(embeddings)
    same = (classes[:, None] == classes[None, :]).to(embeddings.dtype)
    sizes = same.sum(1)
    centred = embeddings - embeddings.mean(0)
    means = same @ centred / sizes[:, None]
    within = (centred - means).square().sum(1)
    similar = (sizes * within).sum()
    dissimilar = ((n - sizes) * within).sum() + n * means.square().sum()
    return _mean(similar, (sizes - 1).sum() / 2), _mean(dissimilar, (n - sizes).sum() / 2)


def weighted_scatter(features: Tensor, pairs: Tensor, weights: Tensor, scales: Tensor | None = None) -> Tensor:
    """Sum of w v v^T over ``pairs`` (P, 2) of rows of ``features`` (n, d), with v = s_0 z_i - s_1 z_j: (d, d).

    ``weights`` (P,) may have either sign. ``scales`` (P, 2) are ones if None. Differences are held in blocks, so no (P,
    d) matrix is made unless gradients are needed.
    """
    _check_pairs(pairs, weights, scales)
    total = features.new_zeros(features.shape[1], features.shape[1])
    for start in range(0, len(pairs), PAIR_BLOCK):
        block = slice(start, start + PAIR_BLOCK)
        rows = _differences(features, pairs[block], None if scales is None else scales[block])
        total = total + _gram(rows, weights[block])
    return total


def weighted_energy(embeddings: Tensor, pairs: Tensor, weights: Tensor, scales: Tensor | None = None) -> Tensor:
    """Sum of w ||s_0 e_i - s_1 e_j||^2 over ``pairs`` (P, 2): the trace of ``weighted_scatter``, 0-d.

    For mini-batches: holds all P differences. Gradients flow to ``embeddings`` (n, l) and to the weights.
    """
    _check_pairs(pairs, weights, scales)
    lengths = _differences(embeddings, pairs, scales).square().sum(1)
    return (weights.to(lengths.dtype) * lengths).sum()


def check_labelled(features: Tensor, classes: Tensor) -> Tensor:
    """Check that features are a finite matrix and that classes hold one number from 0 up for each row."""
    if features.ndim != 2 or 0 in features.shape or not features.is_floating_point():
        raise InputError(
            f"features have the shape {tuple(features.shape)} and the type {features.dtype}; "
            "give a floating-point matrix (n, d) with at least one row and one column."
        )
    check_finite(features.detach(), "features")
    classes = check_labels(classes, len(features), "classes")
    if bool((classes < 0).any()):
        raise InputError("classes hold -1, which stands for unlabelled; give the labelled examples only.")
    return classes


def _check_pairs(pairs: Tensor, weights: Tensor, scales: Tensor | None) -> None:
    count = len(pairs)
    fits = pairs.shape == (count, 2) and weights.shape == (count,) and (scales is None or scales.shape == (count, 2))
    if not fits or pairs.dtype != torch.int64:
        raise InputError(
            f"pairs, weights and scales have the shapes {tuple(pairs.shape)}, {tuple(weights.shape)} and "
            f"{None if scales is None else tuple(scales.shape)}, and pairs are {pairs.dtype}; "
            "give int64 pairs (P, 2), weights (P,) and scales (P, 2) or None."
        )


def _differences(points: Tensor, pairs: Tensor, scales: Tensor | None) -> Tensor:
    left, right = points[pairs].unbind(1)
    if scales is None:
        return left - right
    first, second = scales.to(points.dtype).unsqueeze(2).unbind(1)
    return first * left - second * right


def _gram(rows: Tensor, weights: Tensor) -> Tensor:
    """Sum of w x x^T over the rows x, exactly symmetric."""
    product = rows.T @ (weights.to(rows.dtype)[:, None] * rows)
    return (product + product.T) / 2


def _mean(total: Tensor, count: Tensor) -> Tensor:
    """``total`` / ``count``; exactly 0, with gradient 0, if ``count`` is 0."""
    return torch.where(count > 0, total / count.clamp(min=1), torch.zeros_like(total))
