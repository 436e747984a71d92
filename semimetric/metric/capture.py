"""Replay a function of tensors as one CUDA graph, so that many small kernels cost one launch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

Function = Callable[..., tuple[Tensor, ...]]
Key = tuple[tuple[torch.Size, torch.dtype, torch.device], ...]
WARM_UPS = 3


@dataclass(frozen=True)
class _Recording:
    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


class GraphedFunction:
    """``function(*tensors) -> tuple of tensors``, recorded once per shapes, types and device of its inputs.

    The function must not read values on the host. On a CPU it is simply called. On CUDA the inputs are copied to
    where the recording expects them and the results are cloned, so a caller never holds memory that the next call
    overwrites. A function that changes other tensors in place, such as the weights of a network, names them in
    ``changed``: they must exist before the first call, and the trial runs before a recording leave them as they were.
    """

    def __init__(self, function: Function, changed: Callable[[], Iterable[Tensor]] = tuple) -> None:
        self._function = function
        self._changed = changed
        self._recordings: dict[Key, _Recording] = {}

    @torch.no_grad()
    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return ``function(*tensors)``."""
        if not all(tensor.is_cuda for tensor in tensors):
            return self._function(*tensors)
        key = tuple((tensor.shape, tensor.dtype, tensor.device) for tensor in tensors)
        with torch.cuda.device(tensors[0].device):
            if key not in self._recordings:
                self._recordings[key] = self._record(tensors)
            recording = self._recordings[key]
            for static, tensor in zip(recording.inputs, tensors, strict=True):
                static.copy_(tensor)
            recording.graph.replay()
            return tuple(output.clone() for output in recording.outputs)

    def rehearse(self, *inputs: Tensor) -> None:
        """Run the function a few times and put back what it changed, the state of the default generators too."""
        before = [(tensor, tensor.detach().clone()) for tensor in self._changed()]
        with torch.random.fork_rng(devices={tensor.device for tensor in inputs if tensor.is_cuda}):
            for _ in range(WARM_UPS):
                self._function(*inputs)
        for tensor, value in before:
            tensor.detach().copy_(value)

    def _record(self, tensors: tuple[Tensor, ...]) -> _Recording:
        """Run on a side stream first, so that libraries allocate their handles and workspaces before capture."""
        inputs = tuple(tensor.detach().clone(memory_format=torch.contiguous_format) for tensor in tensors)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.rehearse(*inputs)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = self._function(*inputs)
        return _Recording(graph, inputs, outputs)
