"""Checks of numbers and names, without torch."""

from __future__ import annotations

from math import isfinite
from numbers import Integral
from typing import Any

from semimetric.core.errors import InputError

LARGEST = 3.4e38
"""Largest number that a network, which computes in single precision, can take."""


def check_fraction(value: float, name: str) -> float:
    """Check that a number is strictly between 0 and 1."""
    if not 0.0 < value < 1.0:
        raise InputError(f"{name} must lie strictly between 0 and 1, got {value}.")
    return float(value)


def check_positive(value: float, name: str) -> None:
    """Check that a number is finite, above 0 and not too large for a network."""
    if not (value > 0 and isfinite(value)):
        raise InputError(f"{name} must be a finite number above 0, got {value}.")
    _check_size(value, name)


def check_not_negative(value: float, name: str) -> None:
    """Check that a number is finite, at least 0 and not too large for a network."""
    if not (value >= 0 and isfinite(value)):
        raise InputError(f"{name} must be a finite number of at least 0, got {value}.")
    _check_size(value, name)


def _check_size(value: float, name: str) -> None:
    if value > LARGEST:
        raise InputError(f"{name} must be at most {LARGEST:g}, got {value}.")


def check_at_least(value: float, least: float, name: str) -> None:
    """Check that a number is at least ``least``."""
    if value < least:
        raise InputError(f"{name} must be at least {least}, got {value}.")


def check_whole(value: Any, name: str, least: int = 1) -> int:
    """Check that a number is whole and at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}.")
    return int(value)


def refuse_masked(value: Any, name: str) -> None:
    """Refuse an array with masked entries: the mask would be lost, and with it what it says."""
    import numpy as np

    if isinstance(value, np.ma.MaskedArray) and np.ma.getmaskarray(value).any():
        hidden = int(np.ma.getmaskarray(value).sum())
        raise InputError(f"{name} has {hidden} masked entries, which count for nothing here. Fill or remove them.")


def check_choice(value: str, choices: tuple[str, ...], name: str) -> None:
    """Check that a name is one of ``choices``."""
    if value not in choices:
        raise InputError(f"{name} must be one of {', '.join(choices)}, got {value!r}.")
