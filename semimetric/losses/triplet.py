"""Triplet loss of a labelled batch, with semi-hard negatives (FaceNet, CVPR 2015; see ``semi_hard_negatives``)."""

from __future__ import annotations

import torch
from torch import Tensor

from semimetric.core.checks import check_positive
from semimetric.core.errors import InputError
from semimetric.encoders import unit_features
from semimetric.mining.labelled import check_batch, check_same_device, labelled_masks, semi_hard_negatives


def triplet_loss(embeddings: Tensor, targets: Tensor, draws: Tensor, margin: float = 0.2) -> Tensor:
    """Mean over all ordered pairs of one class of max(0, d2(a, p) - d2(a, n) + margin), 0-d.

    Distances are squared Euclidean distances of unit rows. ``semi_hard_negatives`` chooses one negative n for each
    pair, by ``draws`` (n, n), uniform in [0, 1). The mean includes pairs that keep the margin, so it falls as triplets
    become easy. Without a pair of one class, or without a second class, the loss and its gradient are 0. ``embeddings``
    (n, d) are those of ``contrastive_loss``, ``targets`` (n,) classes with -1 = unlabelled. Values of the draws are
    checked on a CPU only, because the check would synchronise a GPU.
    """
    violations, pairs = triplet_violations(embeddings, targets, draws, margin)
    return violations.clamp(min=0).sum() / pairs.sum().clamp(min=1)


def triplet_violations(
    embeddings: Tensor, targets: Tensor, draws: Tensor, margin: float = 0.2
) -> tuple[Tensor, Tensor]:
    """Entries d2(a, p) - d2(a, n) + margin and the mask of those that belong to triplets: two (n, n) matrices.

    All other entries are 0. A positive entry violates the margin. Parameters as for ``triplet_loss``.
    """
    check_positive(margin, "margin")
    check_batch(embeddings, targets)
    _check_draws(draws, embeddings)
    rows = unit_features(embeddings.to(torch.promote_types(embeddings.dtype, torch.float32)))
    squares = rows.square().sum(1)
    distances = squares[:, None] + squares - 2 * rows @ rows.T
    positive, negative = labelled_masks(targets)
    pairs = positive & negative.any(1, keepdim=True)
    chosen = distances.gather(1, semi_hard_negatives(distances, targets, draws, margin))
    return torch.where(pairs, distances - chosen + margin, 0.0), pairs


def _check_draws(draws: Tensor, embeddings: Tensor) -> None:
    count = len(embeddings)
    if draws.shape != (count, count) or not draws.is_floating_point():
        raise InputError(
            f"draws have the shape {tuple(draws.shape)} and the type {draws.dtype}; give a floating-point number for "
            f"each anchor and positive, ({count}, {count})."
        )
    check_same_device(draws, "draws", embeddings)
    if draws.is_cpu and not bool(((draws >= 0) & (draws < 1)).all()):
        raise InputError(
            f"draws run from {float(draws.min())} to {float(draws.max())}; give numbers from 0 up to 1, exclusive."
        )
