"""Recall@K, MAP@R and NMI as the metric-learning literature reports them, as fractions in [0, 1]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from semimetric.core.arrays import check_features, check_labels
from semimetric.core.errors import InputError
from semimetric.graph.clustering import kmeans
from semimetric.graph.nearest import NearestVectors
from semimetric.graph.neighbors import nearest_neighbors

RECALLS = (1, 2, 4, 8)
RANKED_ENTRIES = 1 << 22  # ranks that MAP@R holds at once: queries times the size of their largest class


def recall_at_k(embeddings: Any, labels: Any, ks: Sequence[int] = RECALLS) -> dict[int, float]:
    """Recall@K: the share of examples with one of their own class among their K nearest neighbours.

    Parameters
    ----------
    embeddings : (N, l) array
        One embedding per row.
    labels : (N,) int array
        True classes; rows with label -1 are ignored. Every labelled row is a query against all other labelled rows.
    ks : sequence of int
        Values of K.

    Returns
    -------
    dict of int to float
        Recall for each K.

    Examples
    --------
    >>> recall_at_k([[0.0], [0.1], [5.0], [5.1]], [0, 0, 1, 1], ks=(1,))
    {1: 1.0}
    """
    points, classes = _check_scored(embeddings, labels)
    if not ks or min(ks) < 1 or max(ks) >= len(points):
        raise InputError(
            f"ks must be between 1 and the number of labelled examples less one ({len(points) - 1}), got {tuple(ks)}."
        )
    neighbors = nearest_neighbors(points, max(ks))
    hits = classes[neighbors] == classes[:, None]
    return {k: float(hits[:, :k].any(1).double().mean()) for k in ks}


def map_at_r(embeddings: Any, labels: Any) -> float:
    """Mean average precision at R: precision at each rank k <= R that is a hit, summed over k and divided by R.

    R is the number of other examples of the query's class. Examples that are alone in their class are no queries.

    Parameters
    ----------
    embeddings, labels : array-like
        As for ``recall_at_k``.

    Returns
    -------
    float
        MAP@R in [0, 1].

    References
    ----------
    Musgrave, Belongie, Lim: A metric learning reality check. ECCV 2020.

    Examples
    --------
    >>> map_at_r([[0.0], [0.1], [0.3], [5.0], [5.1]], [0, 0, 1, 1, 1])
    0.8
    """
    points, classes = _check_scored(embeddings, labels)
    _, numbers, counts = classes.unique(return_inverse=True, return_counts=True)
    others = counts[numbers] - 1
    if int(others.max()) == 0:
        raise InputError("labels must have a class with at least 2 examples, and each has one. Pass more examples.")
    ranked = others.argsort(descending=True)
    queries = ranked[: int((others > 0).sum())]
    vectors, gained, start = NearestVectors(points), points.new_zeros((), dtype=torch.float64), 0
    while start < len(queries):
        block = queries[start : start + max(1, RANKED_ENTRIES // int(others[queries[start]]))]
        gained += _average_precisions(vectors, points, classes, block, others[block]).sum()
        start += len(block)
    return float(gained / len(queries))


def _average_precisions(
    vectors: NearestVectors, points: Tensor, classes: Tensor, queries: Tensor, others: Tensor
) -> Tensor:
    """Average precision (Q,) of the rows ``queries`` (Q,) at their ranks ``others`` (Q,), the largest of them first."""
    nearest = vectors.search(points[queries], int(others[0]), queries).rows
    hits = classes[nearest] == classes[queries][:, None]
    ranks = torch.arange(1, hits.shape[1] + 1, device=hits.device)
    precision = hits.cumsum(1).double() / ranks
    return (precision * (hits & (ranks <= others[:, None]))).sum(1) / others


def nmi(embeddings: Any, labels: Any, n_clusters: int | None = None, seed: int = 0) -> float:
    """Normalised mutual information of the classes and a k-means clustering of the embeddings.

    NMI = 2 I(clusters; classes) / (H(clusters) + H(classes)). k-means takes the best of up to ten starts.

    Parameters
    ----------
    embeddings, labels : array-like
        As for ``recall_at_k``.
    n_clusters : int, optional
        Number of clusters; the number of classes if None.
    seed : int
        Seed of k-means.

    Returns
    -------
    float
        NMI in [0, 1].
    """
    points, classes = _check_scored(embeddings, labels)
    clusters = n_clusters if n_clusters is not None else len(classes.unique())
    found = kmeans(points, clusters, seed=seed).assignment
    return normalized_mutual_information(classes.cpu(), found.cpu())


def normalized_mutual_information(first: Tensor, second: Tensor) -> float:
    """Mutual information of two partitions (N,), divided by the mean of their entropies; 1 if both are one part.

    The same as ``sklearn.metrics.normalized_mutual_info_score``, whose import takes longer than a small evaluation.
    """
    shares = torch.stack([first.unique(return_inverse=True)[1], second.unique(return_inverse=True)[1]])
    pairs, counts = shares.unique(dim=1, return_counts=True)
    joint = counts.double() / len(first)
    rows, columns = (torch.zeros(int(part.max()) + 1).double().index_add_(0, part, joint) for part in pairs)
    information = float((joint * (joint / (rows[pairs[0]] * columns[pairs[1]])).log()).sum())
    entropies = [float(-(part * part.log()).sum()) for part in (rows, columns)]
    if len(rows) == len(columns) == 1:
        return 1.0
    return max(0.0, min(1.0, information / (sum(entropies) / 2)))


def evaluate(
    embeddings: Any, labels: Any, ks: Sequence[int] = RECALLS, n_clusters: int | None = None, seed: int = 0
) -> dict[str, float]:
    """NMI and Recall@K in one call.

    Parameters
    ----------
    embeddings, labels, ks, n_clusters, seed : optional but for the first two
        As for ``recall_at_k`` and ``nmi``.

    Returns
    -------
    dict of str to float
        ``{"nmi": ..., "recall@1": ..., ...}``.
    """
    scores = {"nmi": nmi(embeddings, labels, n_clusters, seed)}
    return scores | {f"recall@{k}": value for k, value in recall_at_k(embeddings, labels, ks).items()}


def _check_scored(embeddings: Any, labels: Any) -> tuple[Tensor, Tensor]:
    points = check_features(embeddings, "embeddings")
    classes = check_labels(labels, len(points)).to(points.device)
    known = classes >= 0
    count = len(classes[known].unique())
    if count < 2:
        raise InputError(f"labels must have at least 2 classes, got {count}. Pass the true classes of the examples.")
    return points[known], classes[known]
