"""Optional packages."""

from __future__ import annotations

import importlib
from types import ModuleType

from semimetric.core.errors import InputError


def import_extra(module: str, extra: str, user: str) -> ModuleType:
    """Import ``module``, or raise an InputError that names its ``user`` and the extra to install.

    A package with incompatible dependencies often raises RuntimeError on import.
    """
    try:
        return importlib.import_module(module)
    except (ImportError, RuntimeError) as error:
        raise InputError(
            f"{user} needs the package {module.partition('.')[0]}, which cannot be imported here ({error}). "
            f"Install it with: pip install 'semimetric[{extra}]'."
        ) from error
