"""What every loss of a batch must stand: to be recorded on a GPU, and to refuse what is no batch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

NO_BATCHES = [
    ({"embeddings": torch.ones(3)}, r"embeddings have the shape \(3,\) .* give a floating-point matrix \(n, d\)"),
    ({"embeddings": torch.ones(10, 5, dtype=torch.int64)}, "embeddings have .* the type torch.int64"),
    ({"targets": torch.zeros(9, dtype=torch.int64)}, r"targets have the shape \(9,\) .*, \(10,\)"),
    ({"targets": torch.zeros(10, 1, dtype=torch.int64)}, r"targets have the shape \(10, 1\)"),
    ({"targets": torch.zeros(10)}, "targets have .* the type torch.float32; give one int64 class"),
    ({"targets": torch.full((10,), -2)}, "targets go down to -2; give classes from 0 up, and -1"),
    ({"targets": torch.zeros(10, dtype=torch.int64, device="meta")}, "targets are on meta, .* are on cpu; move"),
]
"""Changes to a batch of ten, and what is said of each."""


def value_and_gradient(
    loss: Callable[..., Tensor], embeddings: Tensor, *others: Tensor | None
) -> tuple[Tensor, Tensor]:
    """A loss and its gradient in the embeddings."""
    leaf = embeddings.detach().clone().requires_grad_()
    value = loss(leaf, *others)
    return value.detach(), torch.autograd.grad(value, leaf)[0]


def assert_can_be_recorded(loss: Callable[..., Tensor], first: tuple[Tensor, ...], second: tuple[Tensor, ...]) -> None:
    """A recording made with the first arguments gives value and gradient of the second when they are copied in."""
    embeddings, *others = (tensor.cuda() for tensor in first)
    embeddings.requires_grad_()

    def step() -> tuple[Tensor, Tensor]:
        value = loss(embeddings, *others)
        return value, torch.autograd.grad(value, embeddings)[0]

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        recorded = step()
    with torch.no_grad():
        for tensor, other in zip((embeddings, *others), second, strict=True):
            tensor.copy_(other)
    graph.replay()
    torch.cuda.synchronize()
    for found, expected in zip(recorded, value_and_gradient(loss, *second), strict=True):
        torch.testing.assert_close(found.detach().cpu(), expected)
