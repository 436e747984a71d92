"""Pairs and triplets of the labelled examples of a batch, as masks and indices of fixed shape.

Nothing here reads values from the device, so a training step with these functions can be captured as a CUDA graph.
"""

from __future__ import annotations

import torch
from torch import Tensor

from semimetric.core.errors import InputError


def labelled_masks(targets: Tensor) -> tuple[Tensor, Tensor]:
    """Masks (n, n) of the ordered pairs of one class, and of the ordered pairs of two classes.

    An example is not paired with itself. Unlabelled examples, -1, are in no pair.
    """
    known = targets >= 0
    both = known[:, None] & known
    same = targets[:, None] == targets
    own = torch.eye(len(targets), dtype=torch.bool, device=targets.device)
    return both & same & ~own, both & ~same


def semi_hard_negatives(distances: Tensor, targets: Tensor, draws: Tensor, margin: float) -> Tensor:
    """A negative (n, n) int64 for every anchor (row) and positive (column): semi-hard if there is one, else any.

    Semi-hard negatives are farther from the anchor than the positive, by less than the margin (Schroff, Kalenichenko,
    Philbin: FaceNet: a unified embedding for face recognition and clustering. CVPR 2015):

        d2(a, p) < d2(a, n) < d2(a, p) + margin.

    ``distances`` (n, n) are squared, and constants to the gradient. ``targets`` (n,) are classes, -1 = unlabelled.
    ``draws`` (n, n), uniform in [0, 1), select the candidates by rank in distance: 0 the nearest, near 1 the farthest.
    The negatives of an anchor are sorted once, so the candidates of a pair are a contiguous run and no array of size
    n^3 is made. Entries that are no pair of one class, or whose anchor has no negative, are undefined.
    """
    known = distances.detach().contiguous()
    _, negative = labelled_masks(targets)
    nearest_first = known.masked_fill(~negative, torch.inf).sort(1)
    start = torch.searchsorted(nearest_first.values, known, right=True)
    within = torch.searchsorted(nearest_first.values, known + margin) - start
    semi_hard = within > 0
    count = torch.where(semi_hard, within, negative.sum(1, keepdim=True))
    place = torch.where(semi_hard, start, 0) + (draws * count).long().clamp(max=count - 1)
    return nearest_first.indices.gather(1, place.clamp(0, max(len(targets) - 1, 0)))


def check_batch(embeddings: Tensor, targets: Tensor) -> None:
    """Check that embeddings are a floating-point matrix (n, d) and that targets hold one class per row."""
    check_embeddings(embeddings)
    if targets.shape != embeddings.shape[:1] or targets.dtype != torch.int64:
        raise InputError(
            f"targets have the shape {tuple(targets.shape)} and the type {targets.dtype}; "
            f"give one int64 class for each embedding, ({len(embeddings)},)."
        )
    check_same_device(targets, "targets", embeddings)
    if targets.is_cpu and targets.numel() and int(targets.min()) < -1:
        raise InputError(
            f"targets go down to {int(targets.min())}; give classes from 0 up, and -1 for an example without one."
        )


def check_embeddings(embeddings: Tensor) -> None:
    """Check that embeddings are a floating-point matrix."""
    if embeddings.ndim != 2 or not embeddings.is_floating_point():
        raise InputError(
            f"embeddings have the shape {tuple(embeddings.shape)} and the type {embeddings.dtype}; "
            "give a floating-point matrix (n, d)."
        )


def check_same_device(tensor: Tensor, name: str, embeddings: Tensor) -> None:
    """Check that a tensor is on the device of the embeddings."""
    if tensor.device != embeddings.device:
        raise InputError(f"{name} are on {tensor.device}, the embeddings are on {embeddings.device}; move them there.")
