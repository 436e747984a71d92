"""Which model is the best one? Judged on withheld validation data, or on the few labels themselves; never on test."""

from __future__ import annotations

import torch
from torch import Tensor

from semimetric.evaluation import evaluate
from semimetric.graph import nearest_neighbors

Score = tuple[float, ...]
"""Compared lexicographically, higher is better."""


def validation_score(embeddings: Tensor, labels: Tensor) -> tuple[Score, dict[str, float]]:
    """The mean of NMI and Recall@1 on withheld examples, the two figures the paper compares by."""
    scores = evaluate(embeddings, labels)
    return ((scores["nmi"] + scores["recall@1"]) / 2,), scores


def labels_score(embeddings: Tensor, labels: Tensor) -> tuple[Score, dict[str, float]]:
    """Leave-one-out Recall@1 of the labelled examples; of equal ones the better R-precision wins.

    R-precision is the share of an example's own class among its R nearest labelled others, R being the number of
    others in its class. With a few labels Recall@1 takes few values, R-precision takes many more.
    """
    neighbors = nearest_neighbors(embeddings, len(embeddings) - 1)
    hits = (labels[neighbors] == labels[:, None]).double()
    others = hits.sum(1)
    within = torch.arange(hits.shape[1], device=hits.device)[None, :] < others[:, None]
    answered = others > 0
    recall = float(hits[answered, 0].mean()) if bool(answered.any()) else 0.0
    precision = float(((hits * within).sum(1)[answered] / others[answered]).mean()) if bool(answered.any()) else 0.0
    return (recall, precision), {"recall@1": recall, "r_precision": precision}
