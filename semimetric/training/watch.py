"""Monitors an embedding during training and warns once if it degrades."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from semimetric.evaluation import Spread, activity_warning, collapse_warning, decline_warning
from semimetric.training.progress import COLLAPSING, DEGRADING, VIOLATED

SINGLE_POINT = 1e-12
"""Mean squared distance of unit vectors below which they are the same up to rounding; no graph can be built on them."""


@dataclass
class Watch:
    """Initial measurements and warnings so far; ``signs`` are of the last epoch. Training stops if ``collapsed``."""

    classes: int
    start: Spread | None = None
    start_active: float | None = None
    declining: bool = False
    warned: bool = False
    collapsed: bool = False
    signs: tuple[str, ...] = ()

    def look(self, spread: Spread, best: float | None, score: float | None, active: float | None) -> list[str]:
        """Warnings for an epoch, from its spread, selection score and share ``active`` of violated constraints."""
        self.start = self.start or spread
        self.start_active = active if self.start_active is None else self.start_active
        declined = None if best is None or score is None else decline_warning(best, score)
        found = {
            COLLAPSING: collapse_warning(self.start, spread, self.classes),
            DEGRADING: declined if self.declining else None,
            VIOLATED: None
            if active is None or self.start_active is None
            else activity_warning(self.start_active, active),
        }
        self.declining = declined is not None
        self.signs = tuple(name for name, sentence in found.items() if sentence)
        said = [sentence for sentence in found.values() if sentence][: 0 if self.warned else 1]
        self.warned = self.warned or bool(said)
        self.collapsed = spread.mean_distance < SINGLE_POINT
        return said

    def state(self) -> dict[str, Any]:
        """JSON values for a checkpoint."""
        return asdict(self)

    @classmethod
    def restore(cls, state: dict[str, Any]) -> Watch:
        """Continue from ``state``."""
        start = state["start"] and Spread(**state["start"])
        return cls(**(state | {"start": start, "signs": tuple(state["signs"])}))
