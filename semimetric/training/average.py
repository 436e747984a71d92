"""Exponential moving average (EMA) of weights, held in the modules whenever no training step runs.

Averaged weights change slowly, so the graph built on them and its pseudo-labels do not follow every batch (A.
Tarvainen, H. Valpola, "Mean teachers are better role models", NIPS 2017).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from semimetric.training.settings import TrainingSettings

WARM_UP = 10.0
"""Warm-up: after t steps the decay is at most (1 + t) / (10 + t), so the average leaves its start quickly."""


class RunningAverage:
    """EMA of all floating-point state of ``modules``, and of the parameters alone of ``parameters_only``.

    Buffers of the latter, such as a memory bank or the result of a metric step, are not weights. The modules hold the
    averages and ``others`` the trained weights. ``swap`` exchanges them in place, as a CUDA graph requires.
    """

    def __init__(
        self,
        modules: list[nn.Module],
        keep: float,
        parameters_only: Sequence[nn.Module] = (),
        warm_up: bool = True,
    ) -> None:
        self._keep, self._warm_up = keep, warm_up
        state = [tensor for module in modules for tensor in module.state_dict(keep_vars=True).values()]
        state += [parameter for module in parameters_only for parameter in module.parameters()]
        places = {_place(tensor): tensor.detach() for tensor in state if tensor.is_floating_point()}
        self._held = list(places.values())  # tied weights count once
        self.others = [tensor.detach().clone() for tensor in self._held]
        self._other_at = dict(zip(places, self.others, strict=True))
        device = self._held[0].device if self._held else "cpu"
        self.steps = torch.zeros((), dtype=torch.float64, device=device)

    @torch.no_grad()
    def begin(self) -> None:
        """Initialise weights and averages from what the modules hold now."""
        for held, other in zip(self._held, self.others, strict=True):
            other.copy_(held)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange averages and trained weights."""
        for held, other in zip(self._held, self.others, strict=True):
            kept = held.clone()
            held.copy_(other)
            other.copy_(kept)

    @torch.no_grad()
    def follow(self) -> None:
        """Update the averages after a step, while the modules hold the trained weights."""
        self.steps += 1
        if not self._held:
            return
        gaps = torch._foreach_sub(self._held, self.others)
        torch._foreach_mul_(gaps, self._share().to(torch.float32))
        torch._foreach_add_(self.others, gaps)

    def _share(self) -> Tensor:
        """The share of the trained weights in the next average, 0-d; larger in the first steps of a warm-up."""
        least = torch.full_like(self.steps, 1.0 - self._keep)
        return torch.maximum(1.0 - (1.0 + self.steps) / (WARM_UP + self.steps), least) if self._warm_up else least

    def averages(self, module: nn.Module) -> dict[str, Tensor]:
        """State of ``module`` by name with the averages, for ``functional_call`` while it holds the trained weights.

        Buffers are copies, because a forward pass in training mode changes them.
        """
        parameters = {name: self._other_at[_place(tensor)] for name, tensor in module.named_parameters()}
        buffers = {name: self._other_at.get(_place(tensor), tensor) for name, tensor in module.named_buffers()}
        return parameters | {name: tensor.clone() for name, tensor in buffers.items()}

    def changed(self) -> Iterator[Tensor]:
        """The tensors that ``follow`` changes."""
        yield from (self.steps, *self.others)

    def state(self) -> dict[str, Tensor]:
        """Tensors for a checkpoint."""
        return {"average.steps": self.steps.cpu().clone()} | {
            f"average.{position}": tensor.cpu().clone() for position, tensor in enumerate(self.others)
        }

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Continue from ``state``. The modules are restored separately."""
        self.steps.copy_(tensors["average.steps"])
        for position, tensor in enumerate(self.others):
            tensor.copy_(tensors[f"average.{position}"])


def average_of(settings: TrainingSettings, encoder: nn.Module, method: nn.Module) -> RunningAverage | None:
    """The average that the settings ask for: of the encoder's state and the method's parameters."""
    if settings.average == 0 or settings.lr == 0:
        return None
    return RunningAverage([encoder], settings.average, [method], settings.average_warmup)


def _place(tensor: Tensor) -> int:
    """The same for tied tensors; without memory, as on torch's meta device, for the same tensor alone."""
    return tensor.data_ptr() or id(tensor)
