"""Checks of numbers and names, without torch."""

from __future__ import annotations

import math

from semimetric.core.errors import InputError


def check_fraction(value: float, name: str) -> float:
    """Check that a number is strictly between 0 and 1."""
    if not 0.0 < value < 1.0:
        raise InputError(f"{name} must lie strictly between 0 and 1, got {value}.")
    return float(value)


def check_positive(value: float, name: str) -> None:
    """Check that a number is finite and above 0."""
    if not (value > 0 and math.isfinite(value)):
        raise InputError(f"{name} must be a finite number above 0, got {value}.")


def check_not_negative(value: float, name: str) -> None:
    """Check that a number is finite and at least 0."""
    if not (value >= 0 and math.isfinite(value)):
        raise InputError(f"{name} must be a finite number of at least 0, got {value}.")


def check_at_least(value: float, least: float, name: str) -> None:
    """Check that a number is at least ``least``."""
    if value < least:
        raise InputError(f"{name} must be at least {least}, got {value}.")


def check_choice(value: str, choices: tuple[str, ...], name: str) -> None:
    """Check that a name is one of ``choices``."""
    if value not in choices:
        raise InputError(f"{name} must be one of {', '.join(choices)}, got {value!r}.")
