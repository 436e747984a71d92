"""Choice of the compute device, and what it allows."""

from __future__ import annotations

import importlib.util
import os
import shutil

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


def why_not_compiled(device: torch.device) -> str:
    """What stands in the way of compiling training steps for a device; empty if nothing does."""
    if device.type != "cuda":
        return "it is for GPUs"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if not any(shutil.which(name) for name in (os.environ.get("CC") or "cc", "gcc", "clang")):
        return "there is no C compiler"
    return "" if ranks.world().size == 1 else "several processes train together"
