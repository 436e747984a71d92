"""Versions of the packages that a run depends on."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import numpy as np
import torch

import semimetric


def versions() -> dict[str, str]:
    """Versions of the packages that a run depends on."""
    return {
        "semimetric": semimetric.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "scikit-learn": version("scikit-learn"),
    }


def version_differences(written: Mapping[str, Any]) -> str:
    """How the versions of a run differ from those here, as a sentence; empty if they do not."""
    here = versions()
    differing = [
        f"{name} {written.get(name, 'unknown')} (here {here[name]})" for name in here if written.get(name) != here[name]
    ]
    return f"the run was written with {'; '.join(differing)}." if differing else ""
