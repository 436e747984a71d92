"""Which of how many processes this one is."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class World:
    """How many ranks there are, and which one this is."""

    size: int = 1
    rank: int = 0


def wanted() -> World:
    """The ranks that the environment names, as ``torchrun`` sets it; one if it names none."""
    names = ("WORLD_SIZE", "RANK")
    if not all(os.environ.get(name, "").isdigit() for name in names):
        return World()
    return World(*(int(os.environ[name]) for name in names))
