"""Supervised contrastive loss with a confidence for each example."""

from __future__ import annotations

import torch
from torch import Tensor

from semimetric.core.checks import check_positive
from semimetric.core.errors import InputError
from semimetric.encoders import unit_features
from semimetric.mining.labelled import check_batch, check_same_device

FLOOR = 1e-3  # least weight of an example as a negative, so that the sum over the others is never empty


def contrastive_loss(
    embeddings: Tensor, targets: Tensor, weights: Tensor | None = None, temperature: float = 0.1
) -> Tensor:
    """Supervised contrastive loss (L_out of Khosla et al.), weighted by the confidence of each target.

    With rows z of unit length, s_ij = <z_i, z_j> / temperature and P(i) the other rows with the target of i,

        l_ij = s_ij - log sum_{a != i} max(w_a, FLOOR) exp(s_ia)
        loss = -(1/n) sum_i w_i (sum_{j in P(i)} w_j l_ij) / (sum_{j in P(i)} w_j).

    An anchor without positives of positive weight adds 0. With unit weights and classes as targets this is SupCon. With
    ``targets = cat([arange(m), arange(m)])``, two views of m examples, it is NT-Xent of SimCLR (Chen et al.). The
    weights are inside the logarithm, so weights below 1 can make the loss negative.

    Parameters
    ----------
    embeddings : (n, d) tensor
        Scaled to unit length here; a zero row stays zero. Gradients flow to them. Types narrower than float32 are
        computed in float32; ``torch.autocast`` would undo that, so call the loss outside of it.
    targets : (n,) int64 tensor
        Class of each row, or the number of the example it is a view of. An unlabelled row, -1, is only a negative.
    weights : (n,) tensor, optional
        Confidence of each target in [0, 1], a constant to the gradient; 1 if None. Values are checked on a CPU only,
        because the check would synchronise a GPU.
    temperature : float
        Above 0. A smaller value gives the nearest rows more weight.

    Returns
    -------
    0-d tensor
        The mean over the anchors.

    References
    ----------
    Khosla, Teterwak, Wang, Sarna, Tian, Isola, Maschinot, Liu, Krishnan: Supervised contrastive learning. NeurIPS 2020.
    Chen, Kornblith, Norouzi, Hinton: A simple framework for contrastive learning of visual representations. ICML 2020.
    """
    check_positive(temperature, "temperature")
    check_batch(embeddings, targets)
    if weights is not None:
        _check_weights(weights, embeddings)
    rows = unit_features(embeddings.to(torch.promote_types(embeddings.dtype, torch.float32)))
    confidence = rows.new_ones(len(rows)) if weights is None else weights.detach().to(rows.dtype)
    own = torch.eye(len(rows), dtype=torch.bool, device=rows.device)
    logarithms = _log_probabilities(rows @ rows.T / temperature, confidence, own)
    losses = -(_positive_shares(targets, confidence, own) * logarithms).sum(1)
    return (confidence * losses).sum() / max(len(rows), 1)


def _log_probabilities(similarities: Tensor, confidence: Tensor, own: Tensor) -> Tensor:
    """Entries l_ij (n, n), finite even for a single row."""
    others = similarities + confidence.clamp(min=FLOOR).log()
    # Minus infinity would give 0 * inf for a single row; the least finite number also vanishes from every other sum.
    others = others.masked_fill(own, torch.finfo(others.dtype).min)
    return similarities - others.logsumexp(1, keepdim=True)


def _positive_shares(targets: Tensor, confidence: Tensor, own: Tensor) -> Tensor:
    """Share (n, n) of each positive in the summed confidence of the anchor's positives, 0 without positives."""
    positive = (targets[:, None] == targets) & (targets >= 0) & ~own
    shares = positive * confidence
    totals = shares.sum(1, keepdim=True)
    return shares / totals.where(totals > 0, 1.0)


def _check_weights(weights: Tensor, embeddings: Tensor) -> None:
    if weights.shape != embeddings.shape[:1] or not weights.is_floating_point():
        raise InputError(
            f"weights have the shape {tuple(weights.shape)} and the type {weights.dtype}; "
            f"give one floating-point confidence for each embedding, ({len(embeddings)},)."
        )
    check_same_device(weights, "weights", embeddings)
    if weights.is_cpu and not bool(((weights >= 0) & (weights <= 1)).all()):
        raise InputError(
            f"weights run from {float(weights.min())} to {float(weights.max())}; give confidences from 0 to 1."
        )
