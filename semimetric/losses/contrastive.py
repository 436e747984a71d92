"""Supervised contrastive loss over examples of unequal confidence.

References
----------
Khosla, Teterwak, Wang, Sarna, Tian, Isola, Maschinot, Liu, Krishnan: Supervised contrastive learning. NeurIPS 2020.
Chen, Kornblith, Norouzi, Hinton: A simple framework for contrastive learning of visual representations. ICML 2020.
"""

from __future__ import annotations

import torch
from torch import Tensor

from semimetric.core.checks import check_positive
from semimetric.core.errors import InputError
from semimetric.encoders import unit_features
from semimetric.mining.labelled import check_batch

FLOOR = 1e-3
"""Least weight with which an example repels others, so that the sum over the others is never empty."""


def contrastive_loss(
    embeddings: Tensor, targets: Tensor, weights: Tensor | None = None, temperature: float = 0.1
) -> Tensor:
    """Mean over anchors of how improbable their positives are among all others (L_out of Khosla et al.), 0-d.

    With rows z of unit length, s_ij = <z_i, z_j> / temperature and P(i) the others with the target of i,

        l_ij = s_ij - log sum_{a != i} max(w_a, FLOOR) exp(s_ia)
        loss = -(1/n) sum_i w_i (sum_{j in P(i)} w_j l_ij) / (sum_{j in P(i)} w_j).

    An anchor whose positives all have weight 0, or that has none, adds 0. Without weights and with classes for
    targets this is SupCon; with ``targets = cat([arange(m), arange(m)])``, two views of m examples, it is NT-Xent
    of SimCLR. The weights are inside the logarithm, so weights below 1 can make the loss negative.

    Parameters
    ----------
    embeddings : (n, d)
        Scaled to unit length here, a zero row stays zero; gradients flow to them. Types narrower than float32 are
        computed in float32; ``torch.autocast`` would undo that, so call the loss outside of it.
    targets : (n,) int64
        Class, or number of the example that a view shows; an unlabelled row, -1, has no positives and only repels.
    weights : (n,), optional
        Confidence of each target, from 0 to 1, a constant to the gradient; without it all are 1. Values are checked
        on a CPU only, because the check would wait for the device.
    temperature : float
        Above 0; the smaller, the more the nearest others count.
    """
    check_positive(temperature, "temperature")
    _check(embeddings, targets, weights)
    rows = unit_features(embeddings.to(torch.promote_types(embeddings.dtype, torch.float32)))
    confidence = rows.new_ones(len(rows)) if weights is None else weights.detach().to(rows.dtype)
    own = torch.eye(len(rows), dtype=torch.bool, device=rows.device)
    logarithms = _log_probabilities(rows @ rows.T / temperature, confidence, own)
    losses = -(_positive_shares(targets, confidence, own) * logarithms).sum(1)
    return (confidence * losses).sum() / max(len(rows), 1)


def _log_probabilities(similarities: Tensor, confidence: Tensor, own: Tensor) -> Tensor:
    """Entries l_ij (n, n): similarity less the log of the weighted sum over the others, finite even without others."""
    others = similarities + confidence.clamp(min=FLOOR).log()
    # Infinity here would make 0 * inf of a single row; the least finite number vanishes from every other sum as well.
    others = others.masked_fill(own, torch.finfo(others.dtype).min)
    return similarities - others.logsumexp(1, keepdim=True)


def _positive_shares(targets: Tensor, confidence: Tensor, own: Tensor) -> Tensor:
    """Share (n, n) of each positive in the confidence of the anchor's positives; a row without any is zero."""
    positive = (targets[:, None] == targets) & (targets >= 0) & ~own
    shares = positive * confidence
    totals = shares.sum(1, keepdim=True)
    return shares / totals.where(totals > 0, 1.0)


def _check(embeddings: Tensor, targets: Tensor, weights: Tensor | None) -> None:
    check_batch(embeddings, targets)
    if weights is not None:
        _check_weights(weights, embeddings)


def _check_weights(weights: Tensor, embeddings: Tensor) -> None:
    if weights.shape != embeddings.shape[:1] or not weights.is_floating_point():
        raise InputError(
            f"weights have the shape {tuple(weights.shape)} and the type {weights.dtype}; "
            f"give one floating-point confidence for each embedding, ({len(embeddings)},)."
        )
    if weights.device != embeddings.device:
        raise InputError(
            f"weights are on {weights.device}, but the embeddings are on {embeddings.device}; move them there."
        )
    if weights.is_cpu and not bool(((weights >= 0) & (weights <= 1)).all()):
        raise InputError(
            f"weights run from {float(weights.min())} to {float(weights.max())}; give confidences from 0 to 1."
        )
