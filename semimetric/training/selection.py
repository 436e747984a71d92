"""Selection of the best model, on validation data or on the labels; never on test data."""

from __future__ import annotations

import torch
from torch import Tensor

from semimetric.core.errors import InputError
from semimetric.evaluation import evaluate
from semimetric.graph import nearest_neighbors

Score = tuple[float, ...]  # compared lexicographically; higher is better


MAX_RANK = 100  # most neighbours for R-precision, which bounds its memory


def validation_score(embeddings: Tensor, labels: Tensor) -> tuple[Score, dict[str, float]]:
    """The mean of NMI and Recall@1 on validation data, the two scores that the paper compares."""
    scores = evaluate(embeddings, labels, ks=(1,))
    return ((scores["nmi"] + scores["recall@1"]) / 2,), scores


def labels_score(embeddings: Tensor, labels: Tensor) -> tuple[Score, dict[str, float]]:
    """Leave-one-out Recall@1 of the labelled examples, with R-precision as tie-breaker.

    R-precision is the share of an example's own class among its R nearest labelled neighbours, where R is the number of
    others in its class (at most 100). It takes many more values than Recall@1 when labels are few. Examples that are
    alone in their class are no queries.
    """
    _, own, sizes = torch.unique(labels, return_inverse=True, return_counts=True)
    ranks = (sizes[own] - 1).clamp_max(MAX_RANK)
    neighbors = nearest_neighbors(embeddings, int(ranks.max()))
    hits = (labels[neighbors] == labels[:, None]).double()
    within = torch.arange(hits.shape[1], device=hits.device)[None, :] < ranks[:, None]
    asked = ranks > 0
    recall = float(hits[asked, 0].mean())
    precision = float(((hits * within).sum(1)[asked] / ranks[asked]).mean())
    return (recall, precision), {"recall@1": recall, "r_precision": precision}


def selectable(labels: Tensor) -> bool:
    """Whether labels (-1 = unknown) can select a model: some class has two of them."""
    known = labels[labels >= 0]
    return len(known) > 0 and int(torch.unique(known, return_counts=True)[1].max()) > 1


def check_selectable(selection: str, labels: Tensor, has_validation: bool) -> None:
    """Refuse a selection criterion that the data does not support."""
    known = labels[labels >= 0]
    if selection == "validation" and not has_validation:
        raise InputError(
            "selection 'validation' needs withheld validation data and there is none. "
            + ("Set a validation share, or select on the labels." if len(known) else "Set a validation share.")
        )
    if selection == "labels" and len(known) == 0:
        raise InputError(
            "selection 'labels' needs labels, and the method sees none. "
            "Withhold a validation share, or use selection 'last'."
        )
    if selection == "labels" and not selectable(labels):
        raise InputError(
            "selection 'labels' needs a class with at least 2 labelled examples, and every class has 1. "
            "Label more, withhold a validation share, or use selection 'last'."
        )
