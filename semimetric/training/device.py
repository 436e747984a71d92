"""Choice of the compute device, and what it allows."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch

from semimetric.core import ranks
from semimetric.core.checks import check_choice
from semimetric.core.errors import InputError


def choose_device(name: str = "auto") -> torch.device:
    """The device called ``auto``, ``cpu`` or ``cuda``; ``auto`` is CUDA if available, else the CPU."""
    check_choice(name, ("auto", "cpu", "cuda"), "device")
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise InputError("device 'cuda' is not available to torch. Use 'auto' or 'cpu'.")
    return torch.device("cuda" if name != "cpu" and available else "cpu")


def compiles(wanted: bool, device: torch.device, warn: Callable[[str], None]) -> bool:
    """Whether training steps are compiled: if ``wanted``, on a GPU, in one process, and if compiling works there."""
    if not wanted or device.type != "cuda" or ranks.world().size > 1:
        return False
    fault = compiler_fault(device)
    if fault:
        warn(f"training steps are not compiled: {fault}.")
    return not fault


@cache
def compiler_fault(device: torch.device) -> str:
    """What goes wrong when torch compiles a small function for a device, such as a missing C compiler; else empty."""
    try:
        torch.compile(torch.sin)(torch.zeros(8, device=device))
    except Exception as error:  # of many kinds, by what is missing
        return f"torch.compile does not work here ({type(error).__name__})"
    return ""
