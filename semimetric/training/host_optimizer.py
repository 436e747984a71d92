"""SGD, Adam and AdamW on a CPU, as in ``torch.optim`` and with the same results bit for bit.

``torch.optim`` imports torch's compiler with the first optimiser, which takes as long as a small training. A GPU has
``torch.optim`` with its fused steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

BETAS, EPS = (0.9, 0.999), 1e-8
"""Of Adam and AdamW, as in torch."""

Group = dict[str, Any]
"""Parameters as ``params``, with ``lr`` and ``weight_decay``."""

State = dict[str, Tensor]


class HostOptimizer:
    """Parameters in groups, and the tensors that their steps need.

    Parameters
    ----------
    kind : sgd, adam or adamw
    groups : dictionaries with ``params`` and ``weight_decay``
    lr : learning rate
    momentum, nesterov : of SGD
    """

    def __init__(
        self, kind: str, groups: Iterable[Group], lr: float, momentum: float = 0.0, nesterov: bool = False
    ) -> None:
        self.kind, self.momentum, self.nesterov = kind, momentum, nesterov
        self.param_groups: list[Group] = [group | {"lr": lr} for group in groups]
        self.state: dict[nn.Parameter, State] = {}

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients."""
        for parameter in self._parameters():
            parameter.grad = None if set_to_none or parameter.grad is None else torch.zeros_like(parameter.grad)

    @torch.no_grad()
    def step(self) -> None:
        """Move each parameter that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                if self.kind == "sgd":
                    self._descend(parameter, group["lr"], group["weight_decay"])
                else:
                    self._adapt(parameter, group["lr"], group["weight_decay"])

    def _descend(self, parameter: nn.Parameter, lr: float, weight_decay: float) -> None:
        gradient: Tensor = parameter.grad  # type: ignore[assignment]
        if weight_decay:
            gradient = gradient.add(parameter, alpha=weight_decay)
        if self.momentum:
            state = self.state.setdefault(parameter, {})
            if "momentum_buffer" in state:
                state["momentum_buffer"].mul_(self.momentum).add_(gradient)
            else:
                state["momentum_buffer"] = gradient.clone()
            gradient = (
                gradient.add(state["momentum_buffer"], alpha=self.momentum)
                if self.nesterov
                else state["momentum_buffer"]
            )
        parameter.add_(gradient, alpha=-lr)

    def _adapt(self, parameter: nn.Parameter, lr: float, weight_decay: float) -> None:
        gradient: Tensor = parameter.grad  # type: ignore[assignment]
        if parameter not in self.state:
            means = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
            self.state[parameter] = {"step": torch.zeros(())} | means
        state = self.state[parameter]
        state["step"] += 1
        if weight_decay and self.kind == "adamw":
            parameter.mul_(1 - lr * weight_decay)
        elif weight_decay:
            gradient = gradient.add(parameter, alpha=weight_decay)
        first, second = BETAS
        state["exp_avg"].lerp_(gradient, 1 - first)
        state["exp_avg_sq"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
        steps = state["step"].item()
        root = (1 - second**steps) ** 0.5
        parameter.addcdiv_(
            state["exp_avg"], (state["exp_avg_sq"].sqrt() / root).add_(EPS), value=-lr / (1 - first**steps)
        )

    def state_dict(self) -> dict[str, Any]:
        """The state by the number of the parameter, as in ``torch.optim``."""
        numbered = enumerate(self._parameters())
        return {"state": {number: self.state[p] for number, p in numbered if p in self.state}, "param_groups": []}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Continue from the ``state`` of ``state_dict``."""
        parameters = self._parameters()
        self.state = {
            parameters[number]: {
                name: value.clone() if name == "step" else value.to(parameters[number], copy=True)
                for name, value in values.items()
            }
            for number, values in saved["state"].items()
        }

    def _parameters(self) -> list[nn.Parameter]:
        return [parameter for group in self.param_groups for parameter in group["params"]]
