"""Features of a batch of which each rank encodes a part, as if one process had encoded the whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm
from torch.overrides import TorchFunctionMode

from semimetric.core import ranks
from semimetric.core.errors import InputError
from semimetric.data.stored import Inputs, some_of
from semimetric.encoders import encode, features_of


def whole_features(encoder: nn.Module, views: Tensor, precision: str) -> Tensor:
    """Unit features (n, d) of a batch (n, ...); gradients reach the rows that this rank encodes."""
    size = ranks.world().size
    if size == 1:
        return features_of(encoder, views, precision)
    if len(views) < size:
        raise InputError(
            f"a batch of {len(views)} examples cannot be split over {size} processes. Use a larger --batch-size, or "
            "fewer --devices."
        )
    with ranks.part_draws(views.device), WholeBatchNorm():
        part = features_of(encoder, views[ranks.part_of(len(views))], precision)
    return ranks.gathered(part, len(views))


def encode_together(encoder: nn.Module, inputs: Inputs, precision: str = "float32") -> Tensor:
    """Unit features (N, d) of all inputs in evaluation mode, of which each rank encodes a part."""
    return ranks.in_parts(lambda part: encode(encoder, some_of(inputs, part), precision=precision), len(inputs))


class WholeBatchNorm(TorchFunctionMode):
    """Within it, batch normalisation in training mode takes mean and variance of the rows of all ranks.

    The same as ``torch.nn.SyncBatchNorm``, which refuses the CPU and would replace the modules of the encoder.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[Any], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Replace ``batch_norm`` alone."""
        kwargs = kwargs or {}
        return (whole_batch_norm if func is batch_norm else func)(*args, **kwargs)


def whole_batch_norm(
    inputs: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """``torch.nn.functional.batch_norm`` over the rows of all ranks."""
    if not training:
        return batch_norm(inputs, running_mean, running_var, weight, bias, False, momentum, eps)
    rows = inputs.float().transpose(0, 1).flatten(1)  # (channels, values)
    totals = ranks.summed(torch.cat([rows.sum(1), rows.new_tensor([rows.shape[1]])]))
    count = totals[-1].detach()
    mean = totals[:-1] / count
    centred = rows - mean[:, None]
    variance = ranks.summed(centred.square().sum(1)) / count
    if running_mean is not None and running_var is not None:
        with torch.no_grad():
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            running_var.lerp_((variance * count / (count - 1)).to(running_var.dtype), momentum)
    scale = (variance + eps).rsqrt() if weight is None else (variance + eps).rsqrt() * weight
    found = centred * scale[:, None] if bias is None else centred * scale[:, None] + bias[:, None]
    by_row: Tensor = found.unflatten(1, (len(inputs), *inputs.shape[2:])).transpose(0, 1)
    return by_row.to(inputs.dtype)
