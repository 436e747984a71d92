"""How many examples a property test draws, and whether they are the same in every run."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, settings

DRAWS = int(os.environ.get("SEMIMETRIC_DRAWS", "0"))
"""Random examples that each property draws; 0: as many as its test names, the same in every run."""

LOAD = [HealthCheck.too_slow]
"""Checks that measure time, which a busy machine fails."""

settings.register_profile("same", derandomize=True, deadline=None, suppress_health_check=LOAD)
settings.register_profile(
    "random", derandomize=False, deadline=None, suppress_health_check=LOAD, max_examples=DRAWS or 100
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "random" if DRAWS else "same"))


def draws(count: int, suppress_health_check: tuple[HealthCheck, ...] = (), **more: Any) -> settings:
    """The settings of a property test that draws ``count`` examples, or ``SEMIMETRIC_DRAWS`` random ones."""
    return settings(max_examples=DRAWS or count, suppress_health_check=[*LOAD, *suppress_health_check], **more)
