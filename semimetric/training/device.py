"""Where to compute."""

from __future__ import annotations

import torch

from semimetric.core.checks import check_choice
from semimetric.core.errors import InputError


def choose_device(name: str = "auto") -> torch.device:
    """``auto`` is CUDA where there is one, else the CPU; asking for a CUDA device that is not there is refused."""
    check_choice(name, ("auto", "cpu", "cuda"), "device")
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise InputError("device 'cuda' was asked for and torch sees none. Use 'auto' or 'cpu'.")
    return torch.device("cuda" if name != "cpu" and available else "cpu")
