"""Instance discrimination: a softmax over all examples in a memory bank, in full or by noise-contrastive estimation.

References
----------
Wu, Xiong, Yu, Lin: Unsupervised feature learning via non-parametric instance discrimination. CVPR 2018.
Gutmann, Hyvärinen: Noise-contrastive estimation. AISTATS 2010.
"""

from __future__ import annotations

import math

from torch import Tensor
from torch.nn.functional import cross_entropy, logsigmoid

from semimetric.core.checks import check_positive
from semimetric.core.errors import InputError


def instance_loss(points: Tensor, bank: Tensor, targets: Tensor, temperature: float = 0.1) -> Tensor:
    """Mean of -log p(t_i | v_i), with p(j | v) the softmax of <bank_j, v> / temperature over the whole bank, 0-d.

    ``points`` (n, l) are the unit rows v, ``bank`` (N, l) unit rows of the same type, and ``targets`` (n,) int64 the
    target rows of the bank. Gradients flow to the points only.
    """
    return cross_entropy(scaled_cosines(points, bank, temperature), targets)


def scaled_cosines(points: Tensor, bank: Tensor, temperature: float) -> Tensor:
    """<v_i, bank_j> / temperature (n, N) of unit rows (n, l) and (N, l). The bank is a constant to the gradient."""
    check_positive(temperature, "temperature")
    if points.ndim != 2 or bank.ndim != 2 or points.shape[1] != bank.shape[1]:
        raise InputError(
            f"points have the shape {tuple(points.shape)} and the bank has {tuple(bank.shape)}; give matrices with as "
            "many columns, (n, l) and (N, l)."
        )
    return points @ bank.detach().T / temperature


def noise_contrastive_loss(own: Tensor, noise: Tensor, log_normaliser: Tensor, entries: int) -> Tensor:
    """Noise-contrastive loss of telling an example's own row from m rows drawn uniformly from N, 0-d.

    With s = <row, v> / temperature a row has p = exp(s) / Z. It is the example's own, rather than one of m noise draws,
    with probability h = p / (p + m / N). Then

        loss = -(1/n) sum_i (log h(own_i) + sum_j log(1 - h(noise_ij))).

    h is the logistic function of log p - log(m / N), so nothing overflows at any temperature. ``own`` (n,) is s of the
    own rows, ``noise`` (n, m) s of the draws, which may include the own row. ``log_normaliser`` is log Z, a constant to
    the gradient, and ``entries`` is N.
    """
    if own.ndim != 1 or noise.ndim != 2 or len(noise) != len(own) or noise.shape[1] == 0:
        raise InputError(
            f"own has the shape {tuple(own.shape)} and noise {tuple(noise.shape)}; give an entry and a row of at "
            "least 1 draw for each example, (n,) and (n, m)."
        )
    even = log_normaliser.detach() + math.log(noise.shape[1] / entries)  # the s at which h is 1/2
    return -(logsigmoid(own - even) + logsigmoid(even - noise).sum(1)).mean()
