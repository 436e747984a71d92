"""Checks of numbers and names, each with a sentence that says what to do; none of them needs torch."""

from __future__ import annotations

import math

from semimetric.core.errors import InputError


def check_fraction(value: float, name: str) -> float:
    """A number strictly between 0 and 1."""
    if not 0.0 < value < 1.0:
        raise InputError(f"{name} must lie strictly between 0 and 1, got {value}.")
    return float(value)


def check_positive(value: float, name: str) -> None:
    """A number above zero."""
    if not (value > 0 and math.isfinite(value)):
        raise InputError(f"{name} must be a finite number above 0, got {value}.")


def check_not_negative(value: float, name: str) -> None:
    """A number from zero up."""
    if not (value >= 0 and math.isfinite(value)):
        raise InputError(f"{name} must be a finite number of at least 0, got {value}.")


def check_choice(value: str, choices: tuple[str, ...], name: str) -> None:
    """One of a few names."""
    if value not in choices:
        raise InputError(f"{name} must be one of {', '.join(choices)}, got {value!r}.")
