"""What only a device other than the host may take part in."""

from __future__ import annotations

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class OnlyOnDevice(TorchDispatchMode):
    """Raises when a tensor of the host takes part: on a GPU it would be copied there, which no recording allows."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        hosted = [
            leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor) and leaf.device.type == "cpu"
        ]
        if hosted:
            raise AssertionError(f"{func} takes a tensor of the host")
        return func(*args, **(kwargs or {}))
