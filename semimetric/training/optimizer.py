"""The optimiser: construction from settings, learning-rate schedule, and its state as named tensors."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from semimetric.core.errors import InputError
from semimetric.training.settings import TrainingSettings


def build_optimizer(
    settings: TrainingSettings, encoder: list[nn.Parameter], method: list[nn.Parameter] | None = None
) -> torch.optim.Optimizer:
    """Build the configured optimiser for the parameters of encoder and method.

    On a GPU it can be captured in a CUDA graph, because its learning rate is a tensor.
    """
    if not encoder and settings.lr > 0:
        raise InputError("the encoder has no parameters to train. Set lr to 0 to learn the metric alone.")
    parameters = [*encoder, *(method or [])] or [nn.Parameter(torch.zeros(()))]
    on_gpu = any(parameter.is_cuda for parameter in parameters)
    lr = torch.tensor(settings.lr, device=parameters[0].device) if on_gpu else settings.lr
    decay = settings.weight_decay
    if settings.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=lr, momentum=settings.momentum, weight_decay=decay, fused=on_gpu)
    kind = torch.optim.Adam if settings.optimizer == "adam" else torch.optim.AdamW
    return kind(parameters, lr=lr, weight_decay=decay, capturable=on_gpu, fused=on_gpu)


def learning_rate(settings: TrainingSettings, epoch: int) -> float:
    """Learning rate of an epoch, counted from 1: constant, or a half cosine from ``lr`` towards 0."""
    if settings.lr_schedule == "constant":
        return settings.lr
    return settings.lr * (1 + math.cos(math.pi * (epoch - 1) / settings.epochs)) / 2


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate; in place if it is a tensor, which a captured step reads."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr


def create_state(optimizer: torch.optim.Optimizer) -> None:
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
            for tensor in optimizer.state[parameter].values():
                tensor.zero_()
    optimizer.zero_grad(set_to_none=True)


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's per-parameter tensors under flat names. Its scalars come from the settings."""
    state = optimizer.state_dict()["state"]
    return {
        f"optimizer.{parameter}.{name}": value
        for parameter, values in state.items()
        for name, value in values.items()
        if isinstance(value, Tensor)
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Continue from the result of ``optimizer_tensors``."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in under("optimizer.", tensors).items():
        parameter, key = name.split(".", 1)
        state.setdefault(int(parameter), {})[key] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names start with ``prefix``, with the prefix removed."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
