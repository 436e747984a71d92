"""Sizes in bytes that environment variables name, such as 500MB or 2GiB."""

from __future__ import annotations

import os
import re

from semimetric.core.errors import InputError

UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}


def bytes_from_environment(name: str, usual: int) -> int:
    """The bytes that an environment variable names; ``usual`` if it is not set."""
    given = os.environ.get(name, "")
    if not given:
        return usual
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?i?B?)", given.strip(), re.IGNORECASE)
    unit = "" if found is None else found[2].upper()
    unit = unit if unit in UNITS else f"{unit}B"
    if found is None or unit not in UNITS:
        raise InputError(f"{name} must be a number of bytes such as 500MB or 2GiB, got {given!r}.")
    return int(float(found[1]) * UNITS[unit])
