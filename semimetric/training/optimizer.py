"""The optimiser: construction from settings, learning-rate schedule, and its state as named tensors."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from semimetric.core.errors import InputError
from semimetric.training.host_optimizer import HostOptimizer
from semimetric.training.settings import TrainingSettings

Optimizer = torch.optim.Optimizer | HostOptimizer


def build_optimizer(
    settings: TrainingSettings, encoder: list[nn.Parameter], method: list[nn.Parameter] | None = None
) -> Optimizer:
    """Build the configured optimiser for the parameters of encoder and method.

    On a GPU it can be captured in a CUDA graph, because its learning rate is a tensor.
    """
    if not encoder and settings.lr > 0:
        raise InputError("the encoder has no parameters to train. Set lr to 0 to learn the metric alone.")
    parameters = [*encoder, *(method or [])] or [nn.Parameter(torch.zeros(()))]
    on_gpu = any(parameter.is_cuda for parameter in parameters)
    groups = _groups(settings, parameters)
    momentum, nesterov = settings.momentum, settings.nesterov
    if not on_gpu:
        return HostOptimizer(settings.optimizer, groups, settings.lr, momentum, nesterov)
    lr = torch.tensor(settings.lr, device=parameters[0].device)
    if settings.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=lr, momentum=momentum, nesterov=nesterov, fused=True)
    kind = torch.optim.Adam if settings.optimizer == "adam" else torch.optim.AdamW
    return kind(groups, lr=lr, capturable=True, fused=True)


def _groups(settings: TrainingSettings, parameters: list[nn.Parameter]) -> list[dict[str, Any]]:
    """The parameters with weight decay and, if it is for matrices alone, those without it."""
    if settings.decay == "all":
        return [{"params": parameters, "weight_decay": settings.weight_decay}]
    matrices = [parameter for parameter in parameters if parameter.ndim >= 2]
    others = [parameter for parameter in parameters if parameter.ndim < 2]
    groups = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def learning_rate(settings: TrainingSettings, epoch: int, share: float = 1.0) -> float:
    """Learning rate of a step.

    After the warm-up it is the same in all steps of an epoch: constant, or from ``lr`` along a half cosine towards 0,
    or along cos(7 pi t / 16) towards 0.195 ``lr`` (K. Sohn et al., "FixMatch", NeurIPS 2020), with t the share of
    epochs done. A step of the warm-up takes a part of that rate. The part rises linearly from 0, and is 1 in the last.

    Parameters
    ----------
    settings : TrainingSettings
        Epochs, learning rate, schedule and warm-up.
    epoch : int
        The epoch, counted from 1.
    share : float
        Share of the epoch's steps done after this one.
    """
    warm = min(1.0, (epoch - 1 + share) / settings.warmup) if settings.warmup else 1.0
    return warm * _scheduled(settings, epoch)


def _scheduled(settings: TrainingSettings, epoch: int) -> float:
    if settings.lr_schedule == "constant":
        return settings.lr
    half_turn = math.pi * (epoch - 1) / settings.epochs
    if settings.lr_schedule == "slow-cosine":
        return settings.lr * math.cos(7 / 16 * half_turn)
    return settings.lr * (1 + math.cos(half_turn)) / 2


def set_learning_rate(optimizer: Optimizer, lr: float) -> None:
    """Set the learning rate; in place if it is a tensor, which a captured step reads."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr


def create_state(optimizer: Optimizer) -> None:
    """Allocate the optimiser's state, all zero, before a step is captured."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if all(parameter in optimizer.state for parameter in parameters):
        return
    kept = [parameter.detach().clone() for parameter in parameters]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    with torch.no_grad():
        for parameter, value in zip(parameters, kept, strict=True):
            parameter.copy_(value)
            for tensor in optimizer.state.get(parameter, {}).values():  # plain SGD has none
                tensor.zero_()
    optimizer.zero_grad(set_to_none=True)


def optimizer_tensors(optimizer: Optimizer) -> dict[str, Tensor]:
    """The optimiser's per-parameter tensors under flat names. Its scalars come from the settings."""
    state = optimizer.state_dict()["state"]
    return {
        f"optimizer.{parameter}.{name}": value
        for parameter, values in state.items()
        for name, value in values.items()
        if isinstance(value, Tensor)
    }


def restore_optimizer(optimizer: Optimizer, tensors: dict[str, Tensor]) -> None:
    """Continue from the result of ``optimizer_tensors``."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in under("optimizer.", tensors).items():
        parameter, key = name.split(".", 1)
        state.setdefault(int(parameter), {})[key] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names start with ``prefix``, with the prefix removed."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
