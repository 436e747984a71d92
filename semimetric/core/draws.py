"""Draws from torch's own generator, which layers such as dropout take theirs from, made as if it were one's own."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_turns = {"lock": threading.RLock()}


@contextmanager
def own_draws(seed: int | None = None, device: torch.device | None = None) -> Iterator[None]:
    """Draw from ``seed`` on, and leave torch's generator as it was; threads take turns.

    Parameters
    ----------
    seed : of the draws; without one, they continue those of the generator
    device : the GPU whose generator is used as well
    """
    devices = [device] if device is not None and device.type == "cuda" else []
    with _turns["lock"], torch.random.fork_rng(devices=devices):
        if seed is not None:
            torch.manual_seed(seed)
        yield


def _begin_alone() -> None:
    """A forked process has one thread: the others that its parent had would never answer, nor give a lock back."""
    _turns["lock"] = threading.RLock()
    torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_alone)
