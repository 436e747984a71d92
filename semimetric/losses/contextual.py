"""Relaxed contrastive loss of all pairs of a batch, and its targets from the neighbourhoods of a teacher's outputs.

References
----------
Kim, Kim, Cho, Kwak: Embedding transfer with label relaxation for improved metric learning. CVPR 2021.
Kim, Kim, Cho, Kwak: Self-taught metric learning without labels. CVPR 2022.
"""

from __future__ import annotations

import torch
from torch import Tensor

from semimetric.core.checks import check_at_least, check_positive
from semimetric.core.errors import InputError
from semimetric.encoders import unit_features
from semimetric.mining.labelled import check_embeddings, check_same_device

ROUNDING = 8.0  # squared distances below so many units of rounding of the squared lengths count as 0


def contextual_targets(
    embeddings: Tensor,
    examples: Tensor,
    labels: Tensor | None = None,
    bandwidth: float = 3.0,
    k: int = 10,
    smoothing: int = 5,
) -> Tensor:
    """How alike a teacher finds two rows: targets W = (P + C) / 2, (n, n), symmetric and in [0, 1].

    With unit rows t, P_ij = exp(-|t_i - t_j|^2 / bandwidth). N_k(i) are the k rows with the largest P_ij, where i is
    the first and other views of its example have P = 1. V_i are the j in N_k(i) with i in N_k(j). Then

        C~_ij = |V_i and V_j| / |V_i| if j is in V_i, else 0
        C^_i = mean of C~_j over j in N_smoothing(i),        C = (C^ + C^T) / 2.

    Parameters
    ----------
    embeddings : (n, d) tensor
        The teacher's outputs. Scaled to unit length here; a zero row stays zero. No gradient flows to them.
    examples : (n,) int64 tensor
        The number of the example that each row is a view of.
    labels : (n,) int64 tensor, optional
        Classes, -1 = unknown. Where both are known, W is 1 for the same class and 0 for two classes.
    bandwidth : float
        Above 0.
    k, smoothing : int
        At least 1. Larger than n means n.

    Returns
    -------
    (n, n) tensor
        Of the embeddings' type, or float32 if that is narrower.
    """
    check_embeddings(embeddings)
    _check_numbers(examples, "examples", embeddings)
    check_positive(bandwidth, "bandwidth")
    check_at_least(k, 1, "k")
    check_at_least(smoothing, 1, "smoothing")
    affinities = (_squared_distances(unit_features(_wide(embeddings.detach()))) / -bandwidth).exp()
    targets = (affinities + _context(affinities, examples, k, smoothing)) / 2
    if labels is None:
        return targets
    _check_numbers(labels, "labels", embeddings)
    known = labels >= 0
    return torch.where(known[:, None] & known, (labels[:, None] == labels).to(targets), targets)


def relaxed_contrastive_loss(embeddings: Tensor, targets: Tensor) -> Tensor:
    """Contrastive loss of all pairs with targets between 0 and 1, 0-d.

    With d_ij = |s_i - s_j| divided by the mean of row i over all n columns,

        loss = sum_{i != j} (W_ij d_ij^2 + (1 - W_ij) max(0, 1 - d_ij)^2) / (n (n - 1)).

    ``embeddings`` (n, d) are the rows s, of any length; their scale changes nothing. ``targets`` (n, n) are W, a
    constant to the gradient. Rows at distance 0 have no gradient from their pair. With fewer than two rows the loss is
    0. Values of the targets are checked on a CPU only, because the check would synchronise a GPU.
    """
    check_embeddings(embeddings)
    _check_targets(targets, embeddings)
    distances = relative_distances(_wide(embeddings))
    alike = targets.detach().to(distances.dtype)
    losses = alike * distances.square() + (1 - alike) * (1 - distances).clamp(min=0).square()
    count = len(losses)
    return losses.masked_fill(_own(losses), 0.0).sum() / max(count * (count - 1), 1)


def neighbourhood_divergence(source: Tensor, embeddings: Tensor) -> Tensor:
    """Mean over the rows of KL(softmax(-d of ``source``) || softmax(-d of ``embeddings``)), 0-d.

    d are the relative distances of ``relaxed_contrastive_loss``, of the rows of (n, l) and of (n, d). The source is a
    constant to the gradient.
    """
    check_embeddings(embeddings)
    if source.ndim != 2 or len(source) != len(embeddings) or not source.is_floating_point():
        raise InputError(
            f"source has the shape {tuple(source.shape)} and the type {source.dtype}; "
            f"give a floating-point row for each embedding, ({len(embeddings)}, l)."
        )
    found = (-relative_distances(_wide(embeddings))).log_softmax(1)
    wanted = (-relative_distances(_wide(source.detach()))).log_softmax(1).to(found)
    return (wanted.exp() * (wanted - found)).sum() / max(len(found), 1)


def relative_distances(rows: Tensor) -> Tensor:
    """Euclidean distances (n, n) of rows (n, d), divided by the mean of each row; 0 where all are the same."""
    squares = _squared_distances(rows)
    apart = squares > 0
    distances = torch.where(apart, squares, 1.0).sqrt() * apart
    means = distances.mean(1, keepdim=True)
    return distances / means.where(means > 0, 1.0)


def _squared_distances(rows: Tensor) -> Tensor:
    """Squared distances (n, n); exactly 0, with no gradient, for a row and itself and for rows that are the same."""
    centred = rows - rows.mean(0)
    lengths = centred.square().sum(1)
    sums = lengths[:, None] + lengths
    squares = torch.addmm(sums, centred, centred.T, alpha=-2.0)
    same = (squares <= ROUNDING * torch.finfo(rows.dtype).eps * sums) | _own(squares)
    return squares.masked_fill(same, 0.0)


def _nearest_first(affinities: Tensor, examples: Tensor) -> Tensor:
    """Columns (n, n) by falling affinity: the row itself, other views of its example, then the others."""
    views = affinities.masked_fill(examples[:, None] == examples, 1.0)
    return views.masked_fill(_own(views), 2.0).sort(dim=1, descending=True, stable=True).indices


def _context(affinities: Tensor, examples: Tensor, k: int, smoothing: int) -> Tensor:
    """C (n, n). A row is the first of its own neighbours, so V is never empty."""
    nearest = _nearest_first(affinities, examples)
    near = _members(nearest[:, :k], affinities)
    mutual = near * near.T
    shares = mutual * (mutual @ mutual) / mutual.sum(1, keepdim=True)
    chosen = _members(nearest[:, :smoothing], affinities)
    mean = chosen @ shares / chosen.sum(1, keepdim=True)
    return (mean + mean.T) / 2


def _members(columns: Tensor, like: Tensor) -> Tensor:
    """(n, n) with 1 at the columns (n, m) of each row, 0 elsewhere."""
    return torch.zeros_like(like).scatter(1, columns, 1.0)


def _own(square: Tensor) -> Tensor:
    return torch.eye(len(square), dtype=torch.bool, device=square.device)


def _wide(embeddings: Tensor) -> Tensor:
    return embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))


def _check_numbers(numbers: Tensor, name: str, embeddings: Tensor) -> None:
    if numbers.shape != embeddings.shape[:1] or numbers.dtype != torch.int64:
        raise InputError(
            f"{name} have the shape {tuple(numbers.shape)} and the type {numbers.dtype}; "
            f"give one int64 number for each embedding, ({len(embeddings)},)."
        )
    check_same_device(numbers, name, embeddings)


def _check_targets(targets: Tensor, embeddings: Tensor) -> None:
    count = len(embeddings)
    if targets.shape != (count, count) or not targets.is_floating_point():
        raise InputError(
            f"targets have the shape {tuple(targets.shape)} and the type {targets.dtype}; "
            f"give a floating-point number for each pair of embeddings, ({count}, {count})."
        )
    check_same_device(targets, "targets", embeddings)
    if targets.is_cpu and not bool(((targets >= 0) & (targets <= 1)).all()):
        raise InputError(
            f"targets run from {float(targets.min())} to {float(targets.max())}; give numbers from 0 to 1."
        )
