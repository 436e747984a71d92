"""Whom random draws are made from: a generator of one's own, or torch's, of which a process has one on each device."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_turns = {"lock": threading.RLock()}

_WITHOUT_DRAWS = frozenset(
    f"torch.nn.modules.{name}"
    for name in (
        "activation",
        "batchnorm",
        "channelshuffle",
        "container",
        "conv",
        "flatten",
        "fold",
        "instancenorm",
        "linear",
        "normalization",
        "padding",
        "pixelshuffle",
        "pooling",
        "sparse",
        "upsampling",
    )
)
"""Where torch has layers that draw nothing when they are called, except for ``_WITH_DRAWS``."""

_WITH_DRAWS = (nn.RReLU, nn.MultiheadAttention, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class OwnDraws(TorchFunctionMode):
    """Within it, new layers of torch take their values from a generator of their own; torch's generator is not used.

    Other threads are not touched.

    Parameters
    ----------
    seed : of the draws
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(seed)

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[Any], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Name the generator where a function takes one and has none."""
        kwargs = kwargs or {}
        takes_one = "generator" in kwargs or func in (Tensor.normal_, Tensor.uniform_)
        if takes_one and kwargs.get("generator") is None:
            kwargs = kwargs | {"generator": self._generator}
        return func(*args, **kwargs)


@contextmanager
def turns(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Draw from torch's generator from ``seed`` on, and leave it as it was; threads that do so take turns.

    Parameters
    ----------
    seed : of the draws
    device : the GPU whose generator is used as well
    """
    devices = [device] if device is not None and device.type == "cuda" else []
    with _turns["lock"], torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


@contextmanager
def drawing(seed: int, device: torch.device, *parts: nn.Module) -> Iterator[torch.Generator | None]:
    """The generator that ``parts`` shall draw from, from ``seed`` on; None where that is torch's, in ``turns``.

    A GPU has torch's, because its recorded steps draw from that of the device. So have parts that may draw from it:
    layers with dropout or hooks, and what is written elsewhere.
    """
    if device.type == "cpu" and all(_takes_a_generator(module) for part in parts for module in part.modules()):
        yield torch.Generator().manual_seed(seed)
        return
    with turns(seed, device):
        yield None


def _takes_a_generator(module: nn.Module) -> bool:
    """Whether a module without its children is known to draw nothing, or from a generator that it is given."""
    written_in = type(module).__module__
    plain = written_in in _WITHOUT_DRAWS and not isinstance(module, _WITH_DRAWS)
    own = written_in.partition(".")[0] == __name__.partition(".")[0]
    return (plain or own) and not any(getattr(module, name) for name in _HOOKS)


def _begin_alone() -> None:
    """A forked process has one thread: the others that its parent had would never answer, nor give a lock back."""
    _turns["lock"] = threading.RLock()
    torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_alone)
