"""A running average of weights, kept in place of the weights themselves whenever no step is being made.

Averaged weights move less than those of single steps, so that the graph built on them, and what it says of each
example, does not follow every batch (A. Tarvainen, H. Valpola, "Mean teachers are better role models", NIPS 2017).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

YOUNG = 10.0
"""After t steps the average keeps at most (1 + t) / (10 + t) of its past, so that it leaves its start quickly."""


class RunningAverage:
    """Averages of all floating-point state of some modules, and of the parameters alone of others.

    The buffers of the others are left to them: a bank of embeddings, or what a metric step found, is no weight of a
    step.

    Outside of ``swap`` pairs the modules hold the averages and ``others`` the weights that steps work on; ``swap``
    exchanges the two in place, so that a recorded step finds its tensors where they were.
    """

    def __init__(self, modules: list[nn.Module], keep: float, parameters_only: Sequence[nn.Module] = ()) -> None:
        self._keep = keep
        state = [tensor for module in modules for tensor in module.state_dict().values()]
        state += [parameter.detach() for module in parameters_only for parameter in module.parameters()]
        floating = [tensor for tensor in state if tensor.is_floating_point()]
        self._held = list({tensor.data_ptr(): tensor for tensor in floating}.values())  # tied weights are held once
        self.others = [tensor.detach().clone() for tensor in self._held]
        device = self._held[0].device if self._held else "cpu"
        self.steps = torch.zeros((), dtype=torch.float64, device=device)

    @torch.no_grad()
    def begin(self) -> None:
        """Start, both weights and averages, from what the modules hold now."""
        for held, other in zip(self._held, self.others, strict=True):
            other.copy_(held)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange averages and weights."""
        for held, other in zip(self._held, self.others, strict=True):
            kept = held.clone()
            held.copy_(other)
            other.copy_(kept)

    @torch.no_grad()
    def follow(self) -> None:
        """After a step, while the modules hold the weights: move the averages, held aside, towards them."""
        self.steps += 1
        if not self._held:
            return
        share = (1.0 - (1.0 + self.steps) / (YOUNG + self.steps)).clamp(min=1.0 - self._keep)
        gaps = torch._foreach_sub(self._held, self.others)
        torch._foreach_mul_(gaps, share.to(torch.float32))
        torch._foreach_add_(self.others, gaps)

    def changed(self) -> Iterator[Tensor]:
        """What ``follow`` changes."""
        yield from (self.steps, *self.others)

    def state(self) -> dict[str, Tensor]:
        """Tensors from which ``restore`` continues."""
        return {"average.steps": self.steps.cpu().clone()} | {
            f"average.{position}": tensor.cpu().clone() for position, tensor in enumerate(self.others)
        }

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Continue where ``state`` was taken; the modules are restored by themselves."""
        self.steps.copy_(tensors["average.steps"])
        for position, tensor in enumerate(self.others):
            tensor.copy_(tensors[f"average.{position}"])
