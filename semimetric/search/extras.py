"""Packages that not everybody has."""

from __future__ import annotations

import importlib
from types import ModuleType

from semimetric.core.errors import InputError


def import_extra(module: str, extra: str) -> ModuleType:
    """Import ``module``; where it cannot be, say which extra brings it.

    A package that is installed but does not fit its own dependencies tends to raise a RuntimeError when imported.
    """
    try:
        return importlib.import_module(module)
    except (ImportError, RuntimeError) as error:
        raise InputError(
            f"this search needs the package {module.partition('.')[0]}, which cannot be imported here ({error}). "
            f"Install it with: pip install 'semimetric[{extra}]'."
        ) from error
