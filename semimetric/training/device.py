"""Choice of the compute device."""

from __future__ import annotations

import torch

from semimetric.core.checks import check_choice
from semimetric.core.errors import InputError


def choose_device(name: str = "auto") -> torch.device:
    """The device called ``auto``, ``cpu`` or ``cuda``; ``auto`` is CUDA if available, else the CPU."""
    check_choice(name, ("auto", "cpu", "cuda"), "device")
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise InputError("device 'cuda' is not available to torch. Use 'auto' or 'cpu'.")
    return torch.device("cuda" if name != "cpu" and available else "cpu")
