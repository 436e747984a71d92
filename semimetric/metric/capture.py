"""Capture a function of tensors as a CUDA graph, so that many small kernels cost one launch."""

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
    """``function(*tensors) -> tuple of tensors``, captured once for each combination of input shapes, types and device.

    The function must not read values on the host. On a CPU it is called directly. On CUDA, inputs are copied into the
    graph's buffers and results are cloned, so the next call does not overwrite them. ``changed`` lists tensors that the
    function changes in place, such as weights. They must exist before the first call. Warm-up runs restore them.
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
        """Run the function a few times, then restore the tensors it changed and the default random generators."""
        before = [(tensor, tensor.detach().clone()) for tensor in self._changed()]
        with torch.random.fork_rng(devices={tensor.device for tensor in inputs if tensor.is_cuda}):
            for _ in range(WARM_UPS):
                self._function(*inputs)
        for tensor, value in before:
            tensor.detach().copy_(value)

    def _record(self, tensors: tuple[Tensor, ...]) -> _Recording:
        """Warm up on a side stream, so that libraries allocate handles and workspaces, then capture."""
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
